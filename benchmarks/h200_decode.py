"""What a whole decode costs on one rank: diffusers' as it is, and a picture's as its documentation compiles it; ours in
bands, captured where a service captures, and ours with `numerics: fast`; in turn, in one run.

    python -m benchmarks.h200_decode                        # on CUDA
    python -m benchmarks.h200_decode --tiny --device cpu    # small decoders and pictures

One JSON object a line after each round, as it goes: the last of a case counts. Weights are random.
"""

from __future__ import annotations

import argparse
import copy
import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

import torch

from benchmarks.real_sizes import MODELS
from epe.graphs import CudaGraphs, Graphs
from epe.models.decoding import decoded
from epe.telemetry.log import configure
from epe.transport.exchange import SoloExchange
from epe.vae import compiled_writers

ROUNDS = 3
GRAPH_BYTES = 32 * 2**30
PIXELS_OF_LATENT = 8
Way = Callable[[], torch.Tensor | None]


@dataclass(frozen=True, slots=True)
class Case:
    """A decoder, by a family that has it, and latents: rows, columns and frames. Those of videos are not captured."""

    family: str
    rows: int
    columns: int
    num_frames: int = 1

    @property
    def num_warm(self) -> int:
        """Decodes before those that count: kernels are chosen in the first, graphs captured in the second."""
        return 1 if self.num_frames > 1 else 3

    @property
    def pixels(self) -> str:
        size = f"{PIXELS_OF_LATENT * self.rows}x{PIXELS_OF_LATENT * self.columns}"
        return size if self.num_frames == 1 else f"{size}x{1 + 4 * (self.num_frames - 1)}"


CASES = (
    Case("flux1", 128, 128),
    Case("wan", 60, 104, num_frames=21),
    Case("flux1", 64, 64),
    Case("flux1", 256, 256),
    Case("flux2-klein", 128, 128),
    Case("qwen-image", 128, 128),
    Case("wan", 60, 104, num_frames=5),
)
TINY = (Case("flux1", 16, 16), Case("wan", 16, 8, num_frames=2))


def main() -> None:
    arguments = _arguments()
    configure(json=True, level="warning")
    deadline_s = time.perf_counter() + arguments.budget_s
    cases = [case for case in (TINY if arguments.tiny else CASES) if case.family in arguments.only]
    for case in cases:
        if time.perf_counter() < deadline_s:
            for line in _lines(case, torch.device(arguments.device), tiny=arguments.tiny):
                print(json.dumps(line), flush=True)


@torch.inference_mode()
def _lines(case: Case, device: torch.device, *, tiny: bool) -> Iterator[dict[str, Any]]:
    vae = _vae(case, device, tiny=tiny)
    ways = _ways(case, vae, _latents(case, vae), device)
    line: dict[str, Any] = {"decode": type(vae).__name__, "pixels": case.pixels, "dtype": str(vae.dtype)}
    pictures, warm_s = {}, {}
    for name, way in ways.items():
        begin_s = time.perf_counter()
        for _ in range(case.num_warm):
            pictures[name] = _given(way()).float().cpu()
        warm_s[name] = round(time.perf_counter() - begin_s, 2)
        print(f"{case.pixels}: {name} is warm after {warm_s[name]} s", file=sys.stderr, flush=True)
    line["psnr_db"] = {name: _psnr_db(each, pictures["diffusers"]) for name, each in pictures.items()}
    line["warm_up_s"] = warm_s
    rounds: list[dict[str, float]] = []
    while len(rounds) < ROUNDS:
        rounds.append({name: _seconds(way, device) for name, way in ways.items()})
        yield {**line, "rounds": len(rounds), **_figures(rounds)}


def _figures(rounds: list[dict[str, float]]) -> dict[str, Any]:
    """Milliseconds, and how many times as fast as diffusers: the median of the rounds, the least and the most."""
    ratios = {name: [each["diffusers"] / each[name] for each in rounds] for name in rounds[0]}
    return {
        "ms": {name: round(1e3 * median(each[name] for each in rounds), 2) for name in ratios},
        "ratio": {name: [round(of(each), 3) for of in (median, min, max)] for name, each in ratios.items()},
    }


def _ways(case: Case, vae: Any, latents: torch.Tensor, device: torch.device) -> dict[str, Way]:
    """Ours turn their weights over, so each has its own."""
    is_gpu = device.type == "cuda"
    exact, fast = copy.deepcopy(vae), copy.deepcopy(vae)
    writers = compiled_writers("inductor" if is_gpu else "eager")
    compiled = {} if _is_causal(vae) else {"diffusers_compiled": _diffusers_compiled(vae, latents)}
    return {
        "diffusers": lambda: vae.decode(latents, return_dict=False)[0],
        **compiled,
        "exact": partial(decoded, exact, latents, SoloExchange(), graphs=_graphs(case, device)),
        "fast": partial(decoded, fast, latents, None, graphs=_graphs(case, device), writers=writers),
    }


def _diffusers_compiled(vae: Any, latents: torch.Tensor) -> Way:
    """With its channels last, and captured by torch."""
    turned = copy.deepcopy(vae).to(memory_format=torch.channels_last)
    how = {"mode": "max-autotune"} if latents.is_cuda else {"backend": "eager"}
    decode = torch.compile(turned.decode, fullgraph=True, **how)
    return lambda: decode(latents, return_dict=False)[0]


def _graphs(case: Case, device: torch.device) -> Graphs | None:
    """None on a CPU, whose graphs do not see what compiled code does."""
    if case.num_frames > 1 or device.type == "cpu":
        return None
    return Graphs(CudaGraphs(device), budget_bytes=GRAPH_BYTES)


def _vae(case: Case, device: torch.device, *, tiny: bool) -> Any:
    model = MODELS[case.family]
    torch.manual_seed(0)
    vae = model.vae(**{**model.vae_config, **(model.tiny_vae if tiny else {})})
    dtype = torch.float32 if device.type == "cpu" else model.vae_dtype or torch.bfloat16
    return torch.nn.Module.to(vae, device, dtype).eval().requires_grad_(False)


def _is_causal(vae: Any) -> bool:
    """Whether it is a decoder of videos."""
    return hasattr(vae.config, "z_dim")


def _latents(case: Case, vae: Any) -> torch.Tensor:
    causal = _is_causal(vae)
    channels = vae.config.z_dim if causal else vae.config.latent_channels
    frames = (case.num_frames,) if causal else ()
    drawn = torch.randn(
        1, channels, *frames, case.rows, case.columns, generator=torch.Generator().manual_seed(1)
    )
    return drawn.to(vae.device, vae.dtype)


def _seconds(way: Way, device: torch.device) -> float:
    _wait_for(device)
    begin_s = time.perf_counter()
    way()
    _wait_for(device)
    return time.perf_counter() - begin_s


def _psnr_db(picture: torch.Tensor, expected: torch.Tensor) -> float | None:
    """With the range of the expected values as the peak; None for equal bits."""
    noise = (picture.double() - expected.double()).square().mean().item()
    peak = (expected.max() - expected.min()).item()
    return round(10 * math.log10(peak**2 / noise), 1) if noise else None


def _given(picture: torch.Tensor | None) -> torch.Tensor:
    assert picture is not None
    return picture


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small decoders in place of the real ones")
    families = tuple(dict.fromkeys(case.family for case in CASES))
    parser.add_argument("--only", nargs="+", choices=families, default=families)
    parser.add_argument("--budget-s", type=float, default=1e6, help="begin no case after so many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
