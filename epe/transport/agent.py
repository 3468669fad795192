"""This process's torch RPC agent: joins the members of one epoch, and leaves them without a farewell.

An agent that is gone is struck off by those that stay; its node comes back with a new one, under a new name.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from torch.distributed import PrefixStore, Store, rpc

from epe.errors import StartFailed
from epe.transport.guard import guard, unguard
from epe.transport.listener import forget_listeners, watch_listeners

_POLL_S = 0.005
# torch numbers agents in 16 bits.
_LAST_NUMBER = 2**15 - 1
# torch's own keys: who has joined, and whose turn it is to join.
_LIST = "_ALL_WORKER_INFOS"
_TOKEN = "RpcGroupManagementToken"
_autograd_is_ready = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Membership:
    """`node` among the `members` of an epoch; every wait ends after `timeout_s`. `interface` is the network
    interface to listen on, None where this host's name leads. `life` counts the processes that this node has had."""

    epoch: int
    node: str
    members: tuple[str, ...]
    timeout_s: float
    interface: str | None
    life: int = 0

    def __post_init__(self) -> None:
        for name in self.members:
            if not re.fullmatch(r"[A-Za-z0-9_]+", name):
                raise ValueError(f"node name {name!r} may have letters, digits and _ alone")
        if self.node not in self.members or len(set(self.members)) < len(self.members):
            raise ValueError(f"{self.node} must be one of distinct members, not {self.members}")

    @property
    def number(self) -> int:
        """The number of this agent, never given twice."""
        return self.members.index(self.node) + self.life * len(self.members)

    @property
    def own_name(self) -> str:
        return worker_name(self.node, epoch=self.epoch, life=self.life)


def worker_name(node: str, *, epoch: int, life: int) -> str:
    """The name of a node's agent: a new one each epoch and life, since a name is never given twice."""
    return f"{node}_e{epoch}_l{life}"


def join(
    store: Store,
    membership: Membership,
    *,
    endpoint: tuple[str, str],
    present: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Start the agent and wait for all members, or join those that are `present` (worker names by node); gives the
    worker of each peer. Blocks.

    Peers may call `endpoint` (module, name) alone. Raises `StartFailed`, and leaves nothing behind.
    """
    node, epoch = membership.node, membership.epoch
    if rpc.api._is_current_rpc_agent_set():
        raise StartFailed("torch RPC is already in use in this process; close the old link first")
    if membership.number > _LAST_NUMBER:
        raise StartFailed(
            f"{node} was lost {membership.life} times, and torch RPC has no number for another life; start the service "
            "again"
        )
    guard(endpoint, joining=True)
    try:
        watch_listeners(lambda: _start(store, membership))
        if present is None:
            _await_members(store.clone(), membership)
            present = {member: worker_name(member, epoch=epoch, life=0) for member in membership.members}
        peers = {peer: rpc.get_worker_info(name) for peer, name in present.items() if peer != node}
    except RuntimeError as error:
        leave()
        raise StartFailed(f"{node} could not join epoch {epoch}: {reason_of(error)}") from error
    except BaseException:
        leave()
        raise
    guard(endpoint, joining=False)
    return peers


def worker_of(name: str) -> Any:
    """What calls an agent that has joined, by its name."""
    return rpc.get_worker_info(name)


def strike_off(worker: Any) -> None:
    """Forget an agent that is gone, so that a new one may take its place."""
    rpc.api._get_current_rpc_agent()._update_group_membership(worker, [], {}, False)


def list_only(store: Store, *, epoch: int, names: Collection[str]) -> None:
    """Have the list that a newcomer reads name these agents alone, and free the token that another may have died with.

    A newcomer calls every agent on the list and fails if one is gone: so all that are lost must be off it, not only its
    own former life, and also those that died in the door.
    """
    own = PrefixStore(f"rpc{epoch}", store)
    listing = PrefixStore("names", own)
    listed = listing.get(_LIST).decode().split(",")
    listing.set(_LIST, "".join(f"{entry}," for entry in listed if entry.rpartition("-")[0] in names))
    own.set(_TOKEN, "")


def leave() -> None:
    """Stop the agent, if there is one. Never graceful: that waits for every member, the dead ones included."""
    if rpc.api._is_current_rpc_agent_set():
        rpc.shutdown(graceful=False)
    forget_listeners()
    unguard()


def reason_of(error: BaseException) -> str:
    """What a torch error says, without the places in its sources and the advice."""
    text = str(error).split("\n", 1)[0]
    return re.sub(r"\[\S+:\d+\] | \(this error.*|\. This is typically.*", "", text) or repr(error)


def _start(store: Store, membership: Membership) -> None:
    if membership.interface:
        os.environ["TP_SOCKET_IFNAME"] = membership.interface
    _prepare_autograd()
    # The agent blocks its client of the store while others join, so it has one of its own.
    own = PrefixStore(f"rpc{membership.epoch}", store.clone())
    own.set_timeout(timedelta(seconds=membership.timeout_s))
    # One worker thread keeps messages in order; the default transport spins on a core when idle.
    options = rpc.TensorPipeRpcBackendOptions(
        num_worker_threads=1, rpc_timeout=membership.timeout_s, _transports=["uv"], _channels=["basic"]
    )
    name, number = membership.own_name, membership.number
    # A group that knows no world size: every wait in it ends at the time limit, that of a fixed one does not.
    rpc._init_rpc_backend(rpc.BackendType.TENSORPIPE, own, name, number, None, options)


def _await_members(store: Store, membership: Membership) -> None:
    epoch, timeout_s = membership.epoch, membership.timeout_s
    ready = {member: f"rpc{epoch}/ready/{member}" for member in membership.members}
    store.set(ready[membership.node], "1")
    end_s = time.monotonic() + timeout_s
    while not store.check(list(ready.values())):
        if time.monotonic() > end_s:
            missing = [member for member, key in ready.items() if not store.check([key])]
            raise StartFailed(f"{', '.join(missing)} did not join epoch {epoch} within {timeout_s:g} s")
        time.sleep(_POLL_S)


def _prepare_autograd() -> None:
    """RPC asserts that distributed autograd, which we never use, is there; it is made once a process."""
    global _autograd_is_ready
    if not _autograd_is_ready:
        rpc.dist_autograd._init(0)
        _autograd_is_ready = True
