"""Requests of a service as lines of a trace, which the simulator replays."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from epe.actors.admission import Limits
from epe.actors.recorder import Flush, Recorder
from epe.errors import Refused
from epe.planning.trace_line import TraceLine
from epe.simulator.traces import read_trace
from epe.simulator.virtual_time import run
from tests.actors.cluster import Cluster, request


async def here(work: Callable, *args: object) -> object:
    return work(*args)


def recording(file: Path, **fields) -> Cluster:
    """A cluster that records in a file."""

    def write(lines: bytes) -> None:
        with file.open("ab") as out:
            out.write(lines)

    return Cluster(recorder=lambda: Recorder(write=write, run_elsewhere=here), **fields)


def recorded(tmp_path: Path, work: Callable[[Cluster], object], **fields) -> tuple[TraceLine, ...]:
    file = tmp_path / "trace.jsonl"

    async def main() -> None:
        cluster = recording(file, **fields)
        await cluster.start()
        await work(cluster)
        await asyncio.sleep(2 * Recorder.FLUSH_EVERY_S)
        await cluster.stop()

    run(main())
    return read_trace(str(file))


def test_a_line_says_all_that_the_planner_knew(tmp_path: Path):
    async def work(cluster: Cluster) -> None:
        await asyncio.sleep(100)
        wishes = {"deadline_s": 9.5, "on_deadline": "expire", "priority": 3, "client_id": "shop"}
        await cluster.draw(request("a", steps=5), request("b", size=512, **wishes), gap_s=0.25)

    first, second = recorded(tmp_path, work)
    assert first == TraceLine(arrival_s=0.0, height=256, width=256, steps=5, conditions=2)
    assert second == TraceLine(
        arrival_s=second.arrival_s,
        height=512,
        width=512,
        steps=8,
        conditions=2,
        deadline_s=9.5,
        on_deadline="expire",
        priority=3,
        client_id="shop",
    )
    assert abs(second.arrival_s - 0.25) < 0.01


def test_a_request_that_was_refused_was_asked_for_too(tmp_path: Path):
    async def work(cluster: Cluster) -> None:
        results = await cluster.draw(*(request(f"q{index}", steps=50) for index in range(12)))
        assert any(isinstance(result, Refused) for result in results)

    assert len(recorded(tmp_path, work, limits=Limits(max_pending=2))) == 12


def test_a_disk_that_hangs_or_is_full_costs_lines_and_no_request():
    async def main() -> None:
        async def hang(work: Callable, *args: object) -> object:
            await asyncio.sleep(1e6)
            raise OSError(28, "No space left on device")

        cluster = Cluster(recorder=lambda: Recorder(write=lambda lines: None, run_elsewhere=hang))
        Recorder.inbox, before = 4, Recorder.inbox
        try:
            await cluster.start()
            results = await cluster.draw(*(request(f"q{index}") for index in range(20)), gap_s=0.2)
        finally:
            Recorder.inbox = before
        assert [result.data for result in results] == [b"png"] * 20
        assert cluster.planner.reception.recording.num_lost > 0
        await cluster.stop()

    run(main())


def test_a_flush_that_is_asked_for_is_answered_when_all_is_written(tmp_path: Path):
    async def main() -> None:
        file = tmp_path / "trace.jsonl"
        cluster = recording(file)
        await cluster.start()
        await asyncio.gather(*(cluster.desk.submit(request(f"q{index}")) for index in range(5)))
        await cluster.systems["leader"].ref("recorder").ask(Flush())
        assert len(read_trace(str(file))) == 5
        await cluster.stop()

    run(main())
