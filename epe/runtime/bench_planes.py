"""The state of a bench's request on the ranks of all planes, of which the first alone encodes. In a service states move
in messages; a bench has none."""

from __future__ import annotations

import msgspec
import torch
from safetensors.torch import load, save

from epe.messages import Request, StateHeader
from epe.models.contract import Adapter, State
from epe.transport.exchange import Exchange


def on_all_ranks(
    state: State | None, request: Request, *, adapter: Adapter, exchange: Exchange, target: torch.device
) -> State:
    """The state of the lane's first rank on each rank of its `exchange`, which all of them ask for at once. Those that
    have it pass it, the others None. Raises `Gone` if one of them ends."""
    header = tensors = b""
    if exchange.position == 0 and state is not None:
        words, parts = adapter.export_state(state)
        header, tensors = msgspec.msgpack.encode(words), save(dict(zip(words.names, parts, strict=True)))
    header, tensors = (_told(data, exchange, target) for data in (header, tensors))
    if state is not None:
        return state
    words, named = msgspec.msgpack.decode(header, type=StateHeader), load(tensors)
    return adapter.import_state(request, words, tuple(named[name] for name in words.names))


def _told(data: bytes, exchange: Exchange, target: torch.device) -> bytes:
    """What the first rank has, on all of them; of the others `data` is nothing."""
    size = exchange.broadcast(torch.tensor([len(data)], device=target), source=0)
    own = torch.frombuffer(bytearray(data or int(size)), dtype=torch.uint8)
    return bytes(exchange.broadcast(own.to(target), source=0).cpu().numpy())
