"""What the ranks, the postprocess actor and the planner tell about the work."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct

from epe.messages.caching import Reuse
from epe.messages.leases import Stage
from epe.messages.requests import OutputFormat


class FailureKind(StrEnum):
    """Why a request ended without a picture, or was not taken."""

    BAD_REQUEST = "bad_request"
    REFUSED = "refused"
    CANCELLED = "cancelled"
    EXPIRED = "expired"
    NON_FINITE = "non_finite"
    OUT_OF_MEMORY = "out_of_memory"
    TASK_RAISED = "task_raised"
    RANK_LOST = "rank_lost"
    CONFLICT = "conflict"


class Failure(Struct, frozen=True, kw_only=True):
    """The one end of a request that was not finished: what, where and why."""

    kind: FailureKind
    message: str
    stage: Stage | None = None
    step: int | None = None
    param: str | None = None
    retry_after_s: float | None = None


class RankReady(Struct, frozen=True, kw_only=True, tag=True):
    """A rank has loaded its model and waits for leases.

    `fingerprint` names all that the seconds of tasks depend on, `weights` those that it has loaded: ranks draw a
    request together only with the same ones. The rank may use `memory_bytes` (None: nobody knows), of which its model
    takes `resident_bytes`. On lanes of `unlike_widths` its device gives other bits than alone. `attention` names the
    kernels that attention runs on.
    """

    rank: int
    device: str
    fingerprint: str
    load_s: float
    weights: str = ""
    memory_bytes: int | None = None
    resident_bytes: int = 0
    unlike_widths: tuple[int, ...] = ()
    attention: str = ""


class GraphCounts(Struct, frozen=True, kw_only=True):
    """Forward passes of a rank since it was started: `num_eager` ran as they are, `num_replayed` from a captured one;
    `num_captured` were captured, of which `num_evicted` were let go for others, and `num_refused` times a shape could
    not be captured. What is kept takes `num_bytes` now."""

    num_eager: int = 0
    num_replayed: int = 0
    num_captured: int = 0
    num_evicted: int = 0
    num_refused: int = 0
    num_bytes: int = 0


class DeviceUse(Struct, frozen=True, kw_only=True):
    """A rank's memory after a lease: of its tensors, and of all that it has reserved for tensors (0: not measured); of
    what other ranks of its lanes reach, over the `fast` transport. `graphs` is None where nothing is captured."""

    allocated_bytes: int = 0
    reserved_bytes: int = 0
    lanes_bytes: int = 0
    graphs: GraphCounts | None = None


class LeaseDone(Struct, frozen=True, kw_only=True, tag=True):
    """One rank has run a lease to its end and holds the state at `next_step`.

    `seconds` is the device time of the task (for denoising, of one computed step); `gap_s` the idle time of the
    device thread before it, `fetch_s` the part of it spent waiting for state from another rank. `move_s` is what it
    took to bring the state here (0: it was here), without the wait for its step; `peak_bytes` the most memory in
    use meanwhile (0: not measured). Of its steps `num_computed` were computed (None: all); for others `kept_bytes`
    were kept at most. `is_cold` where passes ran as they are that will be captured: the next ones take less. `use`
    is what it left the device with (None: nobody knows).
    """

    seq: int
    epoch: int
    rank: int
    next_step: int
    seconds: float
    gap_s: float = 0.0
    fetch_s: float = 0.0
    move_s: float = 0.0
    peak_bytes: int = 0
    num_computed: int | None = None
    kept_bytes: int = 0
    is_cold: bool = False
    use: DeviceUse | None = None


class LeaseFailed(Struct, frozen=True, kw_only=True, tag=True):
    """One rank could not run a lease; the lane's exchanges are closed on this rank.

    `consequence` is True where this rank only felt another one's error.
    """

    seq: int
    epoch: int
    rank: int
    failure: Failure
    consequence: bool = False


class StateHeader(Struct, frozen=True, kw_only=True, tag=True):
    """Names the tensors of a state that leaves its rank, in the order in which they travel, and its plain fields.

    Whoever asked had to wait `waited_s` until the holder was at the step. `unchanged` names those that the receiver
    has from the checkpoint before, so that they do not travel again. `reuse` is the plan that it follows, which
    need not be any more the one with which its request was taken.
    """

    request_id: str
    step: int
    names: tuple[str, ...]
    scalars: dict[str, float] = {}
    waited_s: float = 0.0
    unchanged: tuple[str, ...] = ()
    reuse: Reuse | None = None


class Checkpoint(Struct, frozen=True, kw_only=True, tag=True):
    """Goes from the lane head to the leader, with the tensors of the state that the lease `seq` ended with.

    The head's `report` travels in it and reaches the planner when the state is kept: no work counts as done
    that could still be lost with the rank. None for a state from an earlier life of the service.
    """

    seq: int
    header: StateHeader
    report: LeaseDone | None = None


class Checkpointed(Struct, frozen=True, kw_only=True, tag=True):
    """The leader has the state of a request at the start of `step`, after the lease `seq`; None: it let it go."""

    request_id: str
    seq: int
    step: int | None


class Decoded(Struct, frozen=True, kw_only=True, tag=True):
    """Goes from the lane head to the postprocess actor, with one uint8 tensor (frames, height, width, 3)."""

    request_id: str
    output_format: OutputFormat
    output_compression: int
    fps: int = 16


class SharedArray(Struct, frozen=True, kw_only=True):
    """Where another process of this host finds an array: in the memory behind a file `descriptor` of a `process`, named
    by a `token` that nobody else has. `dtype` is numpy's name of it, such as "|u1"."""

    process: int
    descriptor: int
    token: str
    dtype: str
    shape: tuple[int, ...]


class Offered(Struct, frozen=True, kw_only=True, tag=True):
    """Asked of the postprocess actor by the lane head: pixels that lie in shared memory. The answer is whether it has
    them; where it has not, they come as a parcel."""

    decoded: Decoded
    pixels: SharedArray


class Received(Struct, frozen=True, kw_only=True, tag=True):
    """The pixels of a request have reached the postprocess actor: the rank that decoded them may go."""

    request_id: str


class Encoded(Struct, frozen=True, kw_only=True, tag=True):
    """The postprocess actor has the file (or could not make it)."""

    request_id: str
    seconds: float
    failure: Failure | None = None
