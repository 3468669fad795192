from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from epe.families import FAMILIES
from epe.models.catalog import make_tiny
from epe.models.contract import Adapter
from tests.models.every_family import Ranks, adapters_of
from tests.oracle import load_oracle

AVAILABLE = [name for name, family in FAMILIES.items() if family.available]


@pytest.fixture(scope="package", params=AVAILABLE)
def checkpoint(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny checkpoint of each family in turn; its folder has the family's name."""
    directory: Path = tmp_path_factory.mktemp("tiny") / request.param
    make_tiny(request.param, directory)
    return directory


@pytest.fixture(scope="package")
def ranks(checkpoint: Path) -> Ranks:
    """Gives the adapters of the first so many ranks, for tests that leave them as they are."""
    loaded: list[Adapter] = []

    def first(count: int) -> list[Adapter]:
        loaded.extend(adapters_of(checkpoint, max(0, count - len(loaded))))
        return loaded[:count]

    return first


@pytest.fixture(scope="package")
def oracle(checkpoint: Path) -> Any:
    """Diffusers' own pipeline, never touched by us."""
    return load_oracle(checkpoint)
