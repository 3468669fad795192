"""What tasks need of a rank's memory."""

from __future__ import annotations

from epe.messages import Stage
from epe.planning.costs import CostKey
from epe.planning.memory import Memory

MODEL = 1000


def key(tokens: int = 1024, width: int = 1) -> CostKey:
    return CostKey(stage=Stage.DENOISE, tokens=tokens, width=width)


def test_all_fits_where_no_limit_or_no_peak_is_known():
    assert Memory().fits(key())
    assert Memory(limit_bytes=10).fits(key())


def test_what_the_model_takes_does_not_grow_with_the_picture():
    memory = Memory(limit_bytes=5000, resident_bytes=MODEL)
    memory.enter(key(1024), MODEL + 500)
    assert memory.predicted_bytes(key(2048)) == MODEL + 1000
    assert memory.fits(key(8192))
    assert not memory.fits(key(16384))


def test_a_lane_may_fit_where_one_rank_does_not():
    memory = Memory(limit_bytes=2500, resident_bytes=MODEL)
    memory.enter(key(1024, width=1), 3000)
    memory.enter(key(1024, width=2), 2000)
    assert [memory.fits(key(1024, width)) for width in (1, 2)] == [False, True]


def test_the_largest_peak_of_a_task_counts():
    memory = Memory(limit_bytes=2500)
    for peak in (2600, 2400):
        memory.enter(key(), peak)
    assert not memory.fits(key())
