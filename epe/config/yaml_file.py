"""YAML text to plain values; keys written twice are refused, with their line."""

from __future__ import annotations

from pathlib import Path

import yaml

from epe.errors import BadSetting

# A device such as /dev/zero has no end.
MAX_CHARS = 2**20


def read_yaml(path: Path) -> dict[str, object]:
    """The mapping that a YAML file holds; raises `BadSetting` where it is missing, broken or no mapping."""
    try:
        with path.open(encoding="utf-8") as file:
            text = file.read(MAX_CHARS + 1)
    except FileNotFoundError:
        raise BadSetting(f"there is no file {path}") from None
    except UnicodeDecodeError:
        raise BadSetting(f"{path} is not a UTF-8 text file") from None
    except OSError as error:
        raise BadSetting(f"{path} cannot be read: {error.strerror}") from error
    if len(text) > MAX_CHARS:
        raise BadSetting(f"{path} has more than {MAX_CHARS} characters, which no settings need")
    return parse_yaml(text, source=str(path))


def parse_yaml(text: str, *, source: str) -> dict[str, object]:
    """The mapping in a YAML text; `source` names the text in errors."""
    try:
        value = _load(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        place = f" at line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise BadSetting(f"{source} is not valid YAML{place}: {error.problem}") from error
    except (yaml.YAMLError, ValueError) as error:
        # A ValueError is a scalar that only looks like a date or number, such as 2024-13-45.
        raise BadSetting(f"{source} is not valid YAML: {' '.join(str(error).split())}") from error
    if not isinstance(value, dict):
        what = "empty" if value is None else f"a {type(value).__name__}"
        raise BadSetting(f"{source} must be a mapping of keys to values, but it is {what}")
    return value


def _load(text: str) -> object:
    loader = yaml.SafeLoader(text)
    try:
        node = loader.get_single_node()
        if node is None:
            return None
        _check_node(node, path="", above=())
        return loader.construct_document(node)
    finally:
        loader.dispose()


def _check_node(node: yaml.Node, *, path: str, above: tuple[yaml.Node, ...]) -> None:
    """Refuse doubled keys, keys that are no text, and values that contain themselves."""
    if any(node is outer for outer in above):
        raise BadSetting(f"the value at line {node.start_mark.line + 1} contains itself", path=path)
    match node:
        case yaml.MappingNode():
            _check_keys(node, path=path)
            for key, value in node.value:
                _check_node(value, path=_joined(path, key), above=(*above, node))
        case yaml.SequenceNode():
            for index, value in enumerate(node.value):
                _check_node(value, path=f"{path}[{index}]", above=(*above, node))


def _check_keys(node: yaml.MappingNode, *, path: str) -> None:
    first_lines: dict[str, int] = {}
    for key, _ in node.value:
        line = key.start_mark.line + 1
        if key.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:merge"):
            raise BadSetting(f"the key at line {line} is not a text", path=path)
        if key.value in first_lines:
            earlier = first_lines[key.value]
            raise BadSetting(f"given twice, in lines {earlier} and {line}", path=_joined(path, key))
        first_lines[key.value] = line


def _joined(path: str, key: yaml.Node) -> str:
    return f"{path}.{key.value}" if path else str(key.value)
