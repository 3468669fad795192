"""Decoding in bands against diffusers' decode of the whole picture: numbers, seams, what travels, memory and time.

    python -m benchmarks.vaep --output docs/results/vaep.md

Lanes are threads of one process that hand each other tensors, a thread each; weights are random. Numbers and seams are
those of tiny decoders, everything else of decoders of real size.
"""

from __future__ import annotations

import argparse
import os
import platform
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch is loaded

import torch

from benchmarks.live_bytes import LiveBytes
from benchmarks.real_sizes import MODELS
from epe.transport.exchange import Exchange, Pending, SoloExchange
from epe.vae import Bands, bands_of, decode
from tests.lanes import ThreadExchange, on_lane

DECODERS = {
    "AutoencoderKL": "flux1",
    "AutoencoderKLFlux2": "flux2-klein",
    "AutoencoderKLQwenImage": "qwen-image",
}
DECODERS["AutoencoderKLWan"] = "wan"
WIDTHS = (1, 2, 3, 4, 8)
DTYPES = (torch.float32, torch.bfloat16, torch.float16)
# (latent rows, latent columns): one that 8 bands share, and one that nothing divides. Bands of one row are the hardest.
SIZES = ((16, 12), (29, 13))
REAL_SIZE = (32, 32)
ROUNDS = 3


@dataclass
class Subject:
    """A decoder with random weights, tiny or of real size; `rounded_to` is the type that its weights had before."""

    kind: str
    is_tiny: bool
    dtype: torch.dtype = torch.float32
    rounded_to: torch.dtype = torch.float32
    vae: Any = field(init=False)

    def __post_init__(self) -> None:
        model = MODELS[DECODERS[self.kind]]
        torch.manual_seed(0)
        config = {**model.vae_config, **(model.tiny_vae if self.is_tiny else {})}
        self.vae = model.vae(**config).to(self.rounded_to).to(self.dtype).eval()

    @property
    def num_frames(self) -> int:
        """Latent frames: a decoder of real size takes long on a CPU."""
        if self.kind != "AutoencoderKLWan":
            return 1
        return 3 if self.is_tiny else 2

    def latents(self, size: tuple[int, int]) -> torch.Tensor:
        causal = hasattr(self.vae.config, "z_dim")
        channels = self.vae.config.z_dim if causal else self.vae.config.latent_channels
        shape = (1, channels, *((self.num_frames,) if causal else ()), *size)
        return torch.randn(shape, generator=torch.Generator().manual_seed(1)).to(self.dtype)

    def whole(self, latents: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self.vae.decode(latents, return_dict=False)[0]

    def over(self, width: int, latents: torch.Tensor, bands: Bands) -> torch.Tensor:
        def task(exchange: Any) -> torch.Tensor | None:
            with torch.inference_mode():
                return decode(self.vae, latents, exchange, bands=bands)

        first = task(SoloExchange()) if width == 1 else on_lane(width, task)[0]
        assert first is not None
        return first


class Counting:
    """An exchange that counts what this rank sends by what it is for."""

    def __init__(self, exchange: ThreadExchange) -> None:
        self.width, self.position = exchange.width, exchange.position
        self.sent: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self._exchange = exchange

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        self._count("moments" if part.ndim == 3 else "attention", part.nbytes * (self.width - 1))
        return self._exchange.gather(part, sizes, dim=dim)

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        self._count("rows", sum(part.nbytes for part in parts))
        return self._exchange.start_all_to_all(parts, shapes)

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        self._count("picture", 0 if self.position == 0 else sum(part.nbytes for part in parts))
        return self._exchange.all_to_all(parts, shapes)

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        assert positions == tuple(range(self.width))
        return self  # type: ignore[return-value]

    def _count(self, what: str, num_bytes: int) -> None:
        self.sent[what] += num_bytes
        self.calls[what] += 1


# -- numbers and seams ---------------------------------------------------------------------------------------


def numbers() -> Iterator[str]:
    widths = (f"width {width}" for width in WIDTHS)
    facts = ("decoder", "type", "latent rows", "bands", "range", *widths, "whole to fp32", "seam", "whole")
    yield "| " + " | ".join(facts) + " |"
    yield "|" + "---|" * len(facts)
    for kind in DECODERS:
        for dtype in DTYPES:
            subject = Subject(kind, is_tiny=True, dtype=dtype)
            for size in SIZES:
                yield _line(subject, size)


def _line(subject: Subject, size: tuple[int, int]) -> str:
    latents, bands = subject.latents(size), bands_of(size[0], min_rows=1)
    whole = subject.whole(latents).double()
    drawn = {width: subject.over(width, latents, bands).double() for width in WIDTHS}
    extent = float(whole.max() - whole.min())
    cells = [f"{float((each - whole).abs().max()) / extent:.1e}" for each in drawn.values()]
    same = all(torch.equal(each, drawn[1]) for each in drawn.values())
    cells = cells if same else [f"{cell} (bits differ)" for cell in cells]
    exact = Subject(subject.kind, is_tiny=True, rounded_to=subject.dtype).whole(latents.float()).double()
    cells.append(f"{float((whole - exact).abs().max()) / extent:.1e}")
    seams = [f"{_seam(each, bands):.4f}" for each in (drawn[8], whole)]
    facts = (
        subject.kind,
        str(subject.dtype).removeprefix("torch."),
        str(size[0]),
        str(len(bands)),
        f"{extent:.2f}",
    )
    print(*facts, *cells, *seams, flush=True)
    return "| " + " | ".join((*facts, *cells, *seams)) + " |"


def _seam(picture: torch.Tensor, bands: Bands) -> float:
    """The mean step from row to row where bands meet, against that everywhere else."""
    steps = picture.diff(dim=-2).abs()
    scale = picture.shape[-2] // bands.height
    edges = [scale * start - 1 for start in bands.starts()[1:]]
    others = [row for row in range(steps.shape[-2]) if row not in edges]
    return float(steps[..., edges, :].mean() / steps[..., others, :].mean())


# -- what travels --------------------------------------------------------------------------------------------


def traffic() -> Iterator[str]:
    yield "| decoder | rows: exchanges | KiB | least | moments: exchanges | KiB | keys and values: KiB | picture: KiB |"
    yield "|" + "---|" * 8
    for kind in DECODERS:
        subject = Subject(kind, is_tiny=False)
        latents = subject.latents(REAL_SIZE)

        def task(exchange: ThreadExchange) -> Counting:
            counting = Counting(exchange)
            with torch.inference_mode():
                decode(subject.vae, latents, counting)  # type: ignore[arg-type] # noqa: B023 (runs now)
            return counting

        ranks = on_lane(4, task)
        sent: Counter[str] = sum((each.sent for each in ranks), Counter())
        calls = ranks[0].calls
        yield (
            f"| {kind} | {calls['rows']} | {_kib(sent['rows'])} | {_kib(least_bytes(subject, num_edges=3))} "
            f"| {calls['moments']} | {_kib(sent['moments'])} | {_kib(sent['attention'])} | {_kib(sent['picture'])} |"
        )
        print(kind, dict(sent), dict(calls), flush=True)


def least_bytes(subject: Subject, *, num_edges: int, size: tuple[int, int] = REAL_SIZE) -> int:
    """What must cross the edges between ranks: for each convolution that sees rows beyond its own, one row each way of
    what it is given, or of what that was made of where rows were doubled."""
    seen: list[int] = []

    def note(module: torch.nn.Module, given: tuple[torch.Tensor, ...], _: Any) -> None:
        row = given[0][..., :1, :].numel() // (given[0].shape[0] if given[0].ndim == 4 else 1)
        frames = given[0].shape[0] if given[0].ndim == 4 else 1
        doubled = 2 if module in after_doubling else 1
        seen.append(row * frames // doubled)

    convs = [
        m
        for m in subject.vae.decoder.modules()
        if isinstance(m, torch.nn.Conv2d | torch.nn.Conv3d) and m.kernel_size[-2] > 1
    ]
    after_doubling = {
        conv
        for name, module in subject.vae.decoder.named_modules()
        if type(module).__name__ in ("Upsample2D", "WanResample", "QwenImageResample")
        for conv in module.modules()
        if isinstance(conv, torch.nn.Conv2d)
    }
    hooks = [conv.register_forward_hook(note) for conv in convs]
    subject.whole(subject.latents(size))
    for hook in hooks:
        hook.remove()
    return 2 * num_edges * sum(seen) * torch.finfo(subject.dtype).bits // 8


def _kib(num_bytes: int) -> str:
    return f"{num_bytes / 1024:,.1f}"


# -- memory and time -----------------------------------------------------------------------------------------


def costs() -> Iterator[str]:
    yield "| decoder | whole: MiB | width 1 | width 2 | width 4 | width 8 | width 1 against whole: time |"
    yield "|" + "---|" * 7
    for kind in DECODERS:
        subject = Subject(kind, is_tiny=False)
        latents = subject.latents(REAL_SIZE)
        whole = _peak(lambda: subject.whole(latents))  # noqa: B023 (runs now)
        peaks = [max(_peaks(subject, latents, width)) for width in (1, 2, 4, 8)]
        ratios = sorted(_ratios(subject, latents))
        shown = " | ".join(f"{peak / whole:.2f}x" for peak in peaks)
        yield (
            f"| {kind} | {whole / 2**20:.0f} | {shown} "
            f"| {median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f}) |"
        )
        print(kind, whole, peaks, ratios, flush=True)


def _peaks(subject: Subject, latents: torch.Tensor, width: int) -> list[int]:
    bands = bands_of(latents.shape[-2], min_rows=4)

    def task(exchange: Any) -> int:
        with torch.inference_mode():
            return _peak(lambda: decode(subject.vae, latents, exchange, bands=bands))

    return [task(SoloExchange())] if width == 1 else on_lane(width, task)


def _peak(work: Any) -> int:
    with LiveBytes() as live:
        work()
    return live.peak


def _ratios(subject: Subject, latents: torch.Tensor) -> Iterator[float]:
    """Times in turn, so that whatever else the machine does weighs on both."""
    bands = bands_of(latents.shape[-2])
    for _ in range(ROUNDS):
        begin_s = time.perf_counter()
        subject.whole(latents)
        between_s = time.perf_counter()
        subject.over(1, latents, bands)
        yield (time.perf_counter() - between_s) / (between_s - begin_s)


PAGE = """\
# Decoding in bands

`python -m benchmarks.vaep --output docs/results/vaep.md` on {about}.

Lanes are threads of one process, one thread of computation each; weights are random. Nothing of this page was measured
on a GPU, and other work shared the machine.

## Numbers and seams

The largest difference to diffusers' decode of the whole picture, as a share of the range of its values; every width
gave the same bits unless a cell says otherwise. Bands have as few rows as there can be, which is harder than what a
service does. Whole to fp32: how far diffusers' decode in this type is from that of the same weights in fp32. Seam: the
mean step from row to row where bands meet, against that everywhere else, in bands and whole.

{numbers}

## What travels

One decode of {rows} x {columns} latents in fp32 over four ranks, decoders of real size (Wan: 2 latent frames), all
ranks together. Least: one row each way across each edge for each convolution that sees further than its own row.

{traffic}

## Memory and time

The most memory that tensors held at once on a rank, above the weights, against diffusers' decode of the whole picture,
in bands of 4 latent rows; and the time of one rank in the bands of a service against diffusers' decode, in turn, median
of {rounds} and range.

{costs}
"""


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    text = PAGE.format(
        about=f"{platform.machine()}, Python {platform.python_version()}, torch {torch.__version__}",
        rows=REAL_SIZE[0],
        columns=REAL_SIZE[1],
        rounds=ROUNDS,
        numbers="\n".join(numbers()),
        traffic="\n".join(traffic()),
        costs="\n".join(costs()),
    )
    if arguments.output:
        arguments.output.write_text(text)
    else:
        print(text)


if __name__ == "__main__":
    main()
