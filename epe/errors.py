"""Everything that can go wrong, in one tree.

    EpeError
    ├── BadInput            the user gave something that is not allowed: exit code 2, status 400
    │   ├── BadSetting      ... in a stage file, a flag or the environment (has a path)
    │   └── BadRequest      ... in a request (has a param)
    │       ├── UnknownModel    ... the model that it names is not served here
    │       ├── UnknownJob      ... the job that it names is not known here (any more)
    │       └── UnknownRank     ... the rank that it names is none of this world
    ├── Refused             a right request that is not taken now: overload, draining (may have retry_after_s)
    ├── Conflict            what the state of the service does not allow now, such as two restarts at once
    ├── TaskFailed          the work on an accepted request failed (has stage and step)
    │   ├── NonFinite       NaN or Inf in latents or pixels
    │   ├── OutOfMemory     the device has no memory for the task
    │   ├── Cancelled       its client has ended it
    │   └── Expired         its deadline passed, and it asked to be ended then
    ├── Gone                the actor, rank or state that was asked for is no longer there
    │   └── Overloaded      a mailbox is full (raised at the sender)
    ├── NotStored           the job store cannot be read or written
    └── StartFailed         the service could not start: port in use, rank lost, time limit

A message says what was given, what is allowed and what to do, in one sentence.
"""

from __future__ import annotations


class EpeError(Exception):
    """Base of everything that this package raises on purpose."""


class BadInput(EpeError):
    """The user gave something that is not allowed."""


class BadSetting(BadInput):
    """A setting that is not allowed; `path` says where it stands, e.g. `parallelism.cp.world_size`."""

    def __init__(self, message: str, *, path: str = "") -> None:
        super().__init__(f"{path}: {message}" if path else message)
        self.path = path


class BadRequest(BadInput):
    """A request field that is not allowed; `param` names it."""

    def __init__(self, message: str, *, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class UnknownModel(BadRequest):
    """The model that a request names is not served here."""


class UnknownJob(BadRequest):
    """The job that a request names is not known here: it never was, or its result is no longer kept."""


class UnknownRank(BadRequest):
    """The rank that a request names is none of this world."""


class Refused(EpeError):
    """A right request that is not taken now; `retry_after_s` says when it may be."""

    def __init__(self, message: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(message)
        self.retry_after_s = retry_after_s


class Conflict(EpeError):
    """What was asked for does not fit the state in which the service is now."""


class TaskFailed(EpeError):
    """The work on an accepted request failed, at `stage` and `step`."""

    def __init__(self, message: str, *, stage: str = "", step: int | None = None) -> None:
        super().__init__(message)
        self.stage = stage
        self.step = step


class NonFinite(TaskFailed):
    """NaN or Inf in latents or pixels."""


class OutOfMemory(TaskFailed):
    """The device has no memory for the task."""


class Cancelled(TaskFailed):
    """Its client has ended it."""


class Expired(TaskFailed):
    """The deadline of a request with `on_deadline: expire` passed before its finish."""


class Gone(EpeError):
    """The actor, rank or state that was asked for is no longer there."""


class Overloaded(Gone):
    """A mailbox is full; raised at the sender."""


class NotStored(EpeError):
    """The job store cannot be read or written."""


class StartFailed(EpeError):
    """The service could not start."""
