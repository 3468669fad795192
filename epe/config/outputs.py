"""Whether what a command writes at its end can be written: said before its work, not after it."""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from epe.errors import BadSetting

PLOTS = (".png", ".svg", ".pdf")


def check_writable(file: Path, *, path: str) -> None:
    """Raises `BadSetting` at `path` for a file that cannot be written, or whose folder cannot be made."""
    _check_file(file, path=path)
    _check_folder(file.parent, path=path)


def check_apart(outputs: Mapping[str, str | Path | None], *, inputs: Mapping[str, str | Path | None]) -> None:
    """Raises `BadSetting` at the flag of an output that is the file of another one, or one that is read. By flag; None
    names no file."""
    given = {flag: file for flag, file in {**inputs, **outputs}.items() if file is not None}
    places = {flag: os.path.realpath(file) for flag, file in given.items()}
    for flag in filter(places.__contains__, outputs):
        if same := [other for other in places if other != flag and places[other] == places[flag]]:
            raise BadSetting(f"{given[flag]} is also {same[0]}; each needs a file of its own", path=flag)


def check_plot(file: str, *, path: str) -> None:
    """Raises `BadSetting` at `path` for a picture of numbers that could not be drawn."""
    if not file.endswith(PLOTS):
        raise BadSetting(f"{file} must end in {', '.join(PLOTS)}", path=path)
    if find_spec("matplotlib") is None:
        raise BadSetting("plots need matplotlib: pip install 'epe[simulate]'", path=path)


@contextmanager
def writing(file: Path | str, *, path: str) -> Iterator[None]:
    """What fails after all, such as on a full disk, as `BadSetting` at `path`."""
    try:
        yield
    except OSError as error:
        raise BadSetting(f"{file} cannot be written: {error.strerror}", path=path) from error


def _check_file(file: Path, *, path: str) -> None:
    try:
        mode = os.stat(file).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return  # what is wrong with the folder is said of the folder
    except OSError as error:
        raise BadSetting(f"{file} cannot be written: {error.strerror}", path=path) from error
    if stat.S_ISDIR(mode):
        raise BadSetting(f"{file} is a folder; give the name of a file", path=path)
    if not stat.S_ISREG(mode) or _is_of_a_process(file):
        # A whole file is put in its place: of a device, or of /dev/stdout, nothing would be left.
        raise BadSetting(f"{file} is a device or pipe; give the name of a file", path=path)


def _is_of_a_process(file: Path) -> bool:
    """As /dev/stdout is, a link to what this process writes to, which may well be a file."""
    places = (os.path.realpath(file.parent), os.readlink(file) if file.is_symlink() else "")
    return any(f"{place}/".startswith("/proc/") for place in places)


def _check_folder(folder: Path, *, path: str) -> None:
    """The folder can be written, or made below the first one that exists."""
    there = next(each for each in (folder.absolute(), *folder.absolute().parents) if each.exists())
    if not there.is_dir():
        raise BadSetting(f"the folder {folder} cannot be made, because {there} is a file", path=path)
    try:
        # Rights do not tell: root has them in /proc too.
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise BadSetting(f"the folder {there} cannot be written: {error.strerror}", path=path) from error
