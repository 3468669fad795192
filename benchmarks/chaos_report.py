"""The page of `benchmarks.chaos`."""

from __future__ import annotations

import os
import platform
import statistics
from collections import Counter
from importlib.metadata import version

from benchmarks.chaos_findings import Findings

DATE = "2026-11-30"


def spread(seconds: list[float]) -> str:
    """`median (least to most) of how many`."""
    if not seconds:
        return "none"
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f}) of {len(seconds)}"


def report(findings: Findings, *, command: str) -> str:
    """Markdown."""
    return "\n".join(
        [
            "# Chaos on a CPU",
            "",
            f"`{command}`, {DATE}, on {platform.machine()} with {os.cpu_count()} cores (no GPU, shared with other "
            f"work), Python {platform.python_version()}, torch {version('torch')}. Four CPU ranks, the tiny "
            "random-weight Z-Image of `epe models make-tiny`, one thread a process.",
            "",
            _verdict(findings),
            "",
            *_requests(findings),
            *_deaths(findings),
            *_remains(findings),
        ]
    )


def _verdict(findings: Findings) -> str:
    if not findings.problems:
        return "Every promise was kept."
    return "Broken promises:\n\n" + "\n".join(f"- {problem}" for problem in findings.problems)


def _requests(findings: Findings) -> list[str]:
    meanings = {
        "finished": "with the bits of an undisturbed run",
        "other bits": "with other bits: none may be",
        "failed": "by a fault that was asked for, with its stage and cause",
        "left": "their client had left: cancelled",
        "expired": "their deadline had passed, at which they wanted to be ended",
        "refused": "the queue was full",
        "gone": "given up after three ranks were lost under them, or the service was not there",
        "no reply": "lost: none may be",
    }
    rows = [f"| {name} | {findings.outcomes[name]} | {meaning} |" for name, meaning in meanings.items()]
    repeated = findings.repeated_steps
    return [
        f"## {len(findings.ends)} requests",
        "",
        "| end | requests | |",
        "|---|---|---|",
        *rows,
        "",
        f"In the service's log each admitted request has exactly one end. "
        f"{len(repeated)} times a request went on elsewhere; for that {sum(repeated)} steps were drawn twice, at most "
        f"{max(repeated, default=0)} at one time; {findings.num_above_a_lease} times more than the largest lease of "
        "the request had, which is a pulse of work.",
        "",
    ]


def _deaths(findings: Findings) -> list[str]:
    kinds = Counter(death.kind for death in findings.deaths)
    faults = Counter(event["kind"] for event in findings.of("fault.struck"))
    struck = ", ".join(f"{count} {kind}" for kind, count in sorted(faults.items()))
    rows = [
        f"| {name} | {spread(findings.seen_s(kind))} | {spread(findings.served_s(kind, has_survivors=True))} "
        f"| {spread(findings.served_s(kind, has_survivors=False))} | {spread(findings.recovered_s(kind))} |"
        for kind, name in (("kill", "kill -9"), ("stop", "SIGSTOP"))
    ]
    return [
        f"## {len(findings.deaths)} deaths",
        "",
        f"{kinds['kill']} by kill -9 and {kinds['stop']} by SIGSTOP; {findings.num_at_work} of these ranks held a "
        f"running lease. Faults that struck: {struck}. "
        f"{sum(1 for e in findings.of('rank.was_lost') if 'has not ended lease' in e['reason'])} ranks were found "
        f"hung, {sum(1 for _ in findings.of('rank.was_quarantined'))} quarantined.",
        "",
        "| death | seconds until it was seen | until the survivors had run a lease | until a lease had run where no "
        "rank was left | until the rank's own request had a lease again, its turn in the queue included |",
        "|---|---|---|---|---|",
        *rows,
        "",
        f"A lost rank took leases again after {spread(findings.readmitted_s())} s; the first start of the whole "
        f"service took {findings.start_s:.2f} s.",
        "",
    ]


def _remains(findings: Findings) -> list[str]:
    rows = []
    for rank in sorted(findings.before, key=lambda rank: -1 if rank is None else rank):
        before, after = findings.before[rank], findings.after.get(rank)
        name = "leader" if rank is None else f"rank {rank}"
        if after is not None:
            rows.append(
                f"| {name} | {before.descriptors} → {after.descriptors} | {before.threads} → {after.threads} "
                f"| {before.resident_mb:.0f} → {after.resident_mb:.0f} |"
            )
    return [
        "## What was left",
        "",
        "Before the first request and after the last one, when all was quiet:",
        "",
        "| process | descriptors | threads | resident MiB |",
        "|---|---|---|---|",
        *rows,
        "",
        f"The leader's memory grew by {findings.slope_kb:.1f} KiB a request over the second half of the run. After its "
        "end no process, port or shared memory was left.",
        "",
    ]
