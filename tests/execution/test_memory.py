"""The memory that a lease took is measured, where somebody asks."""

from __future__ import annotations

import pytest
import torch

from epe.execution.memory import HostMeter, NoMeter, meter_for, usable_bytes

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
