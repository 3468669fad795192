"""How a node that was lost comes back into an epoch: it knocks in the store, and the leader lets it in.

All of it blocks, on a client of the store of its own. The keys of a life are its own, so a newcomer that dies in the
door leaves nothing that its next life could stumble over.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping

from torch.distributed import PrefixStore, Store

from epe.errors import Gone, StartFailed

_POLL_S = 0.01


def knock(store: Store, node: str, life: int, timeout_s: float) -> dict[str, str]:
    """Ask to be let in, and wait; gives the names of the agents that are there, by node. Raises `Gone` if the leader
    does not open."""
    keys = _keys(store)
    keys.set(f"knock/{node}", str(life))
    if not _comes(keys, f"open/{node}/{life}", timeout_s):
        raise Gone(f"{node} knocked, but the leader did not let it in within {timeout_s:g} s")
    present: dict[str, str] = json.loads(keys.get(f"open/{node}/{life}"))
    return present


def enter(store: Store, node: str, life: int, timeout_s: float) -> None:
    """Say that this node's agent has joined, and wait until everybody knows it. Raises `StartFailed`."""
    keys = _keys(store)
    keys.set(f"in/{node}/{life}", "1")
    turned_away = f"away/{node}/{life}"
    if not _comes(keys, f"welcome/{node}/{life}", timeout_s, unless=lambda: keys.check([turned_away])):
        why = "was turned away" if keys.check([turned_away]) else f"was not made known within {timeout_s:g} s"
        raise StartFailed(f"{node} came in, but {why}")


def knocks(store: Store, nodes: tuple[str, ...]) -> dict[str, int]:
    """Which of these nodes stand at the door, in which life. A knock is heard once."""
    keys, lives = _keys(store), {}
    for node in nodes:
        if keys.check([f"knock/{node}"]) and (life := int(keys.get(f"knock/{node}"))) > 0:
            keys.set(f"knock/{node}", "0")
            lives[node] = life
    return lives


def let_in(
    store: Store,
    node: str,
    life: int,
    present: Mapping[str, str],
    timeout_s: float,
    *,
    unless: Callable[[], bool] = lambda: False,
) -> bool:
    """Open for this life of a node, and wait until its agent has joined; False, and it is turned away, if it does not
    within `timeout_s`, if its next life knocks (others may stand at the door), or if `unless` holds."""
    keys = _keys(store)
    keys.set(f"open/{node}/{life}", json.dumps(dict(present)))

    def is_vain() -> bool:
        return unless() or int(keys.get(f"knock/{node}")) > life

    came = _comes(keys, f"in/{node}/{life}", timeout_s, unless=is_vain)
    if not came:
        keys.set(f"away/{node}/{life}", "1")
    return came


def welcome(store: Store, node: str, life: int) -> None:
    """Everybody knows this life of the node now."""
    _keys(store).set(f"welcome/{node}/{life}", "1")


def _keys(store: Store) -> Store:
    return PrefixStore("door", store.clone())


def _comes(keys: Store, key: str, timeout_s: float, *, unless: Callable[[], bool] = lambda: False) -> bool:
    end_s = time.monotonic() + timeout_s
    while not keys.check([key]):
        if time.monotonic() > end_s or unless():
            return False
        time.sleep(_POLL_S)
    return True
