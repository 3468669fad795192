"""Exchanges over memory that GPUs share (`fast`) against NCCL: bits, times by size, captured steps, and a rank's death.

    python -m benchmarks.fast_lane > RUN.jsonl                       # on two GPUs, about five minutes
    python -m benchmarks.fast_lane --device cpu --tiny               # the same program over gloo on two CPU ranks
    python -m benchmarks.fast_lane --sections steps --families zimage --sizes 512x512 --budget-s 60

One JSON object a line, as it goes. Ranks that share one GPU can show bits and ends (`--share`), and no times.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Iterator
from dataclasses import replace

from benchmarks import lane_death, lane_decode
from benchmarks.blas import BLAS
from benchmarks.h200_families import setting_of
from benchmarks.multi_gpu import Run, perform_all
from benchmarks.place import Setting
from benchmarks.step_entrants import StepCase

SECTIONS = ("connect", "bits", "exchanges", "steps", "decodes", "death", "layouts")
SIDES = (256, 512, 768, 1024)
FAMILIES = ("zimage", "flux1")


def step_cases(families: list[str], sizes: list[str]) -> Iterator[StepCase]:
    for family in families:
        for side in SIDES:
            case = StepCase(family, side, side, text_rows=128, timed_steps=4)
            if not sizes or case.size in sizes:
                yield case


def runs(
    sections: list[str], setting: Setting, transports: tuple[str, ...], cases: list[StepCase]
) -> Iterator[Callable[[float], Run]]:
    """In order; each is made when it is known until when (Unix time) it may go on."""
    first = transports[-1]
    last = replace(setting, backend=first)
    if "connect" in sections:
        yield lambda end_s: Run("fast_lane_ranks:connect", (last,), {"section": "connect"})
    if "bits" in sections:
        yield lambda end_s: Run("fast_lane_ranks:bits", (setting, transports), {"section": "bits"})
    if "exchanges" in sections:
        yield lambda end_s: Run("fast_lane_times:exchanges", (setting, transports), {"section": "exchanges"})
    if "layouts" in sections:
        yield lambda end_s: Run("fast_lane_times:layouts", (last,), {"section": "layouts"})
    for case in cases if "steps" in sections else []:
        line = {"section": "steps", "family": case.family, "size": case.size, "text_rows": case.text_rows}
        yield lambda end_s, case=case, line=line: Run(
            "fast_lane_times:steps", (setting, transports, case, end_s), line
        )
    picture = lane_decode.cases(setting)[0]
    for name in transports if "decodes" in sections else ():
        place, about_it = replace(setting, backend=name), {"section": "decodes", "transport": name}
        yield lambda end_s, place=place, about_it=about_it: Run(
            "lane_decode:decodes",
            (place, picture),
            {**about_it, "rows": picture.rows, "columns": picture.columns},
        )
    if "death" in sections:
        for captured in (True, False):
            about_it = {"section": "death", "captured": captured}
            yield lambda end_s, captured=captured, about_it=about_it: Run(
                "fast_lane_ranks:death", (last, captured), about_it, dying=(lane_death.VICTIM,)
            )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models of the same shape")
    parser.add_argument("--share", action="store_true", help="two ranks on one GPU")
    parser.add_argument("--world", type=int, default=2, help="ranks")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS[:-1]))
    parser.add_argument("--families", nargs="+", choices=FAMILIES, default=list(FAMILIES))
    parser.add_argument("--sizes", nargs="+", default=[], metavar="WxH", help="of steps (default: all)")
    parser.add_argument("--budget-s", type=float, default=300.0, help="seconds after which no case begins")
    parser.add_argument("--case-s", type=float, default=60.0, help="the most seconds of one case")
    arguments = parser.parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    if arguments.share:
        os.environ["TORCH_SYMM_MEM_ALLOW_OVERLAPPING_DEVICES"] = "1"
    setting = replace(setting_of(arguments.device, tiny=arguments.tiny), num_ranks=arguments.world)
    transports: tuple[str, ...] = ("gloo", "fast") if arguments.share else (setting.backend, "fast")
    if arguments.device == "cpu":
        transports = (setting.backend,)
    os.environ.update(BLAS[setting.blas].environment)
    steps = list(step_cases(arguments.families, arguments.sizes))
    cases = runs(arguments.sections, setting, transports, steps)
    perform_all(cases, setting, budget_s=arguments.budget_s, case_s=arguments.case_s)


if __name__ == "__main__":
    main()
