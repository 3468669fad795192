"""Who draws in `benchmarks.h200_stream`: `epe serve`, and diffusers' pipeline behind the same HTTP."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp

from benchmarks.stream_plan import Plan

HERE = Path(__file__).resolve().parents[1]
START_WITHIN_S = 300.0
END_WITHIN_S = 60.0
LAST_LINES = 40
MEMORY = re.compile(r"^(epe_(?:rank_memory_bytes|graph\w*)\{[^}]*\}) (\S+)$", re.MULTILINE)
WORK = re.compile(r'^epe_stage_seconds_sum\{stage="(\w+)"\} (\S+)$', re.MULTILINE)


class Entrant:
    """A process that answers HTTP once its log says `service.became_ready`."""

    def __init__(self, name: str, command: Sequence[str], log_path: Path) -> None:
        self.name = name
        self.url = ""
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, *command],
                stdout=log,
                stderr=log,
                env={**os.environ, "PYTHONPATH": os.pathsep.join((str(HERE), _search_path()))},
            )

    def wait(self) -> None:
        """Until it answers. Raises `RuntimeError` with the end of its log where it does not."""
        end_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < end_s and self._process.poll() is None:
            for text in self._log_path.read_text().splitlines():
                if text.startswith("{") and '"service.became_ready"' in text:
                    self.url = json.loads(text)["url"]
                    return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} did not start:\n{self._log_path.read_text()[-2500:]}")

    def said(self, *begins: str) -> list[dict[str, Any]]:
        """The last lines of its log whose events begin so."""
        lines = (json.loads(text) for text in self._log_path.read_text().splitlines() if text.startswith("{"))
        return [line for line in lines if str(line.get("event", "")).startswith(begins)][-LAST_LINES:]

    async def memory(self) -> dict[str, float]:
        """Of the service: what its ranks say of their memory and graphs, and MiB of all its processes on the host."""
        return {**await self._told(MEMORY), "host_mib": _resident_mib(self._process.pid)}

    async def work_s(self) -> dict[str, float]:
        """Of the service: seconds that each stage has taken of all requests since the start."""
        return await self._told(WORK)

    async def _told(self, series: re.Pattern[str]) -> dict[str, float]:
        """Names and values on its page of metrics."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as answer:
            page = await answer.text()
        return {name: float(value) for name, value in series.findall(page)}

    def close(self) -> None:
        self._process.terminate()
        try:
            self._process.wait(END_WITHIN_S)
        except subprocess.TimeoutExpired:
            self._process.kill()


@contextmanager
def service_of(plan: Plan, checkpoint: Path, folder: Path) -> Iterator[Entrant]:
    """`epe serve` as it is shipped, on one rank; of the stage file only the sizes to warm up are set."""
    numerics = "" if plan.numerics == "exact" else f"numerics: {plan.numerics}\n"
    stage = folder / "stage.yaml"
    stage.write_text(
        f"""name: stream
factory: {plan.family}
gpu: [0]
device: {plan.device}
{numerics}parallelism:
  scheduler: {{warmup_resolutions: {list(plan.sides)}, cost_file: none}}
factory_args:
  model_path: {checkpoint}
  num_steps: {plan.draft.num_steps}
  guidance_scale: {plan.draft.guidance_scale}
"""
    )
    command = ("-m", "epe", "serve", "--port", "0", "--stage-config", str(stage))
    yield from _running("service", command, folder)


@contextmanager
def loop_of(plan: Plan, checkpoint: Path, folder: Path) -> Iterator[Entrant]:
    command = ("-m", "benchmarks.diffusers_front", str(checkpoint), "--device", plan.device)
    yield from _running("loop", command, folder)


def _running(name: str, command: Sequence[str], folder: Path) -> Iterator[Entrant]:
    entrant = Entrant(name, command, folder / f"{name}.log")
    try:
        yield entrant
    finally:
        entrant.close()


def _search_path() -> str:
    return os.environ.get("PYTHONPATH", "")


def _resident_mib(pid: int) -> int:
    """Resident memory of a process and all of its descendants."""
    total, waiting = 0, [pid]
    while waiting:
        each = waiting.pop()
        try:
            status = Path(f"/proc/{each}/status").read_text()
            children = Path(f"/proc/{each}/task/{each}/children").read_text()
        except OSError:
            continue
        found = re.search(r"^VmRSS:\s+(\d+) kB$", status, re.MULTILINE)
        total += int(found[1]) if found else 0
        waiting += map(int, children.split())
    return total // 1024
