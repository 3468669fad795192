from __future__ import annotations

import msgspec
import pytest

from epe.errors import BadRequest, BadSetting, EpeError, Gone, NonFinite, Overloaded, Refused
from epe.messages import Down, Drop, Lane, Lease, Request, Stage, Watch
from epe.transport.wire import Codec, WireError, error_from_wire, error_to_wire

REQUEST = Request(
    id="a", prompt="Jiří 猫", height=64, width=64, num_steps=2, guidance_scale=1.5, seed=2**63 - 1
)
LEASE = Lease(seq=1, epoch=0, lane=Lane(ranks=(2, 0)), stage=Stage.DENOISE, request=REQUEST, num_steps=2)


class Stranger(msgspec.Struct, frozen=True, tag=True):
    number: int


@pytest.mark.parametrize(
    "message",
    [
        LEASE,
        Drop(request_ids=("a", "b")),
        Watch(),
        Down(address="a@b", reason="end"),
        True,
        None,
        1.5,
        3,
        "x",
    ],
)
def test_messages_and_plain_answers_come_back_equal(message: object) -> None:
    codec = Codec()
    back = codec.decode(codec.encode(message))
    assert back == message
    assert type(back) is type(message)


def test_a_type_outside_the_vocabulary_is_refused_at_the_sender() -> None:
    with pytest.raises(TypeError, match="Stranger cannot cross a link"):
        Codec().encode(Stranger(1))
    with pytest.raises(TypeError, match="list cannot cross"):
        Codec().encode([1])


def test_a_type_that_is_allowed_by_name_crosses() -> None:
    codec = Codec(Stranger)
    assert codec.decode(codec.encode(Stranger(7))) == Stranger(7)


def test_bytes_of_an_unknown_type_are_refused_at_the_receiver() -> None:
    with pytest.raises(msgspec.DecodeError):
        Codec().decode(Codec(Stranger).encode(Stranger(7)))
    with pytest.raises(msgspec.DecodeError):
        Codec().decode(b"\xc1junk")


@pytest.mark.parametrize(
    "error",
    [
        BadSetting("0 is too small", path="gpu.count"),
        BadRequest("prompt is missing", param="prompt"),
        Refused("the queue is full", retry_after_s=2.5),
        NonFinite("NaN in the latents", stage="denoise", step=3),
        Overloaded("full"),
    ],
)
def test_an_error_crosses_with_its_class_its_text_and_its_attributes(error: EpeError) -> None:
    codec = Codec()
    back = error_from_wire(codec.decode(codec.encode(error_to_wire(error))))
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert vars(back) == vars(error)


def test_an_error_of_another_room_crosses_as_its_nearest_known_class() -> None:
    class Private(Refused):
        pass

    error = Private("no", retry_after_s=1.0)
    error.add_note("a note stays at home")
    back = error_from_wire(error_to_wire(error))
    assert type(back) is Refused
    assert vars(back) == {"retry_after_s": 1.0}


def test_an_unknown_error_name_becomes_gone() -> None:
    back = error_from_wire(WireError(name="Newer", text="from a later version"))
    assert type(back) is Gone
    assert str(back) == "from a later version"
