"""Where a model is sharded, as data: each family brings one `ShardPlan`, and `DividedLayers` for tensor parallelism.

The mechanisms are `sequence.SequenceSharding` and `tensor.TensorSharding`.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass

from torch import nn

from epe.errors import StartFailed
from epe.families import AttentionKind

# The path of the model itself.
MODEL = ""


@dataclass(frozen=True, slots=True)
class InputSplit:
    """Each rank keeps its rows of `argument` (along `dim`) when a module at `modules` is called.

    The first split of a stream in a pass opens it; the splits that follow must have as many rows. Of an argument
    that is a tuple (such as the cosines and sines of a rotary table) `item` says which tensor is meant.
    """

    modules: str
    argument: str
    stream: str
    dim: int = 1
    item: int | None = None


@dataclass(frozen=True, slots=True)
class OutputGather:
    """All rows of a stream, in the output of a module at `modules`, come together again."""

    modules: str
    stream: str
    dim: int = 1


@dataclass(frozen=True, slots=True)
class JointAttention:
    """Attention modules at `modules` see the rows of `streams`, one after the other in this order; `kind` says whether
    text is among them."""

    modules: str
    streams: tuple[str, ...]
    kind: AttentionKind = "joint"


@dataclass(frozen=True, slots=True)
class CrossAttention:
    """Attention modules at `modules` whose queries are the rows of `stream`, and whose keys are whole on each rank."""

    modules: str
    stream: str
    kind: AttentionKind = "cross"


@dataclass(frozen=True, slots=True)
class ShardPlan:
    """The places of one model: inputs split by rows, outputs gathered, attention that sees all rows.

    A `replicable` stream may be whole on every rank, where that costs less. Paths are dotted; `*` means every child,
    a negative number counts from the end, and `MODEL` is the model itself.
    """

    splits: tuple[InputSplit, ...]
    gathers: tuple[OutputGather, ...]
    attention: tuple[JointAttention | CrossAttention, ...]
    replicable: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class DividedLayers:
    """Modules at `modules` whose inner features are divided among the planes of tensor parallelism.

    Of the linear layers in `columns` each plane makes its features, of those in `rows` it reads them, and what the
    planes make of them is added. Nothing else sees the features, except `norms` over all of them (RMS). `heads` names
    the attribute that counts a module's heads, which stay whole.
    """

    modules: str
    columns: tuple[str, ...]
    rows: tuple[str, ...]
    norms: tuple[str, ...] = ()
    heads: str | None = None


def find_modules(model: nn.Module, path: str) -> tuple[nn.Module, ...]:
    """The modules of `model` at `path`; raises `StartFailed` when there is none."""
    found = tuple(_walk(model, path.split("."))) if path != MODEL else (model,)
    if not found:
        raise StartFailed(
            f"{type(model).__name__} has no module at {path!r}; this diffusers does not fit the plan"
        )
    return found


def _walk(module: nn.Module, steps: list[str]) -> Iterator[nn.Module]:
    if not steps:
        yield module
        return
    children = dict(module.named_children())
    match steps[0]:
        case "*":
            chosen = list(children)
        case step if step.startswith("-"):
            chosen = [name for place, name in enumerate(children, start=-len(children)) if place == int(step)]
        case step:
            chosen = [name for name in children if name == step]
    for name in chosen:
        yield from _walk(children[name], steps[1:])


def argument_index(module: nn.Module, argument: str) -> int:
    """The position of `argument` in the module's forward; raises `StartFailed` when it has none."""
    names = tuple(inspect.signature(module.forward).parameters)
    if argument not in names:
        raise StartFailed(
            f"{type(module).__name__}.forward has no argument {argument!r}; it has {', '.join(names)}"
        )
    return names.index(argument)
