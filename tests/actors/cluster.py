"""A whole service in virtual time: the real planner, workers, postprocess actor and desk on simulated devices."""

from __future__ import annotations

import asyncio
import itertools
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from epe.actors.admission import Limits
from epe.actors.checkpoints import Checkpoints, Seen
from epe.actors.core import ActorSystem, RestartLimit
from epe.actors.desk import Desk, Result
from epe.actors.directory import CHECKPOINTS, DESK, PLANNER, POSTPROCESS, Directory, worker_name
from epe.actors.keeper import KEEPER, Keeper
from epe.actors.leasing import PlannerSettings
from epe.actors.planner import Planner
from epe.actors.postprocess import Postprocess
from epe.actors.recorder import RECORDER, Recorder
from epe.actors.worker import Ending, Loaded, Worker
from epe.families import family
from epe.messages import Artifact, Lease, OutputFormat, RankReady, Request, Stage
from epe.planning.calibration import Program
from epe.planning.costs import CostTable, Migration
from epe.planning.elastic import Elastic, ElasticSettings
from epe.planning.view import Policy
from epe.simulator.device import Cold, Fault, Hangs, SimulatedDevice, SimulatedWorld
from epe.transport.memory import MemoryNetwork

STEP_S = 1e-4


def lease_seconds(lease: Lease) -> float:
    """Device seconds: steps scale with tokens and conditions, less than linearly with the width."""
    request = lease.request
    tokens = request.height * request.width // 256
    match lease.stage:
        case Stage.ENCODE:
            return 0.01
        case Stage.DENOISE:
            work = STEP_S * tokens * family("zimage").num_conditions(request.guidance_scale)
            work *= 1 + 0.25 * (lease.batch_size - 1)
            return lease.num_steps * (work / lease.lane.width**0.9 + 1e-3)
        case _:
            return 0.02 + 1e-5 * tokens


def request(name: str, *, size: int = 256, steps: int = 8, **fields: object) -> Request:
    return Request(
        id=name,
        prompt="a cube",
        height=size,
        width=size,
        num_steps=steps,
        guidance_scale=5.0,
        seed=1,
        output_format=OutputFormat.PNG,
        **fields,
    )


@dataclass
class Cluster:
    """`world_size` ranks and a leader; nodes are processes of their own on a simulated network."""

    world_size: int = 4
    seed: int = 0
    policy: Policy | None = None
    warmup: Program | None = None
    keeper: Callable[[], Keeper] | None = None
    recorder: Callable[[], Recorder] | None = None
    limits: Limits = field(default_factory=Limits)
    max_batch: int = 1
    refreshes: bool = False
    migration: Migration | None = None
    correct_costs: bool = True
    decode_widths: tuple[int, ...] = (1,)
    fault: Fault = lambda lease, rank: None
    hangs: Hangs = lambda lease, rank: False
    cold: Cold = lambda lease, rank: False
    loads: Callable[[int], bool] = lambda rank: True
    seconds: Callable[[Lease], float] = lease_seconds
    jitter: float = 0.1
    device: str = "cpu"
    survives: bool = False
    hang_s: float = 60.0
    start_s: float = 1800.0
    checkpoints: bool = True
    limit_bytes: int = 2**20
    unlike_widths: tuple[int, ...] = ()
    seen: Seen = lambda header, tensors: None
    phases: list[tuple[str, str]] = field(default_factory=list)
    # What ranks that start from now on load; and, by the number of a lease, what those have loaded that ran it.
    weights: str = ""
    weights_used: defaultdict[int, list[str]] = field(default_factory=lambda: defaultdict(list))
    restarted: list[int] = field(default_factory=list)
    most_away: int = 0

    def __post_init__(self) -> None:
        self.network = MemoryNetwork(seed=self.seed, latency_s=(0.0002, 0.002))
        self.world = SimulatedWorld(
            self.seconds,
            seed=self.seed,
            jitter=self.jitter,
            fault=self._fault,
            hangs=self.hangs,
            cold=self.cold,
        )
        nodes = tuple(f"r{rank}" for rank in range(self.world_size))
        self.directory = Directory(leader="leader", nodes=nodes)
        self.devices: list[SimulatedDevice] = [SimulatedDevice(r, self.world) for r in range(self.world_size)]
        self.widths = tuple(range(1, self.world_size + 1))
        self.elastic = Elastic(ElasticSettings(widths=self.widths))
        self.systems: dict[str, ActorSystem] = {}
        self.endings: dict[int, asyncio.Future[Ending]] = {}
        self._loaded: dict[int, str] = {}
        self._parents: dict[int, asyncio.Future[None]] = {}

    def _fault(self, lease: Lease, rank: int) -> Exception | None:
        self.weights_used[lease.seq].append(self._loaded[rank])
        return self.fault(lease, rank)

    async def start(self) -> Desk:
        system = self._system("leader")
        self.planner = self._planner()
        self.desk = Desk(directory=self.directory)
        self.kept = Checkpoints(directory=self.directory, limit_bytes=self.limit_bytes, seen=self.seen)
        if self.checkpoints:
            system.spawn(CHECKPOINTS, lambda: self.kept)
        if self.keeper is not None:
            system.spawn(KEEPER, self.keeper)
        if self.recorder is not None:
            system.spawn(RECORDER, self.recorder)
        system.spawn(POSTPROCESS, self._postprocess, restart=RestartLimit())
        system.spawn(PLANNER, lambda: self.planner)
        system.spawn(DESK, lambda: self.desk)
        for rank in range(self.world_size):
            self._start_rank(rank)
        async with asyncio.timeout(600):
            while self.planner.doors.phase != "running":  # noqa: ASYNC110 (virtual time: it costs nothing)
                await asyncio.sleep(0.01)
        return self.desk

    async def draw(self, *requests: Request, gap_s: float = 0.0) -> list[Result | BaseException]:
        """Submit one after the other and wait for all; errors are results too."""

        async def one(index: int, each: Request) -> Result:
            await asyncio.sleep(index * gap_s)
            handle = await self.desk.submit(each)
            return await handle.result()

        work = (one(index, each) for index, each in enumerate(requests))
        return await asyncio.gather(*work, return_exceptions=True)

    async def stop(self) -> None:
        for parent in self._parents.values():
            parent.cancel()
        for system in self.systems.values():
            await system.stop()

    def kill(self, rank: int) -> None:
        """End a rank's process; the test brings it back."""
        self._leave_alone(rank)
        self._end_process(rank)

    def _leave_alone(self, rank: int) -> None:
        """Whoever starts a rank again does so alone."""
        parent = self._parents.pop(rank, None)
        if parent is not None and parent is not asyncio.current_task():
            parent.cancel()

    def _end_process(self, rank: int) -> None:
        self.devices[rank].die()
        self.network.kill(f"r{rank}", reason="it was killed")

    async def bring_back(self, rank: int) -> None:
        """Start a killed rank again, with nothing in its hands."""
        self._leave_alone(rank)
        await self.systems[f"r{rank}"].stop()
        self.devices[rank] = SimulatedDevice(rank, self.world)
        self._start_rank(rank)

    async def _revive(self, rank: int, ending: asyncio.Future[Ending]) -> None:
        """What a parent does when its rank ends out of order, or makes room for its next process."""
        ended = await asyncio.shield(ending)
        if ended.again:
            self.restarted.append(rank)
            self.most_away = max(self.most_away, len(self.planner.roster.gone))
        if ended.again or not ended.orderly:
            self._end_process(rank)
            await asyncio.sleep(0.5)
            await self.bring_back(rank)

    def check_clean(self) -> None:
        """Nothing of any request is left anywhere."""
        assert self.planner.trajectories == {}
        assert self.planner.ledger.running == {}
        assert self.desk.entries == {}
        assert self.kept.kept == {}
        living = [device for device in self.devices if not device.is_dead]
        assert [device.steps for device in living] == [{}] * len(living)

    def check_lanes(self) -> None:
        """No rank was in two lanes at once."""
        for rank in range(self.world_size):
            visits = sorted(
                (begin_s, end_s)
                for begin_s, end_s, lease in self.world.visits
                if rank in lease.lane.ranks and lease.batch_place == 0
            )
            for (_, end), (begin, _) in itertools.pairwise(visits):
                # Virtual time rings a timer up to this much early.
                assert begin >= end - 1e-7

    def _system(self, node: str) -> ActorSystem:
        system = self.systems[node] = ActorSystem(node)
        system.attach(self.network.join(node, system))
        return system

    def _start_rank(self, rank: int) -> None:
        ending = self.endings[rank] = asyncio.get_running_loop().create_future()
        ready = RankReady(
            rank=rank,
            device=self.device,
            fingerprint="simulated",
            load_s=0.0,
            weights=self.weights,
            unlike_widths=self.unlike_widths,
        )
        self._loaded[rank] = self.weights
        worker = self._system(f"r{rank}").spawn(
            worker_name(rank), lambda: Worker(rank, directory=self.directory, stopped_by=ending)
        )
        if self.loads(rank):
            worker.tell(Loaded(self.devices[rank], ready))
        if self.survives:
            self._parents[rank] = asyncio.ensure_future(self._revive(rank, ending))

    def _planner(self) -> Planner:
        settings = PlannerSettings(
            family=family("zimage"),
            widths=self.widths,
            limits=self.limits,
            survives=self.survives,
            hang_s=self.hang_s,
            start_s=self.start_s,
            checkpoints=self.checkpoints,
            max_batch=self.max_batch,
            refreshes=self.refreshes,
            correct_costs=self.correct_costs,
            decode_widths=self.decode_widths,
        )
        return Planner(
            settings,
            directory=self.directory,
            policy=self.policy or self.elastic,
            fallback=self.elastic,
            costs=CostTable(migration=self.migration),
            warmup=self.warmup,
            keeps_costs=self.keeper is not None,
            records=self.recorder is not None,
            phase_changed=lambda phase, reason: self.phases.append((phase, reason)),
        )

    def _postprocess(self) -> Postprocess:
        def encode(pixels: object, decoded: object) -> Artifact:
            return Artifact(request_id=decoded.request_id, media_type="image/png", data=b"png")

        async def run_elsewhere(encode: object, pixels: object, decoded: object) -> Artifact:
            await asyncio.sleep(0.005)
            return encode(pixels, decoded)

        return Postprocess(directory=self.directory, encode=encode, run_elsewhere=run_elsewhere)
