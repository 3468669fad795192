from __future__ import annotations

from pathlib import Path

import pytest

from epe.config.yaml_file import parse_yaml, read_yaml
from epe.errors import BadSetting


def refused(text: str) -> BadSetting:
    with pytest.raises(BadSetting) as caught:
        parse_yaml(text, source="stage.yaml")
    assert "\n" not in str(caught.value)
    return caught.value


def test_a_key_written_twice_is_named_with_both_lines():
    error = refused("name: a\ngpu: [0]\nname: b\n")
    assert str(error) == "name: given twice, in lines 1 and 3"


def test_a_key_written_twice_deep_inside_is_named_with_its_path():
    error = refused("parallelism:\n  cp:\n    world_size: 4\n    world_size: 2\n")
    assert error.path == "parallelism.cp.world_size"
    assert "lines 3 and 4" in str(error)


def test_the_same_key_in_two_sections_is_right():
    assert parse_yaml("a: {x: 1}\nb: {x: 2}\n", source="s") == {"a": {"x": 1}, "b": {"x": 2}}


def test_a_key_twice_inside_a_list_is_named_with_its_place():
    assert refused("a:\n- {x: 1}\n- {x: 1, x: 2}\n").path == "a[1].x"


@pytest.mark.parametrize("text", ["", "# only a comment\n", "- 1\n- 2\n", "text\n", "3\n"])
def test_what_is_no_mapping_is_refused(text):
    assert "must be a mapping" in str(refused(text))


@pytest.mark.parametrize("text", ["a: [1\n", "a: b: c\n", "a: *nobody\n", "a: !!python/name:os.system x\n"])
def test_broken_yaml_is_refused_with_its_line(text):
    assert "not valid YAML at line" in str(refused(text))


@pytest.mark.parametrize("text", ["a: \x07\n", "a: 2024-13-45\n", "--- {a: 1}\n--- {a: 2}\n"])
def test_other_broken_yaml_is_refused(text):
    assert "not valid YAML" in str(refused(text))


def test_a_value_that_contains_itself_is_refused():
    assert "contains itself" in str(refused("a: &a [*a]\n"))


@pytest.mark.parametrize("text", ["1: a\n", "null: a\n", "? [x]\n: a\n", "true: a\n"])
def test_a_key_that_is_no_text_is_refused(text):
    assert "not a text" in str(refused(text))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(BadSetting, match=r"there is no file .*nowhere.yaml"):
        read_yaml(tmp_path / "nowhere.yaml")


def test_a_folder_is_no_file(tmp_path):
    with pytest.raises(BadSetting, match="cannot be read"):
        read_yaml(tmp_path)


def test_a_file_that_is_no_text_is_refused(tmp_path):
    (tmp_path / "stage.yaml").write_bytes(b"\xff\xfe\x00name")
    with pytest.raises(BadSetting, match="not a UTF-8 text file"):
        read_yaml(tmp_path / "stage.yaml")


def test_a_file_without_an_end_is_not_read_to_its_end():
    """`--stage-config /dev/zero` took all memory of the machine."""
    with pytest.raises(BadSetting, match="/dev/zero has more than 1048576 characters"):
        read_yaml(Path("/dev/zero"))
