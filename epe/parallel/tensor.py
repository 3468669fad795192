"""What a lane means for tensors' features: planes of ranks, each with a part of the heads and inner features.

Planes are fixed while a model is loaded, since each holds only its part of the weights. A lane is as wide in each of
them: it stands plane after plane, and the ranks at one place of all planes are a column, which adds up its parts in
the order of the planes. So the bits depend on the number of planes, and on nothing else of a lane.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce

import torch
from torch import nn
from torch.nn import functional

from epe.errors import StartFailed
from epe.geometry import row_bounds
from epe.messages import Split
from epe.parallel.plan import DividedLayers, find_modules
from epe.transport.exchange import Exchange

# Tensors of fewer values go to all planes whole: one exchange of more bytes is sooner done than two.
_FEW_VALUES = 2**14
# Features are divided in units of so many, or fewer where there are not enough: matrix products work in such tiles.
_UNITS = (128, 64, 32, 16, 8, 4, 2, 1)


@dataclass(frozen=True, slots=True)
class Plane:
    """The tensor-parallel plane of a rank: `index` of `degree`."""

    index: int = 0
    degree: int = 1


ONE_PLANE = Plane()


@dataclass(frozen=True, slots=True)
class Cut:
    """The part of a weight that a rank holds: `start` to `end` along `dim`."""

    dim: int
    start: int
    end: int


class TensorSharding:
    """Divides one model over planes. With one plane the model stays diffusers' own.

    Made on a model that has no weights yet: `cuts` says which part of each weight is to be read, by the weight's name.
    Not thread-safe: one forward pass at a time, as on a device thread.
    """

    def __init__(
        self, model: nn.Module, layers: tuple[DividedLayers, ...], *, plane: Plane = ONE_PLANE
    ) -> None:
        self.plane = plane
        self.cuts: dict[str, Cut] = {}
        self._column: Exchange | None = None
        if plane.degree > 1:
            names = {module: name for name, module in model.named_modules()}
            for rule in layers:
                for module in find_modules(model, rule.modules):
                    self._divide(module, rule, name=names[module])

    @contextmanager
    def over(self, lane: Exchange, split: Split) -> Iterator[Exchange]:
        """Within it, forward passes are shared by the planes of `lane`; gives the exchange of this rank's plane."""
        width = split.width
        if width * split.tp != lane.width or split.tp != self.plane.degree:
            raise ValueError(
                f"a lane of {lane.width} ranks cannot work as {split.tp} planes of {split.cfg} x {split.cp}, "
                f"with a model in {self.plane.degree} planes"
            )
        index, place = divmod(lane.position, width)
        if index != self.plane.index:
            raise ValueError(
                f"a rank with plane {self.plane.index} of the model stands in plane {index} of a lane"
            )
        self._column = lane.narrow(tuple(range(place, lane.width, width)))
        try:
            yield lane.narrow(tuple(range(index * width, (index + 1) * width)))
        finally:
            self._column = None

    def add_up(self, part: torch.Tensor) -> torch.Tensor:
        """The sum of the planes' parts, on every rank of the column."""
        if self._column is None:
            raise ValueError("a model in planes works only within `over`, on a lane that spans them")
        return add_up(part, self._column)

    def _divide(self, module: nn.Module, rule: DividedLayers, *, name: str) -> None:
        num_features = int(module.get_submodule(rule.columns[0]).out_features)
        start, end = self._bounds(module, rule, num_features, name=name)
        for path in rule.columns:
            linear = module.get_submodule(path)
            self._cut(linear, ("weight", "bias"), Cut(0, start, end), name=f"{name}.{path}")
            linear.out_features = end - start
        for path in rule.rows:
            linear = module.get_submodule(path)
            self._cut(linear, ("weight",), Cut(1, start, end), name=f"{name}.{path}")
            module.set_submodule(path, _RowLinear(linear, self))
        for path in rule.norms:
            norm = module.get_submodule(path)
            self._cut(norm, ("weight",), Cut(0, start, end), name=f"{name}.{path}")
            module.set_submodule(path, _SharedNorm(norm, self, num_features=num_features))

    def _bounds(
        self, module: nn.Module, rule: DividedLayers, num_features: int, *, name: str
    ) -> tuple[int, int]:
        """The features of this plane; of a module with heads, it has these alone from now on."""
        degree = self.plane.degree
        num_units = _num_units(num_features, degree) if rule.heads is None else getattr(module, rule.heads)
        if num_units < degree:
            raise StartFailed(
                f"{name} has {num_units} heads, which {degree} planes cannot share; "
                f"tensor_parallel_degree may be 1 to {num_units}"
            )
        start, end = row_bounds(num_units, degree)[self.plane.index]
        if rule.heads is not None:
            setattr(module, rule.heads, end - start)
        size = num_features // num_units
        return start * size, end * size

    def _cut(self, module: nn.Module, weights: tuple[str, ...], cut: Cut, *, name: str) -> None:
        for weight in weights:
            if (whole := getattr(module, weight)) is not None:
                part = whole.detach().narrow(cut.dim, cut.start, cut.end - cut.start)
                setattr(module, weight, nn.Parameter(part, requires_grad=False))
                self.cuts[f"{name}.{weight}"] = cut


def add_up(part: torch.Tensor, exchange: Exchange) -> torch.Tensor:
    """The sum of the parts of all positions, added in their order in float32, on every rank in the parts' type.

    Every value is added by itself, so neither the number of rows nor who adds them changes a bit.
    """
    flat = part.reshape(-1)
    if exchange.width == 2 or flat.numel() < _FEW_VALUES:
        parts = exchange.all_to_all([flat] * exchange.width, [tuple(flat.shape)] * exchange.width)
        return _sum(parts).view(part.shape)
    bounds = row_bounds(flat.numel(), exchange.width)
    sizes = tuple(end - start for start, end in bounds)
    mine = (sizes[exchange.position],)
    parts = exchange.all_to_all([flat[start:end] for start, end in bounds], [mine] * exchange.width)
    return exchange.gather(_sum(parts), sizes, dim=0).view(part.shape)


def _sum(parts: list[torch.Tensor]) -> torch.Tensor:
    return reduce(torch.add, (part.float() for part in parts)).to(parts[0].dtype)


def _num_units(num_features: int, degree: int) -> int:
    """In how many equal units features are divided: as large ones as give each plane some."""
    fitting = (unit for unit in _UNITS if num_features % unit == 0 and num_features // unit >= degree)
    return num_features // next(fitting, 1)


class _RowLinear(nn.Module):
    """A linear layer of which this rank holds some input features."""

    def __init__(self, linear: nn.Module, sharding: TensorSharding) -> None:
        super().__init__()
        self.weight = linear.weight
        self.bias = linear.bias
        self._sharding = sharding

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        total = self._sharding.add_up(functional.linear(features, self.weight))
        return total if self.bias is None else total + self.bias


class _SharedNorm(nn.Module):
    """RMS norm over `num_features` features, of which this rank holds some."""

    def __init__(self, norm: nn.Module, sharding: TensorSharding, *, num_features: int) -> None:
        super().__init__()
        assert isinstance(norm, nn.RMSNorm)
        self.weight = norm.weight
        self.eps = norm.eps
        self.num_features = num_features
        self._sharding = sharding

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        wide = features.float()
        squares = self._sharding.add_up(wide.square().sum(dim=-1, keepdim=True))
        length = torch.rsqrt(squares / self.num_features + self.eps)
        return (wide * length * self.weight.float()).to(features.dtype)
