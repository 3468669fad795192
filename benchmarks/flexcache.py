"""What FlexCache costs and gives on the demo model: pictures of held-out prompts with each setting beside those without
it, and how much faster one request is.

    python -m benchmarks.flexcache --output OUT                          # everything: on CUDA, some minutes
    python -m benchmarks.flexcache --size quick --output OUT             # the same program on a CPU, in a minute
    python -m benchmarks.flexcache --part fit --output OUT               # or part by part
    python -m benchmarks.flexcache --part quality --step-counts 50 --processes 10 --output OUT
    python -m benchmarks.flexcache --part quality --after EARLIER.jsonl --output OUT   # what is missing there
    python -m benchmarks.flexcache --part speed --output OUT             # with the device to itself

Each part appends JSON lines to its own file in OUT, as it goes. The others use the profile that the first has left in
OUT/profile.json, or the one that comes with the model; OUT/pictures-*.npz have the pictures of the contact sheets.
`benchmarks.flexcache_page` makes the page of them.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import platform
import time
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import asdict
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TextIO

import msgspec
import numpy as np
import torch

from benchmarks.flexcache_drawing import (
    ORACLE,
    Drawing,
    draw_setting,
    draw_short,
    draw_whole,
    judge_whole,
    load,
    prepare,
    request_of,
    training_texts,
    whole_file,
)
from benchmarks.flexcache_settings import PLANS, SHOWN, Plan, settings
from benchmarks.flexcache_timing import speeds
from epe.cache import FILE, Profile, read_profile
from epe.config.demo import DEFAULTS, model_folder
from epe.models.loading import Loading
from epe.runtime.fitting import fit_profile

NUM_SHOWN = 6
PROFILE = "profile.json"
TIMED = ("freecache", "meancache", "magcache", "taylorseer", "pab", "teacache")

# Steps, strategy, value, the steps that are computed in any case.
Judged = tuple[int, str, float, tuple[int, ...]]


def main() -> None:
    args = _parser().parse_args()
    plan, out = PLANS[args.size], args.output
    if args.step_counts:
        plan = dataclasses.replace(plan, step_counts=tuple(args.step_counts))
    out.mkdir(parents=True, exist_ok=True)
    deadline_s = time.monotonic() + args.budget_s
    for part in args.part or PARTS:
        with (out / f"{part}.jsonl").open("a", encoding="utf-8") as lines:
            tell(_about(args.device, plan), lines)
            for line in PARTS[part](plan, out, args, deadline_s):
                tell(line, lines)


def tell(line: dict[str, Any], lines: TextIO) -> None:
    print(json.dumps(line), file=lines, flush=True)
    print(json.dumps(line), flush=True)


def fitting(plan: Plan, out: Path, args: argparse.Namespace, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The profile, from prompts of the training set."""
    begin_s = time.perf_counter()
    drawing = Drawing(dataclasses.replace(plan, num_prompts=1), torch.device(args.device))
    texts = training_texts(plan.num_fitting)
    profile = fit_profile(
        drawing.adapter,
        [request_of(text, 10_000 + place, plan) for place, text in enumerate(texts)],
        model="demo",
        source=(
            f"python -m benchmarks.flexcache: {len(texts)} trajectories of training prompts, "
            f"{plan.fitting_steps} steps at {plan.side} x {plan.side}, guidance {DEFAULTS.guidance_scale:g}, in 32 bits"
        ),
        num_probed=min(plan.num_probed, len(texts)),
        batch=plan.batch,
    )
    (out / PROFILE).write_bytes(msgspec.json.encode(profile) + b"\n")
    yield {"case": "fit", "gains": profile.gains, "took_s": round(time.perf_counter() - begin_s, 1)}


def quality(plan: Plan, out: Path, args: argparse.Namespace, deadline_s: float) -> Iterator[dict[str, Any]]:
    """Every setting at every number of steps, each drawn and judged by one of the processes."""
    profile, where = _profile(out), (plan, args.device, out)
    known = {each for path in args.after for each in _judged(path)}
    # Copies of a process that has asked for CUDA could not use it, and torch's optimizers ask.
    with ProcessPoolExecutor(args.processes, mp_context=get_context("spawn")) as pool:
        if not (out / ORACLE).exists():
            pool.submit(prepare, out, plan).result()
        whole = [pool.submit(draw_whole, *where, num_steps) for num_steps in plan.step_counts]
        # The others load the model meanwhile.
        for _ in range(args.processes - len(whole)):
            pool.submit(load, *where)
        for each in whole:
            each.result()
        drawn = []
        for num_steps in plan.step_counts:
            drawn.append(pool.submit(judge_whole, *where, num_steps))
            if (num_steps, "bfloat16", num_steps, ()) not in known:
                drawn.append(pool.submit(draw_short, *where, num_steps))
            for each in settings(profile, num_steps):
                if (num_steps, each.strategy, each.value, each.reuse.computed) not in known:
                    drawn.append(pool.submit(draw_setting, *where, num_steps, each))
        yield from _told(drawn, deadline_s)
    for num_steps in plan.step_counts:
        whole_file(out, num_steps).unlink()


def _judged(path: Path) -> Iterator[Judged]:
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["case"] == "quality":
            yield line["steps"], line["strategy"], line["value"], tuple(line.get("plan", ()))


def _told(drawn: list[Future[dict[str, Any]]], deadline_s: float) -> Iterator[dict[str, Any]]:
    """Lines as they come; from the deadline on no further setting is begun."""
    for done in as_completed(drawn):
        if done.cancelled():
            continue
        yield done.result()
        if time.monotonic() > deadline_s:
            for each in drawn:
                each.cancel()


def sheet(plan: Plan, out: Path, args: argparse.Namespace, deadline_s: float) -> Iterator[dict[str, Any]]:
    """The pictures of the contact sheets: the first held-out prompts with some of the settings."""
    profile = _profile(out)
    drawing = Drawing(dataclasses.replace(plan, num_seeds=1), torch.device(args.device))
    del drawing.states[NUM_SHOWN:]
    for num_steps in plan.step_counts:
        plans = {f"{each.strategy}/{each.value:g}": each.reuse for each in settings(profile, num_steps)}
        shown = [name for name in SHOWN[num_steps] if name in plans or name.startswith("none/")]
        pictures = {f"{num_steps}/{name}": drawing.pictures(num_steps, plans.get(name))[0] for name in shown}
        np.savez_compressed(out / f"pictures-{num_steps}.npz", **pictures)
        yield {"case": "sheet", "steps": num_steps, "shown": shown}


def speed(plan: Plan, out: Path, args: argparse.Namespace, deadline_s: float) -> Iterator[dict[str, Any]]:
    """One request alone, with each setting in turn."""
    profile = _profile(out)
    device = torch.device(args.device)
    dtype = Loading(device=device).weights_dtype
    drawing = Drawing(dataclasses.replace(plan, num_prompts=1, num_seeds=1), device, dtype=dtype)
    for num_steps in plan.step_counts:
        timed = [each for each in settings(profile, num_steps) if each.strategy in args.strategies]
        yield from speeds(drawing, timed, num_steps, deadline_s=deadline_s)


def _profile(out: Path) -> Profile:
    """What was fitted into `out`, else the one that comes with the model."""
    fitted = out / PROFILE
    return read_profile(fitted if fitted.exists() else model_folder("demo") / FILE, "zimage")


PARTS = {"fit": fitting, "quality": quality, "speed": speed, "sheet": sheet}


def _about(device: str, plan: Plan) -> dict[str, Any]:
    gpu = torch.cuda.get_device_name(0) if device == "cuda" else None
    versions = {"python": platform.python_version(), "torch": torch.__version__}
    size = next(name for name, each in PLANS.items() if each.num_prompts == plan.num_prompts)
    return {"case": "setting", "size": size, "device": device, "gpu": gpu, **versions, **asdict(plan)}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--part", choices=PARTS, action="append", help="instead of all; may be given again")
    parser.add_argument("--size", choices=PLANS, default="full", help="how much is drawn")
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument(
        "--strategies", nargs="+", choices=TIMED, default=list(TIMED), help="of which times are taken"
    )
    parser.add_argument("--step-counts", type=int, nargs="+", help="instead of all")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--processes", type=int, default=2, help="that draw and judge")
    parser.add_argument(
        "--after", type=Path, nargs="*", default=[], help="pictures that these runs have judged are left out"
    )
    parser.add_argument(
        "--budget-s", type=float, default=3600.0, help="after so many seconds no setting is begun"
    )
    return parser


if __name__ == "__main__":
    main()
