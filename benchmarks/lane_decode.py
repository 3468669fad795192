"""Decodes over the rows of a lane: time, memory, and what neighbours' rows take of it. Cases of `benchmarks.multi_gpu`,
run by every rank."""

from __future__ import annotations

import gc
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from benchmarks.h200_vaep import Case as Decode
from benchmarks.h200_vaep import difference, seconds_of, whole
from benchmarks.noted_exchange import NotedExchange, Notes
from benchmarks.place import LANE_LIMIT_S, Setting
from benchmarks.step_entrants import GRAPH_BYTES, graph_device
from epe.graphs import Graphs
from epe.messages import Lane
from epe.models.decoding import decoded
from epe.telemetry.log import configure
from epe.transport.exchange import Exchange, SoloExchange
from epe.vae import decode
from tests.world import RankContext

Line = dict[str, Any]
ROUNDS = 5
# (decoder, latent rows and columns, latent frames, type).
DECODES = (
    ("AutoencoderKL", (128, 128), 1, "bfloat16"),
    ("AutoencoderKL", (256, 256), 1, "bfloat16"),
    ("AutoencoderKLWan", (60, 104), 5, "float32"),
)
TINY_ROWS, TINY_FRAMES = (24, 16), 3


def cases(setting: Setting) -> list[Decode]:
    """Pictures of 1024 and 2048 pixels a side, and a video of 480 x 832 with 17 frames."""
    found = []
    for decoder, (rows, columns), num_frames, dtype in DECODES:
        if setting.tiny:
            (rows, columns), num_frames, dtype = TINY_ROWS, min(num_frames, TINY_FRAMES), "float32"
        found.append(
            Decode(
                decoder=decoder,
                rows=rows,
                columns=columns,
                num_frames=num_frames,
                dtype=dtype,
                device=setting.device,
                tiny=setting.tiny,
            )
        )
    return found


def decodes(context: RankContext, setting: Setting, case: Decode) -> list[Line]:
    """One rank and the whole lane in turn, as they are and captured, and diffusers' decode of the whole."""
    configure(json=True, level="warning")
    device = torch.device(case.device)
    if setting.device == "cuda":
        device = torch.device("cuda", context.rank)
        torch.cuda.set_device(device)
    gc.collect()
    groups = context.groups(device=device, backend=setting.backend, timeout_s=LANE_LIMIT_S)
    lane = groups.exchange(Lane(ranks=tuple(range(context.world_size))))
    vae, own = case.vae(), case.vae()  # Bands turn their weights over, which would slow diffusers down.
    latents = case.latents(vae)
    ways: dict[str, Callable[[], Any]] = {"whole": lambda: whole(own, latents)}
    for width, exchange in ((1, SoloExchange()), (lane.width, lane)):
        ways[f"bands {width}"] = _bands(vae, latents, exchange, None)
        if case.num_frames == 1:  # Videos are decoded as they are.
            graphs = Graphs(graph_device(device), budget_bytes=GRAPH_BYTES)
            ways[f"captured {width}"] = _bands(vae, latents, exchange, graphs)
    lines = _measured(ways, lane, device)
    lines[f"bands {lane.width}"] |= _noted(vae, latents, lane, device)
    groups.close()
    return [{"way": way, **line} for way, line in lines.items()]


def _bands(
    vae: Any, latents: torch.Tensor, exchange: Exchange, graphs: Graphs | None
) -> Callable[[], torch.Tensor | None]:
    def way() -> torch.Tensor | None:
        with torch.inference_mode():
            return decoded(vae, latents, exchange, graphs=graphs)

    return way


def _measured(ways: dict[str, Callable[[], Any]], lane: Exchange, device: torch.device) -> dict[str, Line]:
    """Memory above the weights at the first call, bits against one rank in bands, and seconds in turn."""
    lines: dict[str, Line] = {}
    expected: torch.Tensor | None = None
    for name, way in ways.items():
        meet(lane, device)
        given, peak_mib = _peak(device, way)
        way()
        way()
        lines[name] = {"peak_mib": peak_mib, "ms": []}
        if name == "bands 1":
            expected = given
        elif given is not None and expected is not None:
            lines[name] |= difference(given, expected)
    for _ in range(ROUNDS):
        for name, way in ways.items():
            meet(lane, device)
            lines[name]["ms"].append(round(1e3 * seconds_of(device.type, way), 3))
    for line in lines.values():
        line["median_ms"] = median(line["ms"])
    return lines


def _noted(vae: Any, latents: torch.Tensor, lane: Exchange, device: torch.device) -> Line:
    """What this rank receives, by the kind of call, and how long its stream waits for that."""
    notes = Notes(device)
    meet(lane, device)
    with torch.inference_mode():
        decode(vae, latents, NotedExchange(lane, notes))  # type: ignore[arg-type]
    return {
        "calls": dict(notes.calls),
        "received_kib": {kind: count >> 10 for kind, count in notes.received_bytes.items()},
        "exchange_ms": round(1e3 * notes.seconds(), 3),
    }


def meet(lane: Exchange, device: torch.device) -> None:
    """All ranks of the lane go on from here at once, with nothing left to compute."""
    lane.gather(torch.zeros(1, device=device), (1,) * lane.width, dim=0)
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _peak(device: torch.device, way: Callable[[], Any]) -> tuple[Any, int]:
    if device.type == "cpu":
        return way(), 0
    torch.cuda.synchronize(device)
    torch.cuda.reset_peak_memory_stats(device)
    before = torch.cuda.memory_allocated(device)
    given = way()
    torch.cuda.synchronize(device)
    return given, (torch.cuda.max_memory_allocated(device) - before) // 2**20
