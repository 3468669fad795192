"""The bytes of messages, answers and errors, the same for every link: none carries more than another."""

from __future__ import annotations

import inspect
from functools import reduce
from operator import or_
from typing import Any, get_args

from msgspec import Struct, msgpack

from epe import errors
from epe.errors import EpeError, Gone
from epe.messages import WireMessage

# What an answer may be beside the structs of `WireMessage`.
Plain = bool | int | float | str | None

_ERROR_TYPES: dict[str, type[EpeError]] = {
    name: member
    for name, member in inspect.getmembers(errors, inspect.isclass)
    if issubclass(member, EpeError)
}


class WireError(Struct, frozen=True, kw_only=True, tag=True):
    """An `EpeError` on its way: the name of its class in `epe.errors`, its text and its plain attributes."""

    name: str
    text: str
    fields: dict[str, Plain] = {}


class Codec:
    """Messages and answers to msgpack bytes and back. `message_types` are allowed beside `WireMessage`."""

    def __init__(self, *message_types: type[Struct]) -> None:
        union: Any = reduce(or_, (WireError, Plain, *message_types), WireMessage)
        self._types = frozenset(get_args(union))
        self._encoder = msgpack.Encoder()
        self._decoder: msgpack.Decoder[Any] = msgpack.Decoder(union)

    def encode(self, message: Any) -> bytes:
        """Raises `TypeError`, at the sender, for what the far end could not decode."""
        if type(message) not in self._types:
            raise TypeError(f"{type(message).__name__} cannot cross a link; it is no part of WireMessage")
        return self._encoder.encode(message)

    def decode(self, data: bytes | bytearray | memoryview) -> Any:
        """Raises `msgspec.DecodeError` for bytes that are no message."""
        return self._decoder.decode(data)


def error_to_wire(error: EpeError) -> WireError:
    """What crosses of an error: its class, or the nearest one in `epe.errors` that it derives from."""
    name = next(kind.__name__ for kind in type(error).__mro__ if _ERROR_TYPES.get(kind.__name__) is kind)
    fields = {key: value for key, value in vars(error).items() if isinstance(value, Plain)}
    return WireError(name=name, text=str(error), fields=fields)


def error_from_wire(wire: WireError) -> EpeError:
    """The same error at the far end."""
    kind = _ERROR_TYPES.get(wire.name, Gone)
    # Not through __init__, which may build the text anew (BadSetting puts its path before it).
    error = kind.__new__(kind, wire.text)
    vars(error).update(wire.fields)
    return error
