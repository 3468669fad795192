"""When a lease takes so long that its ranks must be taken for hung, although their event loops turn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from epe.actors.ledger import Ledger, Running
from epe.messages import Lease, Stage

# Between two looks at the leases.
LOOK_S = 1.0
# The ranks that waited in vain for another one have so long to say so, once they are told to give the lane up.
GRACE_S = 10.0
# A lease may take so many times what it was expected to, and `hang_s` beside.
TIMES = 10.0
# Where nothing like it was measured it may be so many times `hang_s` late: kernels are chosen, and the guess is none.
FIRST_TIMES = 10.0


def limit_s(expected_s: float, *, hang_s: float, is_known: bool) -> float:
    """How long a lease may be at work, in seconds."""
    return TIMES * expected_s + hang_s * (1.0 if is_known else FIRST_TIMES)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A lease over its limit, and the ranks that have not answered. First the lane is given up, which wakes all that
    wait in an exchange; whoever does not answer then is `hung`."""

    running: Running
    hung: bool

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted(self.running.waiting))

    @property
    def reason(self) -> str:
        """For example `it has not ended lease 12 (denoise, steps 3 to 5 of request q1) after 61 s; ...`."""
        running = self.running
        what = f"lease {running.lease.seq} ({_described(running.lease)})"
        return f"it has not ended {what} after {running.worked_s:.3g} s; {running.expected_s:.3g} s were expected"


class Patience:
    """Mutable, owned by the planner. A lease is at work once nothing that was sent before it stands in its way."""

    def __init__(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._looked_s: float | None = None

    def look(self, *, now_s: float) -> Iterator[Overdue]:
        """The leases that are over their limit now. Looked at every `LOOK_S` while there are leases."""
        for running in self._at_work(now_s):
            running.worked_s += self._passed_s(now_s)
            if running.failed and not running.is_abandoned:
                self._hasten(running)
            if running.worked_s > running.limit_s:
                yield self._judge(running)
        self._looked_s = now_s

    def rest(self) -> None:
        """There is no lease to look at."""
        self._looked_s = None

    def _passed_s(self, now_s: float) -> float:
        """A leader that was stopped itself has heard nobody meanwhile: that time is not the ranks'."""
        return 0.0 if self._looked_s is None else min(now_s - self._looked_s, 2 * LOOK_S)

    def _hasten(self, running: Running) -> None:
        """Where one rank has failed the lane is broken, and all others feel that at their next exchange."""
        running.is_abandoned = True
        running.limit_s = min(running.limit_s, running.worked_s + running.expected_s + GRACE_S)

    def _judge(self, running: Running) -> Overdue:
        hung = running.is_abandoned or running.lease.lane.width == 1
        running.is_abandoned = True
        running.limit_s = running.worked_s + GRACE_S
        return Overdue(running, hung)

    def _at_work(self, now_s: float) -> list[Running]:
        """A rank is at its earliest lease, and a request too: what comes next may wait for its state."""
        at_work = self.ledger.at_work()
        found, requests = [], set()
        for running in self.ledger.in_order():
            lease = running.lease
            is_first = lease.request.id not in requests
            requests.add(lease.request.id)
            if is_first and now_s > running.ready_s and all(at_work[r] is lease for r in running.waiting):
                found.append(running)
        return found


def _described(lease: Lease) -> str:
    if lease.stage is not Stage.DENOISE:
        return f"{lease.stage} of request {lease.request.id}"
    first, last = lease.first_step, lease.first_step + lease.num_steps - 1
    steps = f"step {first}" if first == last else f"steps {first} to {last}"
    return f"denoise, {steps} of request {lease.request.id}"
