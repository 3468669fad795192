"""`epe config show`: what a stage file means, defaults included."""

from __future__ import annotations

from collections.abc import Sequence

from epe.cli.parser import Parser
from epe.config.describe import describe
from epe.config.load import load_stage


def run(argv: Sequence[str]) -> int:
    parser = Parser("epe config", description="Check a stage file and print what is in force.")
    parser.add_argument("action", choices=("show",), help="print the whole stage as YAML")
    parser.add_argument("--stage-config", required=True, metavar="FILE", help="the stage file")
    args = parser.parse_args(argv)
    print(describe(load_stage(args.stage_config)), end="")
    return 0
