from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from epe.errors import BadSetting
from epe.telemetry.trace_file import append_trace, claim_trace, later_trace


def test_a_claimed_file_is_there_and_is_appended_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    path = claim_trace("trace.jsonl", flag="--record-trace")
    assert path == str(tmp_path / "trace.jsonl")
    append_trace(path, b"a\n")
    append_trace(path, b"b\n")
    assert Path(path).read_bytes() == b"a\nb\n"


def test_an_empty_file_may_be_claimed_and_one_that_holds_something_may_not(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    path.touch()
    claim_trace(str(path), flag="--record-trace")
    path.write_bytes(b"{}\n")
    with pytest.raises(BadSetting, match=r"--record-trace: .* holds something already"):
        claim_trace(str(path), flag="--record-trace")
    assert path.read_bytes() == b"{}\n"


@pytest.mark.parametrize("name", ["no/such/folder/trace.jsonl", ".", "a" * 300])
def test_a_bad_path_is_refused_at_the_start(tmp_path: Path, name: str):
    with pytest.raises(BadSetting, match=r"--record-trace: .* cannot be written"):
        claim_trace(str(tmp_path / name), flag="--record-trace")


def test_a_later_world_does_not_write_into_the_trace_of_an_earlier_service(tmp_path: Path):
    path = str(tmp_path / "trace.jsonl")
    Path(f"{path}.1").write_bytes(b"{}\n")
    Path(f"{path}.2").touch()
    assert [later_trace(path, world) for world in (1, 2, 3)] == [f"{path}.2", f"{path}.2", f"{path}.3"]


def test_a_disk_that_is_full_for_a_while_leaves_no_half_line(tmp_path: Path):
    path = tmp_path / "trace.jsonl"
    program = f"""
import resource, signal
from epe.telemetry.trace_file import append_trace
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
append_trace({str(path)!r}, b"first\\n")
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
try:
    append_trace({str(path)!r}, b"second\\n")
except OSError as error:
    print(error.strerror)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
append_trace({str(path)!r}, b"third\\n")
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout == "File too large\n", done.stderr
    assert path.read_bytes() == b"first\nthird\n"
