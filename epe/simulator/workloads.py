"""Workloads made from a seed: a mix, an arrival process, a load and deadlines; the same requests for every policy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Literal

from msgspec import Struct
from msgspec.structs import replace

from epe.errors import BadSetting
from epe.simulator.arrivals import Arrival, best_s, hashed_id, offered_s, request_of
from epe.simulator.costs import CostSet, Size
from epe.simulator.mixes import Mix, mix_of
from epe.simulator.processes import Gaps, evening, gamma, on_off, poisson, times
from epe.simulator.replay import busy_window, read_times

# The classes of the requests (indices into the mix), and when they come; the scale of time is free.
Drawn = tuple[list[int], list[float]]

PHASES = 4
BURST_CYCLE = 50
# Users of GenTD26: 6.3 requests each; the share of the k-th falls with k to the power of 0.8 (top 1 % make 28 %).
REQUESTS_PER_CLIENT = 6.3
CLIENT_SKEW = 0.8

# GF-DiT's multiples of the latency on one rank, small to large.
GFDIT_PICTURES = (1.5, 2.0, 6.0)
GFDIT_VIDEOS = (2.0, 2.5, 3.5)


class Deadlines(Struct, frozen=True, kw_only=True):
    """`relative`: `scale` times the best latency alone; `gfdit`: multiples of the latency on one rank, by size;
    `absolute`: `seconds` for each class of the mix (or one for all); `none`."""

    kind: Literal["none", "relative", "gfdit", "absolute"] = "relative"
    scale: float = 1.5
    seconds: tuple[float, ...] = ()
    expire: bool = False

    def of(self, mix: Mix, index: int, *, best_s: float) -> float | None:
        """Seconds after arrival for a request of a class."""
        match self.kind:
            case "none":
                return None
            case "relative":
                return self.scale * best_s
            case "gfdit":
                multiples = GFDIT_VIDEOS if mix.sizes[index].makes == "video" else GFDIT_PICTURES
                return multiples[mix.groups[index]] * mix.single_s[index]
            case "absolute":
                return self._absolute(mix, index)

    def _absolute(self, mix: Mix, index: int) -> float:
        if len(self.seconds) not in (1, len(mix.sizes)):
            names = ", ".join(size.name for size in mix.sizes)
            raise BadSetting(
                f"{len(self.seconds)} deadlines for {len(mix.sizes)} classes ({names}); give one, or one for each",
                path="--deadlines",
            )
        return self.seconds[index % len(self.seconds)]


class WorkloadSpec(Struct, frozen=True, kw_only=True):
    """Everything that a generated workload depends on, but for the seed."""

    name: str = "poisson"
    mix: str = "small"
    load: float = 0.9
    num_requests: int = 1000
    num_steps: int | None = None
    deadlines: Deadlines = Deadlines()
    replay: str | None = None


def generate(spec: WorkloadSpec, cost_set: CostSet, *, world_size: int, seed: int) -> tuple[Arrival, ...]:
    """The requests of one seed; their load is met exactly: rank-seconds on one rank / (ranks * time)."""
    mix = mix_of(spec.mix, cost_set, num_steps=spec.num_steps)
    source = Random(f"{spec.name}/{seed}")
    classes, times_s = _draw(spec, mix, source, seed)
    whole_s = sum(mix.single_s[index] for index in classes) / (world_size * spec.load)
    clients = _clients(source, len(classes))
    kinds = [_kind(mix, index, cost_set, world_size) for index in range(len(mix.sizes))]
    return tuple(
        _arrival(
            spec,
            mix,
            index,
            name=hashed_id(seed, number),
            arrival_s=at * whole_s / times_s[-1],
            client_id=clients[number],
            best_s=kinds[index],
        )
        for number, (index, at) in enumerate(zip(classes, times_s, strict=True))
    )


def rescaled(arrivals: Sequence[Arrival], *, world_size: int, load: float) -> tuple[Arrival, ...]:
    """The same requests, faster or slower, so that they offer `load`; deadlines stay as long as they are."""
    factor = load_of(arrivals, world_size=world_size) / load
    return tuple(replace(arrival, arrival_s=arrival.arrival_s * factor) for arrival in arrivals)


def load_of(arrivals: Sequence[Arrival], *, world_size: int) -> float:
    """Offered rank-seconds on one rank, over ranks and the time until the last arrival."""
    last_s = max(arrival.arrival_s for arrival in arrivals)
    return offered_s(arrivals) / (world_size * last_s) if last_s > 0 else float("inf")


def _draw(spec: WorkloadSpec, mix: Mix, source: Random, seed: int) -> Drawn:
    if spec.name not in WORKLOADS:
        raise BadSetting(
            f"workload {spec.name!r} is not known; known are {', '.join(WORKLOADS)}", path="--workload"
        )
    if spec.name == "replay" and spec.replay is not None:
        times_s = read_times(spec.replay)
        gaps = busy_window(times_s, num=spec.num_requests, index=seed - 1, path=spec.replay)
        return [mix.draw(source) for _ in gaps], times(gaps)
    return WORKLOADS[spec.name][1](source, mix, spec.num_requests)


def _clients(source: Random, num_requests: int) -> list[str]:
    num_clients = max(1, round(num_requests / REQUESTS_PER_CLIENT))
    weights = [rank**-CLIENT_SKEW for rank in range(1, num_clients + 1)]
    return [f"c{index}" for index in source.choices(range(num_clients), weights, k=num_requests)]


def _kind(mix: Mix, index: int, cost_set: CostSet, world_size: int) -> float:
    size = mix.sizes[index]
    costs = cost_set.table([size.workload], world_size=world_size)
    return best_s(costs, size.workload, num_steps=size.num_steps)


def _arrival(
    spec: WorkloadSpec,
    mix: Mix,
    index: int,
    *,
    name: str,
    arrival_s: float,
    client_id: str,
    best_s: float,
) -> Arrival:
    size: Size = mix.sizes[index]
    return Arrival(
        arrival_s=arrival_s,
        request=request_of(
            name,
            height=size.height,
            width=size.width,
            num_frames=size.num_frames,
            num_steps=size.num_steps,
            conditions=size.conditions,
            deadline_s=spec.deadlines.of(mix, index, best_s=best_s),
            client_id=client_id,
            expire=spec.deadlines.expire,
        ),
        workload=size.workload,
        size=size.name,
        single_s=mix.single_s[index],
        best_s=best_s,
    )


def _independent(gaps: Gaps) -> Callable[[Random, Mix, int], Drawn]:
    def draw(source: Random, mix: Mix, num: int) -> Drawn:
        return [mix.draw(source) for _ in range(num)], times(gaps(source, num))

    return draw


def _shift(source: Random, mix: Mix, num: int) -> Drawn:
    """The shares turn round in every other quarter; the load stays the same, the rate does not."""
    classes, gaps = [], []
    for number in range(num):
        now = mix.reversed if PHASES * number // num % 2 else mix
        classes.append(now.draw(source))
        gaps.append(source.expovariate(1.0) * now.mean_s)
    return classes, times(gaps)


def _burst(source: Random, mix: Mix, num: int) -> Drawn:
    """Cycles of 50 requests: the larger half of the work comes first, then all others in a tenth of the time."""
    drawn: list[tuple[float, int]] = []
    for cycle, first in enumerate(range(0, num, BURST_CYCLE)):
        classes = sorted((mix.draw(source) for _ in range(min(BURST_CYCLE, num - first))), reverse=True)
        half, work = sum(mix.single_s[index] for index in classes) / 2, 0.0
        for index in classes:
            at = source.uniform(0.0, 0.3) if work < half else source.uniform(0.4, 0.5)
            work += mix.single_s[index]
            drawn.append((cycle + at, index))
    drawn.sort()
    return [index for _, index in drawn], [at for at, _ in drawn]


WORKLOADS: dict[str, tuple[str, Callable[[Random, Mix, int], Drawn]]] = {
    "poisson": ("independent requests at a constant rate", _independent(poisson)),
    "gamma2": ("clumps: gaps with a coefficient of variation of 2", _independent(gamma(2.0))),
    "gamma3": ("clumps: gaps with a coefficient of variation of 3", _independent(gamma(3.0))),
    "onoff": ("a fifth of the time at 3.4 times the mean rate", _independent(on_off)),
    "replay": (
        "a busy window of GenTD26 (--replay FILE), or a generator with its statistics",
        _independent(evening),
    ),
    "shift": ("the shares of the mix turn round in every other quarter", _shift),
    "burst": ("long requests in flight, then a wave of short ones, again and again", _burst),
}
