"""A request of the simulator: when it comes, how large it is, and what it would cost alone."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import blake2b

from msgspec import Struct

from epe.messages import OutputFormat, Request, Stage
from epe.planning.costs import CostTable, Workload
from epe.planning.work import cost_key


class Arrival(Struct, frozen=True, kw_only=True):
    """`size` is its class in the report. `single_s` is its latency alone on one rank (so also the rank-seconds
    that it offers as load), `best_s` the shortest that it could have alone on an idle world."""

    arrival_s: float
    request: Request
    workload: Workload
    size: str
    single_s: float
    best_s: float

    @property
    def deadline_s(self) -> float | None:
        """On the clock of the simulation."""
        relative_s = self.request.deadline_s
        return None if relative_s is None else self.arrival_s + relative_s


def single_s(costs: CostTable, workload: Workload, *, num_steps: int) -> float:
    """Device seconds of a request on one rank from its first task to its last."""
    stages = sum(costs.measured[cost_key(workload, stage, 1)] for stage in (Stage.ENCODE, Stage.DECODE))
    return stages + num_steps * costs.measured[cost_key(workload, Stage.DENOISE, 1)]


def best_s(costs: CostTable, workload: Workload, *, num_steps: int) -> float:
    """Device seconds of a request alone on an idle world, each stage at its fastest width; moves are not counted."""
    stages = sum(_fastest_s(costs, workload, stage) for stage in (Stage.ENCODE, Stage.DECODE))
    return stages + num_steps * _fastest_s(costs, workload, Stage.DENOISE)


def request_of(
    name: str,
    *,
    height: int,
    width: int,
    num_frames: int,
    num_steps: int,
    conditions: int,
    deadline_s: float | None,
    priority: int = 0,
    client_id: str = "",
    expire: bool = False,
) -> Request:
    """A request that is never drawn."""
    return Request(
        id=name,
        prompt="",
        height=height,
        width=width,
        num_frames=num_frames,
        num_steps=num_steps,
        guidance_scale=5.0 if conditions == 2 else 0.0,
        seed=0,
        priority=priority,
        client_id=client_id,
        deadline_s=deadline_s,
        on_deadline="expire" if expire else "continue",
        output_format=OutputFormat.RAW,
    )


def hashed_id(seed: int, index: int) -> str:
    """An id without order: a policy that breaks ties by id must not favour who came first."""
    return blake2b(f"{seed}/{index}".encode(), digest_size=6).hexdigest()


def offered_s(arrivals: Iterable[Arrival]) -> float:
    """Rank-seconds of a workload, each request on one rank."""
    return sum(arrival.single_s for arrival in arrivals)


def _fastest_s(costs: CostTable, workload: Workload, stage: Stage) -> float:
    like = cost_key(workload, stage, 1)
    return min(
        seconds
        for key, seconds in costs.measured.items()
        if (key.stage, key.tokens, key.conditions, key.model)
        == (like.stage, like.tokens, like.conditions, like.model)
    )
