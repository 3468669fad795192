"""The embedded example; what it draws is checked in `tests/service/test_generate.py`."""

from __future__ import annotations

import sys
from pathlib import Path
from runpy import run_path

import pytest

FILE = Path(__file__).parents[2] / "examples" / "epe_embedded.py"


def test_the_example_without_a_folder_draws_with_the_demo_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It ended with an IndexError."""
    given: list[tuple[str, Path]] = []

    async def host(model_path: str, output: Path) -> None:
        given.append((model_path, output))

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [str(FILE)])
    main = run_path(str(FILE))["main"]
    monkeypatch.setitem(main.__globals__, "host", host)
    main()
    assert given == [("demo", Path("outputs"))]
