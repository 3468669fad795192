from __future__ import annotations

import os
import stat
import subprocess
import sys

import pytest

from epe.files import write_whole


def test_a_file_is_replaced_whole(tmp_path):
    target = tmp_path / "x.json"
    target.write_text("old")
    write_whole(target, b"new")
    assert target.read_bytes() == b"new"
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_file_that_cannot_be_put_in_place_leaves_nothing(tmp_path):
    (tmp_path / "x.json").mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(tmp_path / "x.json", b"new")
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]


def test_a_file_has_the_rights_of_any_new_file(tmp_path):
    (tmp_path / "plain").write_bytes(b"")
    write_whole(tmp_path / "x.json", b"new")
    modes = {stat.S_IMODE(os.stat(tmp_path / name).st_mode) for name in ("plain", "x.json")}
    assert len(modes) == 1


def test_on_a_full_disk_the_old_file_stays_and_nothing_of_the_new_one(tmp_path):
    (tmp_path / "x.json").write_bytes(b"old")
    program = f"""
import resource, signal
from epe.files import write_whole
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10, resource.RLIM_INFINITY))
try:
    write_whole({str(tmp_path / "x.json")!r}, bytes(20))
except OSError as error:
    print(error.strerror)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=30)
    assert done.stdout == "File too large\n", done.stderr
    assert (tmp_path / "x.json").read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir()] == ["x.json"]
