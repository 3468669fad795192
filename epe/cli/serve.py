"""`epe serve`: the resident service."""

from __future__ import annotations

from collections.abc import Sequence

from epe.cli.parser import Parser, whole_number


def run(argv: Sequence[str]) -> int:
    parser = Parser(
        "epe serve",
        description="Serve pictures over HTTP on the ranks of a stage file. Starts its own ranks, "
        "or joins those of torchrun or Slurm.",
    )
    parser.add_argument(
        "--stage-config", metavar="FILE", help="the stage file; without one the demo model is served"
    )
    parser.add_argument("--host", help="address to bind; goes before service.host (default 127.0.0.1)")
    parser.add_argument(
        "--port", type=whole_number, help="port to bind; goes before service.port (default 18200, 0: any)"
    )
    parser.add_argument(
        "--log-level",
        choices=("debug", "info", "warning", "error"),
        default="info",
        help="least weight of a line in the log (default info; debug has a line for each lease)",
    )
    parser.add_argument(
        "--record-trace", metavar="FILE", help="record every request there, for `epe simulate --trace FILE`"
    )
    parser.add_argument(
        "--timeline", metavar="FILE", help="write what each rank did there, for chrome://tracing or Perfetto"
    )
    args = parser.parse_args(argv)

    from epe.launch.serve import run_serve

    return run_serve(
        args.stage_config,
        host=args.host,
        port=args.port,
        log_level=args.log_level,
        record_trace=args.record_trace,
        timeline=args.timeline,
    )
