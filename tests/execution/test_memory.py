"""The memory that a lease took is measured, where somebody asks."""

from __future__ import annotations

import pytest
import torch

from epe.errors import BadSetting, OutOfMemory
from epe.execution.memory import HostMeter, NoMeter, check_room, memory_for, meter_for, usable_bytes

MIB = 2**20
CPU = torch.device("cpu")


def test_nothing_is_measured_on_a_cpu_without_a_limit():
    assert isinstance(meter_for(CPU, limit_bytes=None), NoMeter)
    assert usable_bytes(CPU, limit_bytes=None) is None
    assert usable_bytes(CPU, limit_bytes=5) == 5
    assert usable_bytes(CPU, limit_bytes=5, graph_bytes=2) == 3


def test_the_peak_is_that_since_the_last_reset():
    meter = meter_for(CPU, limit_bytes=2**40)
    if not isinstance(meter, HostMeter):
        pytest.skip("this system does not let a process reset its peak")
    meter.reset()
    before = meter.peak_bytes()
    large = torch.ones(200 * MIB // 4)
    del large
    assert meter.peak_bytes() - before > 150 * MIB
    meter.reset()
    assert meter.peak_bytes() - before < 100 * MIB


def test_a_system_that_cannot_tell_measures_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path):
    monkeypatch.setattr(HostMeter, "CLEAR", tmp_path / "no" / "such" / "file")
    assert isinstance(meter_for(CPU, limit_bytes=1), NoMeter)


@pytest.mark.parametrize(
    ("memory", "resident", "graphs", "left"),
    [(4096, 6000, 4096, 2192), (-2096, 1500, 4096, 500), (-1000, 12000, 4096, 0)],
)
def test_graphs_that_leave_requests_nothing_of_a_small_card_are_refused_at_the_start(
    memory: int, resident: int, graphs: int, left: int
) -> None:
    """Every request was a 400 for want of memory, and nobody was told why."""
    with pytest.raises(BadSetting, match=f"capture.memory_mib: .* leave nothing of the {left} MiB beside"):
        check_room(memory << 20, resident_bytes=resident << 20, graph_bytes=graphs << 20)


@pytest.mark.parametrize(("memory", "graphs"), [(6001, 4096), (None, 4096), (100, 0)])
def test_where_something_is_left_or_nobody_knows_nothing_is_refused(memory: int | None, graphs: int) -> None:
    check_room(None if memory is None else memory << 20, resident_bytes=6000 << 20, graph_bytes=graphs << 20)


def test_a_model_that_has_no_memory_is_a_sentence():
    """A rank whose GPU was too small for the model, or had been taken, ended with a traceback."""
    expected = r"^the device has no memory for the model; take a larger one \(CUDA out of memory\)$"
    with pytest.raises(OutOfMemory, match=expected), memory_for("the model", advice="take a larger one"):
        raise torch.OutOfMemoryError("CUDA out of memory")
