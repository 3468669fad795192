from __future__ import annotations

import gc
import subprocess
import sys
import weakref
from collections.abc import Iterator
from pathlib import Path

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


PROGRAM = """
from pathlib import Path
from epe.runtime.garbage import return_freed_memory


def resident_mib():
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4 // 1024


return_freed_memory()
before = resident_mib()
del (first := [bytearray(24 * 2**20)])[:]  # from here on glibc, left to itself, takes the like from its heap
pictures, small = [], []
for _ in range(200):
    pictures.append(bytearray(2**20))
    small.append(bytearray(4096))  # what is kept lies between them
full = resident_mib()
pictures.clear()
print(full - before, resident_mib() - before)
"""


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells what a process holds")
def test_the_memory_of_pictures_that_are_gone_is_not_the_leaders_any_more():
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True
    )
    full_mib, left_mib = map(int, said.stdout.split())
    assert full_mib >= 200
    assert left_mib < 20
