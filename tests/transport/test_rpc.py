from __future__ import annotations

from pathlib import Path

import pytest
from torch.distributed import HashStore, rpc

from epe.errors import Gone, StartFailed
from epe.transport import agent
from epe.transport.guard import check_seam
from tests.transport import rpc_scenes as scenes
from tests.world import World


def test_this_torch_has_all_that_the_link_stands_on() -> None:
    check_seam()


def test_a_torch_without_a_private_name_is_refused_with_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(rpc, "_init_rpc_backend")
    with pytest.raises(StartFailed, match=r"torch \S+ lacks rpc._init_rpc_backend"):
        check_seam()


@pytest.mark.world
def test_an_ask_is_answered_small_or_large(world: World) -> None:
    assert world.run(scenes.round_trips)[0] == (True, True)


@pytest.mark.world
def test_messages_arrive_in_the_order_in_which_they_were_sent(world: World) -> None:
    assert world.run(scenes.a_stream_of_messages)[1] == list(range(2000))


@pytest.mark.world
def test_a_parcel_brings_tensors_of_every_type_and_no_more_than_their_bytes(world: World) -> None:
    sizes, array, bare = world.run(scenes.parcels)[0]
    assert sizes == [4 * 8, 2 * 1024 * 8]
    assert array == [0, 1, 2, 3, 4, 5]
    assert bare


@pytest.mark.world
def test_errors_come_back_as_what_they_are_and_a_bug_as_gone(world: World) -> None:
    *known, bug, strange = world.run(scenes.errors)[0]
    assert known == [(type(error), str(error), vars(error)) for error in scenes.ERRORS.values()]
    assert bug == (Gone, "worker@r0 could not answer: ZeroDivisionError('a bug')", {})
    assert strange[0] is Gone
    assert "object cannot cross a link" in strange[1]


@pytest.mark.world
def test_what_may_not_cross_is_refused_at_the_sender(world: World) -> None:
    assert world.run(scenes.what_may_not_be_sent)[0] is True


@pytest.mark.world
def test_a_peer_can_call_nothing_but_the_one_function(world: World) -> None:
    refused, healthy = world.run(scenes.attacks)[0]
    assert "a peer may not name builtins.eval here" in refused[0]
    assert "a peer may not name posix.getcwd here" in refused[1]
    assert "a peer may not name posix.putenv here" in refused[2]
    assert "a peer may not read the attribute '__globals__' here" in refused[3]
    assert "a peer may not name torch.distributed.rpc.backend_registry._get_device_infos" in refused[4]
    assert healthy is True


@pytest.mark.world
def test_a_message_of_another_epoch_is_refused(world: World) -> None:
    refusal, came, _, _ = world.run(scenes.another_epoch)
    assert refusal.name == "Gone"
    assert refusal.text == "a message of epoch 3 came to a process of epoch 4"
    assert came == []


@pytest.mark.world
def test_bytes_that_are_no_message_are_answered_as_such_and_disturb_nothing(world: World) -> None:
    text, healthy = world.run(scenes.bytes_that_are_no_message)[0]
    assert text.startswith("a message arrived that cannot be read")
    assert healthy is True


@pytest.mark.world
def test_late_and_a_thousand_cancelled_asks_leave_the_link_healthy(world: World) -> None:
    assert world.run(scenes.late_and_cancelled_asks)[0] is True


@pytest.mark.world
def test_with_a_store_on_loopback_nothing_listens_elsewhere(world: World) -> None:
    for addresses in world.run(scenes.where_it_listens)[:3]:
        assert addresses <= {"0100007F", "0000000000000000FFFF00000100007F"}
        assert addresses


@pytest.mark.world
def test_members_that_do_not_come_are_named(world: World) -> None:
    assert world.run(scenes.a_missing_member)[0] == "r0, r1 did not join epoch 9 within 0.5 s"


def test_a_node_that_torch_has_no_number_for_says_so() -> None:
    membership = agent.Membership(
        epoch=0, node="r1", members=scenes.NODES, timeout_s=1.0, interface="lo", life=11_000
    )
    with pytest.raises(StartFailed, match=r"r1 was lost 11000 times, .* start the service again"):
        agent.join(HashStore(), membership, endpoint=("module", "function"))


@pytest.mark.world
def test_a_second_link_in_one_process_is_refused_and_the_first_lives_on(world: World) -> None:
    assert world.run(scenes.a_second_link)[:3] == [True, True, True]


@pytest.mark.world
def test_a_node_that_closes_its_link_is_down_for_the_others_alone(world: World) -> None:
    assert world.run(scenes.one_leaves)[:3] == [True, True, "left"]


@pytest.mark.world
def test_a_node_that_was_lost_comes_back_again_and_again_while_the_others_talk_on(world: World) -> None:
    for talked, num_heard, num_calls_kept in world.run(scenes.one_comes_back)[:2]:
        assert talked
        assert num_heard == 2
        assert num_calls_kept == 0, "of a former life"


@pytest.mark.world
def test_of_two_that_are_lost_at_once_each_comes_back_also_after_it_died_in_the_door(world: World) -> None:
    assert world.run(scenes.two_are_lost)[:3] == [[True, True], True, True]


@pytest.mark.world
@pytest.mark.skipif(not Path("/proc/self/net/tcp").exists(), reason="only Linux can tell who listens")
def test_a_node_that_newcomers_cannot_reach_is_found_when_one_comes_and_comes_back_itself(
    world: World,
) -> None:
    answers, reason, _ = world.run(scenes.one_cannot_be_reached)[:3]
    assert answers == [True, True]
    assert "its listener was closed by a broken connection" in reason


@pytest.mark.world
def test_one_that_comes_back_as_a_peer_dies_is_turned_away_at_once_and_comes_again(world: World) -> None:
    assert world.run(scenes.one_dies_while_another_joins, timeout_s=110)[:3] == [[True, True], True, True]


@pytest.mark.world
def test_when_a_node_is_killed_its_peers_hear_why_and_go_on_in_the_next_epoch(world: World) -> None:
    for (text, down, waited_s), went_on in world.run(scenes.one_is_killed, dying=(2,))[:2]:
        assert text.startswith("r1 is gone: E")
        assert list(down) == ["r1"]
        assert down["r1"].startswith("E")
        assert waited_s < 10
        assert went_on is True
