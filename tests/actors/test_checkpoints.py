"""The states that the leader keeps: parts that do not change travel once, and memory is bounded."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from msgspec.structs import replace

from epe.actors.checkpoints import Checkpoints
from epe.actors.core import ActorSystem
from epe.actors.directory import CHECKPOINTS, PLANNER, Directory
from epe.errors import Gone
from epe.messages import Checkpoint, Checkpointed, Drop, Fetch, LeaseDone, Stage, StateHeader
from epe.simulator.virtual_time import run
from epe.transport.link import Parcel
from tests.actors.cluster import Cluster, request
from tests.actors.recorder import Recorder


def checkpoint(name: str, step: int, *, unchanged: tuple[str, ...] = (), size: int = 10, **tensors) -> Parcel:
    tensors = tensors or {"latents": np.full(size, step, np.uint8)}
    header = StateHeader(request_id=name, step=step, names=tuple(tensors), unchanged=unchanged)
    return Parcel(Checkpoint(seq=step + 1, header=header), tuple(tensors.values()))


def with_checkpoints(scene, *, limit_bytes: int = 1000) -> None:
    async def main() -> None:
        system = ActorSystem("leader")
        directory = Directory(leader="leader", nodes=("r0",))
        told: list[Checkpointed] = []
        system.spawn(PLANNER, lambda: Recorder(told))
        kept = system.spawn(CHECKPOINTS, lambda: Checkpoints(directory=directory, limit_bytes=limit_bytes))
        await scene(kept, told)
        await system.stop()

    run(main())


def test_a_state_comes_back_whole_though_its_constant_parts_travelled_once():
    async def scene(kept, told) -> None:
        prompt, latents = np.arange(4, dtype=np.uint8), np.full(4, 9, np.uint8)
        kept.tell(checkpoint("a", 0, prompt=prompt, latents=np.zeros(4, np.uint8)))
        kept.tell(checkpoint("a", 3, unchanged=("prompt",), latents=latents))
        parcel = await kept.ask(Fetch(request_id="a", step=3))
        named = dict(zip(parcel.message.names, parcel.tensors, strict=True))
        assert named["prompt"] is prompt
        assert named["latents"] is latents
        with pytest.raises(Gone, match="step 0 is not here"):
            await kept.ask(Fetch(request_id="a", step=0))

    with_checkpoints(scene)


def test_a_state_that_is_asked_for_bare_comes_without_what_flexcache_keeps():
    async def scene(kept, told) -> None:
        velocity, latents = np.zeros(4, np.uint8), np.full(4, 9, np.uint8)
        kept.tell(checkpoint("a", 3, latents=latents, kept_velocity_2=velocity))
        whole = await kept.ask(Fetch(request_id="a", step=3))
        bare = await kept.ask(Fetch(request_id="a", step=3, bare=True))
        assert whole.message.names == ("latents", "kept_velocity_2")
        assert bare.message.names == ("latents",)
        assert [tensor is latents for tensor in bare.tensors] == [True]

    with_checkpoints(scene)


def test_a_report_is_heard_when_its_state_is_kept():
    async def scene(kept, told) -> None:
        report = LeaseDone(seq=4, epoch=0, rank=0, next_step=3, seconds=0.1)
        parcel = checkpoint("a", 3)
        kept.tell(Parcel(replace(parcel.message, report=report), parcel.tensors))
        assert (await kept.ask(Fetch(request_id="a", step=3))).message.step == 3
        assert told == [Checkpointed(request_id="a", seq=4, step=3), report]

    with_checkpoints(scene)


def test_a_report_is_heard_too_when_its_state_could_not_be_kept():
    async def scene(kept, told) -> None:
        report = LeaseDone(seq=4, epoch=0, rank=0, next_step=3, seconds=0.1)
        parcel = checkpoint("a", 3, unchanged=("prompt",), latents=np.zeros(4, np.uint8))
        kept.tell(Parcel(replace(parcel.message, report=report), parcel.tensors))
        with pytest.raises(Gone):
            await kept.ask(Fetch(request_id="a", step=3))
        assert told == [Checkpointed(request_id="a", seq=4, step=None), report]

    with_checkpoints(scene)


def test_without_the_actor_that_keeps_states_no_report_would_come_and_the_world_fails():
    async def main() -> None:
        cluster = Cluster(world_size=1, survives=True)
        await cluster.start()
        await cluster.systems["leader"].stop(CHECKPOINTS)
        await asyncio.sleep(0.1)
        assert cluster.phases[-1][0] == "failed"
        assert CHECKPOINTS in cluster.phases[-1][1]
        await cluster.stop()

    run(main())


def test_a_part_of_a_state_whose_rest_was_let_go_is_no_checkpoint():
    async def scene(kept, told) -> None:
        kept.tell(checkpoint("a", 0, prompt=np.zeros(4, np.uint8), latents=np.zeros(4, np.uint8)))
        kept.tell(Drop(request_ids=("a",)))
        kept.tell(checkpoint("a", 3, unchanged=("prompt",), latents=np.zeros(4, np.uint8)))
        with pytest.raises(Gone, match="held: nothing"):
            await kept.ask(Fetch(request_id="a", step=3))
        assert told[-1] == Checkpointed(request_id="a", seq=4, step=None)

    with_checkpoints(scene)


def test_when_memory_is_short_those_with_the_fewest_steps_lose_theirs_first():
    async def scene(kept, told) -> None:
        for name, step in (("a", 5), ("b", 2), ("c", 7)):
            kept.tell(checkpoint(name, step, size=400))
        with pytest.raises(Gone):
            await kept.ask(Fetch(request_id="b", step=2))
        for name, step in (("a", 5), ("c", 7)):
            assert (await kept.ask(Fetch(request_id=name, step=step))).message.step == step
        assert Checkpointed(request_id="b", seq=3, step=None) in told

    with_checkpoints(scene)


def test_an_earlier_state_that_comes_late_does_not_replace_a_later_one():
    async def scene(kept, told) -> None:
        kept.tell(checkpoint("a", 3))
        kept.tell(checkpoint("a", 2))
        assert (await kept.ask(Fetch(request_id="a", step=3))).message.step == 3
        assert [each.step for each in told] == [3]

    with_checkpoints(scene)


def test_a_request_whose_checkpoint_was_dropped_for_memory_gets_another_one():
    async def main() -> None:
        cluster = Cluster(world_size=1, survives=True)
        desk = await cluster.start()
        cluster.kept.limit_bytes = 1
        handle = await desk.submit(request("a", size=512, steps=30))
        while not cluster.planner.trajectories["a"].lost_checkpoint:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.001)
        cluster.kept.limit_bytes = 2**20
        while "a" not in cluster.kept.kept:  # noqa: ASYNC110 (virtual time)
            await asyncio.sleep(0.001)
        cluster.kill(0)
        await asyncio.sleep(0.5)
        await cluster.bring_back(0)
        assert (await handle.result()).data == b"png"
        encodes = [lease for _, _, lease in cluster.world.visits if lease.stage is Stage.ENCODE]
        assert len(encodes) == 1, "it went on from its checkpoint"
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main(), limit_s=600)


def test_the_late_state_of_an_earlier_request_does_not_cost_a_later_one_of_its_name_its_own():
    async def main() -> None:
        cluster = Cluster(world_size=1, survives=True)
        desk = await cluster.start()
        await cluster.draw(request("a"))
        handle = await desk.submit(request("a", size=512, steps=20))
        planner, kept = (cluster.systems["leader"].ref(address) for address in (PLANNER, CHECKPOINTS))
        while "a" not in cluster.kept.kept:  # noqa: ASYNC110 (virtual time: it costs nothing)
            await asyncio.sleep(0.001)
        planner.tell(Checkpointed(request_id="a", seq=1, step=1))
        kept.tell(checkpoint("a", 0))
        await asyncio.sleep(0.001)
        assert "a" in cluster.kept.kept
        assert (await handle.result()).data == b"png"
        await asyncio.sleep(1)
        cluster.check_clean()
        await cluster.stop()

    run(main())
