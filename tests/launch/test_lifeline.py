from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys

import pytest

from epe.launch.lifeline import JOINED, PARENT_GONE
from tests.launch.service import ROOT, eventually, is_alive

PROGRAM = """
import subprocess, sys, time
from epe.launch.lifeline import Lifeline
lifeline = Lifeline(int(sys.argv[1]))
grandchild = subprocess.Popen(["sleep", "60"], close_fds=False)
lifeline.watch()
lifeline.tell_joined()
print(grandchild.pid, flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize(
    ("leads_group", "code"), [(True, -signal.SIGKILL), (False, PARENT_GONE)], ids=["own group", "guest"]
)
def test_the_end_of_the_line_ends_the_process_and_a_group_of_its_own(leads_group: bool, code: int) -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        child = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(theirs.fileno())],
            pass_fds=(theirs.fileno(),),
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=leads_group,
        )
    assert child.stdout is not None
    grandchild = int(child.stdout.readline())
    try:
        assert ours.recv(1) == JOINED
        assert child.poll() is None
        ours.close()
        assert child.wait(timeout=5) == code
        if leads_group:
            eventually(lambda: not is_alive(grandchild), within_s=1)
        else:
            assert is_alive(grandchild)
    finally:
        child.stdout.close()
        if is_alive(grandchild):
            os.kill(grandchild, signal.SIGKILL)
