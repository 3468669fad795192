"""What a parent of `epe serve` starts: the leader or one rank, as the spec in `EPE_CHILD` says.

Here the planner's side and HTTP are put together; no other room knows both.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, NoReturn

import uvloop
from torch.distributed import Store

from epe.actors.worker import Ending
from epe.config.demo import unknown_words_warning
from epe.config.load import load_stage
from epe.config.stage import Stage
from epe.errors import BadInput, EpeError, Gone, StartFailed
from epe.launch.lifeline import Lifeline
from epe.launch.parent import EXIT_AGAIN, EXIT_DONE, EXIT_FAILED, EXIT_LEADER_GONE
from epe.launch.sockets import allow_many_connections
from epe.launch.spec import ChildSpec, read_spec
from epe.runtime.garbage import return_freed_memory, settle_garbage
from epe.runtime.rank import Seat
from epe.runtime.service import JOIN_TIMEOUT_S, LeaderProcess, keep_beating, run_rank
from epe.server.app import make_app, serve
from epe.server.settings import HttpSettings, http_settings, is_loopback
from epe.telemetry.log import configure, get_logger, make_scribe
from epe.telemetry.scribe import Scribe
from epe.transport.store import host_store, join_store, split_store

log = get_logger("child")


def main() -> None:
    """Take the place that the parent gave; ends the process."""
    spec = read_spec(os.environ)
    lifeline = _hold(spec)
    node = "leader" if spec.rank is None else f"r{spec.rank}"
    scribe = make_scribe(node)
    configure(level=spec.log_level, node=node, stream=scribe)
    work = _lead(spec, lifeline) if spec.role == "leader" else _draw(spec, lifeline)
    uvloop.run(_to_the_end(spec, work, scribe))


async def _to_the_end(spec: ChildSpec, work: Coroutine[Any, Any, int], scribe: Scribe) -> NoReturn:
    """Ends the process from within the loop: whoever closes a loop waits for its threads, and one that loads a model,
    or waits for the world to form, may take minutes. Nothing of theirs is wanted."""
    try:
        code = await work
    except EpeError as error:
        # Whoever is `Gone` at the start is the leader: a rank meets nobody else before it works.
        scribe.write(f"epe: {spec.name}: {error}\n")
        code = 2 if isinstance(error, BadInput) else EXIT_LEADER_GONE if isinstance(error, Gone) else 1
    except Exception:  # the border of the process: a defect of ours
        scribe.write(traceback.format_exc())
        code = 1
    scribe.drain()
    with suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _hold(spec: ChildSpec) -> Lifeline | None:
    if spec.lifeline_fd is None:
        return None
    lifeline = Lifeline(spec.lifeline_fd)
    lifeline.watch()
    return lifeline


async def _lead(spec: ChildSpec, lifeline: Lifeline | None) -> int:
    """The leader: forms the world, serves, and drains when it is told to end."""
    asked = _hear_sigterm()
    return_freed_memory()
    allow_many_connections()
    stage = load_stage(spec.stage_path)
    for note in stage.unused:
        log.warning("setting.unused", note=note)
    # Weights may take minutes, and say nothing meanwhile.
    model_path = stage.factory_args.model_path
    log.info("service.began_loading", url=_url(spec), ranks=spec.world_size, model_path=model_path)
    process = LeaderProcess(
        stage,
        stage_path=spec.stage_path,
        trace_path=spec.trace_path,
        timeline_path=spec.timeline_path,
    )
    serving = asyncio.create_task(_serve(spec, stage, process, lifeline))
    ends: tuple[asyncio.Future[Any], ...] = (serving, asked, process.failure)
    await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
    if serving.done():
        serving.result()  # it only ends by itself when it could not start
    orderly = asked.done() and not process.failure.done()
    reason = "the service was asked to end" if orderly else process.failure.result()
    drained = await process.drain(reason=reason)
    serving.cancel()
    await asyncio.wait({serving})
    await process.close(reason=reason)
    log.info("service.ended", reason=reason, drained=drained)
    return 0 if orderly else 1


async def _serve(spec: ChildSpec, stage: Stage, process: LeaderProcess, lifeline: Lifeline | None) -> None:
    """Open the world and answer HTTP until cancelled."""
    store = await asyncio.to_thread(_store, spec)

    beating: list[asyncio.Task[None]] = []

    def phase_changed(phase: str) -> None:
        if phase == "running":
            settle_garbage()
            log.info("service.became_ready", url=_url(spec), ranks=spec.world_size)
            if lifeline is not None:
                lifeline.tell_joined()
                beating.append(asyncio.create_task(keep_beating(lifeline.beat)))

    leader, jobs = await process.open(store, epoch=spec.epoch, phase_changed=phase_changed)
    app = make_app(
        leader.desk,
        family=stage.family,
        name=stage.name,
        jobs=jobs,
        defaults=stage.request_defaults,
        cache_rules=stage.cache_rules,
        settings=http_settings_of(spec, stage),
        warn=partial(unknown_words_warning, stage.factory_args.model_path),
        restart=process.restart_ranks,
    )
    assert spec.http_fd is not None, "the parent has bound the port"
    runner = await serve(app, socket.socket(fileno=spec.http_fd))
    try:
        await asyncio.get_running_loop().create_future()
    finally:
        await runner.cleanup()


def http_settings_of(spec: ChildSpec, stage: Stage) -> HttpSettings:
    """The server's settings; a service that others can reach and that asks for no key says so."""
    settings = http_settings(stage, port=spec.port)
    if not settings.keys and not is_loopback(spec.host):
        log.warning("service.was_left_open", host=spec.host, advice="name keys in service.keys_file")
    return settings


def _url(spec: ChildSpec) -> str:
    return f"http://{spec.host}:{spec.port}"


async def _draw(spec: ChildSpec, lifeline: Lifeline | None) -> int:
    """A rank: joins the world and works until it is stopped."""
    assert spec.rank is not None
    stage = load_stage(spec.stage_path)
    store = await asyncio.to_thread(_store, spec)
    seat = Seat(
        rank=spec.rank,
        world_size=spec.world_size,
        device_index=spec.device_index or 0,
        store=store,
        epoch=spec.epoch,
        life=spec.life,
    )
    if lifeline is None:
        ending = await run_rank(stage, seat=seat)
    else:
        ending = await run_rank(stage, seat=seat, joined=lifeline.tell_joined, beat=lifeline.beat)
    return _exit_code(ending)


def _exit_code(ending: Ending) -> int:
    if ending.orderly:
        return EXIT_AGAIN if ending.again else EXIT_DONE
    return EXIT_LEADER_GONE if ending.leader_is_gone else EXIT_FAILED


def _store(spec: ChildSpec) -> Store:
    """This world's part of the store, which the leader keeps where no launcher does."""
    if spec.hosts_store:
        listen = None if spec.store_fd is None else socket.socket(fileno=spec.store_fd)
        store = host_store(listen, host=spec.store_host, port=spec.store_port)
    else:
        store = _meet(spec)
    return split_store(store, spec.epoch, attempt=spec.attempt)


def _meet(spec: ChildSpec) -> Store:
    """The leader's store. Where it was once and is no more, the leader is gone."""
    try:
        return join_store(spec.store_host, spec.store_port, timeout_s=JOIN_TIMEOUT_S)
    except StartFailed as error:
        if spec.life == 0:
            raise
        raise Gone(str(error)) from error


def _hear_sigterm() -> asyncio.Future[None]:
    """Completed at the first SIGTERM; Ctrl-C is the parent's business."""
    loop = asyncio.get_running_loop()
    asked: asyncio.Future[None] = loop.create_future()

    def hear() -> None:
        if not asked.done():
            asked.set_result(None)

    loop.add_signal_handler(signal.SIGTERM, hear)
    loop.add_signal_handler(signal.SIGINT, lambda: None)
    return asked


if __name__ == "__main__":
    main()
