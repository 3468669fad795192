"""One job: what a client handed in to be kept, and what became of it."""

from __future__ import annotations

from enum import StrEnum

from msgspec import Struct
from msgspec.structs import replace

from epe.errors import EpeError, Expired
from epe.messages import Accepted, Account, Request
from epe.transport.wire import WireError, error_to_wire


class JobState(StrEnum):
    """`OPEN` until its one end."""

    OPEN = "open"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELLED = "cancelled"
    EXPIRED = "expired"


class ResultFile(Struct, frozen=True, kw_only=True):
    """A finished picture or video: its name in the store, what it is, and its size."""

    name: str
    media_type: str
    num_bytes: int


class Job(Struct, frozen=True, kw_only=True):
    """One submit: requests that are all finished, or none of them. Times are seconds of the Unix clock.

    `made_for` names the model. `key` is the client's idempotency key and `digest` that of what came with it. A job has
    `begun` when some step of it was drawn in this life of the service; `num_interruptions` counts the lives that ended
    so without being asked to. A finished job has an account and a file for each request; `error` says why another one
    ended.
    """

    id: str
    requests: tuple[Request, ...]
    accepted: tuple[Accepted, ...]
    made_for: str
    accepted_at_s: float
    client_id: str = ""
    key: str | None = None
    digest: str = ""
    warnings: tuple[str, ...] = ()
    begun: bool = False
    num_interruptions: int = 0
    state: JobState = JobState.OPEN
    ended_at_s: float | None = None
    error: WireError | None = None
    accounts: tuple[Account, ...] = ()
    files: tuple[ResultFile, ...] = ()

    @property
    def has_ended(self) -> bool:
        return self.state is not JobState.OPEN

    @property
    def request_ids(self) -> tuple[str, ...]:
        return tuple(request.id for request in self.requests)

    @property
    def num_steps(self) -> int:
        """Denoising steps of all of its requests."""
        return sum(request.num_steps for request in self.requests)


def finished(job: Job, *, accounts: tuple[Account, ...], files: tuple[ResultFile, ...], now_s: float) -> Job:
    """The job with all of its files."""
    return replace(job, state=JobState.FINISHED, accounts=accounts, files=files, ended_at_s=now_s)


def ended_by(job: Job, error: EpeError, *, now_s: float, state: JobState | None = None) -> Job:
    """The job when its work has raised `error`, or when it was cancelled (`state`)."""
    usual = JobState.EXPIRED if isinstance(error, Expired) else JobState.FAILED
    return replace(job, state=state or usual, error=error_to_wire(error), ended_at_s=now_s)
