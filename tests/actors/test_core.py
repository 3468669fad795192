"""One node: order, bounds and answers, in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
import uvloop

from epe.actors.core import Actor, ActorSystem, Down, RestartLimit
from epe.actors.mailbox import MAX_BEHIND
from epe.errors import BadRequest, Gone, Overloaded
from tests.actors.recorder import Recorder, boom, now, recorder, sleep
from tests.strict_time import run

# --- order and bounds ---


def test_an_ask_is_answered_with_what_receive_returns() -> None:
    async def main() -> None:
        _, ref, _ = recorder()
        assert await ref.ask("x") == "x"

    run(main())


def test_messages_of_one_sender_arrive_in_order_one_at_a_time() -> None:
    async def main() -> None:
        _, ref, seen = recorder()
        for block in range(25):
            for index in range(4):
                ref.tell(4 * block + index)
            await asyncio.sleep(1)
        assert seen == list(range(100))

    run(main())


def test_the_next_message_waits_until_the_one_before_is_done() -> None:
    async def main() -> None:
        _, ref, seen = recorder()
        ref.tell(sleep(10))
        ref.tell("after")
        await asyncio.sleep(9)
        assert seen == ["call"]
        await asyncio.sleep(2)
        assert seen == ["call", "after"]

    run(main())


def test_a_full_mailbox_raises_at_the_sender_and_takes_messages_again_later() -> None:
    async def main() -> None:
        system, ref, seen = recorder()
        for index in range(4):
            ref.tell(index)
        with pytest.raises(Overloaded, match=r"recorder@a is full \(4 messages\)"):
            ref.tell(4)
        with pytest.raises(Overloaded):
            await ref.ask(5)
        await asyncio.sleep(1)
        ref.tell(6)
        await asyncio.sleep(1)
        assert seen == [0, 1, 2, 3, 6]
        assert system.statistics().dead_letters == 0

    run(main())


class Tidy(Actor):
    """Notes what it receives, and `|` where it has caught up."""

    def __init__(self, seen: list[str]) -> None:
        self.seen = seen

    async def receive(self, message: str) -> None:
        self.seen.append(message)

    def caught_up(self) -> None:
        self.seen.append("|")
        if self.seen[-2] == "crash":
            raise ValueError("it cannot tidy up")


def test_what_is_to_be_done_once_for_many_messages_is_done_when_none_waits_and_now_and_then_in_a_long_queue() -> (
    None
):
    async def main() -> None:
        seen: list[str] = []
        ref = ActorSystem("a").spawn("tidy", lambda: Tidy(seen))
        for letter in "abc":
            ref.tell(letter)
        await asyncio.sleep(1)
        ref.tell("d")
        await asyncio.sleep(1)
        assert "".join(seen) == "abc|d|"
        seen.clear()
        for _ in range(2 * MAX_BEHIND + 1):
            ref.tell("x")
        await asyncio.sleep(1)
        assert "".join(seen) == ("x" * MAX_BEHIND + "|") * 2 + "x|"

    run(main())


def test_an_actor_that_raises_where_it_catches_up_has_crashed() -> None:
    async def main() -> None:
        seen: list[str] = []
        system = ActorSystem("a")
        ref = system.spawn("tidy", lambda: Tidy(seen), restart=RestartLimit())
        ref.tell("crash")
        await asyncio.sleep(1)
        ref.tell("later")
        await asyncio.sleep(1)
        assert seen == ["crash", "|", "later", "|"]
        assert system.statistics().mailboxes[0].num_restarts == 1

    run(main())


def test_downs_and_timers_pass_the_bound() -> None:
    async def main() -> None:
        system, ref, seen = recorder()
        other = system.spawn("other", lambda: Recorder([]))
        system.watch(ref.address, other.address)
        ref.tell(lambda actor: actor.after(2, "tick"))
        await asyncio.sleep(1)
        ref.tell(sleep(10))
        await asyncio.sleep(0.5)
        for index in range(4):
            ref.tell(index)
        await system.stop("other")
        await asyncio.sleep(20)
        assert seen == ["call", "call", 0, 1, 2, 3, Down(address="other@a", reason="was stopped"), "tick"]

    run(main())


def test_a_full_mailbox_does_not_keep_others_from_the_loop() -> None:
    async def main() -> None:
        system = ActorSystem("a")
        turns: list[int] = []

        class Endless(Actor):
            async def receive(self, message: int) -> None:
                self.ref("endless").tell(message + 1)
                if message == 1000:
                    await self.system.stop("endless")

        system.spawn("endless", Endless).tell(0)
        while system.statistics().mailboxes:
            turns.append(1)
            await asyncio.sleep(0)
        assert len(turns) > 900

    run(main())


def test_statistics_count_each_mailbox() -> None:
    async def main() -> None:
        system, ref, _ = recorder()
        for index in range(3):
            ref.tell(index)
        (box,) = system.statistics().mailboxes
        assert (box.address, box.length, box.high_water, box.delivered) == ("recorder@a", 3, 3, 0)
        await asyncio.sleep(1)
        (box,) = system.statistics().mailboxes
        assert (box.length, box.high_water, box.delivered, box.dead_letters) == (0, 3, 3, 0)

    run(main())


def test_the_same_core_runs_on_uvloop() -> None:
    async def main() -> None:
        system, ref, _ = recorder(restart=RestartLimit(backoff_s=0.001))
        assert await ref.ask("x") == "x"
        with pytest.raises(Gone):
            await ref.ask(boom)
        assert await ref.ask(lambda actor: actor.after(0.001, "tick").cancel()) is None
        await system.stop()

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main())


# --- answers ---


def test_an_epe_error_in_answer_to_an_ask_is_the_answer_and_no_crash() -> None:
    async def main() -> None:
        system, ref, _ = recorder()

        def refuse(_: Actor) -> None:
            raise BadRequest("prompt is missing", param="prompt")

        with pytest.raises(BadRequest, match="prompt is missing") as caught:
            await ref.ask(refuse)
        assert caught.value.param == "prompt"
        assert await ref.ask("alive") == "alive"
        ref.tell(refuse)
        await asyncio.sleep(1)
        assert not system.statistics().mailboxes, "after a tell there is nobody to hear the error: a crash"

    run(main())


def test_a_future_defers_the_answer_while_the_mailbox_goes_on() -> None:
    async def main() -> None:
        _, ref, _ = recorder()
        later: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asking = asyncio.ensure_future(ref.ask(lambda _: later))
        await asyncio.sleep(1)
        assert await ref.ask("between") == "between"
        assert not asking.done()
        later.set_result("now")
        assert await asking == "now"

    run(main())


@pytest.mark.parametrize(
    ("end", "error", "text"),
    [
        (lambda later: later.set_exception(BadRequest("no")), BadRequest, "^no$"),
        (lambda later: later.set_exception(ValueError("odd")), Gone, "could not answer: ValueError: odd"),
        (lambda later: later.cancel(), Gone, "gave the answer up"),
    ],
)
def test_a_deferred_answer_may_be_an_error(end: Callable[[Any], None], error: type, text: str) -> None:
    async def main() -> None:
        _, ref, _ = recorder()
        later: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(1, end, later)
        with pytest.raises(error, match=text):
            await ref.ask(lambda _: later)
        assert await ref.ask("alive") == "alive"

    run(main())


def test_one_future_may_answer_several_asks_and_outlives_an_asker_that_leaves() -> None:
    async def main() -> None:
        _, ref, _ = recorder()
        later: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        with pytest.raises(TimeoutError):
            await ref.ask(lambda _: later, timeout_s=1)
        second = asyncio.ensure_future(ref.ask(lambda _: later))
        await asyncio.sleep(1)
        later.set_result("done")
        assert await second == "done"

    run(main())


def test_a_crash_and_a_stop_end_deferred_answers_with_gone() -> None:
    async def main() -> None:
        system, ref, _ = recorder(restart=RestartLimit())
        never: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        for end, text in ((boom, "crashed: ValueError: boom"), (None, "was stopped")):
            asking = asyncio.ensure_future(ref.ask(lambda _: never))
            await asyncio.sleep(1)
            if end is None:
                await system.stop("recorder")
            else:
                ref.tell(end)
            with pytest.raises(Gone, match=text):
                await asking

    run(main())


def test_a_late_answer_is_a_time_out_that_says_who_and_what() -> None:
    async def main() -> None:
        _, ref, seen = recorder()
        ref.tell(sleep(3))
        with pytest.raises(TimeoutError, match=r"recorder@a did not answer Down within 2 s"):
            await ref.ask(Down(address="x@y", reason=""), timeout_s=2)
        assert now() == pytest.approx(2)
        await asyncio.sleep(5)
        assert len(seen) == 2, "the message is handled all the same"

    run(main())


def test_an_asker_that_left_before_the_answer_harms_nobody() -> None:
    async def main() -> None:
        system, ref, _ = recorder(restart=RestartLimit())

        async def refuse(_: Actor) -> None:
            await asyncio.sleep(2)
            raise BadRequest("too late")

        for late in (sleep(2), refuse, lambda _: asyncio.sleep(2, boom)):
            with pytest.raises(TimeoutError):
                await ref.ask(late, timeout_s=1)
            await asyncio.sleep(2)
        assert await ref.ask("alive") == "alive"
        assert system.statistics().mailboxes[0].num_restarts == 0

    run(main())


def test_an_ask_to_nobody_raises_gone_and_a_tell_is_counted() -> None:
    async def main() -> None:
        system, ref, _ = recorder()
        with pytest.raises(Gone, match="there is no actor nobody@a"):
            await system.ref("nobody").ask("x")
        with pytest.raises(Gone, match="a has no link"):
            await system.ref("somebody@b").ask("x")
        system.ref("nobody").tell("x")
        system.ref("somebody@b").tell("x")
        assert system.statistics().dead_letters == 2
        await system.stop("recorder")
        with pytest.raises(Gone, match="no actor recorder@a; it was stopped"):
            await ref.ask("x")

    run(main())


def test_an_actor_that_asks_while_it_answers_is_told_so() -> None:
    async def main() -> None:
        system, ref, _ = recorder(restart=RestartLimit())
        system.spawn("other", lambda: Recorder([]))
        with pytest.raises(Gone, match="recorder@a asks while it answers an ask; return a future"):
            await ref.ask(lambda actor: actor.ref("other").ask("x"))
        later = await ref.ask(lambda actor: asyncio.ensure_future(actor.ref("other").ask("by a task")))
        assert later == "by a task"
        ref.tell(lambda actor: actor.ref("other").ask("while it handles a tell"))
        assert await ref.ask("alive") == "alive"

    run(main())


# --- cancelled askers ---


def test_a_thousand_cancelled_asks_leave_the_mailbox_healthy() -> None:
    async def main() -> None:
        system, ref, _ = recorder()
        for index in range(1000):
            asking = asyncio.ensure_future(ref.ask(index))
            for _ in range(index % 5):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            await asyncio.sleep(0.001)
        assert await ref.ask("last") == "last"
        (box,) = system.statistics().mailboxes
        assert (box.length, box.num_restarts) == (0, 0)

    run(main())


def test_cancels_at_the_instant_of_completion_harm_nobody() -> None:
    async def main() -> None:
        _, ref, _ = recorder()
        outcomes = set()
        for turns in range(500):
            later: asyncio.Future[int] = asyncio.get_running_loop().create_future()
            asking = asyncio.ensure_future(ref.ask(lambda _, later=later: later))
            await asyncio.sleep(0.01)
            later.set_result(turns)
            for _ in range(turns % 5):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
            outcomes.add(asking.cancelled() or asking.result() == turns)
            assert await ref.ask("alive") == "alive"
        assert outcomes == {True}

    run(main())
