"""A cell of `benchmarks.elastic_service`: requests over HTTP to a service at a load, and the same in the simulator."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import aiohttp
import msgspec

from benchmarks.elastic_clients import Ask, ask_for_picture, ask_for_video
from benchmarks.elastic_place import Model, Running, policies
from epe.families import family
from epe.planning.cost_set import CostSet
from epe.planning.trace_line import TraceLine, encode_line
from epe.simulator.arrivals import Arrival, request_of
from epe.simulator.engine import simulate
from epe.simulator.machine import Physics
from epe.simulator.metrics import percentile
from epe.simulator.mixes import mix_of
from epe.simulator.policies import policy_of
from epe.simulator.traces import read_trace, trace_arrivals
from epe.simulator.workloads import Deadlines, WorkloadSpec, generate
from tests.launch.service import eventually

Line = dict[str, Any]
SEED = 1
# Deadlines: so many times the best latency that a request could have alone.
DEADLINE_SCALE = 3.0
# After the last arrival so many seconds are waited for answers; what comes later counts as never.
PATIENCE_S = 8.0
# The trace is written now and then.
WRITTEN_S = 5.0
NEVER_S = float("inf")
PHYSICS = Physics(dispatch_s=1e-3, plan_s=1e-3)


@dataclass(frozen=True)
class Seen:
    """What became of one request, live or simulated."""

    size: str
    latency_s: float
    deadline_s: float
    end_s: float

    @property
    def met(self) -> bool:
        return self.latency_s <= self.deadline_s


def requests(
    model: Model, costs: CostSet, *, load: float, seconds: float, seed: int = SEED
) -> tuple[Arrival, ...]:
    """Poisson arrivals of the mix over so many seconds: as many as offer this load."""
    num = round(seconds * model.world * load / mix_of(_mix(model), costs).mean_s)
    return so_many(model, costs, load=load, num_requests=max(4, num), seed=seed)


def so_many(
    model: Model, costs: CostSet, *, load: float, num_requests: int, seed: int = SEED
) -> tuple[Arrival, ...]:
    """Poisson arrivals of the mix at a load, for as long as it takes."""
    spec = WorkloadSpec(
        name="poisson",
        mix=_mix(model),
        load=load,
        num_requests=num_requests,
        deadlines=Deadlines(scale=DEADLINE_SCALE),
    )
    return generate(spec, costs, world_size=model.world, seed=seed)


def _mix(model: Model) -> str:
    return ",".join(f"{size.name}={size.share}" for size in model.mix.classes)


async def live(model: Model, url: str, arrivals: Sequence[Arrival]) -> list[Seen]:
    """Send each when it is due, and hear what becomes of it."""
    ask = _ask(model)
    async with aiohttp.ClientSession(url, connector=aiohttp.TCPConnector(limit=0)) as session:
        begin_s = time.perf_counter()
        return await asyncio.gather(
            *(_sent(ask, session, begin_s, arrival, arrivals[-1]) for arrival in arrivals)
        )


def use(running: Running) -> None:
    """Ask for each class once: whatever only clients use is used from then on."""
    num_asked = asyncio.run(_use(running.model, running.served.url))
    _written(running, num_asked)


async def _use(model: Model, url: str) -> int:
    """How many were asked for."""
    ask = _ask(model)
    async with aiohttp.ClientSession(url) as session:
        for each in model.mix.classes:
            request = request_of(
                each.name,
                height=each.height,
                width=each.width,
                num_frames=each.num_frames,
                num_steps=each.steps,
                conditions=1,
                deadline_s=None,
            )
            await ask(session, request)
    return len(model.mix.classes)


def _ask(model: Model) -> Ask:
    return ask_for_video if family(model.family).makes == "video" else ask_for_picture


async def _sent(
    ask: Ask, session: aiohttp.ClientSession, begin_s: float, arrival: Arrival, last: Arrival
) -> Seen:
    request = arrival.request
    await asyncio.sleep(begin_s + arrival.arrival_s - time.perf_counter())
    sent_s, deadline_s = time.perf_counter() - begin_s, request.deadline_s or NEVER_S
    try:
        async with asyncio.timeout(last.arrival_s + PATIENCE_S - sent_s):
            took_s = await ask(session, request)
    except TimeoutError:
        return Seen(arrival.size, NEVER_S, deadline_s, NEVER_S)
    return Seen(arrival.size, took_s, deadline_s, sent_s + took_s)


def simulated(trace: Sequence[str], running: Running, *, folder: Path) -> list[Seen]:
    """The recorded lines of a cell in the simulator, with what the service had measured at its start."""
    costs, world = running.costs(), running.model.world
    path = folder / "cell.jsonl"
    path.write_bytes(b"".join(map(encode_line, _from_zero(trace))))
    arrivals = trace_arrivals(read_trace(str(path)), costs, path=str(path), world_size=world)
    return foretold(arrivals, costs, name=running.name, world=world)


def foretold(
    arrivals: Sequence[Arrival], costs: CostSet, *, name: str, world: int, physics: Physics = PHYSICS
) -> list[Seen]:
    """What becomes of these requests in the simulator under the policy that is shown by a name."""
    policy = policies(world)[name]
    outcome = simulate(
        arrivals,
        policy=policy_of(policy, widths=costs.widths(world), world_size=world),
        name=policy,
        costs=costs.table({arrival.workload for arrival in arrivals}, world_size=world),
        world_size=world,
        physics=physics,
        decode_widths=costs.decode_widths(world),
    )
    by_id = {arrival.request.id: arrival for arrival in arrivals}
    return [
        Seen(
            record.size,
            record.latency_s,
            by_id[record.request_id].request.deadline_s or NEVER_S,
            by_id[record.request_id].arrival_s + record.latency_s,
        )
        for record in outcome.records
    ]


def _from_zero(trace: Sequence[str]) -> Iterable[TraceLine]:
    lines = [msgspec.json.decode(line, type=TraceLine) for line in trace]
    for line in lines:
        yield msgspec.structs.replace(line, arrival_s=line.arrival_s - lines[0].arrival_s)


def summary(seen: Sequence[Seen]) -> Line:
    """Of all requests and of each class: how many, the share in time, pictures a second, mean, median and P95 latency
    (None: not all were answered)."""
    classes = {each.size: [one for one in seen if one.size == each.size] for each in seen}
    return {name: _figures(part) for name, part in (("all", list(seen)), *sorted(classes.items()))}


def _figures(seen: list[Seen]) -> Line:
    latencies = [each.latency_s for each in seen]
    done = [each for each in seen if each.latency_s < NEVER_S]
    last_s = max((each.end_s for each in done), default=0.0)
    return {
        "requests": len(seen),
        "answered": len(done),
        "in_time": round(sum(each.met for each in seen) / len(seen), 4),
        "per_second": round(len(done) / last_s, 4) if last_s else 0.0,
        "mean_s": _finite(mean(latencies)),
        "p50_s": _finite(percentile(latencies, 0.5)),
        "p95_s": _finite(percentile(latencies, 0.95)),
    }


def _finite(seconds: float) -> float | None:
    return round(seconds, 4) if seconds < NEVER_S else None


def run_cell(running: Running, arrivals: Sequence[Arrival]) -> tuple[list[Seen], Sequence[str]]:
    """What clients saw, and the lines that the service recorded."""
    before = len(running.trace())
    seen = asyncio.run(live(running.model, running.served.url, arrivals))
    _written(running, before + len(arrivals))
    return seen, running.trace()[before:]


def _written(running: Running, num_lines: int) -> None:
    """All that was asked for has ended, and is recorded."""
    asyncio.run(running.served.until_idle())
    eventually(lambda: len(running.trace()) == num_lines, within_s=WRITTEN_S)
