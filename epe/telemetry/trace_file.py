"""The file in which a service records its requests (docs/trace-format.md): claimed at the start, appended to later."""

from __future__ import annotations

from pathlib import Path

from epe.errors import BadSetting


def claim_trace(path: str, *, flag: str) -> str:
    """Make the file, so that a bad path is known before any work; returns its absolute path. Raises `BadSetting`.

    A file that holds a trace already is refused: times of a second recording would begin anew in its middle.
    """
    target = Path(path).absolute()
    try:
        with target.open("ab") as file:
            if file.tell():
                raise BadSetting(
                    f"{path} holds something already; name a file that does not exist", path=flag
                )
    except OSError as error:
        raise BadSetting(f"{path} cannot be written: {error.strerror}", path=flag) from error
    return str(target)


def later_trace(path: str, world: int) -> str:
    """The file in which a later world of a service goes on: `path.WORLD`, or the next one that holds nothing yet."""
    while (target := Path(f"{path}.{world}")).exists() and target.stat().st_size > 0:
        world += 1
    return str(target)


def append_trace(path: str, lines: bytes) -> None:
    """Add lines at the end, all of them or, on a full disk, none: half a line would spoil the file for its readers.
    Raises `OSError`."""
    with open(path, "ab", buffering=0) as file:
        begin = file.tell()
        try:
            while lines:
                lines = lines[file.write(lines) :]
        except OSError:
            file.truncate(begin)
            raise
