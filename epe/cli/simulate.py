"""`epe simulate`: what a policy, a load or a number of ranks would give, on a virtual clock."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from epe.cli.parser import Parser, number, whole_number
from epe.config.outputs import check_apart, check_plot, check_writable
from epe.errors import BadSetting
from epe.planning.policies import BUILT_IN
from epe.simulator.baselines import BASELINES
from epe.simulator.costs import CostSet, read_cost_set
from epe.simulator.experiment import Experiment, Result, Trace
from epe.simulator.experiment import run as run_experiment
from epe.simulator.machine import Physics
from epe.simulator.mixes import MIXES
from epe.simulator.policies import policy_of
from epe.simulator.published import PUBLISHED
from epe.simulator.traces import read_trace
from epe.simulator.workloads import WORKLOADS, Deadlines, WorkloadSpec

DEFAULT_LOAD = 0.9
DEFAULT_SEEDS = 5


def run(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    if args.list:
        print(_listing())
        return 0
    experiments = build_experiments(args)
    _check_outputs(args)
    results = []
    for experiment in experiments:
        results.append(run_experiment(experiment, tell=_progress))
        print(_table(results[-1]), flush=True)
    _write(args, results)
    return 0


def build_experiments(args: Namespace) -> list[Experiment]:
    """One for each load. Everything that can be said against a command line is said here or at the first
    request; raises `BadSetting`."""
    cost_set = _cost_set(args)
    world = _at_least(args.world, 1, "--world")
    widths = cost_set.widths(world)
    names = tuple(name.strip() for name in args.policy.split(","))
    for name in names:
        policy_of(name, widths=widths, world_size=world)
    if len(set(names)) != len(names):
        raise BadSetting(f"a policy is named twice in {args.policy!r}", path="--policy")
    seeds = _at_least(args.seeds if args.seeds is not None else _default_seeds(args), 1, "--seeds")
    first = _at_least(args.first_seed, 1, "--first-seed")
    return [
        Experiment(
            workload=workload,
            cost_set=cost_set,
            world_size=world,
            policies=names,
            seeds=tuple(range(first, first + seeds)),
            physics=_physics(args),
            correct_costs=args.correct_costs,
            bound=args.bound,
            bound_limit_s=_positive(args.bound_seconds, "--bound-seconds"),
        )
        for workload in _workloads(args)
    ]


def _parser() -> Parser:
    parser = Parser(
        "epe simulate",
        description="Run policies on a virtual clock, on published costs or on those of a file.",
        epilog="`epe simulate --list` names workloads, mixes, costs and policies; docs/simulator.md says more.",
    )
    parser.add_argument("--list", action="store_true", help="what there is to choose from")
    _add_workload(parser)
    _add_machine(parser)
    parser.add_argument(
        "--policy", default="elastic", metavar="A,B,C", help="names or dotted paths (default elastic)"
    )
    parser.add_argument(
        "--bound",
        choices=("fluid", "clairvoyant", "none"),
        default="fluid",
        help="what nobody can beat (default), or what elastic reaches when it knows what comes",
    )
    parser.add_argument(
        "--bound-seconds", type=number, default=20.0, help="time limit of the bound, each seed (default 20)"
    )
    parser.add_argument("--json", metavar="OUT", help="write all numbers to this file")
    parser.add_argument("--plot", metavar="OUT", help="write plots to this .png, .svg or .pdf")
    return parser


def _add_workload(parser: Parser) -> None:
    parser.add_argument("--workload", choices=tuple(WORKLOADS), help="how requests come (default poisson)")
    parser.add_argument("--trace", metavar="FILE", help="a workload of one's own (docs/trace-format.md)")
    parser.add_argument("--replay", metavar="FILE", help="GenTD26's requests, for --workload replay")
    parser.add_argument("--mix", metavar="MIX", help="a name, or CLASS=SHARE,... (default small)")
    parser.add_argument("--steps", type=whole_number, help="denoising steps of every class")
    parser.add_argument(
        "--load",
        metavar="LOAD",
        help=f"offered rank-seconds / ranks / time; several by commas ({DEFAULT_LOAD})",
    )
    parser.add_argument("--requests", type=whole_number, help="default 1000")
    parser.add_argument("--seeds", type=whole_number, help=f"runs of each policy (default {DEFAULT_SEEDS})")
    parser.add_argument("--first-seed", type=whole_number, default=1, help="default 1")
    parser.add_argument(
        "--deadline-scale",
        type=number,
        help="deadlines: this many times the best latency alone (default 1.5)",
    )
    parser.add_argument(
        "--deadlines", metavar="RULE", help="gfdit, none, or seconds for each class: 1.5,2,3 (smallest first)"
    )
    parser.add_argument("--expire", action="store_true", help="end a request at its deadline")


def _add_machine(parser: Parser) -> None:
    parser.add_argument(
        "--costs", default="qwen-h20", help=f"{', '.join(PUBLISHED)}, or a file (default qwen-h20)"
    )
    parser.add_argument("--world", type=whole_number, default=4, metavar="N", help="ranks (default 4)")
    parser.add_argument("--jitter", type=number, default=0.0, help="tasks vary by this share (default 0)")
    parser.add_argument(
        "--migration-ms", type=number, help="time of a move besides its bytes (default: of the costs)"
    )
    parser.add_argument("--dispatch-ms", type=number, default=1.0, help="from plan to ranks (default 1)")
    parser.add_argument(
        "--report-ms", type=number, default=0.0, help="until a state has come to the planner (default 0)"
    )
    parser.add_argument(
        "--plan-ms",
        metavar="MS",
        default="1",
        help="time that a plan takes: a number (default 1), or measured",
    )
    parser.add_argument(
        "--correct-costs", action="store_true", help="correct costs while running, as in service"
    )
    parser.add_argument(
        "--clairvoyant", action="store_true", help="show policies the requests that will come"
    )


def _cost_set(args: Namespace) -> CostSet:
    if args.costs in PUBLISHED:
        found = PUBLISHED[args.costs]()
    elif Path(args.costs).is_file():
        found = read_cost_set(args.costs)
    else:
        raise BadSetting(
            f"{args.costs!r} is neither one of {', '.join(PUBLISHED)} nor a file", path="--costs"
        )
    if args.migration_ms is None:
        return found
    latency_s = _not_negative(args.migration_ms, "--migration-ms") / 1e3
    return replace(found, migration=replace(found.migration, latency_s=latency_s))


def _workloads(args: Namespace) -> list[WorkloadSpec | Trace]:
    loads = (
        [_positive(_number(part, "--load"), "--load") for part in args.load.split(",")] if args.load else []
    )
    if args.trace is None:
        return [_generated(args, load) for load in loads or [DEFAULT_LOAD]]
    for flag in ("workload", "mix", "steps", "requests", "deadline_scale", "deadlines", "replay", "expire"):
        if getattr(args, flag):
            name = f"--{flag.replace('_', '-')}"
            raise BadSetting("is of no use with --trace, which says it for each request", path=name)
    lines = read_trace(args.trace)
    wanted: list[float | None] = [*loads] or [None]
    return [Trace(path=args.trace, lines=lines, load=load) for load in wanted]


def _generated(args: Namespace, load: float) -> WorkloadSpec:
    name = args.workload or "poisson"
    if args.replay is not None and name != "replay":
        raise BadSetting("goes with --workload replay", path="--replay")
    return WorkloadSpec(
        name=name,
        mix=args.mix or "small",
        load=load,
        num_requests=_at_least(1000 if args.requests is None else args.requests, 2, "--requests"),
        num_steps=None if args.steps is None else _at_least(args.steps, 1, "--steps"),
        deadlines=_deadlines(args),
        replay=args.replay,
    )


def _deadlines(args: Namespace) -> Deadlines:
    if args.deadlines is None:
        scale = 1.5 if args.deadline_scale is None else _positive(args.deadline_scale, "--deadline-scale")
        return Deadlines(scale=scale, expire=args.expire)
    if args.deadline_scale is not None:
        raise BadSetting("give either this or --deadline-scale", path="--deadlines")
    if args.deadlines in ("gfdit", "none"):
        return Deadlines(kind=args.deadlines, expire=args.expire)
    parts = [_number(part, "--deadlines") for part in args.deadlines.split(",")]
    seconds = tuple(_positive(part, "--deadlines") for part in parts)
    return Deadlines(kind="absolute", seconds=seconds, expire=args.expire)


def _physics(args: Namespace) -> Physics:
    jitter = _not_negative(args.jitter, "--jitter")
    if jitter >= 1:
        raise BadSetting(
            f"is {jitter:g}; less than 1 is needed, or a task could take no time", path="--jitter"
        )
    measured = args.plan_ms == "measured"
    plan_ms = 0.0 if measured else _not_negative(_number(args.plan_ms, "--plan-ms"), "--plan-ms")
    return Physics(
        dispatch_s=_not_negative(args.dispatch_ms, "--dispatch-ms") / 1e3,
        report_s=_not_negative(args.report_ms, "--report-ms") / 1e3,
        plan_s=None if measured else plan_ms / 1e3,
        jitter=jitter,
        clairvoyant=args.clairvoyant,
    )


def _default_seeds(args: Namespace) -> int:
    """A trace is the same with every seed, unless tasks vary."""
    return 1 if args.trace is not None and not args.jitter else DEFAULT_SEEDS


def _number(text: str, flag: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise BadSetting(f"{text!r} is not a number", path=flag) from None


def _positive(value: float, flag: str) -> float:
    if not 0 < value < float("inf"):
        raise BadSetting(f"is {value:g}; a number above 0 is needed", path=flag)
    return value


def _not_negative(value: float, flag: str) -> float:
    return value if value == 0 else _positive(value, flag)


def _at_least(value: int, least: int, flag: str) -> int:
    if value < least:
        raise BadSetting(f"is {value}; at least {least} is needed", path=flag)
    return value


def _check_outputs(args: Namespace) -> None:
    """Before the work, not after it."""
    outputs = {"--json": args.json, "--plot": args.plot}
    for flag, path in outputs.items():
        if path is not None and not Path(path).absolute().parent.is_dir():
            raise BadSetting(f"the folder of {path} does not exist", path=flag)
        if path is not None:
            check_writable(Path(path), path=flag)
    check_apart(outputs, inputs={"--trace": args.trace, "--costs": args.costs})
    if args.plot is not None:
        check_plot(args.plot, path="--plot")


def _write(args: Namespace, results: list[Result]) -> None:
    from epe.simulator.plots import plot
    from epe.simulator.report import as_json

    if args.json is not None:
        Path(args.json).write_bytes(as_json(results))
    if args.plot is not None:
        plot(results, args.plot)


def _table(result: Result) -> str:
    from epe.simulator.report import as_table

    return as_table(result)


def _progress(line: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{line}", end="", file=sys.stderr, flush=True)


def _listing() -> str:
    rows: list[tuple[str, list[tuple[str, str]]]] = [
        ("workloads", [(name, what) for name, (what, _) in WORKLOADS.items()]),
        ("mixes", [(name, what) for name, (what, _) in MIXES.items()]),
        ("costs", [(name, _first_line(make.__doc__)) for name, make in PUBLISHED.items()]),
        ("policies of the service", [(name, _described(name)) for name in BUILT_IN]),
        ("other schedulers", [(name, _described(name)) for name in BASELINES]),
    ]
    width = max(len(name) for _, names in rows for name, _ in names)
    return "\n\n".join(
        "\n".join([f"{title}:", *(f"  {name.ljust(width)}  {what}".rstrip() for name, what in names)])
        for title, names in rows
    )


def _described(policy: str) -> str:
    """What the module of a policy says of it."""
    made = policy_of(policy, widths=(1, 2, 4, 8), world_size=8)
    return _first_line(sys.modules[type(made).__module__].__doc__)


def _first_line(text: str | None) -> str:
    return (text or "").strip().split("\n")[0]
