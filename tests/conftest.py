"""What all tests share: a tiny checkpoint on disk, and a world of four ranks."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.browser import Browser, find_chromium
from tests.workers import SharedByFile, file_of, starts_ranks
from tests.world import ADAPTERS, World

# Before anything imports torch: on shared cores more threads mean spinning, and other bits.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Those that start ranks go first, since they take longest."""
    items.sort(key=lambda item: starts_ranks(file_of(item.nodeid)), reverse=True)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """With `-n 2`."""
    return SharedByFile(config, log)


@pytest.fixture(autouse=True)
def _usual_log() -> Iterator[None]:
    """A command, or a runtime in a host without settings, decides how this process logs; afterwards it is as before."""
    yield
    structlog.reset_defaults()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Services keep their costs in the user's cache folder: here it is one that no other run has used."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def tiny_zimage(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small random-weight Z-Image checkpoint, written once."""
    from epe.models.catalog import make_tiny

    directory = tmp_path_factory.mktemp("tiny") / "zimage"
    make_tiny("zimage", directory)
    return directory


@pytest.fixture(scope="session")
def world() -> Iterator[World]:
    """Four ranks, started when the first test asks for them and shared by all."""
    world = World(4, preload=ADAPTERS)
    yield world
    world.close()


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A headless Chromium, shared by all tests of the page; without one they are left out."""
    if (program := find_chromium()) is None:
        pytest.skip("needs a browser: apt-get install chromium")
    browser = Browser(program, tmp_path_factory.mktemp("chromium"))
    yield browser
    browser.close()
