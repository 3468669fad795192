from __future__ import annotations

import asyncio
import threading
import time

import pytest

from epe.simulator.virtual_time import Deadlock, run


def now() -> float:
    return asyncio.get_running_loop().time()


def test_the_clock_starts_at_zero_and_jumps_over_sleeps() -> None:
    async def main() -> list[float]:
        seen = [now()]
        for delay_s in (0.25, 3600.0, 30 * 86400.0):
            await asyncio.sleep(delay_s)
            seen.append(now())
        return seen

    assert run(main()) == pytest.approx([0.0, 0.25, 3600.25, 3600.25 + 30 * 86400])


def test_no_real_time_passes_while_a_year_does() -> None:
    slept: list[float] = []
    real_sleep, time.sleep = time.sleep, slept.append  # the loop must not fall back on waiting
    try:
        run(asyncio.sleep(365 * 86400))
    finally:
        time.sleep = real_sleep
    assert slept == []


def test_timers_fire_in_the_order_of_their_time() -> None:
    async def main() -> list[tuple[str, float]]:
        fired: list[tuple[str, float]] = []
        loop = asyncio.get_running_loop()
        for name, at_s in (("c", 3.0), ("a", 1.0), ("b", 2.0)):
            loop.call_at(at_s, lambda name=name: fired.append((name, now())))
        await asyncio.sleep(10)
        return fired

    assert run(main()) == [("a", 1.0), ("b", 2.0), ("c", 3.0)]


def test_time_stands_still_while_something_can_run() -> None:
    async def main() -> float:
        asyncio.get_running_loop().call_later(5, lambda: None)
        for _ in range(1000):
            await asyncio.sleep(0)
        return now()

    assert run(main()) == 0.0


def test_a_time_limit_fires_at_its_virtual_second() -> None:
    async def main() -> float:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(7200):
                await asyncio.Event().wait()
        return now()

    assert run(main()) == pytest.approx(7200)


def test_a_wait_that_cannot_end_is_a_deadlock_that_names_the_waiter() -> None:
    async def wait_for_ever() -> None:
        await asyncio.Event().wait()

    async def main() -> None:
        await asyncio.create_task(wait_for_ever(), name="the waiter")

    with pytest.raises(Deadlock, match=r"the waiter \(.*wait_for_ever:\d+\)"):
        run(main())


def test_a_timer_that_is_set_again_for_ever_ends_at_the_limit() -> None:
    async def main() -> None:
        loop = asyncio.get_running_loop()

        def tick() -> None:
            loop.call_later(1.0, tick)

        tick()
        await asyncio.Event().wait()

    with pytest.raises(Deadlock, match="still not at its end after 100 s"):
        run(main(), limit_s=100)


def test_tasks_left_behind_are_cancelled_at_the_end() -> None:
    ended: list[str] = []

    async def sleeper() -> None:
        try:
            await asyncio.sleep(1e9)
        finally:
            ended.append("sleeper")

    async def main() -> None:
        global _kept
        _kept = asyncio.create_task(sleeper())
        await asyncio.sleep(1)

    run(main())
    assert ended == ["sleeper"]


def test_threads_are_refused() -> None:
    async def to_thread() -> None:
        await asyncio.to_thread(len, "x")

    with pytest.raises(RuntimeError, match="no threads"):
        run(to_thread())


def test_a_call_from_another_thread_is_refused() -> None:
    async def main() -> list[Exception]:
        loop = asyncio.get_running_loop()
        errors: list[Exception] = []

        def call() -> None:
            try:
                loop.call_soon_threadsafe(print)
            except RuntimeError as error:
                errors.append(error)

        thread = threading.Thread(target=call)
        thread.start()
        thread.join()
        return errors

    (error,) = run(main())
    assert "a thread has called" in str(error)


def test_an_error_of_the_program_is_raised_as_it_is() -> None:
    async def main() -> None:
        await asyncio.sleep(1)
        raise ZeroDivisionError("mine")

    with pytest.raises(ZeroDivisionError, match="mine"):
        run(main())
