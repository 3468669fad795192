"""What torch RPC may unpickle here: calls of one function and their answers, nothing else.

Left open by it: torch's built-in operators and TorchScript, which do not use pickle. The sockets stay on
loopback unless the user names a host, and a network that the ranks share must be trusted.
"""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import torch
from torch.distributed import rpc
from torch.distributed.rpc import internal

from epe.errors import StartFailed

_INTERNAL = "torch.distributed.rpc.internal"

# torch pickles a tensor's place in a message as getattr(_InternalRPCPickler, "_tensor_receiver").
_PICKLER = (_INTERNAL, "_InternalRPCPickler")
_TENSOR_RECEIVER = "_tensor_receiver"

# What the agents of an epoch say to each other while they join.
_JOINING = frozenset(
    {
        ("torch.distributed.rpc.backend_registry", "_get_device_infos"),
        ("torch.distributed.rpc._utils", "_update_group_membership"),
        ("torch._C._distributed_rpc", "WorkerInfo"),
    }
)

_ALWAYS = frozenset({(_INTERNAL, "PythonUDF"), (_INTERNAL, "RemoteException"), ("builtins", "RuntimeError")})

_torch_unpickler = internal._unpickler


class GuardedUnpickler(pickle.Unpickler):
    """Finds only the names that are allowed; anything else is refused before it is imported."""

    allowed = _ALWAYS

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in self.allowed:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):
            # The real one would open every attribute of what is allowed, `__globals__` among them.
            return _tensor_receiver
        if (module, name) == _PICKLER:
            return _PICKLER
        raise pickle.UnpicklingError(f"a peer may not name {module}.{name} here")


def _tensor_receiver(owner: Any, name: Any) -> Any:
    if owner != _PICKLER or name != _TENSOR_RECEIVER:
        raise pickle.UnpicklingError(f"a peer may not read the attribute {name!r} here")
    return internal._InternalRPCPickler._tensor_receiver


def guard(endpoint: tuple[str, str], *, joining: bool) -> None:
    """Let peers call only `endpoint` (module, name), and while agents are `joining` what these need."""
    allowed = _ALWAYS | {endpoint} | (_JOINING if joining else frozenset())
    internal._unpickler = type("GuardedUnpickler", (GuardedUnpickler,), {"allowed": allowed})


def unguard() -> None:
    """Give torch its own unpickler back: our agent is gone."""
    internal._unpickler = _torch_unpickler


def check_seam() -> None:
    """Raise `StartFailed` if this torch lacks a private name that the link stands on."""
    options = inspect.signature(rpc.TensorPipeRpcBackendOptions.__init__).parameters
    names = {
        "rpc._init_rpc_backend": hasattr(rpc, "_init_rpc_backend"),
        "rpc.dist_autograd._init": hasattr(rpc.dist_autograd, "_init"),
        "rpc.api._is_current_rpc_agent_set": hasattr(rpc.api, "_is_current_rpc_agent_set"),
        "rpc.TensorPipeAgent._update_group_membership": hasattr(
            rpc.TensorPipeAgent, "_update_group_membership"
        ),
        "rpc.internal._unpickler": hasattr(internal, "_unpickler"),
        "rpc.internal._InternalRPCPickler._tensor_receiver": hasattr(
            internal._InternalRPCPickler, _TENSOR_RECEIVER
        ),
        "TensorPipeRpcBackendOptions(_transports, _channels)": {"_transports", "_channels"} <= set(options),
    }
    missing = [name for name, there in names.items() if not there]
    if missing:
        raise StartFailed(
            f"torch {torch.__version__} lacks {', '.join(missing)}, which messages between processes need; "
            "install torch 2.11 to 2.13"
        )
