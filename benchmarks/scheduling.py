"""How close our planner comes to the best that is possible, beside every other scheduler, each tuned alike.

python benchmarks/scheduling.py tune      # equally many tries for each baseline -> scheduling_tuned.json
python benchmarks/scheduling.py run       # everything that the page needs; goes on where it was stopped
python benchmarks/scheduling.py again     # after a change: does it alter schedules? two runs of each cell anew
python benchmarks/scheduling.py report    # docs/results/scheduling.md and its plots, from what was run
"""

from __future__ import annotations

import argparse
from pathlib import Path

import msgspec
from scheduling_cells import CELL_OF, CELLS, Cell
from scheduling_entrants import TUNED, read_tuned
from scheduling_jobs import (
    NUM_REQUESTS,
    PARTS,
    SEEDS,
    TUNING_REQUESTS,
    Effort,
    again,
    best_tries,
    tuning_jobs,
)
from scheduling_offline import read_offline
from scheduling_runs import Job, Line, Log, run_all

OUTPUTS = Path("outputs/scheduling")
PAGE = Path("docs/results/scheduling.md")


def main() -> None:
    args = _parser().parse_args()
    runs = Log(args.outputs / "runs.jsonl")
    if args.command == "tune":
        _tune(Log(args.outputs / "tries.jsonl"), args)
    elif args.command == "run":
        effort = _effort(args)
        _work(runs, [job for what in args.what.split(",") for job in PARTS[what](effort)], args)
    elif args.command == "again":
        _work(Log(args.outputs / "again.jsonl"), again(_effort(args)), args, renew=True)
    else:
        from scheduling_report import write  # the plots need matplotlib, the runs do not
        from scheduling_versions import Versions

        tried = Log(args.outputs / "tries.jsonl").lines.values()
        write(
            list(runs.lines.values()),
            tried=list(tried),
            versions=Versions(runs.lines, Log(args.outputs / "again.jsonl").lines),
            effort=_effort(args),
            page=args.page,
            offline=read_offline(args.outputs / "offline.jsonl"),
        )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("command", choices=("tune", "run", "again", "report"))
    add("--what", default=",".join(PARTS), help=f"parts of `run`, in this order (default {','.join(PARTS)})")
    add("--cells", help="names by commas (default all)")
    add("--baselines", type=int, default=99, help="only so many of each cell, the best tries first")
    add("--requests", type=int, default=NUM_REQUESTS, help=f"of each run (default {NUM_REQUESTS})")
    add(
        "--tuning-requests",
        type=int,
        default=TUNING_REQUESTS,
        help=f"of each try (default {TUNING_REQUESTS})",
    )
    add("--seeds", type=int, default=len(SEEDS), help=f"how many (default {len(SEEDS)})")
    add("--bound-seconds", type=float, default=10.0, help="time limit of the bound, each seed (default 10)")
    add(
        "--renew",
        action="store_true",
        help="run again what other versions of our planner or of the simulator ran",
    )
    add("--processes", type=int, default=1, help="at the same time (default 1)")
    add("--outputs", type=Path, default=OUTPUTS, help=f"folder of the lines (default {OUTPUTS})")
    add("--tuned", type=Path, default=TUNED, help="tuned configurations: written by `tune`, else read")
    add("--page", type=Path, default=PAGE, help=f"what `report` writes (default {PAGE})")
    return parser


def _cells(args: argparse.Namespace) -> tuple[Cell, ...]:
    return CELLS if args.cells is None else tuple(CELL_OF[name] for name in args.cells.split(","))


def _effort(args: argparse.Namespace) -> Effort:
    if not args.tuned.exists():
        raise SystemExit(f"{args.tuned} is not there: run `tune` first")
    return Effort(
        tuned=read_tuned(args.tuned),
        cells=_cells(args),
        num_requests=args.requests,
        num_seeds=args.seeds,
        num_baselines=args.baselines,
        bound_limit_s=args.bound_seconds,
    )


def _tune(log: Log, args: argparse.Namespace) -> None:
    """Only cells in which everybody had all tries count."""
    _work(log, tuning_jobs(_cells(args), num_requests=args.tuning_requests), args)
    jobs = [tuning_jobs([cell], num_requests=args.tuning_requests) for cell in CELLS]
    lines = [log.lines[job.key] for each in jobs if not log.missing(each) for job in each]
    args.tuned.write_bytes(msgspec.json.format(msgspec.json.encode(best_tries(lines))) + b"\n")


def _work(log: Log, jobs: list[Job], args: argparse.Namespace, *, renew: bool = False) -> None:
    missing = log.missing(jobs, renew=renew or args.renew)
    print(f"{len(jobs)} runs, {len(missing)} to do", flush=True)
    for number, line in enumerate(run_all(missing, num_processes=args.processes), start=1):
        log.add(line)
        print(f"{number}/{len(missing)} {_told(line)}", flush=True)


def _told(line: Line) -> str:
    job, reached = line.job, line.bound or line.metrics
    share = reached.slo_attainment if reached else None
    name = job.entrant.name if job.entrant else "bound"
    found = "not computed" if share is None else f"{share:.1%} in time"
    return f"{job.cell}, seed {job.seed}, {name}: {found}, {line.took_s:.1f} s"


if __name__ == "__main__":
    main()
