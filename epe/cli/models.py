"""`epe models`: which families there are, and a tiny model of one to try things with."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from epe.cli.parser import Parser
from epe.config.model_path import INDEX
from epe.errors import BadSetting
from epe.families import FAMILIES, Family, available_family


def run(argv: Sequence[str]) -> int:
    parser = Parser("epe models", description="The model families that EPE knows.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", prog="epe models")
    listing = actions.add_parser("list", description="All families, and what works.", help="list families")
    listing.add_argument("--json", action="store_true", help="for programs")
    tiny = actions.add_parser(
        "make-tiny",
        description="Write a small checkpoint with random weights, in the real format.",
        help="write a tiny model to try",
    )
    tiny.add_argument("family", metavar="FAMILY")
    tiny.add_argument("directory", metavar="DIR")
    args = parser.parse_args(argv)
    if args.action == "list":
        print(_as_json() if args.json else _as_table())
        return 0
    return _make_tiny(args.family, args.directory)


def _make_tiny(name: str, directory: str) -> int:
    family = available_family(name, path="FAMILY")
    target = Path(directory)
    if target.exists() and not _may_be_overwritten(target):
        raise BadSetting(f"{directory} exists and is no checkpoint; give a new folder", path="DIR")

    from epe.models.catalog import make_tiny

    make_tiny(family.name, target)
    print(f"wrote a tiny {family.title} with random weights to {directory}")
    return 0


def _may_be_overwritten(target: Path) -> bool:
    """An empty folder, or one that holds a checkpoint already."""
    return target.is_dir() and ((target / INDEX).exists() or not any(target.iterdir()))


def _as_json() -> str:
    rows = [
        {
            "name": each.name,
            "title": each.title,
            "makes": each.makes,
            "pipeline": each.pipeline,
            "available": each.available,
            "generate": each.available,
            "serve": each.available,
            "axes": list(each.axes),
            "planned_axes": list(each.planned_axes),
        }
        for each in FAMILIES.values()
    ]
    return json.dumps(rows, indent=2)


def _as_table() -> str:
    rows = [("family", "makes", "generate", "serve", "parallel axes"), *map(_row, FAMILIES.values())]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join(line.rstrip() for line in lines)


def _row(family: Family) -> tuple[str, ...]:
    works = "yes" if family.available else "not yet"
    axes = " x ".join(axis.upper() for axis in family.axes)
    later = " x ".join(axis.upper() for axis in family.planned_axes)
    planned = f"{later} not yet" if later else ""
    return family.name, family.makes, works, works, "; ".join(filter(None, (axes, planned)))
