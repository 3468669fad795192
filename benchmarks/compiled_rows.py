"""Whether lanes of every width draw the bits of one rank where blocks are compiled: ranks are threads that share one
GPU, each with a compiled model of its own around the same weights.

    python -m benchmarks.compiled_rows                        # on CUDA
    python -m benchmarks.compiled_rows --own-gpus             # ranks with a GPU each, over NCCL, captured too
    python -m benchmarks.compiled_rows --tiny --device cpu    # small models, compiled by nobody

One JSON object a line, as it goes.
"""

from __future__ import annotations

import argparse
import json
import time
from itertools import product
from typing import Any

import torch

from benchmarks import h200_steps
from benchmarks.multi_gpu import Run, perform, world_of
from benchmarks.random_pipeline import make_adapter
from benchmarks.real_sizes import MODELS
from benchmarks.step_entrants import Bench, StepCase
from epe.messages import Split
from epe.parallel.products import keep_products_whole
from epe.telemetry.log import configure
from tests.models.trajectories import drawn_by_lane, solo
from tests.world import World

WIDTHS = (2, 4)
NUM_STEPS = 2
# Of those that steps are timed at, the small ones first; a long video is too much for as many models.
CASES = tuple(case for case in reversed(h200_steps.CASES) if case.num_frames <= 17)


def main() -> None:
    arguments = _arguments()
    configure(json=True, level="warning")
    deadline_s = time.perf_counter() + arguments.budget_s
    if arguments.own_gpus:
        _over_ranks(arguments, deadline_s)
        return
    device = torch.device(arguments.device)
    if device.type == "cuda":
        keep_products_whole()
    for name in arguments.only:
        bench = Bench(name, device=device, tiny=arguments.tiny)
        adapters: list[Any] = []
        for width, case in product(WIDTHS, (case for case in CASES if case.family == name)):
            if time.perf_counter() < deadline_s:
                adapters += [_compiled(bench) for _ in range(width - len(adapters))]
                print(json.dumps(_line(bench, adapters[:width], case)), flush=True)
        del bench, adapters
        h200_steps.empty(arguments.device)


def _over_ranks(arguments: argparse.Namespace, deadline_s: float) -> None:
    setting = world_of(arguments.device, tiny=arguments.tiny)
    world = World(setting.num_ranks)
    for case in (case for name in arguments.only for case in CASES if case.family == name):
        if (left_s := deadline_s - time.perf_counter()) > 0:
            line = {**_about(case), "backend": setting.backend}
            for one in perform(world, Run("compiled_lane:bits", (setting, case), line), limit_s=left_s):
                print(json.dumps(one), flush=True)
    world.close()


def _compiled(bench: Bench) -> Any:
    adapter: Any = make_adapter(bench.name, bench.pipeline(), device=bench.device, mode="agkv")
    adapter.compile_blocks(backend=bench.backend)
    return adapter


def _line(bench: Bench, adapters: list[Any], case: StepCase) -> dict[str, Any]:
    begin_s = time.perf_counter()
    line = _about(case)
    request = bench.request(case, NUM_STEPS)
    try:
        # Each compiles alone, since nobody waits for long in a lane.
        alone, *_ = [solo(adapter, request).tensors["latents"] for adapter in adapters]
        drawn = drawn_by_lane(adapters, request, Split(cp=len(adapters)))
        line[f"width_{len(adapters)}"] = max((each - alone).abs().max().item() for each in drawn)
    except Exception as error:
        line["error"] = f"{type(error).__name__}: {error}"[:400]
    return {**line, "took_s": round(time.perf_counter() - begin_s, 1)}


def _about(case: StepCase) -> dict[str, Any]:
    return {"compiled_rows": case.family, "size": case.size, "text_rows": case.text_rows}


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models in place of the real ones")
    parser.add_argument("--own-gpus", action="store_true", help="ranks that are processes with a GPU each")
    parser.add_argument("--only", nargs="+", choices=tuple(MODELS), default=list(MODELS))
    parser.add_argument("--budget-s", type=float, default=1e6, help="begin no case after so many seconds")
    return parser.parse_args()


if __name__ == "__main__":
    main()
