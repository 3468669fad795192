"""That no command writes over a file that it reads, or writes one file twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from epe.config.outputs import check_apart
from epe.errors import BadSetting


def test_files_of_their_own_and_none_are_allowed(tmp_path: Path) -> None:
    outputs = {"--json": tmp_path / "rows.json", "--plot": None, "--costs": None}
    check_apart(outputs, inputs={"--trace": str(tmp_path / "trace.jsonl"), "--prompts": None})


def test_an_input_under_another_name_is_not_written_over(tmp_path: Path) -> None:
    (read := tmp_path / "read.json").write_text("mine")
    (link := tmp_path / "link.json").symlink_to(read)
    for file in (str(read), f"{tmp_path}/./read.json", link):
        with pytest.raises(BadSetting, match=r"^--json: .* is also --trace; each needs a file of its own$"):
            check_apart({"--json": file}, inputs={"--trace": read})


def test_two_outputs_are_not_one_file(tmp_path: Path) -> None:
    file = tmp_path / "one.svg"
    with pytest.raises(BadSetting, match=r"^--json: .* is also --plot;"):
        check_apart({"--json": file, "--plot": file}, inputs={})
