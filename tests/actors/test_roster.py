"""Which ranks may be given leases."""

from __future__ import annotations

from epe.actors.roster import Roster
from epe.messages import DeviceUse, RankReady


def roster_of(world_size: int) -> Roster:
    roster = Roster(world_size)
    for rank in range(world_size):
        roster.enter(RankReady(rank=rank, device="cpu", fingerprint="", load_s=0.0))
    return roster


def states(roster: Roster) -> list[str]:
    return [status.state for status in roster.statuses({})]


def test_a_rank_under_which_one_request_after_the_other_fails_is_quarantined_with_the_reason():
    roster = roster_of(2)
    assert [roster.failed(1, f"q{i}", "an illegal access") for i in range(3)] == [False, False, True]
    assert roster.available == {0}
    assert states(roster) == ["idle", "quarantined"]
    assert "illegal access" in roster.statuses({})[1].reason
    assert roster.readmit(1)
    assert roster.available == {0, 1}


def test_failures_between_successes_and_of_one_request_alone_quarantine_nobody():
    roster = roster_of(2)
    for i in range(9):
        assert not roster.failed(1, f"q{i // 3}", "it raised")
        if i % 3 == 2:
            roster.worked(1)
    assert not any(roster.failed(0, "bad", "it raised") for _ in range(9))
    assert roster.available == {0, 1}


def test_the_last_rank_is_not_quarantined():
    roster = roster_of(2)
    roster.lose(0, "it was killed")
    assert not any(roster.failed(1, f"q{i}", "it raised") for i in range(9))
    assert roster.available == {1}


def test_a_lost_rank_that_comes_back_has_a_clean_slate():
    roster = roster_of(2)
    roster.take_out(1, state="cordoned", reason="by hand")
    roster.lose(1, "it was killed")
    assert states(roster) == ["idle", "lost"]
    assert not roster.readmit(1)
    assert roster.enter(RankReady(rank=1, device="cpu", fingerprint="", load_s=0.0))
    assert states(roster) == ["idle", "idle"]


def test_what_the_last_lease_left_is_shown_until_the_rank_is_gone():
    roster = roster_of(2)
    assert roster.statuses({})[1].use is None
    for num_bytes in (5, 7):
        roster.worked(1, DeviceUse(allocated_bytes=num_bytes))
    roster.worked(1)
    assert roster.statuses({})[1].use == DeviceUse(allocated_bytes=7)
    roster.lose(1, "it was killed")
    assert roster.statuses({})[1].use is None
