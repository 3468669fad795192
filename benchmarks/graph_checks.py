"""What only a GPU can show of captured passes and copies: failures are survived, memory comes back, other threads may
copy, and pixels leave beside the steps of others.

python -m benchmarks.graph_checks
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from epe.execution.copying import Copying, in_host_memory
from epe.graphs import CudaGraphs, Graphs
from epe.parallel.kernels import attention_kernels, problem_with_kernels
from epe.telemetry.log import configure
from epe.transport.exchange import Exchange, SoloExchange
from tests.lanes import ThreadExchange, on_lane

SIDE = 2048


def main() -> None:
    configure(json=True, level="warning")
    device = torch.device("cuda")
    checks = (
        names_its_attention,
        replays,
        replays_after_a_gap,
        survives_a_failure,
        gives_memory_back,
        lets_others_copy,
        brings_pixels_out,
        exchanges_between_graphs,
    )
    for check in checks:
        try:
            line: dict[str, Any] = {"check": check.__name__, **check(device)}
        except Exception as error:
            line = {"check": check.__name__, "error": f"{type(error).__name__}: {error}"[:500]}
        print(json.dumps(line), flush=True)


def replays(device: torch.device) -> dict[str, Any]:
    graphs, work = _graphs(device), _work(device)
    equal = all(_equal(graphs, work, device, seed) for seed in range(6))
    return {"equal_bits": equal, "replayed": graphs.statistics.num_replayed}


def names_its_attention(device: torch.device) -> dict[str, Any]:
    config = {"num_attention_heads": 24, "attention_head_dim": 128}
    kernels = attention_kernels(config, device=device, dtype=torch.bfloat16)
    capability = torch.cuda.get_device_capability(device)
    return {"kernels": kernels, "problem": problem_with_kernels(kernels, capability=capability)}


def replays_after_a_gap(device: torch.device) -> dict[str, Any]:
    """The first two passes run as they are; the shape is captured when they are over."""
    graphs, work, equal = _graphs(device), _work(device), True
    graphs.in_gaps = True
    for seed in range(6):
        equal &= _equal(graphs, work, device, seed)
        if seed == 1:
            graphs.capture_seen(goes_on=False)
    counts = graphs.statistics
    return {"equal_bits": equal, "eager": counts.num_eager, "replayed": counts.num_replayed}


def brings_pixels_out(device: torch.device) -> dict[str, Any]:
    """A picture of 4096 x 4096 while the stream of the steps has much to do: the copy must not wait for it."""
    pixels = torch.randint(256, (1, 4096, 4096, 3), device=device, dtype=torch.uint8)
    weight = torch.randn(4 * SIDE, 4 * SIDE, device=device, dtype=torch.bfloat16)

    async def bring() -> dict[str, Any]:
        copying = Copying(device)
        await copying.run(partial(in_host_memory, pixels))
        torch.cuda.synchronize()
        begin_s = time.perf_counter()
        for _ in range(100):
            weight @ weight
        queued_s = time.perf_counter()
        brought = await copying.run(partial(in_host_memory, pixels))
        brought_s = time.perf_counter()
        torch.cuda.synchronize()
        steps_s = time.perf_counter() - begin_s
        copying.close()
        return {
            "copy_ms": round(1e3 * (brought_s - queued_s), 2),
            "steps_ms": round(1e3 * steps_s, 2),
            "left_of_the_steps_ms": round(1e3 * (steps_s - (brought_s - begin_s)), 2),
            "equal_bits": bool(torch.equal(torch.from_numpy(brought), pixels.cpu())),
        }

    return asyncio.run(bring())


def survives_a_failure(device: torch.device) -> dict[str, Any]:
    """A pass that asks for a value while it is captured, and passes after it."""
    graphs, work = _graphs(device), _work(device)

    def asking(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return work(exchange, args, kwargs) if args[0][0, 0].item() < 1e9 else None

    failed = all(_equal(graphs, asking, device, seed) for seed in range(3))
    others = all(_equal(graphs, work, device, seed, rows=SIDE // 2) for seed in range(3))
    counts = graphs.statistics
    return {
        "equal_bits": failed and others,
        "refused": counts.num_refused,
        "captured_after_it": counts.num_captured,
    }


def gives_memory_back(device: torch.device) -> dict[str, Any]:
    graphs, work = _graphs(device), _work(device)
    _equal(graphs, work, device, 0)
    torch.cuda.empty_cache()
    before_bytes = CudaGraphs(device).used_bytes()
    for seed in range(3):
        _equal(graphs, work, device, seed)
    counted_bytes = graphs.statistics.num_bytes
    graphs.clear()
    left_bytes = CudaGraphs(device).used_bytes() - before_bytes
    return {"counted_mib": counted_bytes / 2**20, "left_after_clearing_mib": left_bytes / 2**20}


def lets_others_copy(device: torch.device) -> dict[str, Any]:
    """Another thread copies to the host all the while, as the export of a state does."""
    graphs, work, ends, copies = _graphs(device), _work(device), threading.Event(), 0

    def copy() -> None:
        nonlocal copies
        tensor = torch.randn(SIDE, SIDE, device=device)
        while not ends.is_set():
            (tensor + 1).to("cpu")
            copies += 1

    thread = threading.Thread(target=copy)
    thread.start()
    equal = all(_equal(graphs, work, device, seed, rows=256 * (1 + seed // 3)) for seed in range(18))
    ends.set()
    thread.join()
    counts = graphs.statistics
    return {
        "equal_bits": equal,
        "captured": counts.num_captured,
        "refused": counts.num_refused,
        "copies": copies,
    }


def exchanges_between_graphs(device: torch.device) -> dict[str, Any]:
    """Two ranks, threads on one GPU, whose passes gather in each of four layers."""

    def task(lane: ThreadExchange) -> tuple[bool, int, int]:
        graphs, work = _graphs(device), _gathering(device)
        equal = True
        for seed in range(4):
            given = _rows(device, seed + 10 * lane.position, 64)
            torch.cuda.synchronize()
            replayed = graphs.run(work, lane, (given,), {})  # type: ignore[arg-type]
            torch.cuda.synchronize()
            equal &= torch.equal(replayed, work(lane, (given,), {}))  # type: ignore[arg-type]
        return equal, graphs.statistics.num_replayed, graphs.statistics.num_refused

    (equal, replayed, refused), (equal_too, *_) = on_lane(2, task)
    return {"equal_bits": equal and equal_too, "replayed": replayed, "refused": refused}


Work = Callable[[Exchange, tuple[Any, ...], dict[str, Any]], Any]


def _work(device: torch.device) -> Work:
    weight = _rows(device, 99, SIDE)

    def work(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rows = args[0]
        for _ in range(4):
            rows = torch.nn.functional.silu(rows @ weight) * 0.1
        return rows

    return work


def _gathering(device: torch.device) -> Work:
    weight = _rows(device, 99, SIDE)

    def work(exchange: Exchange, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        rows = args[0]
        for _ in range(4):
            whole = exchange.gather(torch.nn.functional.silu(rows @ weight) * 0.1, (64, 64), dim=0)
            rows = rows + whole.mean(dim=0, keepdim=True)
        return rows

    return work


def _graphs(device: torch.device) -> Graphs:
    return Graphs(CudaGraphs(device), budget_bytes=8 * 2**30)


def _rows(device: torch.device, seed: int, count: int) -> torch.Tensor:
    generator = torch.Generator(device).manual_seed(seed)
    return torch.randn(count, SIDE, device=device, dtype=torch.bfloat16, generator=generator)


def _equal(graphs: Graphs, work: Work, device: torch.device, seed: int, *, rows: int = SIDE) -> bool:
    given = _rows(device, seed, rows)
    replayed = graphs.run(work, SoloExchange(), (given,), {})
    return bool(torch.equal(replayed, work(SoloExchange(), (given,), {})))


if __name__ == "__main__":
    main()
