"""Elastic lanes against static ones in this same service on several GPUs, the same requests in the simulator, and a
rank's death while its lane exchanges.

    python -m benchmarks.elastic_service --family wan > RUN.jsonl     # on two GPUs, about six minutes
    python -m benchmarks.elastic_service --world 4                    # on four
    python -m benchmarks.elastic_service --device cpu --tiny          # the same program with a tiny model on CPU ranks
    python -m benchmarks.elastic_service --policies "static SP2" --loads --kill      # its death alone

Every policy has a service of its own; all are up together and have the machine in turn. The first measures what tasks
cost, and so does that of static DP, which decodes whole; the others have it from the first one's file. One JSON object
a line, as it goes.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from signal import SIGKILL, SIGTERM, signal
from typing import Any

from benchmarks.elastic_cells import requests, run_cell, simulated, summary, use
from benchmarks.elastic_place import (
    REAL,
    TINY,
    WORLDS,
    Class,
    Mix,
    Model,
    Running,
    costs_file,
    in_path,
    measures,
    policies,
    told,
)
from benchmarks.h200_families import about, say
from benchmarks.place import Setting
from epe.families import family
from epe.models.catalog import make_tiny
from epe.simulator.arrivals import Arrival
from tests.service.served import Reply, Served

Line = dict[str, Any]
LOADS = (0.8, 0.5, 1.1)
# A rank is killed when its request has been on the lane for so long; its return is waited for no longer than that.
KILL_SIZE_STEPS, KILL_STEPS, KILL_AFTER_S, RETURN_S = 4, 40, 1.5, 60.0
VICTIM = 1
# What lanes exchange over, for all services.
TRANSPORT = "EPE_AGKV_TRANSPORT"
# A service spends more than half a minute on imports, and then measures for less than this: one that is begun
# so much later measures after it.
STAGGER_S = 20.0


def start(
    services: list[Running], folder: Path, model: Model, names: list[str], *, kept: Path | None
) -> None:
    """All services, into `services`, which the caller closes: with the costs that they have left in the folder `kept`;
    or each that measures at a time of its own, and when the first has measured the others with its costs."""

    def begin(name: str, costs: Path | None = None) -> None:
        services.append(Running(folder / in_path(name), model, name, costs=costs))

    if kept is not None:
        for name in names:
            begin(name, kept / costs_file(name))
        ready(services)
        return
    begin(names[0])
    for name in filter(measures, names[1:]):
        time.sleep(STAGGER_S)
        begin(name)
    ready(services[:1])
    for name in names[1:]:
        if not measures(name):
            begin(name, services[0].costs_path)
    ready(services[1:])


def ready(services: list[Running]) -> None:
    for running in services:
        try:
            seconds = round(running.wait(), 1)
        except BaseException:
            print(running.served.said()[-4000:], flush=True)
            raise
        say({"case": "started", "policy": running.name, "family": running.model.family, "seconds": seconds})


def cells(services: list[Running], loads: list[float], *, seconds: float, end_s: float, folder: Path) -> None:
    """Every load, and at each every service with the same requests."""
    for running in services:
        use(running)
        if running is services[0] or measures(running.name):
            say({"case": "costs", "policy": running.name, "tasks": told(running.costs())})
    costs = services[0].costs()
    for load in loads:
        arrivals = requests(services[0].model, costs, load=load, seconds=seconds)
        for running in services:
            if time.monotonic() > end_s:
                say({"case": "cell", "policy": running.name, "load": load, "error": "no time is left"})
                continue
            line = {"case": "cell", "family": running.model.family, "policy": running.name, "load": load}
            line["seconds"] = arrivals[-1].arrival_s
            try:
                line |= _measured(running, arrivals, folder)
            except Exception as error:  # It costs its own line alone.
                line["error"] = f"{type(error).__name__}: {error}"[:600]
            say(line)


def _measured(running: Running, arrivals: Sequence[Arrival], folder: Path) -> Line:
    seen, trace = run_cell(running, arrivals)
    foretold = simulated(trace, running, folder=folder)
    return {"live": summary(seen), "simulated": summary(foretold)}


def killed(running: Running) -> Iterator[Line]:
    """What a rank's death costs a request on a lane of all ranks: seconds from the death, and whether its picture is
    that of an undisturbed one; then how long until the rank is back."""
    served = running.served
    size = _killed_class(running.model.mix)
    body = {"size": size.name, "num_inference_steps": KILL_STEPS, "seed": 5, "output_format": "png"}
    expected, undisturbed_s = asyncio.run(_timed(served, body))
    mark = served.mark()
    transport = os.environ.get(TRANSPORT, "auto")
    line = {"policy": running.name, "transport": transport, "undisturbed_s": round(undisturbed_s, 2)}
    died_s, seen = asyncio.run(_disturbed(served, body, mark, expected))
    yield {"case": "killed", **line, **seen}
    yield {"case": "returned", **asyncio.run(_returned(served, body, mark, died_s))}


def _killed_class(mix: Mix) -> Class:
    """The largest that draws few steps."""
    return next(each for each in reversed(mix.classes) if each.steps == KILL_SIZE_STEPS)


async def _timed(served: Served, body: Line) -> tuple[Reply, float]:
    begin_s = time.perf_counter()
    return await served.draw(**body), time.perf_counter() - begin_s


async def _disturbed(served: Served, body: Line, mark: int, expected: Reply) -> tuple[float, Line]:
    """When the rank died (Unix time), and what became of the request."""
    sent_s, drawing = time.time(), asyncio.create_task(_timed(served, body))
    await asyncio.sleep(KILL_AFTER_S)
    served.kill_rank(VICTIM, SIGKILL)
    died_s = time.time()
    reply, took_s = await drawing
    account = reply.body.get("epe", {"failed": str(reply.body)[:600]})
    return died_s, {
        "status": reply.status,
        "same_picture": reply.status == 200 and reply.file == expected.file,
        "died_s": round(died_s - sent_s, 3),
        "took_s": round(took_s, 2),
        "seen_s": _since(died_s, _first(served, "rank.was_lost", mark, rank=VICTIM)),
        "resumed_s": _since(died_s, _first(served, "request.resumed", mark)),
        "num_repeated_steps": account.get("num_repeated_steps"),
        "visits": account.get("lanes", account),
        "others_lost": [e["rank"] for e in served.events("rank.was_lost", since=mark) if e["rank"] != VICTIM],
    }


async def _returned(served: Served, body: Line, mark: int, died_s: float) -> Line:
    """Seconds from the death until the rank was there again, and the lanes of the next picture."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(RETURN_S):
            await served.until_all_ranks_work()
    after = await served.draw(**{**body, "num_inference_steps": 6})
    return {
        "returned_s": _since(died_s, _first(served, "rank.became_ready", mark, rank=VICTIM)),
        "lanes_after": after.lanes if after.status == 200 else after.body,
    }


def _first(served: Served, name: str, mark: int, **fields: Any) -> float | None:
    """When (Unix time) the first such event was logged."""
    found = (e for e in served.events(name, since=mark) if fields.items() <= e.items())
    return next((_at_s(event) for event in found), None)


def _at_s(event: Line) -> float:
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def _since(died_s: float, at_s: float | None) -> float | None:
    return None if at_s is None else round(at_s - died_s, 3)


def model_in(
    folder: Path, *, family: str, device: str, tiny: bool, written: Path | None, world: int
) -> Model:
    """The checkpoint that is `written`, or one that is written now."""
    begin_s = time.monotonic()
    checkpoint = written or folder / family
    if written is None and tiny:
        make_tiny(family, checkpoint)
    elif written is None:
        writer = [sys.executable, "-m", "benchmarks.random_checkpoint", family, checkpoint]
        subprocess.run([*writer, "--device", device], check=True)
    say({"case": "written", "family": family, "seconds": round(time.monotonic() - begin_s, 1)})
    dtype = "float32" if device == "cpu" else "bfloat16"
    return Model(family, checkpoint, device, dtype, (TINY if tiny else REAL)[family], world)


def main() -> None:
    arguments = _arguments()
    begin_s = time.monotonic()
    os.environ["TORCH_CPP_LOG_LEVEL"] = "ERROR"
    # What services have logged and measured is kept then too.
    signal(SIGTERM, lambda *_: sys.exit("its time is up"))
    dtype = "float32" if arguments.device == "cpu" else "bfloat16"
    backend = "gloo" if arguments.device == "cpu" else "nccl"
    setting = Setting(
        device=arguments.device, num_ranks=arguments.world, backend=backend, dtype=dtype, tiny=arguments.tiny
    )
    say(about(setting))
    with tempfile.TemporaryDirectory(dir=arguments.folder) as name:
        folder = Path(name)
        services: list[Running] = []
        try:
            model = model_in(
                folder,
                family=arguments.family,
                device=arguments.device,
                tiny=arguments.tiny,
                written=arguments.checkpoint,
                world=arguments.world,
            )
            if not arguments.loads:  # No other size is drawn then.
                killed_class = _killed_class(model.mix)
                model = replace(model, mix=replace(model.mix, classes=(killed_class,)))
            start(services, folder, model, arguments.policies, kept=arguments.costs)
            services.sort(key=lambda running: arguments.policies.index(running.name))
            end_s = begin_s + arguments.budget_s
            cells(services, arguments.loads, seconds=arguments.seconds, end_s=end_s, folder=folder)
            if arguments.kill:
                for line in killed(next(each for each in services if each.name.startswith("static SP"))):
                    say(line)
        finally:
            for running in services:
                running.served.signal(SIGTERM)
            for running in services:
                running.close(arguments.logs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--family", choices=list(REAL), default="zimage")
    parser.add_argument("--tiny", action="store_true", help="a small model and small pictures")
    parser.add_argument("--world", type=int, choices=WORLDS, default=2, help="ranks, of a GPU each")
    parser.add_argument("--policies", nargs="+", help="of their names (default: all)")
    parser.add_argument("--loads", nargs="*", type=float, default=list(LOADS))
    parser.add_argument("--seconds", type=float, default=12.0, help="of arrivals of a cell")
    parser.add_argument(
        "--kill", action="store_true", help="kill a rank of the service of static SP at the end"
    )
    parser.add_argument("--budget-s", type=float, default=330.0, help="seconds after which no cell begins")
    parser.add_argument("--logs", type=Path, help="a folder for what the services have logged")
    parser.add_argument(
        "--costs", type=Path, help="a folder of --logs: costs are not measured but read there"
    )
    parser.add_argument("--folder", type=Path, help="where the checkpoint is written for now")
    parser.add_argument(
        "--checkpoint", type=Path, help="what `benchmarks.random_checkpoint` has written before"
    )
    arguments = parser.parse_args()
    names = list(policies(arguments.world))
    arguments.policies = arguments.policies or names
    if unknown := set(arguments.policies) - set(names):
        parser.error(f"--policies: {', '.join(sorted(unknown))} is not known; known are {', '.join(names)}")
    if arguments.kill and family(arguments.family).makes == "video":
        parser.error(f"--kill draws pictures, and {arguments.family} makes videos; take --family zimage")
    return arguments


if __name__ == "__main__":
    main()
