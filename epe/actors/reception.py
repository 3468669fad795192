"""Takes requests into the books, or says why not: the limits, the memory, then the deadline."""

from __future__ import annotations

from epe.actors.admission import closed, expired, full, has_expired, too_big, too_late, twice
from epe.actors.doors import Doors
from epe.actors.leasing import Leasing
from epe.actors.lines import log_admitted
from epe.actors.prediction import predict
from epe.actors.recorder import Recording
from epe.messages import Accepted, Again, Failure, Predicted, Rejected, Request


class Reception:
    """Mutable, owned by the planner. `recording` hears of every request that open doors have seen."""

    def __init__(self, leasing: Leasing, *, doors: Doors) -> None:
        self.leasing = leasing
        self.limits = leasing.settings.limits
        self.doors = doors
        self.recording: Recording | None = None

    def take(self, request: Request, *, again: Again | None = None, now_s: float) -> Accepted | Rejected:
        """A request of a client has come, or one that an earlier life of the service had accepted comes `again`."""
        if refusal := self._refusal(request, again, now_s):
            return Rejected(failure=refusal)
        age_s = 0.0 if again is None else again.age_s
        trajectory = self.leasing.admit(request, now_s=now_s - age_s, for_client=True)
        if again is not None and again.step is not None:
            trajectory.go_on_from(again.step)
            trajectory.weights = min(self.leasing.roster.kinds, default=None)
        predicted_s = trajectory.accounting.predicted_s = self.leasing.predicted_s(request.id, now_s=now_s)
        basis = self.leasing.basis(request.id)
        late = request.deadline_s is not None and age_s + predicted_s > request.deadline_s
        if late and self.limits.refuse_late and again is None:
            del self.leasing.trajectories[request.id]
            return Rejected(failure=too_late(request, predicted_s=predicted_s))
        log_admitted(request, predicted_s=predicted_s, predicted_from=basis, late=late)
        return Accepted(request_id=request.id, predicted_s=predicted_s, predicted_from=basis, late=late)

    def predict(self, requests: tuple[Request, ...], *, now_s: float) -> Predicted | Rejected:
        """What requests of one size would be promised if they came now."""
        if refusal := self._problem(requests[0]) or self._no_place(now_s):
            return Rejected(failure=refusal)
        return predict(self.leasing, requests, now_s=now_s)

    def _refusal(self, request: Request, again: Again | None, now_s: float) -> Failure | None:
        is_new = again is None and request.id not in self.leasing.trajectories
        if self.recording is not None and self.doors.phase == "running" and is_new:
            self.recording.add(request, now_s=now_s)
        if problem := self._problem(request):
            return problem
        if again is None:
            return self._no_place(now_s)
        return expired(request) if has_expired(request, again) else None

    def _problem(self, request: Request) -> Failure | None:
        """Why a request could not be drawn now."""
        if self.doors.phase != "running":
            return closed(self.doors.phase, self.doors.reason)
        if request.id in self.leasing.trajectories:
            return twice(request.id)
        if problem := self.leasing.lacks_memory(request):
            return too_big(problem)
        return None

    def _no_place(self, now_s: float) -> Failure | None:
        """Why no new request is taken."""
        num_waiting = self.leasing.num_waiting
        if num_waiting >= self.limits.max_pending:
            return full(num_waiting, retry_s=max(1.0, self.leasing.retry_s(now_s=now_s)))
        return None
