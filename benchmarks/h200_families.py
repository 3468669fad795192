"""Every family at its real size with random weights: our adapter against diffusers' own loop on one rank, and lanes of
every width against one rank, bit for bit.

    python -m benchmarks.h200_families                        # on CUDA, about seven minutes
    python -m benchmarks.h200_families --tiny --device cpu    # the same program on small models
    python -m benchmarks.h200_families --missing-from RUN.jsonl --cases lane moves      # what no run has yet

Ranks have a GPU each where there are several, and speak over NCCL; else four share one, and speak over gloo. One JSON
object a line, as it goes. A case that fails or outlasts its limit costs its own line alone.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import product
from pathlib import Path
from typing import Any

import torch

from benchmarks.blas import BLAS
from benchmarks.h200_page import read
from benchmarks.place import Case, Setting
from benchmarks.real_sizes import MODELS
from epe.families import FAMILIES
from epe.messages import Split
from tests.world import RankFailed, World

CASE_LIMIT_S = 100.0
# Imports alone took more than half a minute where files are read for the first time.
START_LIMIT_S = 150.0
# Fewer seconds than this are not worth a case.
LEAST_S = 15.0
CASES = ("alone", "runtime", "lane", "moves")


@dataclass(frozen=True, slots=True)
class Run:
    """A case, and who performs it: `module:function` in `benchmarks`."""

    function: str
    case: Case

    def described(self) -> dict[str, Any]:
        """For the line that tells of it."""
        case, split = self.case, self.case.split
        return {
            "case": self.function.partition(":")[2],
            "family": case.family,
            "mode": case.mode,
            "cfg_parallel_degree": case.cfg_parallel_degree,
            "width": len(case.ranks),
            "split": f"{split.cfg}x{split.cp}",
            "size": ("even", "odd")[case.size],
        }


def runs(names: list[str], setting: Setting, folder: Path) -> Iterator[Run]:
    """All runs, those first that say most."""
    for name in names:
        yield Run("family_cases:alone", Case(family=name))
    for name in names:
        everyone = tuple(range(setting.num_ranks))
        yield Run("runtime_case:runtime", Case(family=name, ranks=everyone, folder=str(folder)))
    for name in names:
        yield from _lanes(name, setting.num_ranks)


def _lanes(name: str, num_ranks: int) -> Iterator[Run]:
    lanes = [tuple(range(width)) for width in (2, 3, 4, 8) if width <= num_ranks]
    for mode, ranks, size in product(("agkv", "ulysses"), lanes, (0, 1)):
        yield Run(
            "family_cases:lane",
            Case(family=name, mode=mode, size=size, ranks=ranks, split=Split(cp=len(ranks))),
        )
    yield Run("family_cases:moves", Case(family=name, size=1, ranks=lanes[-1], split=Split(cp=num_ranks)))
    if FAMILIES[name].owns("cfg"):
        for ranks in (lane for lane in lanes if len(lane) % 2 == 0):
            split = Split(cfg=2, cp=len(ranks) // 2)
            yield Run(
                "family_cases:lane",
                Case(family=name, size=1, ranks=ranks, split=split, cfg_parallel_degree=2),
            )


def ready(world: World) -> dict[str, Any]:
    """All ranks are there, with what takes them longest to import: no case's time goes into that."""
    begin_s = time.monotonic()
    world.run("benchmarks.place:arrive", timeout_s=START_LIMIT_S)
    return {"case": "ready", "seconds": round(time.monotonic() - begin_s, 1)}


def perform(world: World, run: Run, setting: Setting, *, limit_s: float) -> dict[str, Any]:
    """What a run gave, or why it gave nothing."""
    begin_s = time.monotonic()
    try:
        given = world.run(f"benchmarks.{run.function}", setting, run.case, timeout_s=limit_s)
    except RankFailed as failure:
        return {**run.described(), "error": str(failure)[-400:]}
    lines = [line for line in given if line is not None]
    digests = {line.pop("digest", "") for line in lines}
    took = {"ranks_agree": len(digests) == 1, "took_s": round(time.monotonic() - begin_s, 1)}
    return {**run.described(), **lines[0], **took}


def setting_of(device: str, *, tiny: bool, blas: str = "exact") -> Setting:
    num_gpus = torch.cuda.device_count() if device == "cuda" else 0
    dtype = "float32" if device == "cpu" else "bfloat16"
    own_gpus = num_gpus > 1
    return Setting(
        device=device,
        num_ranks=min(num_gpus, 8) if own_gpus else 4,
        backend="nccl" if own_gpus else "gloo",
        dtype=dtype,
        tiny=tiny,
        blas=blas,
    )


def had(line: dict[str, Any], *, backend: str, blas: str) -> tuple[Any, ...]:
    """What tells runs apart."""
    names = ("case", "family", "mode", "cfg_parallel_degree", "width", "split", "size")
    return (backend, blas, *(line[name] for name in names))


def about(setting: Setting) -> dict[str, Any]:
    """What the figures depend on."""
    has_gpu = setting.device == "cuda"
    return {
        "case": "setting",
        **asdict(setting),
        "gpu": torch.cuda.get_device_name(0) if has_gpu else None,
        "num_gpus": torch.cuda.device_count() if has_gpu else 0,
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
    }


def say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models of the same shape")
    parser.add_argument("--families", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--cases", nargs="+", choices=CASES, default=CASES)
    parser.add_argument("--blas", choices=list(BLAS), default="exact", help="how matrix products are set")
    parser.add_argument("--missing-from", type=Path, nargs="*", default=[], help="leave out what these have")
    parser.add_argument("--budget-s", type=float, default=450.0, help="seconds after which no case begins")
    arguments = parser.parse_args()
    # Of torch RPC alone: it would tell of every peer that leaves.
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    os.environ.update(BLAS[arguments.blas].environment)
    setting = setting_of(arguments.device, tiny=arguments.tiny, blas=arguments.blas)
    _, lines = read(arguments.missing_from, untimed=())
    known = {had(line, backend=line["backend"], blas=line["blas"]) for line in lines}
    end_s = time.monotonic() + arguments.budget_s
    say(about(setting))
    world = World(setting.num_ranks)
    say(ready(world))
    with tempfile.TemporaryDirectory() as folder:
        for run in runs(arguments.families, setting, Path(folder)):
            described = run.described()
            name = had(described, backend=setting.backend, blas=setting.blas)
            if described["case"] not in arguments.cases or name in known:
                continue
            left_s = end_s - time.monotonic()
            if left_s < LEAST_S:
                say({**described, "error": "no time is left"})
                continue
            say(perform(world, run, setting, limit_s=min(left_s, CASE_LIMIT_S)))
    world.close()


if __name__ == "__main__":
    main()
