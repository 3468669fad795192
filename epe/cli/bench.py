"""`epe bench`: what the tasks of a stage take on this machine."""

from __future__ import annotations

import os
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import msgspec

from epe.cli.parser import Parser, whole_number
from epe.config.checks import TENSOR_DEGREE
from epe.config.demo import demo_stage
from epe.config.limits import problem_with_size
from epe.config.load import build_stage, load_stage
from epe.config.outputs import check_plot, check_writable, writing
from epe.config.sizes import PATH as SIZES
from epe.config.sizes import named, parse_flag
from epe.config.stage import Stage
from epe.errors import BadSetting
from epe.files import write_whole
from epe.launch.environment import Placement, read_placement
from epe.launch.gpus import check_enough

if TYPE_CHECKING:
    from epe.runtime.bench import Row

# `--costs` without a file: where a service of the stage reads them.
KEPT = object()


def run(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    place = read_placement(os.environ)
    stage = _stage(args.stage_config, num_ranks=place.world_size)
    sizes = _sizes(args.sizes, stage)
    _check_counts(args, stage)
    _check_world(args, stage, place)
    if place.rank == 0:
        _check_outputs(args, stage)
    check_enough(stage, os.environ)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    from epe.cli.meeting import meeting_of
    from epe.runtime.bench import BenchOptions, bench
    from epe.runtime.meeting import seat_of
    from epe.telemetry.log import configure

    configure(level="warning")
    options = BenchOptions(
        sizes=sizes, num_steps=args.steps, num_rounds=args.rounds, against_diffusers=args.against is not None
    )
    seat = seat_of(meeting_of(place, gpu=stage.gpu, env=os.environ), command="bench")
    rows: list[Row] = []
    costs = None
    for row in bench(stage, options, seat=seat):
        rows.append(row)
        if place.rank == 0:
            lines = [_cells(row)] if rows[1:] else [_HEAD, _cells(row)]
            print(*map(_line, lines), sep="\n", flush=True)
            costs = _keep(args, stage, rows, world_size=place.world_size)
    if place.rank == 0:
        _draw(args, stage, rows)
        if args.costs is KEPT:
            print(f"a service of this stage starts with {costs}")
    return 0


def _check_world(args: Namespace, stage: Stage, place: Placement) -> None:
    """Without a launcher one rank is timed, whatever the stage has."""
    if place.launcher != "none" and place.world_size != stage.world_size:
        raise BadSetting(
            f"{stage.world_size} ranks are named, but {place.world_size} processes were started", path="gpu"
        )
    if place.world_size < stage.num_planes:
        raise BadSetting(
            f"{stage.num_planes} planes need as many processes; start this with torchrun", path=TENSOR_DEGREE
        )
    if args.costs is not None:
        _check_costs(args, stage, place)
    if args.against is not None and place.world_size > 1:
        raise BadSetting("diffusers draws on one rank; start one process", path="--against")


def _check_costs(args: Namespace, stage: Stage, place: Placement) -> None:
    if place.world_size != stage.world_size:
        raise BadSetting(
            f"costs of one rank fit no service of {stage.world_size}; start as many processes, with torchrun",
            path="--costs",
        )
    if args.costs is KEPT and args.stage_config is None:
        raise BadSetting(
            "the demo's service has as many ranks as suit the machine; name a stage file, or a file for the costs",
            path="--costs",
        )
    if args.costs is KEPT and stage.parallelism.scheduler.cost_file == "none":
        raise BadSetting(
            "cost_file is none, so no service of this stage reads costs; name a file", path="--costs"
        )


def _check_counts(args: Namespace, stage: Stage) -> None:
    for flag, count in (("--steps", args.steps), ("--rounds", args.rounds)):
        if count < 1:
            raise BadSetting(f"{count} is less than 1", path=flag)
    # All are steps of one request, beside two that do not count.
    if args.steps * args.rounds > (most := stage.family.max_steps - 2):
        raise BadSetting(
            f"{args.rounds} rounds of {args.steps} are more than {most} steps; ask for fewer", path="--steps"
        )


def _check_outputs(args: Namespace, stage: Stage) -> None:
    """Before the work, not after it."""
    costs = _costs_file(args, stage, fingerprint="")  # Of any other it is in the same folder.
    named = {"--json": args.json, "--costs": costs, "--plot": args.plot}
    files = {flag: file for flag, file in named.items() if file is not None}
    taken = files if args.stage_config is None else {**files, "--stage-config": args.stage_config}
    for flag, file in files.items():
        check_writable(Path(file), path=flag)
        place = os.path.realpath(file)
        if same := [other for other in taken if other != flag and os.path.realpath(taken[other]) == place]:
            raise BadSetting(f"{file} is also {same[0]}; each needs a file of its own", path=flag)
    if args.plot is not None:
        check_plot(args.plot, path="--plot")


def _costs_file(args: Namespace, stage: Stage, *, fingerprint: str) -> Path | None:
    from epe.runtime.cost_file import CostFile

    if args.costs is not KEPT:
        return None if args.costs is None else Path(args.costs)
    try:
        return CostFile(stage.parallelism.scheduler.cost_file, name=stage.factory).path(fingerprint)
    except OSError as error:
        raise BadSetting(str(error), path="--costs") from error


def _keep(args: Namespace, stage: Stage, rows: Sequence[Row], *, world_size: int) -> Path | None:
    """What is measured so far: a run that is cut keeps it. The file of the costs."""
    from epe.runtime.bench_costs import costs_of

    costs = costs_of(stage, rows, world_size=world_size)
    costs_file = _costs_file(args, stage, fingerprint=costs.fingerprint)
    for flag, file, value in (("--json", args.json, rows), ("--costs", costs_file, costs)):
        if file is not None:
            with writing(file, path=flag):
                write_whole(file, msgspec.json.format(msgspec.json.encode(value)) + b"\n")
    return costs_file


def _draw(args: Namespace, stage: Stage, rows: Sequence[Row]) -> None:
    from epe.runtime.bench_plot import draw

    if args.plot is not None:
        with writing(args.plot, path="--plot"):
            Path(args.plot).parent.mkdir(parents=True, exist_ok=True)
            draw(rows, args.plot, title=f"{stage.name}: {stage.family.name}")


def _parser() -> Parser:
    parser = Parser(
        "epe bench",
        description="Time the tasks of a stage on this machine, as its service would run them: on one rank, or on "
        "lanes of each width where torchrun or Slurm starts it once for each rank.",
    )
    parser.add_argument(
        "--stage-config", metavar="FILE", help="the stage file; without one the demo model is timed"
    )
    parser.add_argument(
        "--sizes",
        metavar="HxW[xF],...",
        help="pictures, or videos with their frames, to time (default: warmup_resolutions of the stage)",
    )
    parser.add_argument(
        "--rounds", type=whole_number, default=3, help="times that each task is timed (default 3)"
    )
    parser.add_argument("--steps", type=whole_number, default=4, help="steps of a round (default 4)")
    parser.add_argument(
        "--against",
        choices=("diffusers",),
        help="time steps of diffusers' own pipeline too, in turn, on a GPU also compiled; it needs as much memory",
    )
    parser.add_argument("--json", metavar="FILE", help="write all that was measured there")
    parser.add_argument("--plot", metavar="FILE", help="draw the steps into this .png, .svg or .pdf")
    parser.add_argument(
        "--costs",
        metavar="FILE",
        nargs="?",
        const=KEPT,
        help="write a cost file there, for cost_file of a stage of as many ranks or epe simulate; without FILE where a "
        "service of this stage reads it",
    )
    return parser


def _stage(path: str | None, *, num_ranks: int) -> Stage:
    return build_stage(demo_stage(num_ranks, num_ranks=num_ranks)) if path is None else load_stage(path)


def _sizes(text: str | None, stage: Stage) -> tuple[tuple[int, int, int], ...]:
    """(height, width, frames) of each. Raises `BadSetting` for a size that the family cannot draw, and where there is
    none."""
    if text is None:
        if not stage.warmup_sizes:
            raise BadSetting("is empty, so nothing would be timed; name sizes with --sizes", path=SIZES)
        return stage.warmup_sizes
    given = parse_flag(text, path="--sizes")
    sizes = tuple(stage.size_of(each) for each in given)
    for size in sizes:
        if sizes.count(size) > 1:
            raise BadSetting(f"{named(*size)} stands there twice", path="--sizes")
        if problem := problem_with_size(stage.family, *size):
            raise BadSetting(problem, path="--sizes")
    return sizes


_HEAD = (
    "size",
    "ranks",
    "tokens",
    "encode ms",
    "step ms",
    "decode ms",
    "copy ms",
    "peak MiB",
    "graphs MiB",
    "capture s",
    "diffusers ms",
    "ratio",
    "compiled ms",
    "ratio",
)


def _cells(row: Row) -> tuple[str, ...]:
    from epe.runtime.bench import COMPILED, DIFFUSERS

    others = (
        cell
        for name in (DIFFUSERS, COMPILED)
        for cell in (_milliseconds(row.others_step_s.get(name, ())), _spread(row.ratios(name)))
    )
    return (
        row.size,
        str(row.num_ranks),
        str(row.tokens),
        f"{1e3 * row.encode_s:.1f}",
        _milliseconds(row.step_s),
        f"{1e3 * row.decode_s:.1f}",
        f"{1e3 * row.copy_s:.1f}",
        str(row.peak_bytes >> 20) if row.peak_bytes else "-",
        str(row.graph_bytes >> 20),
        f"{row.capture_s:.2f}",
        *others,
    )


def _milliseconds(seconds: Sequence[float]) -> str:
    return _spread([1e3 * each for each in seconds])


def _spread(values: Sequence[float]) -> str:
    """The median, the least and the most."""
    if not values:
        return "-"
    return f"{median(values):.2f} ({min(values):.2f}-{max(values):.2f})"


def _line(cells: Sequence[str]) -> str:
    widths = (14, 7, 7, 10, 24, 10, 8, 9, 11, 10, 24, 18, 24, 18)
    return "".join(cell.ljust(width) for cell, width in zip(cells, widths, strict=True)).rstrip()
