"""The documents at the top and in `docs` say what is there: links, commands, families, tests and versions."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement

from epe.cli.main import run
from epe.config.load import build_stage

ROOT = Path(__file__).resolve().parents[1]
READMES = (ROOT / "README.md", ROOT / "README.zh.md")
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def code_blocks(document: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", document.read_text(), re.DOTALL | re.MULTILINE)


def without_comments(block: str) -> str:
    return re.sub(r"\s+# .*", "", block)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_to_a_file_leads_somewhere(document: Path) -> None:
    targets = re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", document.read_text())
    assert [target for target in targets if not (document.parent / target).exists()] == []


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_readmes_table_of_families_is_what_the_command_prints(
    readme: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["models", "list"])
    printed = [tuple(re.split(r"\s{2,}", line)) for line in capsys.readouterr().out.splitlines()]
    rows = (line.strip("|").split("|") for line in readme.read_text().splitlines() if line.startswith("|"))
    written = [tuple(cell.strip(" `") for cell in row) for row in rows if not row[0].startswith("---")]
    assert written == printed, "copy what `epe models list` prints into the table"


@pytest.mark.parametrize("language", ["bash", "python", "yaml"])
def test_both_readmes_give_the_same_commands(language: str) -> None:
    english, chinese = ([without_comments(b) for b in code_blocks(each, language)] for each in READMES)
    assert english
    assert english == chinese


def test_the_readmes_stage_file_is_right(tmp_path: Path) -> None:
    (tmp_path / "model_index.json").write_text('{"_class_name": "ZImagePipeline"}')
    (block,) = code_blocks(READMES[0], "yaml")
    stage = yaml.safe_load(block)
    stage["factory_args"]["model_path"] = str(tmp_path)
    assert build_stage(stage).parallelism.scheduler.allowed_lane_widths == (1, 2, 4)


@pytest.mark.parametrize("readme", READMES, ids=lambda path: path.name)
def test_the_readmes_python_compiles(readme: Path) -> None:
    for block in code_blocks(readme, "python"):
        compile(f"async def host():\n{re.sub('^', ' ', block, flags=re.MULTILINE)}", readme.name, "exec")


def test_every_test_that_the_architecture_names_exists() -> None:
    named = set(re.findall(r"`(test_\w+)`", (ROOT / "ARCHITECTURE.md").read_text()))
    there = set(re.findall(r"def (test_\w+)", "".join(p.read_text() for p in ROOT.glob("tests/**/*.py"))))
    assert named
    assert named - there == set()


def test_every_room_is_named_in_the_architecture() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    rooms = {path.parent.name for path in ROOT.glob("epe/*/__init__.py")}
    assert {room for room in rooms if f"`{room}/`" not in text} == set()


@pytest.mark.parametrize("record", sorted(ROOT.glob("docs/decisions/*.md")), ids=lambda path: path.stem)
def test_a_decision_is_short_and_has_its_three_parts(record: Path) -> None:
    lines = record.read_text().splitlines()
    assert len(lines) < 40
    assert [line for line in lines if line.startswith("## ")] == [
        "## Context",
        "## Decision",
        "## Consequence",
    ]


def test_the_test_environment_pins_every_dependency_within_its_range() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = (ROOT / "constraints-cpu.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if "==" in line)
    wanted = [*project["project"]["dependencies"], *project["dependency-groups"]["dev"]]
    for requirement in map(Requirement, wanted):
        assert requirement.specifier.contains(pins[requirement.name.lower()]), requirement
