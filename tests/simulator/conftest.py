from __future__ import annotations

import importlib
from collections.abc import Callable
from types import ModuleType

import pytest

from tests.world import ROOT

# One of those that the program compares schedulers in.
CELL = "flux-gamma3-only-small-0.8-x3"


@pytest.fixture
def program(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A module of the program that compares schedulers, by its name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module
