"""Services for `benchmarks.elastic_service`: one model, a policy each, and what requests they get."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from msgspec.structs import replace

from benchmarks.serve_raw_videos import COMMAND as RAW_VIDEOS
from benchmarks.static_stages import lane_widths
from epe.families import family
from epe.planning.cost_set import Size
from epe.simulator.costs import CostSet, read_cost_set
from tests.launch.service import eventually
from tests.service.served import EPE, ROOT, Served

KEPT_S = 10.0
WORLDS = (1, 2, 3, 4, 8)


def policies(world: int) -> dict[str, str]:
    """By the name that is shown. One rank has nothing to choose from."""
    if world == 1:
        return {"elastic": "elastic"}
    return {
        "elastic": "elastic",
        f"static SP{world}": "static_cp",
        f"static DP{world}": "static_dp",
        "static stages": f"benchmarks.static_stages.StaticStages{world}",
    }


def measures(name: str) -> bool:
    """Whether its service decodes otherwise than the first one, and so cannot use its costs."""
    return name.startswith("static DP")


def in_path(name: str) -> str:
    """A policy's name as that of a file."""
    return name.replace(" ", "-")


def costs_file(name: str) -> str:
    """What its service leaves behind of what it has measured."""
    return f"{in_path(name)}-costs.json"


def told(costs: CostSet) -> list[dict[str, Any]]:
    """What each task costs, as a line tells it."""
    names = ("stage", "tokens", "width", "seconds", "p90_s")
    return [{name: getattr(task, name) for name in names} for task in costs.tasks]


@dataclass(frozen=True)
class Class:
    """A class of requests: pictures or videos of a size, its share of all and its steps."""

    height: int
    width: int
    share: float
    steps: int
    num_frames: int = 1

    @property
    def name(self) -> str:
        return Size.named(height=self.height, width=self.width, num_frames=self.num_frames)


@dataclass(frozen=True)
class Mix:
    """What a service of a family is asked for, and measures at its start."""

    classes: tuple[Class, ...]
    guidance_scale: float = 0.0

    @property
    def measured(self) -> list[list[int]]:
        """Height, width and frames of each class."""
        return [[each.height, each.width, each.num_frames] for each in self.classes]


# Of Z-Image three of pictures, and one with as many tokens as a short video: 9,216, those of 21 frames of 480 x 832 are
# 9,360. Wan draws pictures as videos of one frame: 1,560 and 3,600 tokens beside the 7,800 of 17 frames.
REAL = {
    "zimage": Mix(
        (
            Class(256, 256, 0.45, 4),
            Class(512, 512, 0.3, 4),
            Class(1024, 1024, 0.18, 4),
            Class(1536, 1536, 0.07, 6),
        )
    ),
    "wan": Mix(
        (Class(480, 832, 0.6, 4), Class(720, 1280, 0.25, 4), Class(480, 832, 0.15, 6, num_frames=17)),
        guidance_scale=5.0,
    ),
}
TINY = {
    "zimage": Mix(
        (
            Class(128, 128, 0.45, 4),
            Class(192, 192, 0.3, 4),
            Class(256, 256, 0.18, 4),
            Class(384, 384, 0.07, 6),
        )
    ),
    "wan": Mix(
        (Class(160, 192, 0.6, 4), Class(240, 320, 0.25, 4), Class(128, 192, 0.15, 6, num_frames=17)),
        guidance_scale=5.0,
    ),
}


@dataclass(frozen=True)
class Model:
    """What the services serve."""

    family: str
    checkpoint: Path
    device: str
    dtype: str
    mix: Mix
    world: int

    def costs(self, path: Path) -> CostSet:
        """Those of a file, for the classes of the mix."""
        conditions = family(self.family).num_conditions(self.mix.guidance_scale)
        return replace(
            read_cost_set(str(path)),
            sizes=tuple(
                Size(
                    name=each.name,
                    family=self.family,
                    height=each.height,
                    width=each.width,
                    num_frames=each.num_frames,
                    num_steps=each.steps,
                    conditions=conditions,
                )
                for each in self.mix.classes
            ),
        )


class Running:
    """One service, its costs and its trace."""

    def __init__(self, folder: Path, model: Model, name: str, *, costs: Path | None = None) -> None:
        folder.mkdir(parents=True)
        self.name, self.model = name, model
        self.begin_s = time.monotonic()
        self.costs_path, self.trace_path = folder / "costs.json", folder / "trace.jsonl"
        if costs is not None:  # One that decodes otherwise measures its own.
            shutil.copy(costs, self.costs_path)
        stage = folder / "stage.yaml"
        stage.write_text(yaml.safe_dump(self._stage()))
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        self.served = Served(folder, [self._command(stage)], [environment])

    def _command(self, stage: Path) -> tuple[str, ...]:
        """The log tells of every lease."""
        if family(self.model.family).makes == "video":
            return (*RAW_VIDEOS, str(stage), str(self.trace_path))
        options = ("--stage-config", str(stage), "--record-trace", str(self.trace_path))
        return (*EPE, "serve", *options, "--log-level", "debug")

    def wait(self) -> float:
        """Until it is ready; the seconds that it took."""
        assert self.served.url
        eventually(self.costs_path.exists, within_s=KEPT_S)  # Kept beside the opening of the doors.
        shutil.copy(self.costs_path, self.costs_path.with_name("start.json"))
        return time.monotonic() - self.begin_s

    def costs(self, when: str = "start") -> CostSet:
        """What it had measured at its start, or by now; of the classes of the mix."""
        path = self.costs_path if when == "end" else self.costs_path.with_name("start.json")
        return self.model.costs(path)

    def close(self, logs: Path | None) -> None:
        """After its signal to end; its log and its costs stay in `logs`, by its name."""
        self.served.close()
        if logs is not None:
            self._leave_behind(logs)

    def _leave_behind(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(self.served.log_path, folder / f"{in_path(self.name)}.log")
        if self.costs_path.exists():
            shutil.copy(self.costs_path, folder / costs_file(self.name))

    def trace(self) -> Sequence[str]:
        """The recorded lines so far."""
        return self.trace_path.read_text().splitlines() if self.trace_path.exists() else ()

    def _stage(self) -> dict[str, Any]:
        mix, world = self.model.mix, self.model.world
        return {
            "name": "elastic",
            "factory": self.model.family,
            "gpu": list(range(world)),
            "device": self.model.device,
            "dtype": self.model.dtype,
            "parallelism": {
                "cp": {"world_size": world},
                "model": {"cfg_parallel_degree": 1},
                "scheduler": {
                    "policy": policies(world)[self.name],
                    "allowed_lane_widths": list(lane_widths(world)),
                    "warmup_resolutions": mix.measured,
                    "warmup_steps": 5,
                    "cost_file": str(self.costs_path),
                },
            },
            "factory_args": {
                "model_path": str(self.model.checkpoint),
                "num_steps": 8,
                "guidance_scale": mix.guidance_scale,
            },
            "service": {"port": 0, "drain_s": 1},
        }
