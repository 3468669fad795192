"""The example of the async API draws with every family."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from PIL import Image

from epe.families import FAMILIES
from epe.media.video import frame_sizes
from epe.models.catalog import make_tiny

FILE = Path(__file__).parents[2] / "examples" / "draw.py"
AVAILABLE = [name for name, family in FAMILIES.items() if family.available]


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("draw", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_it_knows_every_family_that_is_there(example: ModuleType) -> None:
    assert set(example.WISHES) == set(AVAILABLE)


@pytest.mark.parametrize("name", AVAILABLE)
async def test_it_writes_a_file_of_the_size_that_was_asked_for(
    name: str, example: ModuleType, tmp_path: Path
) -> None:
    if FAMILIES[name].makes == "video":
        pytest.importorskip("av")
    make_tiny(name, tmp_path / name)
    await example.draw(name, str(tmp_path / name), tmp_path / "drawn", side=80, num_steps=2)
    if FAMILIES[name].makes == "video":
        assert frame_sizes((tmp_path / "drawn.mp4").read_bytes()) == ((80, 80),) * 9
    else:
        with Image.open(tmp_path / "drawn.png") as picture:
            assert picture.size == (80, 80)
