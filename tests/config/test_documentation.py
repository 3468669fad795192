"""The table of docs/stage-file.md and the structs say the same."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import NODEFAULT, fields

from epe.config.checks import NOT_YET, WITHOUT_EFFECT
from epe.config.keys import ALIASES, LATER_FACTORY_ARGS, OLD_KEYS, known_keys
from epe.config.stage import Stage

PAGE = (Path(__file__).parents[2] / "docs" / "stage-file.md").read_text(encoding="utf-8")
ROW = re.compile(
    r"^\| `(?P<key>[\w.]+)` \| (?P<status>[\w ]+) \|(?P<default>.*?)\| (?P<meaning>.*) \|$", re.M
)


def rows() -> dict[str, re.Match[str]]:
    return {row["key"]: row for row in ROW.finditer(PAGE)}


def keys_of(struct: type[Struct], path: str = "") -> dict[str, object]:
    """Each key with its default as the file would write it; NODEFAULT where it is derived or required."""
    found: dict[str, object] = {}
    known = known_keys(struct)
    for field in fields(struct):
        if field.name not in known:
            continue
        here = f"{path}.{field.name}" if path else field.name
        if isinstance(field.type, type) and issubclass(field.type, Struct):
            found |= keys_of(field.type, here)
        else:
            found[here] = field.default
    return found


def test_every_key_is_in_the_table_and_nothing_else():
    later = {f"factory_args.{key}" for key in LATER_FACTORY_ARGS}
    assert set(rows()) == set(keys_of(Stage)) | later | set(OLD_KEYS) | set(ALIASES)
    assert len(rows()) == len(ROW.findall(PAGE))


def test_the_defaults_in_the_table_are_those_in_force():
    table = rows()
    # What these leave out is derived from other keys, which the table says in words.
    derived = {
        "parallelism.cp.agkv_transport",
        "parallelism.model.cfg_parallel_degree",
        "parallelism.model.tensor_parallel_degree",
    }
    for key, default in keys_of(Stage).items():
        if default is NODEFAULT or key in derived:
            continue
        shown = (
            "none" if default is None else msgspec.json.encode(default).decode().strip('"').removesuffix(".0")
        )
        assert table[key]["default"].strip(" `") == shown, key


def test_each_old_key_names_its_new_place():
    for old, new in OLD_KEYS.items():
        assert rows()[old]["meaning"] == f"`{new}`"


def test_keys_without_effect_are_marked():
    marked = {key for key, row in rows().items() if row["status"] == "no effect"}
    assert marked == set(WITHOUT_EFFECT)


def test_keys_that_are_not_there_yet_say_so():
    for path, _, _ in NOT_YET:
        assert "*not yet*" in rows()[path]["meaning"], path
