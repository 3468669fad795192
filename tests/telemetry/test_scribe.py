from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from epe.telemetry.scribe import Scribe


def tell_lost(num_lost: int) -> str:
    return f"{num_lost} lost"


class Pipe:
    """One whose reader reads nothing until it is asked to."""

    def __init__(self) -> None:
        self.reader, self.writer = os.pipe()
        fcntl.fcntl(self.writer, fcntl.F_SETPIPE_SZ, 4096)

    def read_lines(self, num: int) -> list[str]:
        said = b""
        while said.count(b"\n") < num:
            said += os.read(self.reader, 65536)
        return said.decode().splitlines()

    def close(self) -> None:
        for descriptor in {self.reader, self.writer}:
            os.close(descriptor)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_lines_come_whole_and_in_their_order(pipe: Pipe) -> None:
    scribe = Scribe(pipe.writer, tell_lost=tell_lost)
    said = [f"line {index} ä" for index in range(50)]
    for line in said:
        scribe.write(f"{line}\n")
    scribe.drain(within_s=10)
    assert pipe.read_lines(50) == said


def test_who_speaks_does_not_wait_for_a_reader_that_does_not_read(pipe: Pipe) -> None:
    scribe = Scribe(pipe.writer, tell_lost=tell_lost, most=20)
    line = "x" * 1000
    for _ in range(100):
        scribe.write(f"{line}\n")  # a pipe of 4 KiB: whoever wrote into it would wait for ever
    scribe.write("the last one\n")
    reading = threading.Thread(target=lambda: found.extend(pipe.read_lines(21)), daemon=True)
    found: list[str] = []
    reading.start()
    scribe.drain(within_s=10)
    scribe.write("and more\n")
    reading.join(10)
    whole = [each for each in found if each == line]
    (told,) = [each for each in found if each.endswith(" lost")]
    assert 20 <= len(whole) <= 26
    assert told == f"{101 - len(whole)} lost", "also of the last one"


def test_a_full_disk_costs_lines_that_are_counted_and_told_when_there_is_room(tmp_path: Path) -> None:
    place = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    full = os.open("/dev/full", os.O_WRONLY)
    descriptor = os.dup(full)
    scribe = Scribe(descriptor, tell_lost=tell_lost)
    for _ in range(7):
        scribe.write("nobody reads this\n")
    scribe.drain(within_s=10)
    os.dup2(place, descriptor)
    scribe.write("there is room\n")
    scribe.write("and now\n")
    scribe.drain(within_s=10)
    assert (tmp_path / "log").read_text() == "7 lost\nthere is room\nand now\n"


def test_half_a_line_at_the_end_of_a_disk_spoils_no_other(tmp_path: Path) -> None:
    program = f"""
import os, resource, signal
from epe.telemetry.scribe import Scribe
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (15, resource.RLIM_INFINITY))
descriptor = os.open({str(tmp_path / "log")!r}, os.O_WRONLY | os.O_CREAT)
scribe = Scribe(descriptor, tell_lost=lambda num_lost: f"{{num_lost}} lost")
for line in ("0123456789", "0123456789"):
    scribe.write(line + chr(10))
scribe.drain(within_s=10)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
scribe.write("again" + chr(10))
scribe.drain(within_s=10)
"""
    subprocess.run([sys.executable, "-c", program], check=True, timeout=30)
    assert (tmp_path / "log").read_text() == "0123456789\n0123\n1 lost\nagain\n"


def test_a_stream_that_others_have_made_not_to_wait_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writer, False)
    scribe = Scribe(pipe.writer, tell_lost=tell_lost)
    for index in range(100):
        scribe.write(f"{index} {'x' * 1000}\n")
    lines = pipe.read_lines(100)
    assert [line.split()[0] for line in lines] == [str(index) for index in range(100)]
