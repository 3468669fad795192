"""What clients say to the planner, and what they hear of their requests."""

from __future__ import annotations

from msgspec import Struct

from epe.messages.caching import ActiveStrategy
from epe.messages.leases import Stage
from epe.messages.operation import RestartStatus
from epe.messages.reports import DeviceUse, Failure
from epe.messages.requests import Request


class Again(Struct, frozen=True, kw_only=True):
    """A request that an earlier life of the service had accepted: it arrived `age_s` ago, which its deadline counts
    from, and goes on at the start of `step`, whose state the leader holds (None: from its beginning)."""

    age_s: float
    step: int | None = None


class Submit(Struct, frozen=True, kw_only=True, tag=True):
    """Ask: take this request. Answered with `Accepted` or `Rejected`; the limits of what may wait are not for one that
    was accepted before."""

    request: Request
    again: Again | None = None


class Accepted(Struct, frozen=True, kw_only=True, tag=True):
    """The request is in the plan: `predicted_s` until its finish; `late` when its deadline will be missed.

    `predicted_from` says what the prediction rests on: tasks that were measured, sizes between them or near them
    (fitted), sizes or widths further away (extrapolated), or nothing of their kind (guessed).
    """

    request_id: str
    predicted_s: float
    predicted_from: str = "guessed"
    late: bool = False


class Rejected(Struct, frozen=True, kw_only=True, tag=True):
    """The request was not taken."""

    failure: Failure


class Cancel(Struct, frozen=True, kw_only=True, tag=True):
    """Ask: end this request. Answered with True if it was alive."""

    request_id: str


class Drain(Struct, frozen=True, kw_only=True, tag=True):
    """Take nothing new; answered with True once nothing is left in work."""

    reason: str = ""


class Inspect(Struct, frozen=True, kw_only=True, tag=True):
    """Ask for the service's `Status`."""


class RankStatus(Struct, frozen=True, kw_only=True):
    """One rank as the planner sees it: loading, idle, busy, lost, restarting, cordoned, draining, drained or
    quarantined; `reason` says why it gets no lease, of a draining one what it still holds. It may use `memory_bytes`
    (None: nobody knows), of which its model takes `resident_bytes`; its last lease left the device with `use`.
    `attention` names the kernels that attention runs on."""

    rank: int
    state: str
    device: str
    request_id: str | None = None
    reason: str = ""
    memory_bytes: int | None = None
    resident_bytes: int = 0
    use: DeviceUse | None = None
    attention: str = ""


class CostsStatus(Struct, frozen=True, kw_only=True):
    """The cost table: `origin` is guessed, measured (at this start) or kept (by an earlier one). Predictions for
    sizes of `least_tokens` to `most_tokens` are not extrapolated (0 and 0: nothing is known)."""

    origin: str
    num_tasks: int
    least_tokens: int
    most_tokens: int


class PolicyStatus(Struct, frozen=True, kw_only=True):
    """Who plans: the class of the policy, and what was wrong when another one last had to stand in."""

    name: str
    fault: str = ""


class Status(Struct, frozen=True, kw_only=True, tag=True):
    """The service as the planner sees it; `phase` is loading, warming, running, draining or failed. FlexCache keeps
    `kept_bytes` of the requests in work: of each the most that it kept on a rank in the last lease."""

    phase: str
    ranks: tuple[RankStatus, ...]
    num_waiting: int
    num_running: int
    num_finished: int
    kept_bytes: int = 0
    reason: str = ""
    costs: CostsStatus | None = None
    policy: PolicyStatus | None = None
    restart: RestartStatus | None = None


class Progress(Struct, frozen=True, kw_only=True, tag=True):
    """A request has passed a step or a stage."""

    request_id: str
    stage: Stage
    step: int
    num_steps: int
    ranks: tuple[int, ...] = ()


class LaneVisit(Struct, frozen=True, kw_only=True):
    """One stretch of a request's life on one lane, for the reply, the log and the tests; seconds since arrival."""

    stage: Stage
    ranks: tuple[int, ...]
    first_step: int
    num_steps: int
    start_s: float
    end_s: float


class CacheAccount(Struct, frozen=True, kw_only=True):
    """What FlexCache did for a request: the model computed `computed_steps` (misses), `reused_steps` were made of what
    was kept (hits; PAB's are those that took some attention from it), which was `kept_bytes` on a rank at most. Before
    each of the steps in `refreshed` it was let go on a move, for which one more step was computed."""

    settings: ActiveStrategy
    computed_steps: int
    reused_steps: int
    kept_bytes: int
    refreshed: tuple[int, ...] = ()


class Account(Struct, frozen=True, kw_only=True, tag=True):
    """What happened to a request: its timings in seconds and the lanes that it used.

    `num_recoveries` counts how often it went on elsewhere after a lane had broken, `num_repeated_steps` the steps that
    were drawn twice (at most) for that. `cache` is None where every step was computed.
    """

    request_id: str
    queue_s: float = 0.0
    encode_s: float = 0.0
    denoise_s: float = 0.0
    decode_s: float = 0.0
    finish_s: float = 0.0
    total_s: float = 0.0
    predicted_s: float = 0.0
    num_migrations: int = 0
    num_recoveries: int = 0
    num_repeated_steps: int = 0
    cache: CacheAccount | None = None
    visits: tuple[LaneVisit, ...] = ()


class Ended(Struct, frozen=True, kw_only=True, tag=True):
    """A request has reached its one end: `failure` is None when it was finished."""

    request_id: str
    account: Account
    failure: Failure | None = None


class Artifact(Struct, frozen=True, kw_only=True, tag=True):
    """The finished file, from the postprocess actor; for raw output `data` is empty and the array travels beside it."""

    request_id: str
    media_type: str
    data: bytes
