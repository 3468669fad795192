from __future__ import annotations

from pathlib import Path

import pytest

from epe.models.catalog import make_tiny
from tests.models.flux.drawing import FAMILIES, Subject


@pytest.fixture(scope="session", params=FAMILIES)
def subject(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Subject:
    """One of the two families: a tiny checkpoint, diffusers' pipeline as the oracle, and four ranks' adapters."""
    directory: Path = tmp_path_factory.mktemp("tiny") / request.param
    make_tiny(request.param, directory)
    return Subject(request.param, directory)
