"""Which version of our planner and of the simulator made a line: fingerprints of what of their code a run needs.

Comments, docstrings and definitions that no run needs alter no schedule, so they alter no fingerprint either.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from pathlib import Path

import epe.planning
import epe.simulator

# A module of a package, and a name in it.
Place = tuple[str, str]


@cache
def planner_code() -> str:
    """Of what of `epe.planning` our planner needs."""
    return fingerprint(Path(epe.planning.__path__[0]), "elastic", prefix="epe.planning.")


@cache
def simulator_code() -> str:
    """Of what of `epe.simulator` makes requests, and makes a run of any plans."""
    return fingerprint(Path(epe.simulator.__path__[0]), "engine", "workloads", prefix="epe.simulator.")


def fingerprint(folder: Path, *wanted: str, prefix: str) -> str:
    """Of all that these modules of a package define, and of what they need of its other modules. The names of its
    modules begin with `prefix` where they are imported."""
    modules = {name: Module((folder / f"{name}.py").read_text(), prefix=prefix) for name in wanted}
    waiting: list[Place] = [(name, each) for name in wanted for each in modules[name].definitions]
    needed: dict[Place, str] = {}
    while waiting:
        name, each = waiting.pop()
        if name not in modules:
            modules[name] = Module((folder / f"{name}.py").read_text(), prefix=prefix)
        if each in modules[name].imported:
            waiting.append(modules[name].imported[each])
        elif each in modules[name].definitions and (name, each) not in needed:
            needed[name, each] = modules[name].text_of(each)
            waiting += [(name, used) for used in modules[name].used_by(each)]
    told = "".join(needed[place] for place in sorted(needed))
    return blake2b(told.encode(), digest_size=4).hexdigest()


class Module:
    """What stands at the top of a source: its `definitions`, and where names come from that are `imported`."""

    def __init__(self, source: str, *, prefix: str) -> None:
        self.definitions: dict[str, ast.stmt] = {}
        self.imported: dict[str, Place] = {}
        self._lines = _executed(source)
        for node in ast.parse(source).body:
            match node:
                case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                    self.definitions[name] = node
                case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                    self.definitions[name] = node
                case ast.ImportFrom(module=str(module)) if module.startswith(prefix):
                    its = module.removeprefix(prefix)
                    self.imported |= {each.asname or each.name: (its, each.name) for each in node.names}

    def text_of(self, name: str) -> str:
        """A definition with its decorators: text, not a tree, so that it is the same in every version of Python."""
        node = self.definitions[name]
        first = min([node.lineno, *(each.lineno for each in getattr(node, "decorator_list", []))])
        lines = self._lines[first - 1 : node.end_lineno]
        return "".join(f"{line.rstrip()}\n" for line in lines if line.strip())

    def used_by(self, name: str) -> set[str]:
        """The names in a definition, annotations and its own variables among them."""
        return {node.id for node in ast.walk(self.definitions[name]) if isinstance(node, ast.Name)}


def _executed(source: str) -> list[str]:
    """The lines of a source, empty where they held but a comment or a docstring."""
    lines = source.splitlines()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            lines[token.start[0] - 1] = lines[token.start[0] - 1][: token.start[1]]
    for first, last in _docstrings(source):
        lines[first - 1 : last] = [""] * (last - first + 1)
    return lines


def _docstrings(source: str) -> Iterator[tuple[int, int]]:
    """First and last line of each."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            match node.body:
                case [ast.Expr(value=ast.Constant(value=str())) as told, *_]:
                    yield told.lineno, told.end_lineno or told.lineno
