"""Services of two ranks for `benchmarks.elastic_service`: one model, a policy each, and what requests they get."""

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

from epe.simulator.costs import CostSet, read_cost_set
from tests.service.served import EPE, ROOT, Served

WORLD = 2
POLICIES = {
    "elastic": "elastic",
    "static SP2": "static_cp",
    "static DP2": "static_dp",
    "static stages": "benchmarks.static_stages.StaticStages",
}


@dataclass(frozen=True)
class Size:
    """A class of requests: pictures of `side` x `side`, its share of all and its steps."""

    side: int
    share: float
    steps: int

    @property
    def name(self) -> str:
        return f"{self.side}x{self.side}"


# Three of pictures, and one with as many tokens as a short video: 9,216, those of 21 frames of 480 x 832 are 9,360.
REAL_SIZES = (Size(256, 0.45, 4), Size(512, 0.3, 4), Size(1024, 0.18, 4), Size(1536, 0.07, 6))
TINY_SIZES = (Size(128, 0.45, 4), Size(192, 0.3, 4), Size(256, 0.18, 4), Size(384, 0.07, 6))


@dataclass(frozen=True)
class Model:
    """What the services serve."""

    checkpoint: Path
    device: str
    dtype: str
    sizes: tuple[Size, ...]


class Running:
    """One service, its costs and its trace."""

    def __init__(self, folder: Path, model: Model, name: str, *, costs: Path | None = None) -> None:
        folder.mkdir(parents=True)
        self.name, self.model = name, model
        self.begin_s = time.monotonic()
        self.costs_path, self.trace_path = folder / "costs.json", folder / "trace.jsonl"
        if costs is not None:
            shutil.copy(costs, self.costs_path)
        stage = folder / "stage.yaml"
        stage.write_text(yaml.safe_dump(self._stage()))
        path = os.pathsep.join((str(ROOT), os.environ.get("PYTHONPATH", "")))
        environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        options = ("--stage-config", str(stage), "--record-trace", str(self.trace_path))
        self.served = Served(folder, [(*EPE, "serve", *options)], [environment])

    def wait(self) -> float:
        """Until it is ready; the seconds that it took."""
        assert self.served.url
        shutil.copy(self.costs_path, self.costs_path.with_name("start.json"))
        return time.monotonic() - self.begin_s

    def costs(self, when: str = "start") -> CostSet:
        """What it had measured at its start, or at its end; with the steps that requests of each class have."""
        path = self.costs_path if when == "end" else self.costs_path.with_name("start.json")
        found = read_cost_set(str(path))
        steps = {size.name: size.steps for size in self.model.sizes}
        return replace(found, sizes=tuple(replace(each, num_steps=steps[each.name]) for each in found.sizes))

    def trace(self) -> Sequence[str]:
        """The recorded lines so far."""
        return self.trace_path.read_text().splitlines() if self.trace_path.exists() else ()

    def _stage(self) -> dict[str, Any]:
        return {
            "name": "pictures",
            "factory": "zimage",
            "gpu": list(range(WORLD)),
            "device": self.model.device,
            "dtype": self.model.dtype,
            "parallelism": {
                "cp": {"world_size": WORLD},
                "model": {"cfg_parallel_degree": 1},
                "scheduler": {
                    "policy": POLICIES[self.name],
                    "allowed_lane_widths": [1, 2],
                    "warmup_resolutions": [size.side for size in self.model.sizes],
                    "warmup_steps": 5,
                    "cost_file": str(self.costs_path),
                },
            },
            "factory_args": {"model_path": str(self.model.checkpoint), "num_steps": 8, "guidance_scale": 0},
            "service": {"port": 0, "drain_s": 1},
        }
