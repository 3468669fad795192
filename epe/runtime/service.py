"""The two kinds of process of a service: the leader, which plans and serves, and the rank, which draws."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from torch.distributed import Store

from epe.actors.core import ActorSystem
from epe.actors.directory import Directory
from epe.actors.worker import Ending
from epe.config.stage import Stage
from epe.errors import EpeError, StartFailed
from epe.jobs.jobs import Jobs
from epe.messages import Status, Stop
from epe.runtime.garbage import settle_garbage
from epe.runtime.kept import Kept
from epe.runtime.leader import WRITE_WITHIN_S, Leader
from epe.runtime.rank import Rank, Seat
from epe.runtime.renewal import geometry_of, renewed
from epe.telemetry.log import get_logger
from epe.transport.rpc import RpcLink

LEADER = "leader"
# A world forms when its slowest process has imported torch; on a loaded machine that takes a while.
JOIN_TIMEOUT_S = 180.0
# Between two looks at the door while a rank is away.
DOOR_S = 0.1
BEAT_S = 0.25

log = get_logger("runtime")


def service_directory(world_size: int) -> Directory:
    """In a service the leader is a process of its own, without a device."""
    return Directory(leader=LEADER, nodes=tuple(f"r{rank}" for rank in range(world_size)))


class LeaderProcess:
    """The leader of a service, from the forming of the world to its end."""

    def __init__(
        self,
        stage: Stage,
        *,
        stage_path: str,
        trace_path: str | None = None,
        timeline_path: str | None = None,
    ) -> None:
        self.stage = stage
        self.stage_path = stage_path
        self.trace_path = trace_path
        self.timeline_path = timeline_path
        self.directory = service_directory(stage.world_size)
        self.system = ActorSystem(LEADER)
        self.leader: Leader | None = None
        self.jobs: Jobs | None = None
        self._kept: Kept
        self.link: RpcLink | None = None
        self.failure: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._watchers: list[Callable[[str], None]] = []
        self._door: asyncio.Task[None] | None = None
        self._geometry = ""

    async def open(
        self, store: Store, *, epoch: int, phase_changed: Callable[[str], None]
    ) -> tuple[Leader, Jobs]:
        """Take up the jobs of earlier lives, form the world and start the actors. Raises `BadSetting` for a job store
        that cannot be used."""
        self._watchers.append(phase_changed)
        self._geometry = await asyncio.to_thread(geometry_of, self.stage)
        kept = self._kept = await Kept.open(self.stage)
        self.link = await _open_link(self.system, store, epoch, LEADER, self.directory)
        self.leader = Leader(
            self.system,
            directory=self.directory,
            stage=self.stage,
            warm_up=True,
            trace_path=self.trace_path,
            timeline_path=self.timeline_path,
            survives=True,
            offer_state=kept.states.offer,
            phase_changed=self._phase_changed,
        )
        self.jobs = kept.jobs(self.leader.desk)
        await self.jobs.open()
        self._door = asyncio.create_task(self._watch_door(store, self.link))
        self._door.add_done_callback(self._door_fell)
        self.link.failure.add_done_callback(lambda failure: self._fail(failure.result()))
        return self.leader, self.jobs

    async def _watch_door(self, store: Store, link: RpcLink) -> None:
        """Let in the ranks that come back."""
        while True:
            await asyncio.sleep(DOOR_S)
            if link.has_lost:
                try:
                    await link.readmit(store)
                except (
                    RuntimeError,
                    EpeError,
                ) as error:  # Of torch's store or agent: the rank may knock again.
                    log.error("door.jammed", reason=str(error))

    def _door_fell(self, door: asyncio.Task[None]) -> None:
        """Without it no rank comes back."""
        if not door.cancelled() and (error := door.exception()):
            self._fail(f"the door for ranks that come back has failed: {error!r}")

    async def restart_ranks(self) -> Status:
        """Begin to restart all ranks, one after the other, into what the stage file and its weights are by now. Raises
        `Conflict`, before anything is stopped, where that cannot be."""
        assert self.leader is not None, "the service is open"
        assert self.jobs is not None, "the service is open"
        look = partial(renewed, self.stage_path, stage=self.stage, geometry=self._geometry)
        stage, weights = await asyncio.to_thread(look)
        status = await self.leader.desk.restart_ranks(weights=weights)
        self.stage = stage
        self._kept.renewed(stage, weights, jobs=self.jobs)
        return status

    async def drain(self, *, reason: str) -> bool:
        """Let what was taken end within `service.drain_s`; False if something was left."""
        if self.leader is None or self.jobs is None or self.failure.done():
            return False
        desk, drain_s = self.leader.desk, self.stage.service.drain_s
        try:
            await desk.drain(reason=reason, timeout_s=drain_s)
        except TimeoutError:
            log.warning("drain.timed_out", drain_s=drain_s)
            self.jobs.suspend()
            # Clients that wait on would hold up the end until it is cut off.
            desk.give_up(f"{reason}, and the request was not done within {drain_s:g} s (service.drain_s)")
            return False
        await self.jobs.settle(timeout_s=WRITE_WITHIN_S)
        return True

    async def close(self, *, reason: str) -> None:
        """Let the ranks go and end. What was not drawn of jobs that are kept on disk goes on in the next life."""
        if self.jobs is not None:
            await self.jobs.close(in_order=not self.failure.done())
        if self._door is not None:
            self._door.cancel()
        if self.link is not None:
            for rank in range(self.directory.world_size):
                self.system.ref(self.directory.worker(rank)).tell(Stop(reason=reason))
        if self.leader is not None:
            # Before the ranks are gone, or the planner would take that for their loss.
            await self.leader.close()
        if self.link is not None:
            # The last messages leave before the link is closed.
            await asyncio.sleep(0.1)
            await self.link.close()

    def _phase_changed(self, phase: str, reason: str) -> None:
        if phase == "running":
            assert self.leader is not None
            assert self.jobs is not None
            self._kept.drawn_by(self.leader.planner.warming.fingerprint)
            self.jobs.resume()
        if phase == "failed":
            self._fail(reason)
        for watcher in self._watchers:
            watcher(phase)

    def _fail(self, reason: str) -> None:
        if self.jobs is not None:
            self.jobs.suspend()
        if not self.failure.done():
            self.failure.set_result(reason)


async def run_rank(
    stage: Stage,
    *,
    seat: Seat,
    joined: Callable[[], None] = lambda: None,
    beat: Callable[[], None] = lambda: None,
) -> Ending:
    """A rank of a service until it is stopped; `joined` is called when the leader's word reaches it, also while
    it loads, and `beat` again and again while it works."""
    assert seat.store is not None, "a rank of a service meets its leader through a store"
    directory = service_directory(seat.world_size)
    node = directory.nodes[seat.rank]
    system = ActorSystem(node)
    link = await _open_link(system, seat.store, seat.epoch, node, directory, life=seat.life)
    try:
        rank = Rank(system, seat=seat, directory=directory)
        link.failure.add_done_callback(lambda failure: rank.fail(failure.result()))
        joined()
        await rank.load(stage, fits_palette=seat.rank == 0, loaded=settle_garbage)
        beating = asyncio.create_task(keep_beating(beat))
        ending = await rank.stopped_by
        beating.cancel()
        await rank.close()
        return ending
    finally:
        await link.close()


async def keep_beating(beat: Callable[[], None]) -> None:
    """Tell again and again that this loop turns."""
    while True:
        beat()
        await asyncio.sleep(BEAT_S)


async def _open_link(
    system: ActorSystem, store: Store, epoch: int, node: str, directory: Directory, *, life: int = 0
) -> RpcLink:
    try:
        link = await RpcLink.open(
            system,
            store=store,
            epoch=epoch,
            node=node,
            members=(directory.leader, *directory.nodes),
            timeout_s=JOIN_TIMEOUT_S,
            life=life,
        )
    except TimeoutError as error:
        raise StartFailed(f"{node}: the world did not form within {JOIN_TIMEOUT_S:g} s") from error
    system.attach(link)
    return link
