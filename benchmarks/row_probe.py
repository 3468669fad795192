"""Watches a model's forward pass, and asks of each operation on rows whether some rows alone have the bits that they
have among all."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from epe.geometry import row_bounds, split_rows
from epe.parallel.shares import share_rows

WIDTHS = (2, 3, 4, 8)
# Rows to which those of a rank are filled up, to see whether that gives them the kernel of the whole.
FILLINGS = (64, 128, 256, 512)
REPEATS = 10

Line = dict[str, Any]
Call = Callable[[torch.Tensor], torch.Tensor]
_ROW_WISE: Mapping[Any, str] = {
    functional.linear: "linear",
    functional.layer_norm: "layer norm",
    functional.rms_norm: "rms norm",
    torch.Tensor.mean: "mean",
}


@dataclass
class RowProbe(TorchFunctionMode):
    """Within it, the first call of each operation and shape is repeated for the rows of each rank of a lane.

    `num_rows` are those of the picture in one sequence; what a sequence has beside them is text. `lines` tells of each
    operation: per width how far the ranks' rows are from those of the whole (0: equal bits) and microseconds of the
    first rank.
    """

    num_rows: int
    lines: list[Line] = field(default_factory=list)
    _seen: set[Hashable] = field(default_factory=set)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        options = kwargs or {}
        output = function(*args, **options)
        if function in _ROW_WISE and isinstance(output, torch.Tensor):
            self._see_rows(_ROW_WISE[function], lambda rows: function(rows, *args[1:], **options), args)
        elif function is functional.scaled_dot_product_attention:
            named = dict(zip(("query", "key", "value"), args, strict=False)) | options
            self._see_attention(function, named)
        return output

    def _see_rows(self, name: str, call: Call, args: tuple[Any, ...]) -> None:
        whole, shapes = args[0], tuple(each.shape for each in args if isinstance(each, torch.Tensor))
        dim = 1 if whole.ndim > 2 else 0
        if whole.ndim < 2 or (name, shapes) in self._seen or not any(self._bounds(whole.shape[dim])):
            return
        self._seen.add((name, shapes))
        line = {"operation": name, "rows": whole.shape[dim], "shapes": [list(shape) for shape in shapes]}
        self.lines.append(line | compared(call, whole, dim, dict(self._bounds(whole.shape[dim]))))

    def _see_attention(self, function: Any, named: dict[str, Any]) -> None:
        """Query rows against all keys, and a part of the heads."""
        query, key, value = (named.pop(name) for name in ("query", "key", "value"))
        if ("attention", query.shape, key.shape) in self._seen:
            return
        self._seen.add(("attention", query.shape, key.shape))
        line = {"rows": query.shape[2], "shapes": [list(query.shape), list(key.shape)]}
        bounds = dict(self._bounds(query.shape[2]))
        by_rows = compared(lambda rows: function(rows, key, value, **named), query, 2, bounds)
        self.lines.append({"operation": "attention of rows", **line, **by_rows})
        heads = {width: row_bounds(query.shape[1], width) for width in WIDTHS}
        stacked = torch.stack((query, key, value)) if query.shape == key.shape else None
        if stacked is not None:
            by_heads = compared(lambda part: function(*part, **named), stacked, 2, heads)
            self.lines.append({"operation": "attention of heads", **line, **by_heads})

    def _bounds(self, num_rows: int) -> Iterator[tuple[int, tuple[tuple[int, int], ...]]]:
        """Of each width at which ranks share them, the rows of each."""
        text = num_rows if num_rows < self.num_rows else num_rows - self.num_rows
        for width in WIDTHS:
            sizes = [0] * width if num_rows < self.num_rows else list(split_rows(self.num_rows, width))
            share = share_rows(text, width=width, replicable=True) if text else None
            if share is not None:
                sizes = [own + more for own, more in zip(sizes, share.sizes, strict=True)]
            if num_rows > 1 and max(sizes) < num_rows:
                starts = [min(sum(sizes[:place]), num_rows - sizes[place]) for place in range(width)]
                yield width, tuple((start, start + size) for start, size in zip(starts, sizes, strict=True))


def compared(
    call: Call, whole: torch.Tensor, dim: int, bounds: dict[int, tuple[tuple[int, int], ...]]
) -> Line:
    """How the parts of `whole` along `dim` come out alone; of the narrowest lane that differs, with the kernels and
    what filling mends."""
    out_dim = dim if call(whole).ndim == whole.ndim else dim - 1
    expected, line = call(whole), {"whole_us": _microseconds(call, whole), "differs": {}, "us": {}}
    for width, parts in bounds.items():
        apart = [
            _largest(call(_part(whole, dim, part)), expected.narrow(out_dim, part[0], part[1] - part[0]))
            for part in parts
        ]
        line["differs"][width] = max(apart)
        line["us"][width] = _microseconds(call, _part(whole, dim, parts[0]))
        if max(apart) and "cause" not in line:
            line["cause"] = _cause(call, whole, expected, dim, parts[apart.index(max(apart))])
    return line


def _part(whole: torch.Tensor, dim: int, bounds: tuple[int, int]) -> torch.Tensor:
    """Laid out as the whole is."""
    part = whole.narrow(dim, bounds[0], bounds[1] - bounds[0])
    if whole.is_contiguous():
        return part.contiguous()
    return part.transpose(-3, -2).contiguous().transpose(-3, -2)


def _largest(ours: torch.Tensor, expected: torch.Tensor) -> float:
    return 0.0 if torch.equal(ours, expected) else float((ours.double() - expected.double()).abs().max())


def _cause(
    call: Call, whole: torch.Tensor, expected: torch.Tensor, dim: int, bounds: tuple[int, int]
) -> Line:
    """The kernels of both, and which fillings give the bits of the whole."""
    start, end = bounds
    part, wanted = _part(whole, dim, bounds), expected.narrow(dim, start, end - start)
    mended = []
    for filling in FILLINGS:
        lacking = -(end - start) % filling
        more = part.narrow(dim, 0, 1).repeat_interleave(lacking, dim=dim)
        filled = call(torch.cat((part, more), dim=dim))
        if torch.equal(filled.narrow(dim, 0, end - start), wanted):
            mended.append(filling)
    return {
        "rows": end - start,
        "kernels": _kernels(call, part),
        "whole_kernels": _kernels(call, whole),
        "filled": mended,
    }


def _kernels(call: Call, part: torch.Tensor) -> list[str]:
    if part.device.type != "cuda":
        return []
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        call(part)
        torch.cuda.synchronize(part.device)
    return [event.name for event in profile.events() or ()]


def _microseconds(call: Call, part: torch.Tensor) -> float:
    """Of one call, launches included where they are all there is."""
    call(part)
    begin_s = _now_s(part.device)
    for _ in range(REPEATS):
        call(part)
    return round(1e6 * (_now_s(part.device) - begin_s) / REPEATS, 1)


def _now_s(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
