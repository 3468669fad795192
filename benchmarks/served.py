"""Services of four CPU ranks for the benchmarks: started with a policy, drawn with over HTTP, read by their log."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp

HERE = Path(__file__).resolve().parent
START_WITHIN_S = 180.0


class Served:
    """`epe serve` under one policy; its log has a line for each lease. `sizes` are measured at the start, always anew
    unless a `cost_file` keeps them; `options` go to the command."""

    def __init__(
        self,
        folder: Path,
        checkpoint: Path,
        *,
        policy: str,
        num_ranks: int = 4,
        sizes: Sequence[int] = (256, 512),
        cost_file: str = "none",
        options: Sequence[str] = (),
    ) -> None:
        self.policy = policy
        self.log_path = folder / f"{policy}-{num_ranks}.log"
        stage = folder / f"{policy}-{num_ranks}.yaml"
        stage.write_text(
            f"""name: image
factory: zimage
gpu: {list(range(num_ranks))}
device: cpu
parallelism:
  scheduler: {{policy: {policy}, warmup_resolutions: {list(sizes)}, warmup_steps: 5, cost_file: {cost_file}}}
  model: {{cfg_parallel_degree: 1}}
factory_args: {{model_path: {checkpoint}}}
"""
        )
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "--stage-config", str(stage), *options],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(_PATHS)},
                stderr=log,
            )
        self.url = self._wait_until_ready()

    def _wait_until_ready(self) -> str:
        end_s = time.monotonic() + START_WITHIN_S
        while time.monotonic() < end_s and self.process.poll() is None:
            for line in self.lines("service.became_ready"):
                return str(line["url"])
            time.sleep(0.2)
        self.process.kill()
        raise SystemExit(f"the service of policy {self.policy} did not start:\n{self.log_path.read_text()}")

    def lines(self, *names: str, since: int = 0) -> Iterator[dict[str, Any]]:
        """The log lines of these events, from a `mark` on."""
        for line in self.log_path.read_text()[since:].splitlines():
            if line.startswith("{") and (event := json.loads(line))["event"] in names:
                yield event

    def mark(self) -> int:
        """Here the log ends now."""
        return len(self.log_path.read_text())

    async def draw(self, body: Mapping[str, object]) -> float:
        """One picture; the seconds from sending the request to having the answer."""
        begin_s = time.perf_counter()
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/images/generations", json={"prompt": "a cat", **body}) as answer,
        ):
            reply = await answer.read()
            assert answer.status == 200, reply
        return time.perf_counter() - begin_s

    async def draw_over_time(self, arrivals: list[tuple[float, Mapping[str, object]]]) -> list[float]:
        """The latency of each request; the first number of an arrival is its seconds after the start."""

        async def later(delay_s: float, body: Mapping[str, object]) -> float:
            await asyncio.sleep(delay_s)
            return await self.draw(body)

        return await asyncio.gather(*(later(delay_s, body) for delay_s, body in arrivals))

    def close(self) -> None:
        """Drain and end."""
        self.process.terminate()
        self.process.wait(90)


_PATHS = (str(HERE), str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")]))
COMMAND = (sys.executable, "-m", "epe", "serve", "--port", "0", "--log-level", "debug")
