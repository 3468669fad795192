"""Starts `epe serve` for real, under any launcher, draws with it, and knows its processes and what they say."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
from PIL import Image

from tests.launch.service import eventually
from tests.service.processes import Process, listeners, shared_memory, tree

ROOT = Path(__file__).resolve().parents[2]
EPE = (sys.executable, "-m", "epe")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
# Generous: many services may start at once on few cores.
START_WITHIN_S = 150.0
END_WITHIN_S = 40.0


def write_stage(
    folder: Path,
    checkpoint: Path | str,
    *,
    num_ranks: int,
    cfg_parallel_degree: int = 1,
    jobs: Path | None = None,
) -> Path:
    """A stage file of `num_ranks` CPU ranks under the default policy, which keeps its jobs in the folder `jobs`.

    Costs stay those of the warm-up, in which all lanes of a width draw at once: on a few shared cores corrections
    would soon teach the planner that a wide lane gains nothing there, and it would be right.
    """
    stage = folder / "stage.yaml"
    kept = "" if jobs is None else f", jobs: {{path: {jobs}}}"
    stage.write_text(
        f"""name: image
factory: zimage
gpu: {list(range(num_ranks))}
device: cpu
parallelism:
  cp: {{world_size: {num_ranks}}}
  scheduler: {{warmup_resolutions: [512], warmup_steps: 3, online_calibration: false}}
  model: {{cfg_parallel_degree: {cfg_parallel_degree}}}
factory_args: {{model_path: {checkpoint}, default_width: 256, default_height: 256, num_steps: 4}}
service: {{port: 0{kept}}}
"""
    )
    return stage


def user_environment(**more: str) -> dict[str, str]:
    """What a user's shell has."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **more}


@dataclass(frozen=True, kw_only=True)
class Reply:
    """One answer to a request for a picture."""

    status: int
    body: dict[str, Any]

    @property
    def file(self) -> bytes:
        assert self.status == 200, self.body
        return base64.b64decode(self.body["data"][0]["b64_json"])

    @property
    def pixels(self) -> np.ndarray:
        """uint8 (height, width, 3)."""
        return np.asarray(Image.open(io.BytesIO(self.file)).convert("RGB"))

    @property
    def request_id(self) -> str:
        return str(self.body["epe"]["request_id"])

    @property
    def lanes(self) -> list[tuple[int, ...]]:
        """The lanes on which it was denoised, in order."""
        visits = self.body["epe"]["lanes"]
        return [tuple(visit["ranks"]) for visit in visits if visit["stage"] == "denoise"]


class Served:
    """A running service, seen from outside: its HTTP, its log, its processes."""

    def __init__(self, folder: Path, commands: Sequence[Sequence[str]], envs: Sequence[Mapping[str, str]]):
        # One for each life of a service, so that the first can be read when the second has failed.
        self.log_path = folder / f"log{len(list(folder.glob('log*')))}"
        self._url = ""
        with self.log_path.open("wb") as log:
            self.parents = [
                subprocess.Popen(command, env=dict(env), stdout=log, stderr=log, cwd=ROOT)
                for command, env in zip(commands, envs, strict=True)
            ]

    @property
    def url(self) -> str:
        """Where it answers, once it does."""
        if not self._url:
            eventually(self._is_ready, within_s=START_WITHIN_S)
            (self._url,) = (line["url"] for line in self.events("service.became_ready"))
        return self._url

    def _is_ready(self) -> bool:
        assert all(parent.poll() is None for parent in self.parents), self.said()
        return any(self.events("service.became_ready"))

    @property
    def is_alive(self) -> bool:
        return all(parent.poll() is None for parent in self.parents)

    def said(self) -> str:
        return self.log_path.read_text()

    def events(self, *names: str, since: int = 0) -> Iterator[dict[str, Any]]:
        """The log lines of these events, from a `mark` on."""
        for line in self.said()[since:].splitlines():
            if line.startswith("{") and line.endswith("}"):
                event = json.loads(line)
                if event.get("event") in names:
                    yield event

    def mark(self) -> int:
        """Here the log ends now."""
        return len(self.said())

    async def draw(self, **body: Any) -> Reply:
        """One picture; 256x256, 4 steps and `a cat` unless the body says otherwise."""
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{self.url}/v1/images/generations", json={"prompt": "a cat", **body}) as answer,
        ):
            return Reply(status=answer.status, body=await answer.json())

    async def ask(self, method: str, path: str, *, key: str | None = None, **body: Any) -> tuple[int, bytes]:
        """Any other route: the status, and the body of the answer."""
        headers = {} if key is None else {"Idempotency-Key": key}
        async with (
            aiohttp.ClientSession() as session,
            session.request(
                method,
                f"{self.url}{path}",
                json={"prompt": "a cat", **body} if body else None,
                headers=headers,
            ) as answer,
        ):
            return answer.status, await answer.read()

    async def job(self, *, key: str, **body: Any) -> dict[str, Any]:
        """A picture that is kept."""
        status, answer = await self.ask("POST", "/v1/requests", key=key, **body)
        assert status in (200, 202), answer
        return dict(json.loads(answer))

    async def until_ended(self, job: dict[str, Any]) -> dict[str, Any]:
        """A job that has ended, whatever has become of the leader meanwhile."""
        async with asyncio.timeout(START_WITHIN_S):
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    status, answer = await self.ask("GET", f"/v1/requests/{job['id']}")
                    now = dict(json.loads(answer))
                    assert status == 200, now
                    if now["ended_at"] is not None:
                        return now
                await asyncio.sleep(0.1)

    async def health(self) -> dict[str, Any]:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/health") as answer:
            return dict(await answer.json())

    async def until_at_work(self) -> None:
        """Return when a request is on a lane."""
        await self._until(lambda health: health["num_running"] > 0)

    async def until_idle(self) -> None:
        """Return when none is, and none waits."""
        await self._until(lambda health: health["num_running"] + health["num_waiting"] == 0)

    async def until_all_ranks_work(self) -> None:
        """Return when no rank is lost or loading."""
        await self._until(
            lambda health: all(rank["state"] in ("idle", "busy") for rank in health["ranks"]),
            within_s=START_WITHIN_S,
        )

    async def _until(self, holds: Callable[[dict[str, Any]], bool], *, within_s: float = 30) -> None:
        async with asyncio.timeout(within_s):
            while not holds(await self.health()):  # noqa: ASYNC110 (what is awaited is another process's)
                await asyncio.sleep(0.05)

    # --- its processes ---

    def processes(self) -> list[Process]:
        """The parents and all that they have started."""
        return [process for parent in self.parents for process in tree(parent.pid)]

    def kill_rank(self, rank: int, number: signal.Signals) -> None:
        """A signal to the process of one rank."""
        (victim,) = [process for process in self.processes() if process.rank == rank]
        os.kill(victim.pid, number)

    def kill_leader(self, number: signal.Signals) -> None:
        """A signal to the process of the leader."""
        (victim,) = [process for process in self.processes() if process.is_leader]
        os.kill(victim.pid, number)

    def signal(self, number: signal.Signals) -> None:
        """To every parent, as a terminal does."""
        for parent in self.parents:
            parent.send_signal(number)

    def exit_codes(self) -> list[int]:
        return [parent.wait(timeout=END_WITHIN_S) for parent in self.parents]

    def close(self) -> None:
        """Kill what is left."""
        left = self.processes()
        for parent in self.parents:
            parent.kill()
            parent.wait()
        for process in left:
            if process.is_alive:
                os.kill(process.pid, signal.SIGKILL)


class Traces:
    """What a service has of this machine, taken while it lives, to be looked for when it has ended."""

    def __init__(self, served: Served) -> None:
        self.processes = served.processes()
        self.listeners = listeners(self.processes)
        self.shared_memory = shared_memory(self.processes)
        assert len(self.processes) > 2, "a leader and a rank at least"
        assert self.listeners, "HTTP at least"

    def assert_gone(self, *, within_s: float) -> None:
        """No process lives, no port listens, no segment of shared memory is left."""
        # A killed process counts as dead a moment before the kernel has closed what it held.
        eventually(lambda: not any(process.is_alive for process in self.processes), within_s=within_s)
        eventually(lambda: not self.listeners & listeners(None), within_s=1)
        assert not [path for path in self.shared_memory if path.exists()]


def serve(folder: Path, stage: Path, *options: str) -> Served:
    """`epe serve` without a launcher."""
    command = (*EPE, "serve", "--stage-config", str(stage), *options)
    return Served(folder, [command], [user_environment()])


def wait_for_log(served: Served, *names: str, since: int, within_s: float = 30.0) -> dict[str, Any]:
    """The first line of these events after a mark."""
    end_s = time.monotonic() + within_s
    while (event := next(served.events(*names, since=since), None)) is None:
        assert time.monotonic() < end_s, f"none of {names} was said"
        time.sleep(0.02)
    return event
