"""The one place where we reach into diffusers: processors that call another `dispatch_attention_fn`.

Nothing global changes, and no processor's code is written again. Each processor, also one of ours, has to call it by
that name itself: a function that did so for several would not be redirected.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from functools import wraps
from types import FunctionType
from typing import Any

import diffusers
import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import nn

from epe.errors import StartFailed

Attend = Callable[..., torch.Tensor]
Around = Callable[[Callable[[], Any]], Any]

_NAME = "dispatch_attention_fn"
_SERIES = "0.42."
_PARAMETERS = (
    "query",
    "key",
    "value",
    "attn_mask",
    "dropout_p",
    "is_causal",
    "scale",
    "enable_gqa",
    "attention_kwargs",
    "backend",
    "parallel_config",
)


def check_seam() -> None:
    """Raises `StartFailed` unless this diffusers has the attention seam that we rely on."""
    if not diffusers.__version__.startswith(_SERIES):
        raise StartFailed(f"diffusers {diffusers.__version__} is installed; {_SERIES}x is needed")
    found = tuple(inspect.signature(dispatch_attention_fn).parameters)
    if found != _PARAMETERS:
        raise StartFailed(
            f"diffusers' {_NAME} takes ({', '.join(found)}); expected ({', '.join(_PARAMETERS)})"
        )


def redirect_attention(arounds: Mapping[nn.Module, Around], attend: Attend) -> None:
    """Let the processors of attention modules call `attend` where they called `dispatch_attention_fn`, and each
    module's `Around` with what its whole processor does, which it may leave undone.

    A processor becomes an instance of a subclass whose `__call__` is diffusers' own code, bound to a namespace in which
    that one name means `attend`; one subclass for all of a kind, so that who compiles them sees one kind. Signature,
    attributes and numerics stay.
    """
    subclasses: dict[type[Any], type[Any]] = {}
    for module, around in arounds.items():
        processor = getattr(module, "processor", None)
        if processor is None:
            raise StartFailed(f"{type(module).__name__} has no attention processor")
        if hasattr(processor, "around"):
            continue  # Redirected before.
        kind = type(processor)
        if kind not in subclasses:
            subclasses[kind] = _subclass(kind, attend)
        redirected = copy.copy(processor)
        redirected.__class__ = subclasses[kind]
        redirected.around = around
        module.processor = redirected


def _calling(call: FunctionType, others: Mapping[str, Callable[..., Any]]) -> FunctionType:
    """The same code, in whose namespace some names mean `others`."""
    # Without the module's name: who compiles the code would look that module up, and find diffusers' function there.
    namespace = {name: value for name, value in call.__globals__.items() if name != "__name__"}
    bound = FunctionType(
        call.__code__, {**namespace, **others}, call.__name__, call.__defaults__, call.__closure__
    )
    bound.__kwdefaults__ = call.__kwdefaults__
    return bound


def _subclass(processor_type: type[Any], attend: Attend) -> type[Any]:
    call = processor_type.__call__
    known = getattr(call, "__globals__", {}).get(_NAME)
    if (
        not isinstance(call, FunctionType)
        or _NAME not in call.__code__.co_names
        or known is not dispatch_attention_fn
    ):
        raise StartFailed(
            f"{processor_type.__name__} does not call diffusers' {_NAME}; it cannot be shared by a lane"
        )
    bound = _calling(call, {_NAME: attend})

    # Diffusers' modules read the signature of a processor, so it stays.
    @wraps(bound)
    def call_around(self: Any, *args: Any, **kwargs: Any) -> Any:
        # Whoever stands around it decides anew at each step, and compiled code is the same at all of them.
        if torch.compiler.is_dynamo_compiling():
            return bound(self, *args, **kwargs)
        return self.around(lambda: bound(self, *args, **kwargs))

    return type(f"Lane{processor_type.__name__}", (processor_type,), {"__call__": call_around})
