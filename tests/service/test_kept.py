"""What a service leaves for later: its costs for the next start, its requests for the simulator."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
import torch
import yaml

from epe.cli.main import run as epe
from epe.execution.memory import HostMeter, meter_for
from epe.planning.cost_set import CostSet
from epe.simulator.costs import read_cost_set
from epe.simulator.traces import read_trace
from tests.service.served import Served, serve

pytestmark = pytest.mark.world
MEASURES_MEMORY = isinstance(meter_for(torch.device("cpu"), limit_bytes=1), HostMeter)


def stage_file(folder: Path, checkpoint: Path) -> Path:
    scheduler = {
        "warmup_resolutions": [128, 256],
        "warmup_steps": 3,
        "cost_file": str(folder / "costs.json"),
        "rank_memory_mib": 100_000,
    }
    stage = {
        "name": "image",
        "factory": "zimage",
        "gpu": [0, 1],
        "device": "cpu",
        "parallelism": {"scheduler": scheduler},
        "factory_args": {"model_path": str(checkpoint), "num_steps": 3},
        "service": {"port": 0, "drain_s": 0.1, "jobs": {"path": str(folder / "jobs")}},
    }
    path = folder / "stage.yaml"
    path.write_text(yaml.safe_dump(stage))
    return path


def warm_up_leases(service: Served) -> int:
    return sum(line["request"].startswith("warmup") for line in service.events("lease.sent"))


async def draw_three(service: Served) -> list[str]:
    """Two sizes that were measured, and one far from both."""
    replies = [
        await service.draw(size=size, deadline_ms=60_000) for size in ("128x128", "256x256", "768x768")
    ]
    return [reply.body["epe"]["predicted_from"] for reply in replies]


# Longer than the drain may take.
FILM = {"prompt": "a film", "size": "128x128", "num_inference_steps": 200, "seed": 3}


def end(service: Served) -> None:
    service.signal(signal.SIGTERM)
    assert service.exit_codes() == [0], service.said()


def test_costs_and_jobs_outlive_the_service_and_its_requests_are_replayed(
    tmp_path: Path, tiny_zimage: Path, capsys
):
    stage, costs, trace = stage_file(tmp_path, tiny_zimage), tmp_path / "costs.json", tmp_path / "trace.jsonl"

    timeline = tmp_path / "timeline.json"
    first = serve(
        tmp_path, stage, "--log-level", "debug", "--record-trace", str(trace), "--timeline", str(timeline)
    )
    try:
        bases = asyncio.run(draw_three(first))
        assert bases == ["measured", "measured", "extrapolated"]
        assert asyncio.run(first.health())["costs"]["origin"] == "measured"
        job = asyncio.run(first.job(key="film", **FILM))
        end(first)
        assert warm_up_leases(first) > 0
    finally:
        first.close()
    check_kept(read_cost_set(str(costs)))
    check_timeline(timeline)
    assert [(line.width, line.deadline_s) for line in read_trace(str(trace))] == [
        *((side, 60.0) for side in (128, 256, 768)),
        (128, None),
    ]

    second = serve(tmp_path, stage, "--log-level", "debug")
    try:
        health = asyncio.run(second.health())
        assert health["costs"]["origin"] == "kept"
        assert warm_up_leases(second) == 0
        again = asyncio.run(second.job(key="film", **FILM))
        assert again["id"] == job["id"]
        assert asyncio.run(second.until_ended(job))["status"] == "completed"
        (went_on,) = second.events("job.went_on")
        assert went_on["job"] == job["id"]
        end(second)
    finally:
        second.close()

    out = tmp_path / "out.json"
    lines = trace.read_text().splitlines()[:2]
    trace.write_text("\n".join(lines) + "\n")
    command = ["simulate", "--trace", str(trace), "--costs", str(costs), "--world", "2", "--json", str(out)]
    assert epe([*command, "--policy", "elastic,static_dp"]) == 0
    assert set(json.loads(out.read_text())["policies"]) == {"elastic", "static_dp"}


def check_timeline(file: Path) -> None:
    """Three requests, and work of each on a rank."""
    events = json.loads(file.read_text().removesuffix(",\n") + "]")
    spans = {each["id"] for each in events if each["ph"] == "b"}
    assert len(spans) == 3
    assert {each["name"] for each in events if each["ph"] == "X"} == spans


def check_kept(costs: CostSet) -> None:
    """All stages, both widths, both ways between the ranks, and the memory that was asked for."""
    assert {task.stage for task in costs.tasks} == {"encode", "denoise", "decode", "finish"}
    assert {task.width for task in costs.tasks if task.stage == "denoise"} == {1, 2}
    assert {(move.source, move.rank) for move in costs.moves} == {(0, 1), (1, 0)}
    assert costs.memory_bytes == 100_000 * 2**20
    if not MEASURES_MEMORY:
        return
    assert costs.resident_bytes > 0
    peaks = [task.peak_bytes for task in costs.tasks if task.stage == "denoise"]
    assert all(peak is not None and peak > costs.resident_bytes / 2 for peak in peaks)


@pytest.mark.skipif(not MEASURES_MEMORY, reason="this system does not let a process reset its peak")
def test_a_request_that_no_rank_has_the_memory_for_is_refused(tmp_path: Path, tiny_zimage: Path):
    path = stage_file(tmp_path, tiny_zimage)
    stage = yaml.safe_load(path.read_text())
    # Less than the process itself takes: nothing fits once it was measured.
    stage["parallelism"]["scheduler"]["rank_memory_mib"] = 50
    path.write_text(yaml.safe_dump(stage))
    service = serve(tmp_path, path)
    try:
        reply = asyncio.run(service.draw(size="256x256"))
        assert reply.status == 400
        assert reply.body["error"]["param"] == "size"
        assert "GiB on a rank" in reply.body["error"]["message"]
    finally:
        service.close()
