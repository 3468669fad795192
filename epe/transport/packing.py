"""How a message or `Parcel` travels through one RPC: its bytes, whether it is a parcel, and its tensors."""

from __future__ import annotations

from typing import Any

import msgspec
import numpy as np
import torch

from epe.errors import Gone
from epe.transport.link import Parcel
from epe.transport.wire import Codec

LARGE_BYTES = 64 << 10  # Above it bytes travel as a tensor: pickled, they cost ten times as much.

# (bytes, is it a Parcel, tensors ...); where the bytes are empty the first tensor holds them.
Packed = tuple[Any, ...]


def pack(codec: Codec, message: Any) -> Packed:
    """What travels. Raises `TypeError` for what may not cross a link."""
    parcel = message if isinstance(message, Parcel) else Parcel(message)
    data = codec.encode(parcel.message)
    tensors = tuple(_own_storage(tensor) for tensor in parcel.tensors)
    if len(data) > LARGE_BYTES:
        tensors = (torch.frombuffer(bytearray(data), dtype=torch.uint8), *tensors)
        data = b""
    return data, parcel is message, *tensors


def unpack(codec: Codec, packed: Packed) -> Any:
    """The message or `Parcel` at the far end. Raises `Gone` for bytes that are no message."""
    data, is_parcel, *tensors = packed
    if not data:
        data = memoryview(tensors.pop(0).numpy())
    try:
        message = codec.decode(data)
    except msgspec.DecodeError as error:
        raise Gone(f"a message arrived that cannot be read: {error}") from error
    return Parcel(message, tuple(tensors)) if is_parcel else message


def _own_storage(tensor: Any) -> torch.Tensor:
    """A contiguous host tensor that fills its storage: torch sends the whole storage of a view."""
    tensor = torch.from_numpy(tensor) if isinstance(tensor, np.ndarray) else tensor
    if not isinstance(tensor, torch.Tensor) or tensor.device.type != "cpu":
        raise TypeError("a parcel carries tensors and arrays in host memory; copy the tensor there first")
    tensor = tensor.detach().contiguous()
    return tensor if tensor.untyped_storage().nbytes() == tensor.nbytes else tensor.clone()
