"""What `benchmarks.chaos` looks for: every end once, the bits, the times of recovery, and what was left behind."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from benchmarks.chaos_deaths import Death
from benchmarks.chaos_load import End
from tests.service.processes import Process
from tests.service.served import Served

EVENTS = (
    "request.admitted",
    "request.finished",
    "request.failed",
    "request.resumed",
    "lease.sent",
    "lease.ran",
    "rank.was_lost",
    "rank.became_ready",
    "rank.was_quarantined",
    "policy.replaced",
    "fault.struck",
    "lease.was_overdue",
)
Event = dict[str, Any]


@dataclass(frozen=True)
class Sizes:
    """What a process holds at one moment."""

    threads: int
    descriptors: int
    resident_mb: float


def sizes_of(processes: Iterable[Process]) -> dict[int | None, Sizes]:
    """By rank; None is the leader."""
    found = {}
    for process in processes:
        if "epe.cli.child" in process.command:
            resident_mb = process.resident_bytes / 2**20
            found[process.rank] = Sizes(process.num_threads, process.num_descriptors, resident_mb)
    return found


@dataclass
class Findings:
    """All that was seen; `problems` is empty if every promise was kept."""

    ends: list[End]
    deaths: list[Death]
    events: list[Event]
    before: dict[int | None, Sizes]
    after: dict[int | None, Sizes]
    leader_mb: list[float]
    left: list[str]
    start_s: float
    problems: list[str] = field(default_factory=list)

    def of(self, name: str) -> Iterator[Event]:
        return (event for event in self.events if event["event"] == name)

    @property
    def outcomes(self) -> Counter[str]:
        return Counter(end.outcome for end in self.ends)

    @property
    def num_at_work(self) -> int:
        """Deaths of ranks that held a running lease."""
        return sum(bool(lost["request"]) for lost in map(self._loss_of, self.deaths) if lost is not None)

    def seen_s(self, kind: str) -> list[float]:
        """From a death until the leader knew of it."""
        return [
            at_s(lost) - death.at_s
            for death in self.deaths
            if death.kind == kind and (lost := self._loss_of(death)) is not None
        ]

    def served_s(self, kind: str, *, has_survivors: bool) -> list[float]:
        """From a death until another lease had run, after the leader knew of it; of those after which ranks were there,
        or of those after which all were on their way back."""
        found = []
        for death in self.deaths:
            lost = self._loss_of(death)
            if death.kind != kind or lost is None or self._has_survivors(lost) != has_survivors:
                continue
            ran = (at_s(e) for e in self.of("lease.ran") if at_s(e) > at_s(lost))
            found += [ran_s - death.at_s for ran_s in [next(ran, None)] if ran_s is not None]
        return found

    def _has_survivors(self, lost: Event) -> bool:
        """Whether some rank worked when the leader knew of a loss."""
        there = {rank for rank in self.before if rank is not None}
        for event in self.events:
            if at_s(event) > at_s(lost):
                break
            if event["event"] == "rank.was_lost":
                there.discard(event["rank"])
            elif event["event"] == "rank.became_ready":
                there.add(event["rank"])
        return bool(there - {lost["rank"]})

    @property
    def repeated_steps(self) -> list[int]:
        """Steps that were drawn twice, of each time that a request went on elsewhere."""
        return [event["repeated_steps"] for event in self.of("request.resumed")]

    @property
    def num_above_a_lease(self) -> int:
        """How often more steps were drawn twice than the largest lease of that request had: a pulse of work."""
        largest: Counter[str] = Counter()
        for sent in self.of("lease.sent"):
            largest[sent["request"]] = max(largest[sent["request"]], sent["num_steps"])
        return sum(e["repeated_steps"] > largest[e["request"]] for e in self.of("request.resumed"))

    def recovered_s(self, kind: str) -> list[float]:
        """From a death until the request that the rank was at had its next lease elsewhere."""
        found = []
        for death in self.deaths:
            lost = self._loss_of(death)
            if death.kind != kind or lost is None or not lost["request"]:
                continue
            sent = (e for e in self.of("lease.sent") if e["request"] == lost["request"])
            if (next_s := next((at_s(e) for e in sent if at_s(e) >= at_s(lost)), None)) is not None:
                found.append(next_s - death.at_s)
        return found

    def readmitted_s(self) -> list[float]:
        """From the loss of a rank until it took leases again."""
        found = []
        for lost in self.of("rank.was_lost"):
            ready = (e for e in self.of("rank.became_ready") if e["rank"] == lost["rank"])
            if (ready_s := next((at_s(e) for e in ready if at_s(e) > at_s(lost)), None)) is not None:
                found.append(ready_s - at_s(lost))
        return found

    @property
    def slope_kb(self) -> float:
        """How the leader's memory grows, KiB a request, over the second half of the run."""
        half = self.leader_mb[len(self.leader_mb) // 2 :]
        if len(half) < 3:
            return 0.0
        slope_mb = statistics.linear_regression(range(len(half)), half).slope
        return slope_mb * 1024 * len(self.leader_mb) / max(1, len(self.ends))

    def _loss_of(self, death: Death) -> Event | None:
        of_rank = (e for e in self.of("rank.was_lost") if e["rank"] == death.rank)
        return next((e for e in of_rank if at_s(e) >= death.at_s - 0.01), None)


def read_events(served: Served, *, since: int) -> list[Event]:
    return list(served.events(*EVENTS, since=since))


def at_s(event: Event) -> float:
    """When a line was logged, in seconds since the epoch."""
    return datetime.fromisoformat(event["timestamp"]).timestamp()


def judge(findings: Findings) -> Findings:
    """Fill in what was promised and not kept."""
    findings.problems = [*_ends(findings), *_bits(findings), *_left(findings), *_faults_of_ours(findings)]
    return findings


def _faults_of_ours(findings: Findings) -> Iterator[str]:
    if replaced := list(findings.of("policy.replaced")):
        yield f"the policy was replaced {len(replaced)} times, first for: {replaced[0]['fault']}"


def _ends(findings: Findings) -> Iterator[str]:
    admitted = Counter(event["request"] for event in findings.of("request.admitted"))
    ended = Counter(
        event["request"] for name in ("request.finished", "request.failed") for event in findings.of(name)
    )
    if wrong := {name for name in admitted | ended if admitted[name] != 1 or ended[name] != 1}:
        yield f"requests without exactly one end: {sorted(wrong)[:5]} ({len(wrong)} in all)"
    if silent := [end.plan.name for end in findings.ends if end.outcome == "no reply"]:
        yield f"requests without a reply: {silent[:5]} ({len(silent)} in all)"


def _bits(findings: Findings) -> Iterator[str]:
    if others := [end.plan.name for end in findings.ends if end.outcome == "other bits"]:
        yield f"pictures with other bits: {others[:5]} ({len(others)} in all)"
    struck = {event["request"] for event in findings.of("fault.struck")}
    for end in findings.ends:
        if end.outcome == "failed" and not any(name.startswith(end.plan.name) for name in struck):
            yield f"{end.plan.name} failed though no fault struck it: {end.status} {end.error}"


def _left(findings: Findings) -> Iterator[str]:
    yield from findings.left
    leader, then = findings.after.get(None), findings.before[None]
    if leader is None:
        yield "the leader is gone"
        return
    # A connection to each rank, a pool of threads that grows to its limit.
    if leader.descriptors > then.descriptors + 8:
        yield f"the leader holds {leader.descriptors} descriptors, {then.descriptors} at the start"
    if leader.threads > then.threads + 8:
        yield f"the leader has {leader.threads} threads, {then.threads} at the start"
