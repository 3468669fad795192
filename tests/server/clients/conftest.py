"""Clients that people use, as they are: each in a folder of its own, in the versions of `pins/`, installed once."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
KEPT = ROOT / ".clients"
# A package index may be slow, and litellm brings fifty packages.
INSTALL_WITHIN_S = 600
RUN_WITHIN_S = 300

Folder = Callable[[str], Path]


@pytest.fixture(scope="session")
def client_folder() -> Folder:
    """The folder of a client; skips, with the reason, where it cannot be installed."""

    def folder(name: str) -> Path:
        pins = HERE / "pins" / f"{name}.txt"
        digest = hashlib.sha256(pins.read_bytes() + sys.version.encode()).hexdigest()[:16]
        target = KEPT / f"{name}-{digest}"
        if not (target / "whole").exists():
            _install(pins, target)
        return target

    return folder


def _install(pins: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    install = ["pip", "install", "--quiet", "--no-deps", "--target", str(target), "--requirement", str(pins)]
    done = subprocess.run(
        [sys.executable, "-m", *install], capture_output=True, text=True, timeout=INSTALL_WITHIN_S
    )
    if done.returncode != 0:
        shutil.rmtree(target, ignore_errors=True)
        *_, reason = done.stderr.strip().splitlines() or ["pip says nothing"]
        pytest.skip(f"{pins.stem} cannot be installed here: {reason}")
    (target / "whole").touch()


async def run_with(folder: Path, *command: str) -> tuple[int, str]:
    """Run Python with the packages of a folder before all others; its exit code, and what it said."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *command,
        env={**os.environ, "PYTHONPATH": str(folder)},
        cwd=folder,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    try:
        async with asyncio.timeout(RUN_WITHIN_S):
            said, _ = await process.communicate()
    except TimeoutError:
        process.kill()
        raise
    assert process.returncode is not None
    return process.returncode, said.decode()


async def play(folder: Path, scene: str, url: str) -> dict[str, Any]:
    """What a scene saw, which it prints as its last line."""
    code, said = await run_with(folder, str(HERE / scene), url)
    assert code == 0, said
    seen: dict[str, Any] = json.loads(said.strip().splitlines()[-1])
    return seen
