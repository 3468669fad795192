"""A stream of pictures of mixed sizes through the whole service, and through diffusers' pipeline in a loop behind HTTP,
first come, first served: the same arrivals, in turn, on one GPU.

    python -m benchmarks.h200_stream > RUN.jsonl                         # on CUDA
    python -m benchmarks.h200_stream --tiny --device cpu --requests 6 --soak 20     # the same on small models

Both are processes of their own with the same checkpoint, of real size and random weights but for small text encoders;
while one draws, the other one waits. Loads are shares of what the loop can draw in a second. The soak is many short
requests of more sizes one after the other, with the memory of the service as it goes. One JSON object a line.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path
from random import Random
from statistics import mean, median
from typing import Any

import numpy as np
import torch

from benchmarks.random_checkpoint import FAMILIES, factory_of, write_checkpoint
from benchmarks.stream_entrants import Entrant, loop_of, service_of
from benchmarks.stream_load import Answer, Arrival, Draft, picture, play, play_at_once, poisson, prompt_of
from benchmarks.stream_plan import DRAFTS, SIDES, SOAK_SIDES, TINY_SIDES, TINY_SOAK_SIDES, Plan

Line = dict[str, Any]

SOAK_STEPS, SOAK_CLIENTS, SOAK_CHUNK = 4, 8, 25
# As many as are in the first chunk, again and again: encoded prompts are kept up to a bound that a soak does not reach.
SOAK_PROMPTS = 25
# Of each side both have drawn prompts of so many words before anything is timed. FLUX.1 pads all of them alike.
WARM_WORDS = {"flux1": (25,), "zimage": (5, 25, 45, 60)}
ALONE_ROUNDS = 2
# Bytes of a checkpoint of real size, at most.
CHECKPOINT_BYTES = 30 * 2**30


def main() -> None:
    arguments = _arguments()
    say(_setting(arguments))
    end_s = time.monotonic() + arguments.budget_s
    sides, soak_sides = (TINY_SIDES, TINY_SOAK_SIDES) if arguments.tiny else (SIDES, SOAK_SIDES)
    for family in arguments.only:
        plan = Plan(
            family=family,
            device=arguments.device,
            tiny=arguments.tiny,
            sides=sides,
            soak_sides=soak_sides,
            loads=tuple(arguments.loads),
            num_requests=arguments.requests,
            num_rounds=arguments.rounds,
            num_soaked=arguments.soak if family in arguments.soak_families else 0,
            numerics=arguments.numerics,
            checkpoint=arguments.checkpoint,
            gate=arguments.gate,
            budget_s=arguments.budget_s,
        )
        try:
            with _room() as folder:
                perform(plan, folder, end_s=end_s)
        except Exception as error:
            say({"case": "failed", "family": family, "error": f"{type(error).__name__}: {error}"[-3000:]})


def perform(plan: Plan, folder: Path, *, end_s: float) -> None:
    """Everything for one family, but for what would begin after `end_s`; each case says its line as it ends."""
    begin_s = time.perf_counter()
    checkpoint = plan.checkpoint or folder / "checkpoint"
    if plan.checkpoint is None:
        write_checkpoint(factory_of(plan.family, plan.device, tiny=plan.tiny), checkpoint)
        _forget(plan.device)
    written_s = time.perf_counter()
    with ExitStack() as stack:
        service = stack.enter_context(service_of(plan, checkpoint, folder))
        loop = stack.enter_context(loop_of(plan, checkpoint, folder)) if plan.loads else None
        for entrant in (service, loop):
            if entrant is not None:
                entrant.wait()
        say(
            {
                "case": "started",
                "family": plan.family,
                "transformer_bytes": sum(file.stat().st_size for file in checkpoint.glob("transformer/*")),
                "write_s": round(written_s - begin_s, 1),
                "start_s": round(time.perf_counter() - written_s, 1),
            }
        )
        if loop is not None:
            say(asyncio.run(_warmed(plan, [service, loop])))
        if plan.gate is not None:
            plan.wait_for_gate()
            end_s = time.monotonic() + plan.budget_s
        asyncio.run(_measure(plan, service, loop, end_s=end_s))
        say({"case": "graphs", "family": plan.family, "said": service.said("graph.", "attention.")})


async def _measure(plan: Plan, service: Entrant, loop: Entrant | None, *, end_s: float) -> None:
    if loop is not None:
        say(await _repeated(plan, service))
        await _streams(plan, service, loop, end_s=end_s)
    if plan.num_soaked:
        await _soak(plan, service, end_s=end_s)


async def _streams(plan: Plan, service: Entrant, loop: Entrant, *, end_s: float) -> None:
    alone = await _alone(plan, service, loop)
    say(alone)
    capacity = 1 / mean(median(seconds) for seconds in alone["loop_s"].values())
    for number in range(plan.num_rounds):
        for load in plan.loads:
            if time.monotonic() > end_s:
                say({"case": "left_out", "family": plan.family, "load": load, "round": number})
                continue
            say(await _round(plan, service, loop, load=load, rate=load * capacity, number=number))


async def _warmed(plan: Plan, entrants: list[Entrant]) -> Line:
    """Kernels are chosen and graphs captured: every side with prompts of a few lengths, on each."""
    source, took_s = Random(1), {}
    lengths = WARM_WORDS[plan.family]
    arrivals = [
        Arrival(0, side, prompt_of(source, num_words=length), 1) for side in plan.sides for length in lengths
    ]
    for entrant in entrants:
        begin_s = time.perf_counter()
        await play_at_once(entrant.url, arrivals, plan.draft, num_clients=1)
        took_s[entrant.name] = round(time.perf_counter() - begin_s, 2)
    return {"case": "warmed", "family": plan.family, "num_requests": len(arrivals), "took_s": took_s}


async def _repeated(plan: Plan, service: Entrant) -> Line:
    """One request of a side that nobody has asked for, again and again: its first steps run as they are, later ones are
    replayed, and its prompt is encoded once."""
    arrival = Arrival(0, plan.new_side, prompt_of(Random(3), num_words=20), 3)
    drawn = [await picture(service.url, arrival, plan.draft) for _ in range(3)]
    return {
        "case": "repeated",
        "family": plan.family,
        "side": plan.new_side,
        "service_s": [round(took_s, 4) for _, took_s in drawn],
        "equal_pixels": all(np.array_equal(pixels, drawn[0][0]) for pixels, _ in drawn),
    }


async def _alone(plan: Plan, service: Entrant, loop: Entrant) -> Line:
    """The seconds of a request that has the entrant for itself, and how far the two pictures differ."""
    seconds: dict[str, dict[str, list[float]]] = {each.name: {} for each in (service, loop)}
    differences: dict[str, list[float]] = {}
    work_s: dict[str, Line] = {}
    for side in plan.sides:
        before = await service.work_s()
        for number in range(ALONE_ROUNDS):
            arrival = Arrival(0, side, prompt_of(Random(number), num_words=20), number)
            drawn = []
            for entrant in (service, loop):
                pixels, took_s = await picture(entrant.url, arrival, plan.draft)
                seconds[entrant.name].setdefault(str(side), []).append(round(took_s, 4))
                drawn.append(pixels.astype(int))
            away = np.abs(drawn[0] - drawn[1])
            differences[str(side)] = [int(away.max()), round(float(away.mean()), 3)]
        work_s[str(side)] = await _worked(service, before, num_requests=ALONE_ROUNDS)
    return {
        "case": "alone",
        "family": plan.family,
        **{f"{name}_s": each for name, each in seconds.items()},
        "pixel_difference": differences,
        "service_work_s": work_s,
    }


async def _worked(service: Entrant, before: dict[str, float], *, num_requests: int = 1) -> Line:
    """Seconds that each stage has taken since `before`, of a request in the mean."""
    now = await service.work_s()
    return {name: round((value - before.get(name, 0)) / num_requests, 4) for name, value in now.items()}


async def _round(
    plan: Plan, service: Entrant, loop: Entrant, *, load: float, rate: float, number: int
) -> Line:
    """The same arrivals for both; who comes first changes from round to round."""
    arrivals = poisson(plan.sides, count=plan.num_requests, rate=rate, seed=100 + number)
    order = (service, loop) if number % 2 == 0 else (loop, service)
    before = await service.work_s()
    streams = {each.name: _stream(await play(each.url, arrivals, plan.draft)) for each in order}
    work_s = await _worked(service, before)
    line = {"case": "stream", "family": plan.family, "load": load, "rate": round(rate, 4), "round": number}
    return {**line, "num_requests": len(arrivals), **streams, "service_work_s": work_s}


def _stream(answers: list[Answer]) -> Line:
    latencies: dict[str, list[float]] = {}
    for answer in answers:
        latencies.setdefault(str(answer.arrival.side), []).append(round(answer.latency_s, 4))
    took_s = max(answer.end_s for answer in answers) - min(answer.arrival.at_s for answer in answers)
    return {
        "took_s": round(took_s, 3),
        "throughput": round(len(answers) / took_s, 4),
        "latency_s": latencies,
    }


async def _soak(plan: Plan, service: Entrant, *, end_s: float) -> None:
    """Short requests of many sizes; after each chunk of them the memory of the service, and a line with all so far."""
    source = Random(7)
    prompts = [prompt_of(source) for _ in range(SOAK_PROMPTS)]
    draft = Draft(num_steps=SOAK_STEPS, guidance_scale=plan.draft.guidance_scale)
    done, begin_s = 0, time.perf_counter()
    samples = [{"num_done": 0, **await service.memory()}]
    while done < plan.num_soaked and time.monotonic() < end_s:
        chunk = [
            Arrival(0, source.choice(plan.soak_sides), prompts[place % SOAK_PROMPTS], source.randrange(2**31))
            for place in range(done, min(done + SOAK_CHUNK, plan.num_soaked))
        ]
        await play_at_once(service.url, chunk, draft, num_clients=SOAK_CLIENTS)
        done += len(chunk)
        samples.append({"num_done": done, **await service.memory()})
        say(
            {
                "case": "soak",
                "family": plan.family,
                "num_steps": SOAK_STEPS,
                "sides": plan.soak_sides,
                "num_prompts": SOAK_PROMPTS,
                "num_clients": SOAK_CLIENTS,
                "num_requests": done,
                "took_s": round(time.perf_counter() - begin_s, 1),
                "samples": samples,
            }
        )


@contextmanager
def _room() -> Iterator[Path]:
    """A folder for one checkpoint: in memory where there is room, so that it is written and read fast."""
    shared = Path("/dev/shm")
    in_memory = shared.is_dir() and shutil.disk_usage(shared).free > CHECKPOINT_BYTES
    with tempfile.TemporaryDirectory(dir=shared if in_memory else None) as folder:
        yield Path(folder)


def _forget(device: str) -> None:
    """The weights that were made here."""
    if device != "cpu":
        torch.cuda.empty_cache()


def _setting(arguments: argparse.Namespace) -> Line:
    is_gpu = arguments.device != "cpu"
    return {
        "case": "setting",
        "device": torch.cuda.get_device_name() if is_gpu else platform.processor() or "cpu",
        "num_cores": len(os.sched_getaffinity(0)),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
        "tiny": arguments.tiny,
        "numerics": arguments.numerics,
        "sides": TINY_SIDES if arguments.tiny else SIDES,
        "drafts": {name: asdict(draft) for name, draft in DRAFTS.items()},
    }


def say(line: Line) -> None:
    print(json.dumps(line), flush=True)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models in place of the real ones")
    parser.add_argument("--only", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument(
        "--loads", nargs="*", type=float, default=[0.9, 3.0], help="none: only the service, for a soak"
    )
    parser.add_argument("--requests", type=int, default=48, help="of a round")
    parser.add_argument("--rounds", type=int, default=3, help="of each load")
    parser.add_argument("--soak", type=int, default=0, help="so many short requests after the stream")
    parser.add_argument("--soak-families", nargs="+", choices=FAMILIES, default=FAMILIES)
    parser.add_argument("--numerics", choices=("exact", "fast"), default="exact")
    parser.add_argument(
        "--checkpoint", type=Path, help="one of `benchmarks.random_checkpoint`, for one family"
    )
    parser.add_argument("--gate", type=Path, help="time nothing before this file is there")
    parser.add_argument(
        "--budget-s",
        type=float,
        default=1e6,
        help="begin no round later, counted from the start or from the gate",
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
