"""`epe serve` as the parent: sockets first, then the leader and the ranks, then watching them."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import yaml
from msgspec.structs import replace

from epe.actors.timeline import header
from epe.config.api_keys import read_keys
from epe.config.demo import demo_stage
from epe.config.load import load_stage
from epe.jobs.folder import JobFolder
from epe.launch.child import Child
from epe.launch.environment import Placement, read_placement
from epe.launch.gpus import check_enough, count_gpus
from epe.launch.limits import Limits
from epe.launch.parent import Parent
from epe.launch.sockets import listen_for_http, listen_for_store
from epe.launch.spec import ChildSpec, LogLevel
from epe.launch.topology import Meeting, ServeSettings, check_world, child_environment, plan_children
from epe.launch.trampoline import die_with_parent
from epe.telemetry.scribe import Scribe
from epe.telemetry.trace_file import append_trace, claim_trace

CHILD_COMMAND = (sys.executable, "-m", "epe.cli.child")


def run_serve(
    stage_path: str | Path | None,
    *,
    host: str | None = None,
    port: int | None = None,
    log_level: LogLevel = "info",
    record_trace: str | None = None,
    timeline: str | None = None,
    env: Mapping[str, str] | None = None,
    child_command: Sequence[str] = CHILD_COMMAND,
) -> int:
    """Serve the stage until asked to end; returns the exit code. Without a stage file the demo model is served.

    `host` and `port` override the stage file; requests are recorded in the file `record_trace`, and what ranks did in
    `timeline`. Raises BadSetting for what the user can put right: the stage file, the launcher's variables, a port in
    use, a file in a wrong place.
    """
    env = os.environ if env is None else env
    with _stage_file(stage_path, env) as path:
        settings = _settings(path, host=host, port=port, log_level=log_level, env=env)
        if read_placement(env).rank == 0:
            settings = _claimed(settings, record_trace=record_trace, timeline=timeline)
        return serve(settings, env=env, child_command=child_command)


@contextmanager
def _stage_file(given: str | Path | None, env: Mapping[str, str]) -> Iterator[Path]:
    """The user's file, or one for the demo model that lives as long as the service."""
    if given is not None:
        yield Path(given)
        return
    placement = read_placement(env)
    num_ranks = min(2, os.cpu_count() or 1) if placement.launcher == "none" else placement.world_size
    stage = demo_stage(count_gpus(env) if placement.launcher == "none" else 0, num_ranks=num_ranks)
    # A file in memory: whatever ends this process, nothing of it is left.
    file = os.memfd_create("epe-demo-stage")
    try:
        os.write(file, yaml.safe_dump(stage).encode())
        yield Path(f"/proc/{os.getpid()}/fd/{file}")
    finally:
        os.close(file)


def _settings(
    path: Path, *, host: str | None, port: int | None, log_level: LogLevel, env: Mapping[str, str]
) -> ServeSettings:
    stage = load_stage(path)
    check_enough(stage, env)
    read_keys(stage.service.keys_file)  # what is wrong in it is known before anything is started
    if stage.family.makes == "video":
        from epe.media.video import check_codec

        check_codec(stage.video_codec, path="video_codec")
    return ServeSettings(
        stage_path=str(path.absolute()),
        gpu=tuple(stage.gpu),
        host=stage.service.host if host is None else host,
        port=stage.service.port if port is None else port,
        drain_s=stage.service.drain_s,
        start_s=stage.service.start_s,
        device=stage.device,
        log_level=log_level,
        jobs_path=stage.service.jobs.path,
    )


def _claimed(settings: ServeSettings, *, record_trace: str | None, timeline: str | None) -> ServeSettings:
    """See that the files can be written which the leader writes: only this parent starts one. Raises `BadSetting`."""
    if settings.jobs_path is not None:
        JobFolder.claim(settings.jobs_path).release()
    if record_trace is not None:
        settings = replace(settings, trace_path=claim_trace(record_trace, flag="--record-trace"))
    if timeline is not None:
        path = claim_trace(timeline, flag="--timeline")
        append_trace(path, header(settings.world_size))
        settings = replace(settings, timeline_path=path)
    return settings


def serve(
    settings: ServeSettings,
    *,
    env: Mapping[str, str],
    child_command: Sequence[str],
    limits: Limits | None = None,
) -> int:
    """As `run_serve`, from settings that are already checked. Call it from the main thread."""
    placement = read_placement(env)
    check_world(settings, placement)
    if placement.launcher == "torchrun":
        die_with_parent()  # its store and its watch over the other parents are gone with it
    with ExitStack() as sockets:
        meeting = _open(settings, placement, sockets=sockets)
        specs = plan_children(settings, placement=placement, meeting=meeting, env=env)
        limits = limits or Limits(drain_s=settings.drain_s, start_s=settings.start_s)
        child_env = child_environment(env, settings=settings, placement=placement)
        work = _live(specs, sockets=sockets, command=child_command, env=child_env, limits=limits)
        return asyncio.run(work)


async def _live(
    specs: Sequence[ChildSpec],
    *,
    sockets: ExitStack,
    command: Sequence[str],
    env: Mapping[str, str],
    limits: Limits,
) -> int:
    async def start(spec: ChildSpec) -> Child:
        return await Child.start(spec, command=command, env=env)

    # A parent that waited for whoever reads what it says could not look after its children.
    scribe = Scribe(
        sys.stderr.fileno(), tell_lost=lambda num_lost: f"epe: {num_lost} lines could not be written"
    )
    parent = Parent(
        limits=limits,
        start=start,
        let_go=sockets.close,
        say=lambda sentence: scribe.write(f"epe: {sentence}\n"),
    )
    with parent.hearing_signals():
        try:
            for spec in specs:
                parent.adopt(await start(spec))
            return await parent.run()
        finally:
            await parent.kill_all()
            scribe.drain()


def _open(settings: ServeSettings, placement: Placement, *, sockets: ExitStack) -> Meeting:
    """Open what rank 0's parent opens; the other parents only know where to go."""
    store_host, store_port = placement.master_addr, placement.master_port
    if placement.rank != 0:
        return Meeting(host=settings.host, port=settings.port, store_host=store_host, store_port=store_port)
    http = sockets.enter_context(listen_for_http(settings.host, settings.port))
    store_fd = None
    if not placement.agent_hosts_store:
        store = sockets.enter_context(listen_for_store(store_host, store_port))
        store_fd, store_port = store.fileno(), store.getsockname()[1]
    return Meeting(
        host=settings.host,
        port=http.getsockname()[1],
        store_host=store_host,
        store_port=store_port,
        http_fd=http.fileno(),
        store_fd=store_fd,
    )
