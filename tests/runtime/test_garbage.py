from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from epe.runtime.garbage import settle_garbage


class Node:
    """One that refers to itself: only a collection can free it."""

    def __init__(self) -> None:
        self.own = self


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


def test_what_was_there_is_left_alone_and_what_comes_later_is_still_freed():
    dead_before = weakref.ref(Node())
    settle_garbage()
    assert dead_before() is None
    assert gc.get_freeze_count() > 10_000
    dead_after = weakref.ref(Node())
    assert dead_after() is not None
    kept = [[] for _ in range(gc.get_threshold()[0] + 100)]
    assert dead_after() is None, "a young collection frees it"
    del kept
