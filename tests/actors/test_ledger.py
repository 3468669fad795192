from __future__ import annotations

import pytest

from epe.actors.ledger import Ledger, Running
from epe.messages import Failure, FailureKind, LeaseDone, LeaseFailed, Split, Stage
from tests.actors.cluster import request


def enter(
    ledger: Ledger,
    *ranks: int,
    now_s: float,
    expected_s: float,
    ready_s: float | None = None,
    stage: Stage = Stage.DENOISE,
) -> Running:
    return ledger.enter(
        request("a"),
        ranks=ranks,
        stage=stage,
        first_step=0,
        num_steps=1,
        split=Split(),
        transfers=(),
        now_s=now_s,
        expected_s=expected_s,
        ready_s=ready_s,
    )


def end(ledger: Ledger, running: Running, *, now_s: float) -> None:
    for rank in running.lease.lane.ranks:
        done = LeaseDone(seq=running.lease.seq, epoch=0, rank=rank, next_step=1, seconds=1.0)
        ledger.answer(done, now_s=now_s)


def free(ledger: Ledger, *, now_s: float) -> list[float]:
    return [round(rank.free_s, 9) for rank in ledger.rank_views(now_s=now_s)]


@pytest.mark.parametrize(("stage", "seconds"), [(Stage.DENOISE, 1.0), (Stage.DECODE, 7.0)])
def test_a_step_takes_what_the_rank_took_that_began_last_and_a_decode_what_the_slowest_took(
    stage: Stage, seconds: float
):
    """What the others of a step waited is no time of it; a rank without a part of a picture ends at once."""
    ledger = Ledger(2)
    running = enter(ledger, 0, 1, now_s=0.0, expected_s=1.0, stage=stage)
    for rank, took_s in ((0, 7.0), (1, 1.0)):
        report = LeaseDone(seq=running.lease.seq, epoch=0, rank=rank, next_step=1, seconds=took_s)
        ledger.answer(report, now_s=7.0)
    assert running.seconds == seconds


def test_a_waiting_lease_is_expected_to_begin_when_the_last_of_its_ranks_is_free():
    ledger = Ledger(3)
    enter(ledger, 0, now_s=0.0, expected_s=5.0)
    waiting = enter(ledger, 0, 1, now_s=1.0, expected_s=2.0)
    assert waiting.ends_s == 7.0
    assert free(ledger, now_s=1.0) == [7.0, 7.0, 1.0]
    assert [rank.num_leases for rank in ledger.rank_views(now_s=1.0)] == [2, 1, 0]


@pytest.mark.parametrize("ended_s", [4.0, 5.0, 6.5])
def test_what_waits_behind_a_lease_begins_when_that_one_really_ended(ended_s: float):
    ledger = Ledger(2)
    first = enter(ledger, 0, now_s=0.0, expected_s=5.0)
    enter(ledger, 0, 1, now_s=1.0, expected_s=2.0)
    end(ledger, first, now_s=ended_s)
    assert free(ledger, now_s=ended_s) == [ended_s + 2.0] * 2
    assert free(ledger, now_s=ended_s + 1.0) == [ended_s + 2.0] * 2


def test_a_lease_that_takes_longer_is_expected_to_end_now_and_shifts_what_waits_behind_it():
    ledger = Ledger(2)
    enter(ledger, 0, now_s=0.0, expected_s=5.0)
    enter(ledger, 0, 1, now_s=0.0, expected_s=2.0)
    assert free(ledger, now_s=8.0) == [10.0, 10.0]


def test_a_rank_that_is_idle_is_free_now():
    ledger = Ledger(2)
    only = enter(ledger, 0, now_s=0.0, expected_s=5.0)
    end(ledger, only, now_s=2.0)
    assert free(ledger, now_s=3.0) == [3.0, 3.0]
    assert enter(ledger, 0, now_s=3.0, expected_s=1.0).ends_s == 4.0


def test_a_lease_whose_state_must_come_first_is_expected_to_begin_when_it_is_there():
    ledger = Ledger(2)
    moved = enter(ledger, 0, now_s=1.0, ready_s=3.0, expected_s=2.0)
    assert (moved.ends_s, moved.task_s) == (5.0, 2.0)
    assert free(ledger, now_s=1.0) == [5.0, 1.0]
    # Late for another reason: what waits behind it is still expected after it.
    enter(ledger, 0, 1, now_s=1.0, ready_s=1.5, expected_s=1.0)
    assert free(ledger, now_s=4.0) == [6.0, 6.0]


@pytest.mark.parametrize(
    ("stage", "lost", "has_run"),
    [(Stage.DENOISE, 0, True), (Stage.DECODE, 1, True), (Stage.DECODE, 0, False)],
)
def test_pixels_of_a_head_that_died_at_the_end_of_a_decode_are_not_waited_for(
    stage: Stage, lost: int, has_run: bool
):
    ledger = Ledger(2)
    seq = enter(ledger, 0, 1, now_s=0.0, expected_s=1.0, stage=stage).lease.seq
    ledger.answer(LeaseDone(seq=seq, epoch=0, rank=1 - lost, next_step=1, seconds=1.0), now_s=1.0)
    failure = Failure(kind=FailureKind.RANK_LOST, message=f"rank {lost} is gone")
    gone = LeaseFailed(seq=seq, epoch=0, rank=lost, failure=failure, consequence=True)
    ended = ledger.answer(gone, now_s=1.0)
    assert ended is not None
    assert ended.has_run is has_run
