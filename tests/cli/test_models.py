from __future__ import annotations

import json

from epe.cli.main import run
from epe.families import FAMILIES


def test_the_list_names_all_families_and_what_is_not_there_yet(capsys):
    assert run(["models", "list"]) == 0
    header, *rows = capsys.readouterr().out.splitlines()
    assert header.split()[0] == "family"
    assert [row.split()[0] for row in rows] == list(FAMILIES)
    for row, each in zip(rows, FAMILIES.values(), strict=True):
        assert ("yes" in row) is each.available


def test_the_list_for_programs_is_json(capsys):
    assert run(["models", "list", "--json"]) == 0
    rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(FAMILIES)
    assert rows["zimage"]["generate"] is True
    assert rows["zimage"]["axes"] == ["tp", "cfg", "cp"]
    assert rows["hunyuan-image3"]["serve"] is False


def test_a_tiny_model_is_not_written_over_something_else(tmp_path, capsys):
    (tmp_path / "letter.txt").write_text("dear")
    assert run(["models", "make-tiny", "zimage", str(tmp_path)]) == 2
    assert "exists and is no checkpoint" in capsys.readouterr().err
    assert [file.name for file in tmp_path.iterdir()] == ["letter.txt"]
