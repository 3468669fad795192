"""Arrays in memory that two processes share."""

from __future__ import annotations

import multiprocessing
import os
from collections.abc import Iterator
from multiprocessing.connection import Connection
from pathlib import Path

import msgspec
import numpy as np
import pytest

from epe.transport.shared import Offer, take

ARRAY = np.arange(2 * 3 * 5, dtype=np.uint8).reshape(2, 3, 5)


def offering(pipe: Connection, array: np.ndarray) -> None:
    offer = Offer(array)
    pipe.send(offer.note)
    pipe.recv()
    offer.close()
    pipe.send("closed")
    pipe.recv()


@pytest.fixture
def other() -> Iterator[tuple[multiprocessing.process.BaseProcess, Connection]]:
    """A process that offers `ARRAY`."""
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=offering, args=(theirs, ARRAY[:, :, ::-1]), daemon=True)
    process.start()
    yield process, ours
    process.kill()
    process.join()


def test_an_array_of_another_process_is_read_where_it_lies_and_outlives_it(other) -> None:
    process, pipe = other
    note = msgspec.msgpack.decode(msgspec.msgpack.encode(pipe.recv()), type=type(Offer(ARRAY).note))
    taken = take(note)
    assert np.array_equal(taken, ARRAY[:, :, ::-1])
    assert not taken.flags.writeable
    pipe.send("close")
    assert pipe.recv() == "closed"
    with pytest.raises(OSError, match=r"."):
        take(note)
    process.kill()
    process.join()
    assert np.array_equal(taken, ARRAY[:, :, ::-1])


def test_a_process_that_was_killed_leaves_nothing_and_its_offer_is_void(other) -> None:
    process, pipe = other
    note = pipe.recv()
    process.kill()
    process.join()
    with pytest.raises(OSError, match=r"."):
        take(note)


def test_a_descriptor_of_the_same_number_that_is_something_else_is_not_read(tmp_path: Path) -> None:
    offer = Offer(ARRAY)
    with (tmp_path / "secret").open("wb") as file:
        elsewhere = msgspec.structs.replace(offer.note, descriptor=file.fileno())
        with pytest.raises(OSError, match="not what was offered"):
            take(elsewhere)
    offer.close()


def test_a_thousand_offers_leave_no_descriptor_open() -> None:
    before = os.listdir("/proc/self/fd")
    for _ in range(1000):
        offer = Offer(ARRAY)
        taken = take(offer.note)
        offer.close()
        del taken
    assert len(os.listdir("/proc/self/fd")) == len(before)
