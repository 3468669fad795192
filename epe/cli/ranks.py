"""`epe ranks`: takes ranks of a running service out of it and back, and restarts them one after the other."""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from epe.cli.parser import Parser, whole_number
from epe.errors import BadInput, BadSetting, EpeError, Gone

ACTIONS = ("list", "cordon", "drain", "readmit", "restart")
_POLL_S = 0.5
_ANSWER_WITHIN_S = 60.0


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        "epe ranks",
        description="Show the ranks of a running service; take one out of it (cordon: it gets no more work; drain: and "
        "wait until nothing is only there) and back (readmit); restart all, one after the other (restart).",
    )
    parser.add_argument("action", choices=ACTIONS, metavar="ACTION", help=", ".join(ACTIONS))
    parser.add_argument(
        "rank", nargs="?", type=whole_number, metavar="RANK", help="for cordon, drain and readmit"
    )
    parser.add_argument("--url", default="http://127.0.0.1:18200", help="the service (default %(default)s)")
    parser.add_argument(
        "--key-file", metavar="FILE", help="a file with the key of a client, and nothing else"
    )
    args = parser.parse_args(argv)
    names_one = args.action in ("cordon", "drain", "readmit")
    if names_one != (args.rank is not None):
        raise BadInput(
            f"{args.action} " + ("wants a RANK" if names_one else "takes no RANK: it is for all ranks")
        )
    _act(Remote(args.url, key=_read_key(args.key_file)), args.action, args.rank)
    return 0


class Remote:
    """The ranks of a service, over HTTP."""

    def __init__(self, url: str, *, key: str | None) -> None:
        if not url.startswith(("http://", "https://")):
            raise BadInput(f"--url {url} is no address; write it as http://127.0.0.1:18200")
        self.url = url.rstrip("/")
        self.key = key

    def ask(self, path: str, body: dict[str, str] | None = None) -> dict[str, Any]:
        """The answer; raises `EpeError` with the sentence of the service, or `Gone` where there is none."""
        headers = {"Content-Type": "application/json"}
        if self.key is not None:
            headers["Authorization"] = f"Bearer {self.key}"
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(f"{self.url}{path}", data=data, headers=headers)
        try:
            with urllib.request.urlopen(request, timeout=_ANSWER_WITHIN_S) as reply:
                answer: dict[str, Any] = json.load(reply)
                return answer
        except urllib.error.HTTPError as error:
            raise EpeError(_sentence_of(error)) from None
        except ValueError:
            raise Gone(f"{self.url} answers, but not as a service of EPE does; is --url right?") from None
        except OSError as error:
            advice = "is the service running there, and --url right?"
            raise Gone(f"{self.url} does not answer ({_reason_of(error)}); {advice}") from None

    def ranks(self) -> dict[str, Any]:
        """All ranks, and the restart."""
        return self.ask("/v1/ranks")


def _act(service: Remote, action: str, rank: int | None) -> None:
    match action:
        case "list":
            for each in service.ranks()["data"]:
                print(_line(each))
        case "restart":
            service.ask("/v1/ranks", {"action": action})
            _follow_restart(service)
        case _:
            state = service.ask(f"/v1/ranks/{rank}", {"action": action})
            print(_line(state), flush=True)
            if action == "drain":
                _follow_drain(service, state)


def _follow_drain(service: Remote, said: dict[str, Any]) -> None:
    """Wait until a rank is drained, and print what is left meanwhile."""
    while said["state"] == "draining":
        time.sleep(_POLL_S)
        now = next(each for each in service.ranks()["data"] if each["rank"] == said["rank"])
        if (now["state"], now["reason"]) != (said["state"], said["reason"]):
            print(_line(now), flush=True)
        said = now
    if said["state"] != "drained":
        raise EpeError(f"rank {said['rank']} was not drained: it is {said['state']} now")


def _follow_restart(service: Remote) -> None:
    """Wait until all ranks have been restarted, and print each as its turn comes and while it is away."""
    before = None
    while (restart := (now := service.ranks())["restart"]) is not None:
        at = next((each for each in now["data"] if each["rank"] == restart["rank"]), None)
        if at is not None and (line := _line(at, without_request=True)) != before:
            print(line, flush=True)
            before = line
        time.sleep(_POLL_S)
    if away := [each for each in now["data"] if each["state"] not in ("idle", "busy")]:
        raise EpeError(f"the restart has ended, but {'; '.join(map(_line, away))}")
    print("all ranks have been restarted")


def _line(rank: dict[str, Any], *, without_request: bool = False) -> str:
    """For example `rank 2: draining (1 lease run on it)`."""
    told = rank["reason"] or ("" if without_request else rank["request_id"] or "")
    return f"rank {rank['rank']}: {rank['state']}" + (f" ({told})" if told else "")


def _reason_of(error: OSError) -> str:
    """In the words of the system: urllib puts its own around them."""
    cause = error.reason if isinstance(error, urllib.error.URLError) else error
    return cause.strerror or str(cause) if isinstance(cause, OSError) else str(cause)


def _sentence_of(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"the service answered {error.code} {error.reason}"


def _read_key(path: str | None) -> str | None:
    if path is None:
        return None
    try:
        key = Path(path).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"cannot be read: {error}", path="--key-file") from None
    if not key or len(key.split()) != 1 or not key.isascii():
        raise BadSetting("holds no key; the file has the key alone, on one line", path="--key-file")
    return key
