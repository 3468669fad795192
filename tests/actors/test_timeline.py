"""The timeline of a service, as Perfetto reads it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from epe.actors.recorder import Flush, Recorder
from epe.actors.timeline import TIMELINE, Timeline, header
from epe.errors import NonFinite
from epe.simulator.virtual_time import run
from epe.telemetry.trace_file import append_trace
from tests.actors.cluster import Cluster, request


def drawn(file: Path, *requests, **settings) -> list[dict[str, Any]]:
    """The events in the file after these requests, in virtual time."""
    file.write_bytes(header(4))

    async def at_once(write, lines):
        write(lines)

    async def main() -> None:
        cluster = Cluster(**settings)
        desk = await cluster.start()
        system = cluster.systems["leader"]
        writer = system.spawn(
            TIMELINE,
            lambda: Recorder(write=lambda lines: append_trace(str(file), lines), run_elsewhere=at_once),
        )
        desk.listen(Timeline(writer).hear)
        await cluster.draw(*requests)
        await writer.ask(Flush())
        await cluster.stop()

    run(main())
    # The format allows an array that has no end; a strict reader needs one.
    return json.loads(file.read_text().removesuffix(",\n") + "]")


def test_each_rank_has_a_row_with_all_that_it_did(tmp_path: Path) -> None:
    events = drawn(tmp_path / "t.json", *(request(name, steps=12) for name in "abcdef"))
    rows = {each["tid"]: each["args"]["name"] for each in events if each["name"] == "thread_name"}
    assert rows == {rank: f"rank {rank}" for rank in range(4)}
    work = [each for each in events if each["ph"] == "X"]
    assert {each["name"] for each in work} == set("abcdef")
    assert {each["cat"] for each in work} == {"encode", "denoise", "decode"}
    assert {each["tid"] for each in work} <= set(rows)
    assert all(each["dur"] >= 0 for each in work)


def test_each_request_has_a_span_around_its_work_with_its_outcome(tmp_path: Path) -> None:
    def fault(lease, rank):
        return NonFinite("nan", stage="denoise") if lease.request.id == "bad" else None

    events = drawn(tmp_path / "t.json", request("good"), request("bad"), fault=fault)
    begins = {each["id"]: each for each in events if each["ph"] == "b"}
    ends = {each["id"]: each["ts"] for each in events if each["ph"] == "e"}
    assert {name: each["args"]["outcome"] for name, each in begins.items()} == {
        "good": "finished",
        "bad": "non_finite",
    }
    for each in events:
        if each["ph"] == "X":
            name = each["name"]
            # Of a tenth of a millisecond: these are microseconds since 1970, in 64 bits.
            assert begins[name]["ts"] - 100 <= each["ts"] <= each["ts"] + each["dur"] <= ends[name] + 100


def test_what_ran_on_a_lane_is_on_the_row_of_each_of_its_ranks(tmp_path: Path) -> None:
    events = drawn(tmp_path / "t.json", request("a", size=1024, steps=8))
    steps: dict[int, int] = {}
    for each in events:
        if each["ph"] == "X" and each["cat"] == "denoise":
            steps[each["tid"]] = steps.get(each["tid"], 0) + each["args"]["num_steps"]
            assert each["args"]["width"] in (1, 2, 3, 4)
    assert max(steps.values()) == 8
