"""How several workers of pytest-xdist share the tests: those of a file stay together, and all files that start ranks.

The marks of tests are not known where they are handed out, and `xdist_group` is without effect under pytest 9.2.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from xdist.scheduler import LoadScopeScheduling

from tests.world import ROOT


class SharedByFile(LoadScopeScheduling):
    """One world and one service at a time, whose worker mostly waits for them while the others compute."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = file_of(nodeid)
        return "those that start ranks" if starts_ranks(file) else file


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


@cache
def starts_ranks(file: str) -> bool:
    """Whether tests in it are marked `world`."""
    return "pytest.mark.world" in (ROOT / file).read_text(encoding="utf-8")
