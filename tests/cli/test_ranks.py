"""`epe ranks` against the real application, with an engine in memory behind it."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from epe.cli import main
from epe.config.api_keys import ApiKey
from epe.families import family
from epe.messages import RestartStatus, Status
from epe.server.app import make_app, serve
from epe.server.settings import HttpSettings
from tests.server.stand_in import RUNNING, StandIn

KEY = "alice-has-this-key"


class Slow(StandIn):
    """Each look at it brings what was begun one step on."""

    async def status(self) -> Status:
        now = await super().status()
        if now.ranks[1].state == "draining":
            held = "1 lease run on it or fetch from it"
            is_told = now.ranks[1].reason == held
            self.is_with(1, state="drained" if is_told else "draining", reason="" if is_told else held)
        if (restart := now.restart) is not None:
            self._restart_on(restart)
        return now

    async def begin_restart(self) -> Status:
        self.status_now = msgspec.structs.replace(RUNNING, restart=RestartStatus(rank=0, waiting=(1,)))
        self.is_with(0, state="restarting", reason="it makes room")
        return self.status_now

    def _restart_on(self, restart: RestartStatus) -> None:
        following = RestartStatus(rank=1, waiting=()) if restart.waiting else None
        self.status_now = msgspec.structs.replace(RUNNING, restart=following)
        if following is not None:
            self.is_with(1, state="draining", reason="the state of 1 request is only there")


@pytest.fixture
def url() -> Iterator[str]:
    """Where an application answers, on a loop of its own: the command blocks."""
    engine = Slow()
    sock = socket.create_server(("127.0.0.1", 0))
    loop = asyncio.new_event_loop()
    app = make_app(
        engine,
        family=family("zimage"),
        name="image",
        settings=HttpSettings(keys={"alice": ApiKey(key=KEY)}),
        restart=engine.begin_restart,
    )
    runner = loop.run_until_complete(serve(app, sock, end_within_s=0.1))
    turning = threading.Thread(target=loop.run_forever)
    turning.start()
    yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(timeout=60)
    loop.call_soon_threadsafe(loop.stop)
    turning.join()
    loop.close()


@pytest.fixture
def ranks(url: str, tmp_path: Path):
    """Runs the command with the service and its key."""
    key_file = tmp_path / "key"
    key_file.write_text(f"{KEY}\n")
    return lambda *argv: main.run(["ranks", *argv, "--url", url, "--key-file", str(key_file)])


@pytest.fixture
def said(capsys):
    """What the command has said on standard output; the log of the service stands there too."""
    return lambda: [line for line in capsys.readouterr().out.splitlines() if line.startswith(("rank", "all"))]


def test_the_ranks_are_listed(ranks, said):
    assert ranks("list") == 0
    assert said() == ["rank 0: idle", "rank 1: busy"]


def test_a_rank_is_cordoned_and_readmitted(ranks, said):
    assert ranks("cordon", "1") == ranks("readmit", "1") == 0
    assert said() == ["rank 1: cordoned", "rank 1: idle"]


def test_a_drain_is_followed_to_its_end(ranks, said):
    assert ranks("drain", "1") == 0
    assert said() == [
        "rank 1: draining",
        "rank 1: draining (1 lease run on it or fetch from it)",
        "rank 1: drained",
    ]


def test_a_restart_is_followed_to_its_end(ranks, said):
    assert ranks("restart") == 0
    assert said() == [
        "rank 0: restarting (it makes room)",
        "rank 1: draining (the state of 1 request is only there)",
        "all ranks have been restarted",
    ]


def test_what_the_service_refuses_is_its_sentence_and_code_1(ranks, url, capsys):
    assert ranks("drain", "7") == 1
    assert "rank 7 is none of this service" in capsys.readouterr().err
    assert main.run(["ranks", "list", "--url", url]) == 1
    assert "a key is missing" in capsys.readouterr().err


def test_where_nobody_answers_that_is_said_with_code_1(capsys):
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        port = deaf.getsockname()[1]
    assert main.run(["ranks", "list", "--url", f"http://127.0.0.1:{port}"]) == 1
    assert f"http://127.0.0.1:{port} does not answer" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["drain"], "drain wants a RANK"),
        (["restart", "1"], "restart takes no RANK"),
        (["drain", "one"], "not a whole number"),
        (["explode"], "explode"),
        (["list", "--url", "file:///etc/passwd"], "is no address"),
        (["list", "--key-file", "/nowhere/at/all"], "--key-file"),
    ],
)
def test_a_command_that_makes_no_sense_is_one_sentence_and_code_2(argv, words, capsys):
    assert main.run(["ranks", *argv]) == 2
    said = capsys.readouterr().err
    assert words in said
    assert said.count("\n") == 1
