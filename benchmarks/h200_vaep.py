"""Decoders of real size on one GPU: what bands cost a rank alone, that lanes of processes which share the GPU give its
bits, and that little memory is enough for a large picture.

    python -m benchmarks.h200_vaep > RUN.jsonl            # on CUDA, about four minutes
    python -m benchmarks.h200_vaep --device cpu --tiny    # the same program on small decoders and pictures

One JSON object a line, as it goes. Weights are random.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch

from benchmarks.real_sizes import MODELS
from benchmarks.vaep import DECODERS
from epe.graphs import CudaGraphs, Graphs
from epe.messages import Lane
from epe.models.decoding import decoded
from epe.telemetry.log import configure
from epe.transport.exchange import Exchange, SoloExchange
from epe.vae import bands_of, decode
from tests.graphs.tape import TapeDevice
from tests.world import RankContext, RankFailed, World

ROUNDS = 7
LANE_LIMIT_S = 90.0
# (latent rows and columns, GiB): less than the whole decode needs, with enough for bands on the device, and without.
CAPS = ((512, 26.0), (256, 4.0))


@dataclass(frozen=True, kw_only=True)
class Case:
    """One decode: latent rows, columns and frames of a decoder's own model."""

    decoder: str
    rows: int
    columns: int
    num_frames: int = 1
    dtype: str = "bfloat16"
    device: str = "cuda"
    tiny: bool = False

    def vae(self) -> Any:
        model = MODELS[DECODERS[self.decoder]]
        torch.manual_seed(0)
        config = {**model.vae_config, **(model.tiny_vae if self.tiny else {})}
        with torch.device(self.device):
            return model.vae(**config).to(getattr(torch, self.dtype)).eval()

    def latents(self, vae: Any) -> torch.Tensor:
        causal = hasattr(vae.config, "z_dim")
        channels = vae.config.z_dim if causal else vae.config.latent_channels
        shape = (1, channels, *((self.num_frames,) if causal else ()), self.rows, self.columns)
        drawn = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        return drawn.to(self.device, getattr(torch, self.dtype))


def cases(device: str, *, tiny: bool) -> Iterator[Case]:
    """Pictures of 1024 x 1024; videos of 480 x 832 with 17 frames."""
    for decoder in DECODERS:
        place = {"decoder": decoder, "device": device, "tiny": tiny}
        if decoder != "AutoencoderKLWan":
            size = (24, 16) if tiny else (128, 128)
            yield Case(rows=size[0], columns=size[1], **place)  # type: ignore[arg-type]
            continue
        size = (24, 16) if tiny else (60, 104)
        for dtype in ("float32", "bfloat16"):
            yield Case(rows=size[0], columns=size[1], num_frames=3 if tiny else 5, dtype=dtype, **place)  # type: ignore[arg-type]


# -- alone ---------------------------------------------------------------------------------------------------


def alone(case: Case) -> dict[str, Any]:
    """Times in turn of diffusers' decode and of one rank in bands, and the most memory of each above the weights."""
    vae, own = case.vae(), case.vae()  # Bands turn their weights over, which would slow diffusers down.
    latents = case.latents(vae)
    graphs = _graphs(case)
    ways = {
        "whole": lambda: whole(own, latents),
        "bands": lambda: _in_bands(vae, latents),
        "captured": lambda: _captured(vae, latents, graphs),
    }
    if case.num_frames > 1:
        del ways["captured"]  # Videos are decoded as they are.
    line: dict[str, Any] = {"bands": len(bands_of(case.rows))}
    given = {}
    for name, way in ways.items():
        given[name], line[f"{name}_peak_mib"] = _peak(case.device, way)
        way()
        way()
    line |= difference(given["bands"], given["whole"])
    if "captured" in ways:
        line["captured_equals_bands"] = torch.equal(ways["captured"](), given["bands"])
        line["graphs"] = asdict(graphs.statistics)
    laps: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            laps[name].append(seconds_of(case.device, way))
    line |= {f"{name}_ms": round(1e3 * median(each), 2) for name, each in laps.items()}
    for name in set(ways) - {"whole"}:
        ratios = sorted(ours / theirs for ours, theirs in zip(laps[name], laps["whole"], strict=True))
        line[f"{name}_ratio"] = [round(ratio, 3) for ratio in (median(ratios), ratios[0], ratios[-1])]
    return line


def profiled(case: Case) -> dict[str, Any]:
    """Which kernels take the time of both ways."""
    from torch.profiler import ProfilerActivity, profile

    vae = case.vae()
    latents = case.latents(vae)
    line: dict[str, Any] = {}
    for name, way in (("whole", whole), ("bands", _in_bands)):
        way(vae, latents)
        kinds = [ProfilerActivity.CUDA] if case.device == "cuda" else [ProfilerActivity.CPU]
        with profile(activities=kinds) as seen:
            way(vae, latents)
            _synchronize(case.device)
        top = sorted(seen.key_averages(), key=lambda each: -each.self_device_time_total)[:14]
        line[name] = [
            [each.key[:90], each.count, round(each.self_device_time_total / 1e3, 2)] for each in top
        ]
    return line


def whole(vae: Any, latents: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return vae.decode(latents, return_dict=False)[0]  # type: ignore[no-any-return]


def _graphs(case: Case) -> Graphs:
    if case.device == "cpu":
        return Graphs(TapeDevice(), budget_bytes=2**40)
    return Graphs(CudaGraphs(torch.device("cuda", 0)), budget_bytes=2**35)


def _captured(vae: Any, latents: torch.Tensor, graphs: Graphs) -> torch.Tensor | None:
    with torch.inference_mode():
        return decoded(vae, latents, SoloExchange(), graphs=graphs)


def _in_bands(vae: Any, latents: torch.Tensor, exchange: Exchange | None = None) -> torch.Tensor | None:
    with torch.inference_mode():
        return decode(vae, latents, exchange or SoloExchange())


def _peak(device: str, way: Callable[[], Any]) -> tuple[Any, int]:
    if device == "cpu":
        return way(), 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    given = way()
    torch.cuda.synchronize()
    return given, (torch.cuda.max_memory_allocated() - before) // 2**20


def seconds_of(device: str, way: Callable[[], Any]) -> float:
    _synchronize(device)
    begin_s = time.perf_counter()
    way()
    _synchronize(device)
    return time.perf_counter() - begin_s


def _synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def difference(ours: torch.Tensor, expected: torch.Tensor) -> dict[str, Any]:
    """As a share of the range of what is expected."""
    extent = float(expected.max().double() - expected.min().double())
    farthest = max(
        float((mine.double() - theirs.double()).abs().max())
        for mine, theirs in zip(ours.split(64, dim=-2), expected.split(64, dim=-2), strict=True)
    )
    return {"equal_bits": torch.equal(ours, expected), "difference": farthest / extent}


# -- little memory -------------------------------------------------------------------------------------------


def capped(case: Case, cap_gib: float) -> dict[str, Any]:
    """A picture for which the whole decode has no memory, decoded by a rank alone, band after band; and the same
    without a cap."""
    vae = case.vae()
    latents = case.latents(vae)
    total = torch.cuda.get_device_properties(0).total_memory
    free_rein, peak = _peak(case.device, lambda: _in_bands(vae, latents))
    line: dict[str, Any] = {"cap_gib": cap_gib, "bands_uncapped_peak_mib": peak}
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(cap_gib * 2**30 / total)
    try:
        whole(vae, latents)
        line["whole"] = "had enough memory"
    except torch.OutOfMemoryError as error:
        line["whole"] = str(error)[:120]
    torch.cuda.empty_cache()
    begin_s = time.perf_counter()
    with torch.inference_mode():
        drawn, line["capped_peak_mib"] = _peak(case.device, lambda: decoded(vae, latents, SoloExchange()))
    line["seconds"] = round(time.perf_counter() - begin_s, 2)
    torch.cuda.set_per_process_memory_fraction(1.0)
    line["equals_uncapped"] = torch.equal(drawn, free_rein)
    del drawn
    expected, line["whole_uncapped_peak_mib"] = _peak(case.device, lambda: whole(vae, latents))
    line["whole_uncapped"] = difference(free_rein, expected)
    return line


# -- lanes ---------------------------------------------------------------------------------------------------


def on_rank(context: RankContext, case: Case, width: int) -> dict[str, Any] | None:
    """What the first of `width` ranks has in the end, against the same bands on one rank and against the whole."""
    if context.rank >= width:
        return None
    if case.device == "cuda":
        torch.cuda.set_device(0)
    if context.kept.get("case") != case:
        context.kept.clear()
        gc.collect()
        context.kept |= {"case": case, "vae": case.vae()}
    vae = context.kept["vae"]
    latents = case.latents(vae)
    device = torch.device(case.device, 0) if case.device == "cuda" else torch.device("cpu")
    groups = context.groups(device=device, backend="gloo", timeout_s=LANE_LIMIT_S)
    exchange = groups.exchange(Lane(ranks=tuple(range(width))))
    drawn, peak = _peak(case.device, lambda: _in_bands(vae, latents, exchange))
    seconds = seconds_of(case.device, lambda: _in_bands(vae, latents, exchange))
    groups.close()
    line: dict[str, Any] = {"peak_mib": peak, "seconds": round(seconds, 3)}
    if drawn is not None:
        line["against_one_rank"] = difference(drawn, _in_bands(vae, latents))
        line["against_whole"] = difference(drawn, whole(vae, latents))
    return line


def lane(world: World, case: Case, width: int) -> dict[str, Any]:
    try:
        lines = world.run("benchmarks.h200_vaep:on_rank", case, width, timeout_s=LANE_LIMIT_S)
    except RankFailed as failure:
        return {"error": str(failure)[-400:]}
    peaks = [line["peak_mib"] for line in lines if line is not None]
    return {**lines[0], "peak_mib": max(peaks)}


def attempt(name: str, case: Case, work: Callable[[], dict[str, Any]], **more: Any) -> None:
    """A case that fails costs its own line alone."""
    begin_s = time.monotonic()
    try:
        given = work()
    except (RuntimeError, ValueError, AssertionError, TypeError) as error:
        given = {"error": f"{type(error).__name__}: {error}"[:400]}
    took = {"took_s": round(time.monotonic() - begin_s, 1)}
    print(json.dumps({"case": name, **asdict(case), **more, **given, **took}), flush=True)
    gc.collect()
    if case.device == "cuda":
        torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small decoders of the same shape")
    parser.add_argument("--profile", action="store_true", help="say which kernels take the time")
    arguments = parser.parse_args()
    configure(json=True, level="warning")
    every = list(cases(arguments.device, tiny=arguments.tiny))
    about = {"torch": torch.__version__, "device": arguments.device}
    if arguments.device == "cuda":
        about["gpu"] = torch.cuda.get_device_name(0)
    print(json.dumps({"case": "setting", **about}), flush=True)
    for case in every:
        attempt("alone", case, lambda: alone(case))  # noqa: B023 (runs now)
        if arguments.profile:
            attempt("profile", case, lambda: profiled(case))  # noqa: B023 (runs now)
    if arguments.device == "cuda":
        for side, cap_gib in CAPS:
            large = Case(decoder="AutoencoderKL", rows=side, columns=side)
            attempt("capped", large, lambda: capped(large, cap_gib))  # noqa: B023 (runs now)
    world = World(4)
    for case in every:
        for width in (2, 4):
            attempt("lane", case, lambda: lane(world, case, width), width=width)  # noqa: B023 (runs now)
    world.close()


if __name__ == "__main__":
    main()
