"""Torch's compiler, set up for blocks whose rows shall have the same bits on every rank and beside any others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar

import torch

from epe.errors import StartFailed

T = TypeVar("T")

# Features of a row that a kernel holds at once. Torch itself holds 1024 at most, and 64 where features are read out of
# order, as rotations do; wider rows it reads several times.
MAX_FEATURES = 8192


# Forms of one piece of code: a size of one, a batch, a lane. Torch's own limit is 8, beyond which a call fails.
MAX_FORMS = 64


def compiled(function: Callable[..., T], *, backend: str) -> Callable[..., T]:
    """`function` compiled as one piece for all sizes, in up to `MAX_FORMS` forms; by `compile_rows` for `inductor`.

    A call raises `StartFailed` where the machine has no compiler."""
    compiler = compile_rows if backend == "inductor" else backend
    inner = torch.compile(function, fullgraph=True, dynamic=True, backend=compiler)

    @wraps(function)
    def call(*args: Any, **kwargs: Any) -> T:
        allow_forms(MAX_FORMS)
        try:
            return inner(*args, **kwargs)
        except torch._dynamo.exc.BackendCompilerFailed as error:
            raise StartFailed(_without_a_compiler(error.inner_exception)) from error

    return call


def _without_a_compiler(error: Exception) -> str:
    """Of torch's sentence the first line; the others are for those who mend torch."""
    reason = str(error).strip().partition("\n")[0]
    return (
        f"fast numerics cannot be compiled on this machine: {reason}; install what is missing (Triton and a C "
        "compiler), or use numerics: exact"
    )


def allow_forms(most: int) -> None:
    """Let torch compile a piece of code in so many forms, in this thread: torch keeps its settings for each."""
    limits = torch._dynamo.config
    if limits.recompile_limit < most:
        limits.recompile_limit = most
        limits.accumulated_recompile_limit = max(limits.accumulated_recompile_limit, 16 * most)


def compile_rows(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
    """A compiler for `torch.compile`: `inductor`, whose kernels of sums read a row once, and which picks them without
    timing them. Ranks that time kernels pick different ones, which add rows up in different orders.

    Code that was kept on disk is found again only if this file was the same: torch's own key knows nothing of it."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx
    from torch._inductor.virtualized import V

    certain = {"deterministic": True} if hasattr(config, "deterministic") else {}
    settings = torch.compiler.config
    tag = f"{settings.cache_key_tag} epe {_own_digest()}"
    with settings.patch(cache_key_tag=tag), V.set_choices_handler(_rows_at_once()), config.patch(certain):
        compiled: Callable[..., Any] = compile_fx(graph, inputs)
        return compiled


@cache
def _own_digest() -> str:
    return sha256(Path(__file__).read_bytes()).hexdigest()[:16]


@cache
def _rows_at_once() -> Any:
    from torch._inductor.choices import InductorChoices
    from torch._inductor.virtualized import V

    class RowsAtOnce(InductorChoices):
        @staticmethod
        def should_use_persistent_reduction(features: Any, cooperative_reduction: bool) -> bool:
            if InductorChoices.should_use_persistent_reduction(features, cooperative_reduction):
                return True
            known = V.graph.sizevars.statically_known_leq(features.reduction_numel, MAX_FEATURES)
            return bool(known) and not cooperative_reduction

    return RowsAtOnce()
