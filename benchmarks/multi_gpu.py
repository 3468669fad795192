"""Lanes of ranks that have a GPU each: connecting them, exchanges, moves of states, steps, decodes, and a rank's death.

    python -m benchmarks.multi_gpu > RUN.jsonl                   # on two GPUs, about six minutes
    python -m benchmarks.multi_gpu --device cpu --tiny           # the same program on two CPU ranks
    python -m benchmarks.multi_gpu --world 3 --sections steps    # lanes of three, which two, four or eight ranks lack
    python -m benchmarks.multi_gpu --sections steps --families flux1 zimage --budget-s 120

One JSON object a line, as it goes; of steps one when a way was drawn and one after each round, of which the last
counts. A case that fails or outlasts its limit costs its own lines alone. Bits of whole lanes and of lane changes are
`benchmarks.h200_families`' claim, a service's `benchmarks.elastic_service`'s.
"""

from __future__ import annotations

import argparse
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from typing import Any

from benchmarks import lane_death, lane_decode, lane_traffic
from benchmarks.blas import BLAS
from benchmarks.h200_families import about, ready, say, setting_of
from benchmarks.place import Setting
from benchmarks.step_entrants import StepCase
from tests.world import RankFailed, World

Line = dict[str, Any]
CASE_LIMIT_S = 100.0
# Fewer seconds than this are not worth a case.
LEAST_S = 8.0
SECTIONS = ("groups", "exchanges", "moves", "decodes", "steps", "death")
STEPS = (
    StepCase("zimage", 1024, 1024),
    StepCase("zimage", 512, 512),
    StepCase("zimage", 2048, 2048, timed_steps=2),
    StepCase("flux1", 1024, 1024, text_rows=512),
    StepCase("flux1", 512, 512, text_rows=512),
    StepCase("wan", 480, 832, num_frames=17, text_rows=512, timed_steps=2),
    StepCase("qwen-image", 1024, 1024, timed_steps=2),
)


@dataclass(frozen=True, slots=True)
class Run:
    """What every rank is to run, and how its line begins; `dying` ranks end their process."""

    function: str
    args: tuple[Any, ...]
    line: Line
    dying: tuple[int, ...] = ()


def runs(sections: list[str], families: list[str], setting: Setting) -> Iterator[Callable[[float], Run]]:
    """In order; each is made when it is known until when (Unix time) it may go on."""
    for section in SECTIONS:
        if section in sections:
            yield from _SECTIONS[section](families, setting)


def _of(function: str, *args: Any, dying: tuple[int, ...] = (), **line: Any) -> Callable[[float], Run]:
    name = function.partition(":")[2]
    return lambda end_s: Run(function, args, {"section": name, **line}, dying)


def _moves(families: list[str], setting: Setting) -> Iterator[Callable[[float], Run]]:
    for family in lane_traffic.MOVED:
        yield _of("lane_traffic:moves", setting, family, family=family)


def _steps(families: list[str], setting: Setting) -> Iterator[Callable[[float], Run]]:
    for family in families:
        for case in (each for each in STEPS if each.family == family):
            line = {"section": "steps", "family": case.family, "size": case.size, "text_rows": case.text_rows}
            yield lambda end_s, case=case, line=line: Run("lane_steps:steps", (setting, case, end_s), line)


def _decodes(families: list[str], setting: Setting) -> Iterator[Callable[[float], Run]]:
    for case in lane_decode.cases(setting):
        facts = {name: each for name, each in asdict(case).items() if name not in ("device", "tiny")}
        yield _of("lane_decode:decodes", setting, case, **facts)


_SECTIONS: dict[str, Callable[[list[str], Setting], Iterator[Callable[[float], Run]]]] = {
    "groups": lambda families, setting: iter([_of("lane_traffic:groups", setting)]),
    "exchanges": lambda families, setting: iter([_of("lane_traffic:exchanges", setting)]),
    "moves": _moves,
    "decodes": _decodes,
    "steps": _steps,
    "death": lambda families, setting: iter([_of("lane_death:death", setting, dying=(lane_death.VICTIM,))]),
}


def perform_all(
    makes: Iterable[Callable[[float], Run]], setting: Setting, *, budget_s: float, case_s: float
) -> None:
    """Say the setting and the lines of all runs, in a world of their own. None begins after `budget_s`, or may take
    longer than `case_s`."""
    end_s = time.time() + budget_s
    say(about(setting))
    world = World(setting.num_ranks)
    say(ready(world))
    for make in makes:
        left_s = end_s - time.time()
        limit_s = min(left_s, case_s)
        run = make(time.time() + 0.8 * limit_s)
        if left_s < LEAST_S:
            say({**run.line, "error": "no time is left"})
            continue
        for line in perform(world, run, limit_s=limit_s):
            say(line)
    world.close()


def perform(world: World, run: Run, *, limit_s: float) -> Iterator[Line]:
    """The lines of a run: what its ranks gave, put together. What all of them have told before is said as it comes."""
    begin_s, told = time.monotonic(), [deque[Line]() for _ in range(world.num_ranks)]

    def heard(rank: int, line: Line) -> None:
        told[rank].append(line)
        if all(told):
            say({**run.line, **merged(tuple(each.popleft() for each in told))})

    try:
        given = world.run(
            f"benchmarks.{run.function}", *run.args, timeout_s=limit_s, dying=run.dying, heard=heard
        )
    except RankFailed as failure:
        yield {**run.line, "error": str(failure)[-600:]}
        return
    lines = [each if isinstance(each, list) else [each] for each in given if each is not None]
    for together in zip(*lines, strict=True):
        yield {**run.line, **merged(together)}
    yield {**run.line, "took_s": round(time.monotonic() - begin_s, 1)}


def merged(lines: tuple[Line, ...]) -> Line:
    """One line of all ranks: the worst of each measurement, and what only one of them knows."""
    found: Line = {}
    for line in lines:
        for name, value in line.items():
            found[name] = value if name not in found else _worse(found[name], value)
    return found


def _worse(one: Any, other: Any) -> Any:
    match one, other:
        case bool(), bool():
            return one and other
        case (int() | float(), int() | float()):
            return max(one, other)
        case list(), list():
            return [_worse(*pair) for pair in zip(one, other, strict=True)]
    return one


def world_of(device: str, *, tiny: bool, num_ranks: int | None) -> Setting:
    """As `benchmarks.h200_families` has it, with so many ranks: of GPUs at most as many as there are (None: all), else
    two unless more are asked for."""
    setting = setting_of(device, tiny=tiny)
    if setting.backend != "nccl":
        return replace(setting, num_ranks=num_ranks or 2)
    return replace(setting, num_ranks=min(num_ranks or setting.num_ranks, setting.num_ranks))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    families = list(dict.fromkeys(case.family for case in STEPS))
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models of the same shape")
    parser.add_argument("--world", type=int, help="ranks (default: one for each GPU, two without)")
    parser.add_argument("--sections", nargs="+", choices=SECTIONS, default=list(SECTIONS))
    parser.add_argument("--families", nargs="+", choices=families, default=families, help="of steps")
    parser.add_argument("--budget-s", type=float, default=400.0, help="seconds after which no case begins")
    parser.add_argument("--case-s", type=float, default=CASE_LIMIT_S, help="the most seconds of one case")
    arguments = parser.parse_args()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"  # RPC would tell of every peer that leaves.
    setting = world_of(arguments.device, tiny=arguments.tiny, num_ranks=arguments.world)
    os.environ.update(BLAS[setting.blas].environment)
    cases = runs(arguments.sections, arguments.families, setting)
    perform_all(cases, setting, budget_s=arguments.budget_s, case_s=arguments.case_s)


if __name__ == "__main__":
    main()
