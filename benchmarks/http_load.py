"""How much HTTP one leader bears: the real leader and server, and ranks that only take their time.

    python benchmarks/http_load.py [--rate 300] [--seconds 20] [--waiting 10000] [--readers 1000] [--output FILE]

Three loads, one after the other, each on a service of its own (`benchmarks.http_leader`): pictures that come at a rate
while others of 4096 x 4096 are made into files; requests that wait; readers of /v1/events, of whom a tenth never reads.
The load comes from this process, the questions to /livez from a third one.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import resource
import shlex
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import uvloop

from benchmarks.http_client import LARGE, SMALL, Answer, Client, Probe, Reader, request_bytes
from epe.simulator.metrics import percentile

HERE = Path(__file__).resolve().parent
DRAW, KEEP = "/v1/images/generations", "/v1/requests"
NUM_LARGE_AT_ONCE = 2
# With these many times the seconds no picture ends while the load goes on.
SO_SLOW = 1e4
READERS_RATE = 100
Row = tuple[str, str]


def picture(path: str, *, side: int = SMALL) -> bytes:
    """A request for one picture of four steps."""
    body = {"prompt": "a red cube", "size": f"{side}x{side}", "num_inference_steps": 4}
    return request_bytes("POST", path, body=body)


class Service:
    """A leader's process; `begin` and `end` enclose what is measured of it."""

    def __init__(self, *, slow: float, log: Path) -> None:
        command = [sys.executable, str(HERE / "http_leader.py"), "--slow", str(slow)]
        with log.open("wb") as errors:
            self.process = subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True
            )
        self.port = int(self._line()["port"])

    def begin(self) -> None:
        self._ask("begin")
        self._probe = Probe(self.port)

    async def end(self) -> dict[str, Any]:
        """What it took since `begin`; also the seconds of the answers of `/livez`."""
        livez_s = await asyncio.to_thread(self._probe.end)
        return {**await asyncio.to_thread(self._ask, "end"), "livez_s": livez_s}

    def _ask(self, what: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{what}\n")
        self.process.stdin.flush()
        return self._line()

    def _line(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("the service has ended; its log says why")
        return dict(json.loads(line))


@asynccontextmanager
async def service(*, slow: float = 1.0) -> AsyncIterator[tuple[Service, Client]]:
    """A service that has drawn one picture, and a client of it."""
    log = Path("outputs/http-load.log")
    log.parent.mkdir(exist_ok=True)
    served = await asyncio.to_thread(lambda: Service(slow=slow, log=log))
    client = Client(served.port)
    try:
        if slow == 1.0:
            await client.ask(picture(DRAW))
        yield served, client
    finally:
        client.close()
        served.process.kill()
        served.process.wait()


async def at_rate(
    send: Callable[[], Awaitable[Answer]], *, rate: float, seconds: float
) -> list[asyncio.Future[Answer]]:
    """Send at random times of this mean rate, whether or not earlier ones are answered."""
    seeded, sent = random.Random(7), []
    begin_s = due_s = time.monotonic()
    while (due_s := due_s + seeded.expovariate(rate)) < begin_s + seconds:
        await asyncio.sleep(max(0.0, due_s - time.monotonic()))
        sent.append(asyncio.ensure_future(send()))
    return sent


# --- the loads ---


async def rate_load(*, rate: float, seconds: float) -> list[Row]:
    """Small pictures at a rate, and large ones one after the other."""
    async with service() as (served, client):
        large: list[Answer] = []
        loading = [asyncio.create_task(_draw_on(client, large)) for _ in range(NUM_LARGE_AT_ONCE)]
        served.begin()
        begin_s, own_s = time.monotonic(), time.process_time()
        small = picture(DRAW)
        sent = await at_rate(lambda: client.ask(small), rate=rate, seconds=seconds)
        answers = await asyncio.gather(*sent)
        took_s, own_s = time.monotonic() - begin_s, time.process_time() - own_s
        used = await served.end()
        for task in loading:
            task.cancel()
    num_right = sum(answer.status == 200 for answer in answers)
    return [
        ("pictures asked for, and answered with 200", f"{len(answers)}, {num_right}"),
        ("answered a second, until the last answer", f"{num_right / took_s:.0f}"),
        ("seconds to an answer", _spread([answer.seconds for answer in answers])),
        (f"pictures of {LARGE} x {LARGE} answered meanwhile", str(sum(each.status == 200 for each in large))),
        *_common_rows(used),
        ("processor time of the leader's loop for a picture, ms", f"{1e3 * used['loop_s'] / num_right:.2f}"),
        ("the same of the process that makes the load, ms", f"{1e3 * own_s / num_right:.2f}"),
    ]


async def waiting_load(*, num_waiting: int, rate: float, seconds: float) -> list[Row]:
    """Requests that wait behind slow ones, each on its connection; then others that are kept come at a rate."""
    async with service(slow=SO_SLOW) as (served, client):
        begin_s, small = time.monotonic(), picture(DRAW)
        waiting = [asyncio.ensure_future(client.ask(small)) for _ in range(num_waiting)]
        listed = request_bytes("GET", "/v1/requests?limit=1")
        await _until_taken(client, num_waiting)
        took_s = time.monotonic() - begin_s
        served.begin()
        kept = picture(KEEP)
        sent = await at_rate(lambda: client.ask(kept), rate=rate, seconds=seconds)
        answers = await asyncio.gather(*sent)
        used = await served.end()
        assert not any(each.done() for each in waiting), "none of those that wait has ended"
        assert (await client.ask(listed)).status == 200
        for each in waiting:
            each.cancel()
    num_right = sum(answer.status == 202 for answer in answers)
    return [
        ("requests that wait", str(num_waiting)),
        ("of these taken a second", f"{num_waiting / took_s:.0f}"),
        ("kept requests sent while they wait, and answered with 202", f"{len(answers)}, {num_right}"),
        ("seconds to an answer", _spread([answer.seconds for answer in answers])),
        *_common_rows(used),
        ("processor time of the leader's loop for a request, ms", f"{1e3 * used['loop_s'] / num_right:.2f}"),
        ("memory of the leader, MiB", _mib(used["rss_bytes"])),
    ]


async def reader_load(*, num_readers: int, seconds: float) -> list[Row]:
    """Readers of events while pictures are drawn."""
    async with service() as (served, client):
        served.begin()
        before = await served.end()
        num_stalled = num_readers // 10
        readers = [Reader(stalls=index < num_stalled) for index in range(num_readers)]
        for reader in readers:
            await reader.begin(served.port)
        served.begin()
        small = picture(DRAW)
        sent = await at_rate(lambda: client.ask(small), rate=READERS_RATE, seconds=seconds)
        answers = await asyncio.gather(*sent)
        used = await served.end()
    reading = readers[num_stalled:]
    return [
        ("readers, of whom never read", f"{num_readers}, {num_stalled}"),
        ("pictures drawn meanwhile", str(sum(answer.status == 200 for answer in answers))),
        ("seconds to an answer", _spread([answer.seconds for answer in answers])),
        ("readers that read to the end", str(sum(reader.is_open for reader in reading))),
        ("MiB read by all", _mib(sum(reader.num_bytes for reader in reading))),
        *_common_rows(used),
        (
            "memory of the leader before and after, MiB",
            f"{_mib(before['rss_bytes'])}, {_mib(used['rss_bytes'])}",
        ),
    ]


async def _draw_on(client: Client, answers: list[Answer]) -> None:
    large = picture(DRAW, side=LARGE)
    while True:
        answers.append(await client.ask(large))


async def _until_taken(client: Client, num_requests: int) -> None:
    """Until so many requests are in work or wait, as `GET /health` counts them."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    there = 0
    while there < num_requests:
        await asyncio.sleep(0.1)
        writer.write(request_bytes("GET", "/health"))
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
        health = json.loads(await reader.readexactly(length))
        there = health["num_waiting"] + health["num_running"]
    writer.close()


def _common_rows(used: dict[str, Any]) -> list[Row]:
    return [
        ("`/livez`, ms", _spread([1e3 * seconds for seconds in used["livez_s"]])),
        ("lag of the loop, ms", _spread([1e3 * seconds for seconds in used["lags_s"]])),
        ("share of a core that the loop took", f"{used['loop_s'] / used['seconds']:.2f}"),
    ]


def _spread(values: Sequence[float]) -> str:
    return ", ".join(f"{percentile(values, share):.3g}" for share in (0.5, 0.99, 1.0))


def _mib(num_bytes: float) -> str:
    return f"{num_bytes / 2**20:.0f}"


# --- the page ---


async def page(args: argparse.Namespace) -> str:
    """The page with all three loads."""
    at = f"at {args.rate:g} a second"
    loads = {
        f"Pictures {at}, while others of {LARGE} x {LARGE} are made into files": rate_load(
            rate=args.rate, seconds=args.seconds
        ),
        f"Requests that wait, while others come {at}": waiting_load(
            num_waiting=args.waiting, rate=args.rate, seconds=args.seconds
        ),
        "Readers of events": reader_load(num_readers=args.readers, seconds=args.seconds),
    }
    lines = _head()
    for title, load in loads.items():
        rows = await load
        lines += [
            "",
            f"## {title}",
            "",
            "| | |",
            "|---|--:|",
            *(f"| {what} | {value} |" for what, value in rows),
        ]
        print(*lines[-len(rows) - 4 :], sep="\n", flush=True)
    return "\n".join(lines) + "\n"


def _head() -> list[str]:
    return [
        "# HTTP under load",
        "",
        f"`{shlex.join(['python', *sys.argv])}`, {time.strftime('%Y-%m-%d')}, {platform.machine()} with "
        f"{os.cpu_count()} cores, Python {platform.python_version()}, load average {os.getloadavg()[0]:.1f} before.",
        "",
        "The leader as `epe serve` starts it, its HTTP and 16 simulated ranks in one process and on one loop; "
        "messages cross the link in memory as bytes. A small picture has four steps and takes 20 ms of one rank; files "
        "are really made. Three numbers are the median, the 99th percentile and the most.",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=300)
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--waiting", type=int, default=10_000)
    parser.add_argument("--readers", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    args = parser.parse_args()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    text = uvloop.run(page(args))
    if args.output:
        args.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
