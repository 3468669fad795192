"""Faults on purpose: which of them strike, how often, and what each does on the device thread."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest
import torch

from epe.config.faults import Fault
from epe.errors import NonFinite
from epe.execution.device import ThreadDevice
from epe.execution.faults import Faults, InjectedFault, with_faults
from epe.execution.run import SoloLanes
from epe.messages import FailureKind, LeaseDone, Split, Stage
from epe.models.contract import BatchAdapter
from epe.models.finite import check_finite
from epe.transport.exchange import SoloExchange
from tests.execution.counting import CountingAdapter, request
from tests.execution.test_device import lease


def strikes(faults: Faults, stage: Stage = Stage.DENOISE, *, step: int | None = 0, **of: str) -> bool:
    """Whether a fault that raises is due."""
    try:
        faults.strike(stage, request_id=of.get("request_id", "a"), prompt=of.get("prompt", "p"), step=step)
    except InjectedFault:
        return True
    return False


def armed(*, rank: int = 0, life: int = 0, **fields: object) -> Faults:
    return Faults((Fault(kind="raise", **fields),), rank=rank, life=life)


def test_without_faults_there_is_nothing_between_device_and_adapter():
    adapter = CountingAdapter()
    assert with_faults(adapter, (), rank=0, life=0) is adapter


def test_a_fault_strikes_where_it_belongs_and_nowhere_else():
    assert strikes(armed())
    assert not strikes(armed(stage="decode"))
    assert strikes(armed(stage="decode"), Stage.DECODE, step=None)
    assert not strikes(armed(step=1))
    assert strikes(armed(step=1), step=1)
    assert not strikes(Faults((Fault(kind="raise", rank=1),), rank=0))
    assert not strikes(armed(prompt="[fail]"))
    assert strikes(armed(prompt="[fail]"), prompt="a [fail] cat")
    assert not strikes(armed(), request_id="warmup-256x256-w1-0")
    assert strikes(armed(warm_up=True), request_id="warmup-256x256-w1-0")
    assert not strikes(armed(warm_up=True))


def test_a_fault_of_the_first_life_spares_the_next_one():
    fault = Fault(kind="raise")
    assert not strikes(Faults((fault,), rank=0, life=1))
    always = Fault(kind="raise", life=None)
    assert strikes(Faults((always,), rank=0, life=1))


def test_a_fault_strikes_as_often_as_it_may():
    twice = armed(count=2)
    assert [strikes(twice) for _ in range(5)] == [True, True, False, False, False]
    always = armed(count=None)
    assert all(strikes(always) for _ in range(5))


def test_the_same_seed_strikes_at_the_same_times():
    def times(seed: int) -> list[bool]:
        faults = armed(count=None, probability=0.3, seed=seed)
        return [strikes(faults) for _ in range(100)]

    assert times(1) == times(1) != times(2)
    assert 10 < sum(times(1)) < 50


def test_nan_is_found_after_every_stage():
    adapter = with_faults(CountingAdapter(), (Fault(kind="nan", count=None),), rank=0, life=0)
    spoilt = adapter.encode(request())
    with pytest.raises(NonFinite, match="latents after encode"):
        check_finite(spoilt)
    after = adapter.step(CountingAdapter().encode(request()), SoloExchange(), Split())
    with pytest.raises(NonFinite, match="latents after denoise before step 1"):
        check_finite(after)


def test_of_a_batch_one_request_alone_is_spoilt():
    adapter = with_faults(CountingAdapter(), (Fault(kind="nan", prompt="p", count=1),), rank=0, life=0)
    assert isinstance(adapter, BatchAdapter)
    states = [CountingAdapter().encode(request(name)) for name in ("a", "b")]
    first, second = adapter.step_together(states, SoloExchange(), Split())
    assert torch.isnan(first.tensors["latents"]).all()
    assert second.tensors["latents"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("kind", "stage", "expected"),
    [
        ("raise", "encode", FailureKind.TASK_RAISED),
        ("raise", "denoise", FailureKind.TASK_RAISED),
        ("nan", "encode", FailureKind.NON_FINITE),
        ("nan", "denoise", FailureKind.NON_FINITE),
        ("oom", "denoise", FailureKind.OUT_OF_MEMORY),
    ],
)
async def test_an_error_on_purpose_fails_its_lease_with_the_stage_and_the_next_one_is_right(
    kind, stage, expected
):
    adapter = with_faults(CountingAdapter(), (Fault(kind=kind, stage=stage),), rank=0, life=0)
    device = ThreadDevice(adapter, SoloLanes(), rank=0, device=torch.device("cpu"))
    reports = [
        (await device.submit(each, None)).report
        for each in (lease(1, Stage.ENCODE), lease(2, Stage.DENOISE, num_steps=2))
    ]
    failed = reports[0 if stage == "encode" else 1]
    assert (failed.failure.kind, failed.failure.stage) == (expected, stage)
    await device.submit(lease(3, Stage.ENCODE, name="b"), None)
    good = (await device.submit(lease(4, Stage.DENOISE, num_steps=4, name="b"), None)).report
    assert isinstance(good, LeaseDone)
    device.close()


def test_a_slow_task_takes_its_time():
    adapter = with_faults(CountingAdapter(), (Fault(kind="slow", seconds=0.05),), rank=0, life=0)
    begin_s = time.perf_counter()
    adapter.encode(request())
    assert time.perf_counter() - begin_s >= 0.05


def test_a_kill_ends_the_process():
    script = (
        "from epe.config.faults import Fault; from epe.execution.faults import Faults; "
        "from epe.messages import Stage; "
        "Faults((Fault(kind='kill'),), rank=0).strike(Stage.ENCODE, request_id='a')"
    )
    assert subprocess.run([sys.executable, "-c", script], capture_output=True).returncode == -9
