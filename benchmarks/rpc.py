"""How long a small ask takes over the RPC link, against a plain asyncio TCP stream, between the same two processes.

    python benchmarks/rpc.py [--asks 1000] [--output docs/results/rpc.md]

The two are asked in turn, so that both meet the same machine; each batch gives one ratio of medians.
"""

from __future__ import annotations

import argparse
import asyncio
import multiprocessing
import os
import platform
import shlex
import statistics
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # before torch is loaded

import torch
import uvloop

from epe.messages import Cancel
from epe.transport.rpc import RpcLink
from epe.transport.store import host_store, join_store
from epe.transport.wire import Codec

NODES = ("leader", "r0")
NUM_BATCHES = 5
MESSAGE = Cancel(request_id="request-0001")


class Echo:
    """Answers every ask with True."""

    def deliver(self, target: str, sender: str, message: Any) -> None:
        pass

    async def answer(self, target: str, sender: str, message: Any) -> bool:
        return True

    def node_down(self, node: str, reason: str) -> None:
        pass


async def answer_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """The TCP reference: the same bytes in a frame with a length, decoded and answered."""
    codec = Codec()
    while head := await reader.read(4):
        codec.decode(await reader.readexactly(int.from_bytes(head, "big")))
        writer.write(frame(codec.encode(True)))
    writer.close()


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + data


async def ask_stream(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, codec: Codec) -> None:
    writer.write(frame(codec.encode(MESSAGE)))
    head = await reader.readexactly(4)
    codec.decode(await reader.readexactly(int.from_bytes(head, "big")))


async def far_end(store_port: int, pipe: Any) -> None:
    """The answering process; ends when the asking one says so."""
    server = await asyncio.start_server(answer_stream, "127.0.0.1", 0)
    pipe.send(server.sockets[0].getsockname()[1])
    store = join_store("127.0.0.1", store_port, timeout_s=60)
    link = await RpcLink.open(Echo(), store=store, epoch=0, node="r0", members=NODES)
    await asyncio.to_thread(pipe.recv)
    await link.close()
    server.close()


async def near_end(store: Any, tcp_port: int, num_asks: int) -> dict[str, list[list[float]]]:
    """Seconds of each round trip, by way and batch."""
    link = await RpcLink.open(Echo(), store=store, epoch=0, node="leader", members=NODES)
    reader, writer = await asyncio.open_connection("127.0.0.1", tcp_port)
    codec = Codec()
    ways: dict[str, Callable[[], Awaitable[Any]]] = {
        "ask over RpcLink": lambda: link.ask("worker@r0", "planner@leader", MESSAGE, 10.0),
        "TCP stream": lambda: ask_stream(reader, writer, codec),
    }
    await measure(ways, 50)
    batches = [await measure(ways, num_asks // NUM_BATCHES) for _ in range(NUM_BATCHES)]
    writer.close()
    await link.close()
    return {name: [batch[name] for batch in batches] for name in ways}


async def measure(ways: dict[str, Callable[[], Awaitable[Any]]], num: int) -> dict[str, list[float]]:
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(num):
        for name, way in ways.items():
            begin_s = time.perf_counter()
            await way()
            seconds[name].append(time.perf_counter() - begin_s)
    return seconds


def report(measured: dict[str, list[list[float]]]) -> str:
    lines = ["| way | median ms | p99 ms | round trips |", "|---|---|---|---|"]
    for name, batches in measured.items():
        all_s = sorted(second for batch in batches for second in batch)
        p99_s = all_s[int(len(all_s) * 0.99)]
        lines.append(f"| {name} | {statistics.median(all_s) * 1e3:.3f} | {p99_s * 1e3:.3f} | {len(all_s)} |")
    ours, theirs = measured.values()
    ratios = [statistics.median(a) / statistics.median(b) for a, b in zip(ours, theirs, strict=True)]
    middle = statistics.median(ratios)
    lines += ["", f"Ratio of medians: {middle:.1f} (batches: {min(ratios):.1f} to {max(ratios):.1f})."]
    return "\n".join(lines)


def document(table: str) -> str:
    versions = f"Python {platform.python_version()}, torch {torch.__version__}"
    machine = f"{platform.machine()}, {os.cpu_count()} cores, {versions}"
    command = shlex.join(["python", "benchmarks/rpc.py", *sys.argv[1:]])
    return f"# Round trip of a small ask\n\n`{command}` on {machine}.\n\n{table}\n"


def run_far_end(store_port: int, pipe: Any) -> None:
    torch.set_num_threads(1)
    uvloop.run(far_end(store_port, pipe))


def measure_links(num_asks: int) -> dict[str, list[list[float]]]:
    """Seconds of each round trip, by way and batch, between this process and one that is started for it."""
    torch.set_num_threads(1)
    store = host_store()
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    far = spawn.Process(target=run_far_end, args=(store.port, theirs), daemon=True)
    far.start()
    measured = uvloop.run(near_end(store, ours.recv(), num_asks))
    ours.send("end")
    far.join(10)
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--asks", type=int, default=1000)
    parser.add_argument("--output", type=Path, help="write the table to this Markdown file too")
    options = parser.parse_args()
    table = report(measure_links(options.asks))
    print(table)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(document(table))


if __name__ == "__main__":
    main()
