"""One node: crashes, restarts, timers, watches and stops, in virtual time."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from epe.actors.core import Actor, ActorSystem, Down, RestartLimit
from epe.errors import Gone
from tests.actors.recorder import Recorder, boom, now, recorder, sleep
from tests.strict_time import run

# --- crashes and restarts ---


def test_a_crash_tells_the_asker_the_cause_and_restarts_with_the_mailbox_kept() -> None:
    async def main() -> None:
        system, seen, lives = ActorSystem("a"), [], []

        def make() -> Recorder:
            lives.append(now())
            return Recorder(seen)

        ref = system.spawn("recorder", make, restart=RestartLimit(backoff_s=0.5))
        asking = asyncio.ensure_future(ref.ask(boom))
        await asyncio.sleep(0)
        ref.tell("kept")
        with pytest.raises(Gone, match="recorder@a crashed: ValueError: boom") as caught:
            await asking
        assert isinstance(caught.value.__cause__, ValueError)
        assert await ref.ask("next") == "next"
        assert seen == ["call", "kept", "next"]
        assert lives == [0, 0.5]

    run(main())


def test_an_actor_that_crashes_too_often_ends_and_its_watchers_hear_of_it() -> None:
    async def main() -> None:
        limit = RestartLimit(times=2, within_s=10, backoff_s=0.1)
        system, ref, _ = recorder(restart=limit)
        downs: list[Any] = []
        watcher = system.spawn("watcher", lambda: Recorder(downs))
        system.watch(watcher.address, ref.address)
        for _ in range(2):
            with pytest.raises(Gone):
                await ref.ask(boom)
            assert await ref.ask("back") == "back"
        assert downs == []
        queued = [asyncio.ensure_future(ref.ask(each)) for each in (boom, "left over")]
        ref_error, left_over = await asyncio.gather(*queued, return_exceptions=True)
        assert [type(ref_error), type(left_over)] == [Gone, Gone]
        await asyncio.sleep(1)
        assert downs == [Down(address="recorder@a", reason="crashed: ValueError: boom")]
        with pytest.raises(Gone, match="it crashed: ValueError: boom"):
            await ref.ask("x")

    run(main())


def test_restarts_are_counted_within_the_window_and_wait_twice_as_long_each_time() -> None:
    async def main() -> None:
        lives: list[float] = []

        def make() -> Recorder:
            lives.append(round(now(), 6))
            return Recorder([])

        limit = RestartLimit(times=2, within_s=5, backoff_s=0.25)
        ref = ActorSystem("a").spawn("recorder", make, restart=limit)
        for at_s in (1, 2, 10):
            await asyncio.sleep(at_s - now())
            ref.tell(boom)
        await asyncio.sleep(1)
        assert lives == [0, 1.25, 2.5, 10.25]

    run(main())


def test_without_a_restart_limit_the_first_crash_is_the_end() -> None:
    async def main() -> None:
        system, ref, _ = recorder()
        with pytest.raises(Gone):
            await ref.ask(boom)
        await asyncio.sleep(0)
        assert system.statistics().mailboxes == ()
        system.spawn("recorder", lambda: Recorder([]))
        assert await ref.ask("its successor") == "its successor"

    run(main())


def test_a_cancelled_error_that_is_not_ours_is_a_crash_and_no_silent_end() -> None:
    async def main() -> None:
        system, ref, _ = recorder(restart=RestartLimit())

        async def wait_for_the_dead(_: Actor) -> None:
            dead = asyncio.get_running_loop().create_future()
            dead.cancel()
            await dead

        with pytest.raises(Gone, match="crashed: CancelledError"):
            await ref.ask(wait_for_the_dead)
        assert await ref.ask("back") == "back"
        assert system.statistics().mailboxes[0].num_restarts == 1

    run(main())


def test_a_raise_in_started_is_a_crash_and_one_in_stopped_hinders_nothing() -> None:
    async def main() -> None:
        lives: list[int] = []

        class Fragile(Actor):
            async def started(self) -> None:
                lives.append(1)
                if len(lives) < 3:
                    raise ValueError("not yet")

            async def receive(self, message: Any) -> Any:
                return message

            async def stopped(self, reason: str) -> None:
                raise KeyError(reason)

        system = ActorSystem("a")
        ref = system.spawn("fragile", Fragile, restart=RestartLimit())
        assert await ref.ask("kept meanwhile") == "kept meanwhile"
        assert len(lives) == 3
        await system.stop()
        assert system.statistics().mailboxes == ()

    run(main())


def test_stopped_is_called_at_the_end_of_each_life_with_the_reason() -> None:
    async def main() -> None:
        system, ended = ActorSystem("a"), []
        ref = system.spawn("recorder", lambda: Recorder([], ended), restart=RestartLimit())
        ref.tell(boom)
        await asyncio.sleep(1)
        await system.stop()
        assert ended == ["crashed: ValueError: boom", "was stopped"]

    run(main())


# --- timers, watches, stops ---


def test_a_timer_is_a_message_to_oneself_that_can_be_taken_back() -> None:
    async def main() -> None:
        _, ref, seen = recorder()
        for delay_s in (3, 1, 2):
            ref.tell(lambda actor, delay_s=delay_s: actor.after(delay_s, delay_s) and None)
        ref.tell(lambda actor: actor.after(1.5, "taken back").cancel())
        await asyncio.sleep(5)
        assert seen == ["call"] * 4 + [1, 2, 3]

    run(main())


def test_timers_of_a_crashed_life_do_not_reach_the_next_one() -> None:
    async def main() -> None:
        system, ref, seen = recorder(restart=RestartLimit())
        ref.tell(lambda actor: actor.after(2, "old") and None)
        ref.tell(boom)
        await asyncio.sleep(1)
        ref.tell(lambda actor: actor.after(2, "new") and None)
        await asyncio.sleep(1)
        await asyncio.sleep(5)
        assert seen == ["call", "call", "call", "new"]
        await system.stop()
        await asyncio.sleep(5)

    run(main())


def test_watches_hear_once_of_ends_past_and_to_come_and_wait_for_those_not_spawned_yet() -> None:
    async def main() -> None:
        system, ref, seen = recorder()
        system.spawn("early", lambda: Recorder([]))
        await system.stop("early")
        for _ in range(2):
            ref.tell(lambda actor: actor.watch("early"))
        ref.tell(lambda actor: actor.watch("late"))
        await asyncio.sleep(1)
        assert seen[3:] == [Down(address="early@a", reason="was stopped")] * 2
        system.spawn("late", lambda: Recorder([]))
        ref.tell(lambda actor: actor.watch("late"))
        await asyncio.sleep(1)
        await system.stop("late")
        await asyncio.sleep(1)
        assert seen[6:] == [Down(address="late@a", reason="was stopped")]
        system.spawn("late", lambda: Recorder([]))
        ref.tell(lambda actor: actor.watch("late"))
        await asyncio.sleep(1)
        assert seen[8:] == [], "its successor lives"

    run(main())


def test_stop_ends_after_the_message_in_hand_and_answers_what_is_left() -> None:
    async def main() -> None:
        system, ref, seen = recorder()
        in_hand = asyncio.ensure_future(ref.ask(lambda _: asyncio.sleep(2, "finished")))
        left = asyncio.ensure_future(ref.ask("left"))
        await asyncio.sleep(1)
        await system.stop()
        assert await in_hand == "finished"
        with pytest.raises(Gone, match="recorder@a was stopped"):
            await left
        assert seen == ["call"]

    run(main())


def test_stop_cancels_an_actor_that_does_not_end_in_five_seconds() -> None:
    async def main() -> None:
        system, ref, _ = recorder(restart=RestartLimit())
        asking = asyncio.ensure_future(ref.ask(sleep(900), timeout_s=950))
        await asyncio.sleep(1)
        await system.stop()
        assert now() == pytest.approx(6)
        with pytest.raises(Gone, match="was cancelled"):
            await asking
        assert system.statistics().mailboxes == ()

    run(main())


def test_an_actor_can_stop_itself_and_stopping_nobody_is_no_error() -> None:
    async def main() -> None:
        system, ref, _ = recorder()
        assert await ref.ask(lambda actor: actor.system.stop("recorder")) is None
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert system.statistics().mailboxes == ()
        await system.stop("recorder")
        await system.stop()

    run(main())


def test_a_name_is_a_word_that_is_free() -> None:
    async def main() -> None:
        system, _, _ = recorder()
        with pytest.raises(ValueError, match="recorder@a exists already"):
            system.spawn("recorder", Actor)
        for name in ("", "x@a"):
            with pytest.raises(ValueError, match="no actor name"):
                system.spawn(name, Actor)
        with pytest.raises(ZeroDivisionError):
            system.spawn("broken", lambda: Recorder([1 // 0]))
        system.spawn("broken", lambda: Recorder([]))
        await system.stop()

    run(main())
