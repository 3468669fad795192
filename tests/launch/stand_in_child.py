"""A leader or rank without torch: keeps the parents' protocol, or breaks it as it is told.

Usage: `stand_in_child.py FOLDER [NAME=BEHAVIOUR...]`. Writes its pid to FOLDER/NAME.pid when it starts and
FOLDER/NAME.ready when it has joined. Behaviours: `loading` (never joins), `deaf` (ignores SIGTERM and the
leader's word), `beats` (tells the parent that its loop turns), `shut` (a leader that hears no rank that comes back),
`mute` (a leader that does not tell that it serves), `exit:CODE`, `again` (joins, and makes room for its next life),
`parent_of_one` (a rank with a process of its own), `dump` (writes its environment to FOLDER/NAME.json).
`BEHAVIOUR@LIVES` is that of these lives (a digit each) alone.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from epe.launch.lifeline import Lifeline
from epe.launch.parent import EXIT_AGAIN
from epe.launch.spec import ChildSpec, read_spec

FOLDER = Path(sys.argv[1])


def main() -> None:
    spec = read_spec(os.environ)
    behaviour, _, lives = dict(text.split("=") for text in sys.argv[2:]).get(spec.name, "").partition("@")
    if lives and str(spec.life) not in lives:
        behaviour = ""
    if spec.role == "leader" or behaviour == "deaf":
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    assert spec.lifeline_fd is not None
    lifeline = Lifeline(spec.lifeline_fd)
    lifeline.watch()
    write(spec, "pid", str(os.getpid()))
    if behaviour == "dump":
        write(spec, "json", json.dumps(dict(os.environ)))
    if behaviour == "parent_of_one":
        write(spec, "grandchild", str(subprocess.Popen(["sleep", "60"]).pid))
    if behaviour.startswith("exit:"):
        sys.exit(int(behaviour.removeprefix("exit:")))
    if behaviour == "loading":
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
        time.sleep(60)
    if spec.role == "leader":
        lead(spec, lifeline, behaviour)
    else:
        follow(
            spec,
            lifeline,
            is_deaf=behaviour == "deaf",
            beats=behaviour == "beats",
            again=behaviour == "again",
        )


def lead(spec: ChildSpec, lifeline: Lifeline, behaviour: str) -> None:
    assert spec.store_fd is not None
    assert spec.http_fd is not None
    with socket.socket(fileno=spec.http_fd), socket.socket(fileno=spec.store_fd) as store:
        ranks = [store.accept()[0] for _ in range(spec.world_size)]
        if behaviour != "mute":
            lifeline.tell_joined()
        write(spec, "ready", str(spec.epoch))
        if behaviour != "shut":
            threading.Thread(target=lambda: take_in(store, ranks), daemon=True).start()
        signal.sigwait({signal.SIGTERM})
    while behaviour == "deaf":
        time.sleep(60)
    for rank in ranks:
        with contextlib.suppress(ConnectionError):  # It was lost.
            rank.sendall(b"stop")


def take_in(store: socket.socket, ranks: list[socket.socket]) -> None:
    """Ranks that come back."""
    while True:
        ranks.append(store.accept()[0])


def beat(lifeline: Lifeline) -> None:
    while True:
        lifeline.beat()
        time.sleep(0.05)


def follow(spec: ChildSpec, lifeline: Lifeline, *, is_deaf: bool, beats: bool, again: bool) -> None:
    leader = connect(spec)
    lifeline.tell_joined()
    if beats:
        threading.Thread(target=lambda: beat(lifeline), daemon=True).start()
    write(spec, "ready", f"{spec.epoch}.{spec.life}" if spec.epoch else str(spec.life))
    if again:
        sys.exit(EXIT_AGAIN)
    said = b""
    with contextlib.suppress(ConnectionError):
        said = leader.recv(4)
    while is_deaf:
        time.sleep(60)
    sys.exit(0 if said == b"stop" else 4)


def connect(spec: ChildSpec) -> socket.socket:
    while True:
        try:
            return socket.create_connection((spec.store_host, spec.store_port))
        except ConnectionRefusedError:
            time.sleep(0.02)


def write(spec: ChildSpec, kind: str, text: str) -> None:
    path = FOLDER / f"{spec.name}.{kind}"
    path.with_suffix(".new").write_text(text)
    path.with_suffix(".new").rename(path)


if __name__ == "__main__":
    main()
