"""The in-memory network with small receivers of its own: order, delays, losses, and what may cross."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import msgspec
import pytest

from epe.errors import Gone, Refused
from epe.messages import Cancel, Drop, StateHeader
from epe.transport.link import Parcel
from epe.transport.memory import MemoryLink, MemoryNetwork, Passage
from tests.strict_time import run


class Number(msgspec.Struct, frozen=True, tag=True):
    value: int


class Inbox:
    """A `Receiver` that keeps what comes and answers asks by `reply`."""

    def __init__(self, reply: Callable[[Any], Any] = lambda message: None) -> None:
        self.seen: list[Any] = []
        self.downs: list[tuple[str, str, float]] = []
        self.reply = reply

    def deliver(self, target: str, sender: str, message: Any) -> None:
        self.seen.append(message)

    def answer(self, target: str, sender: str, message: Any) -> Coroutine[Any, Any, Any]:
        self.seen.append(message)
        return self._answer(message)

    async def _answer(self, message: Any) -> Any:
        result = self.reply(message)
        return await result if asyncio.iscoroutine(result) else result

    def node_down(self, node: str, reason: str) -> None:
        self.downs.append((node, reason, round(now(), 6)))


def now() -> float:
    return asyncio.get_running_loop().time()


def pair(
    *, reply: Callable[[Any], Any] = lambda message: None, **settings: Any
) -> tuple[MemoryNetwork, MemoryLink, Inbox]:
    """A network with nodes a and b, a's link, and the inbox of b."""
    network = MemoryNetwork(message_types=(Number,), traced=True, **settings)
    inbox = Inbox(reply)
    network.join("b", inbox)
    return network, network.join("a", Inbox()), inbox


def test_messages_arrive_after_their_delay_as_equal_copies() -> None:
    async def main() -> None:
        _, link, inbox = pair(latency_s=(2.0, 2.0))
        sent = Drop(request_ids=("x",))
        link.send("y@b", "x@a", sent)
        await asyncio.sleep(1.9)
        assert inbox.seen == []
        await asyncio.sleep(0.2)
        assert inbox.seen == [sent]
        assert inbox.seen[0] is not sent

    run(main())


def test_no_message_overtakes_another_of_its_pair_whatever_the_delays() -> None:
    async def main(seed: int, latency_s: tuple[float, float]) -> None:
        _, link, inbox = pair(seed=seed, latency_s=latency_s)
        asks = []
        for value in range(200):
            if value % 3:
                link.send("y@b", "x@a", Number(value))
            else:
                asks.append(asyncio.ensure_future(link.ask("y@b", "x@a", Number(value), 60)))
                await asyncio.sleep(0)
        await asyncio.gather(*asks)
        assert [message.value for message in inbox.seen] == list(range(200))

    for seed in range(5):
        run(main(seed, (0.0, 1.0)))
    run(main(0, (0.0, 0.0)))


def test_pairs_do_not_wait_for_each_other() -> None:
    async def main() -> list[str]:
        network = MemoryNetwork(seed=1, latency_s=(0.0, 1.0), traced=True)
        inbox = Inbox()
        network.join("hub", inbox)
        links = [network.join(name, Inbox()) for name in "abcdefgh"]
        for link in links:
            link.send("y@hub", f"x@{link.node}", Cancel(request_id=link.node))
        await asyncio.sleep(2)
        return [message.request_id for message in inbox.seen]

    order = run(main())
    assert sorted(order) == list("abcdefgh") != order


def test_an_ask_is_answered_with_values_structs_and_parcels() -> None:
    async def main() -> None:
        tensor = object()
        header = StateHeader(request_id="q", step=1, names=("latents",), scalars={"sigma": 0.5})
        for answer in (True, None, 3, 0.5, "text", Cancel(request_id="q"), Parcel(header, (tensor,))):
            _, link, _ = pair(reply=lambda _, answer=answer: answer, latency_s=(0.0, 0.1))
            back = await link.ask("y@b", "x@a", Number(1), 5)
            assert back == answer
        assert back.tensors[0] is tensor

    run(main())


def test_an_error_of_the_far_end_is_raised_as_the_same_class_with_its_attributes() -> None:
    def refuse(_: Any) -> None:
        raise Refused("the queue is full", retry_after_s=2.5)

    async def main() -> None:
        _, link, _ = pair(reply=refuse)
        with pytest.raises(Refused, match="the queue is full") as caught:
            await link.ask("y@b", "x@a", Number(1), 5)
        assert caught.value.retry_after_s == 2.5

    run(main())


def test_what_no_link_could_carry_is_refused_at_the_sender_and_as_an_answer() -> None:
    async def main() -> None:
        _, link, inbox = pair(reply=lambda _: object())
        strict = MemoryNetwork()
        strict.join("b", inbox)
        outside = strict.join("a", Inbox())
        with pytest.raises(TypeError, match="Number cannot cross a link"):
            outside.send("y@b", "x@a", Number(1))
        with pytest.raises(TypeError, match="dict cannot cross"):
            link.send("y@b", "x@a", {"a": 1})
        with pytest.raises(Gone, match="y@b could not answer: object cannot cross a link"):
            await link.ask("y@b", "x@a", Number(1), 5)

    run(main())


def test_an_ask_that_is_late_or_cancelled_leaves_nothing_behind() -> None:
    async def main() -> None:
        network, link, _ = pair(reply=lambda _: asyncio.sleep(100), latency_s=(0.5, 0.5))
        with pytest.raises(TimeoutError):
            await link.ask("y@b", "x@a", Number(1), 3)
        assert now() == pytest.approx(3)
        asking = asyncio.ensure_future(link.ask("y@b", "x@a", Number(2), 60))
        await asyncio.sleep(1)
        asking.cancel()
        await asyncio.wait([asking])
        await asyncio.sleep(1)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        assert [passage.kind for passage in network.trace] == ["ask", "ask"]

    run(main())


def test_a_killed_node_loses_its_traffic_and_its_peers_hear_of_it_once_after_a_while() -> None:
    async def main() -> None:
        network = MemoryNetwork(latency_s=(0.01, 0.01), detect_s=0.2)
        inboxes = {name: Inbox() for name in "abc"}
        links = {name: network.join(name, inbox) for name, inbox in inboxes.items()}
        links["a"].send("y@b", "x@a", Cancel(request_id="under way to the dead"))
        links["b"].send("y@a", "x@b", Cancel(request_id="under way from the dead"))
        network.kill("b", reason="signal 9")
        network.kill("b", reason="again")
        links["b"].send("y@a", "x@b", Cancel(request_id="after death"))
        links["a"].send("y@c", "x@a", Cancel(request_id="among the living"))
        await asyncio.sleep(1)
        assert [inboxes[name].downs for name in "abc"] == [
            [("b", "signal 9", 0.2)],
            [],
            [("b", "signal 9", 0.2)],
        ]
        assert [len(inboxes[name].seen) for name in "abc"] == [0, 0, 1]

    run(main())


def test_asks_to_a_dead_node_end_with_gone_when_its_death_is_seen_and_at_once_later() -> None:
    async def main() -> None:
        network, link, _ = pair(reply=lambda _: asyncio.sleep(100), detect_s=0.2)
        before = asyncio.ensure_future(link.ask("y@b", "x@a", Number(1), 60))
        await asyncio.sleep(1)
        network.kill("b", reason="signal 9")
        unseen = asyncio.ensure_future(link.ask("y@b", "x@a", Number(2), 60))
        for asking in (before, unseen):
            with pytest.raises(Gone, match="b is gone: signal 9"):
                await asking
        assert now() == pytest.approx(1.2)
        with pytest.raises(Gone, match="b is gone: signal 9"):
            await link.ask("y@b", "x@a", Number(3), 60)
        with pytest.raises(Gone, match="b is gone"):
            link.send("y@b", "x@a", Number(4))
        with pytest.raises(Gone, match="no node c is on the network"):
            link.send("y@c", "x@a", Number(5))
        assert now() == pytest.approx(1.2)

    run(main())


def test_a_node_that_comes_back_is_a_new_one_and_gets_nothing_of_the_old() -> None:
    async def main() -> None:
        network = MemoryNetwork(latency_s=(0.5, 0.5), detect_s=10)
        peer, old, new = Inbox(), Inbox(), Inbox(lambda message: True)
        link = network.join("a", peer)
        old_link = network.join("b", old)
        with pytest.raises(ValueError, match="b is on the network already"):
            network.join("b", new)
        link.send("y@b", "x@a", Cancel(request_id="to the old one"))
        old_link.send("x@a", "y@b", Cancel(request_id="from the old one"))
        network.kill("b")
        network.join("b", new)
        assert peer.downs == [("b", "its process ended", 0.0)]
        assert await link.ask("y@b", "x@a", Cancel(request_id="to the new one"), 5) is True
        await asyncio.sleep(20)
        assert (peer.seen, old.seen) == ([], [])
        assert [message.request_id for message in new.seen] == ["to the new one"]
        assert len(peer.downs) == 1

    run(main())


def test_closing_a_link_looks_like_the_end_of_its_node() -> None:
    async def main() -> None:
        network = MemoryNetwork(detect_s=0.1)
        peer = Inbox()
        network.join("a", peer)
        await network.join("b", Inbox()).close()
        await asyncio.sleep(1)
        assert peer.downs == [("b", "it has left", 0.1)]

    run(main())


def test_a_thousand_cancelled_asks_leave_the_channel_healthy() -> None:
    async def main() -> None:
        network, link, inbox = pair(reply=lambda message: message.value, latency_s=(0.0, 0.004))
        for value in range(1000):
            asking = asyncio.ensure_future(link.ask("y@b", "x@a", Number(value), 60))
            await asyncio.sleep(0.00001 * value)  # from before it leaves until after its answer is back
            asking.cancel()
            await asyncio.wait([asking])
            assert asking.cancelled() or asking.result() == value
        assert await link.ask("y@b", "x@a", Number(-1), 60) == -1
        assert asyncio.all_tasks() == {asyncio.current_task()}
        await asyncio.sleep(1)
        assert network.peer("y@b").asked == {}
        kinds = [passage.kind for passage in network.trace]
        assert kinds.count("ask") == len(inbox.seen)
        assert "loss" not in kinds

    run(main())


def test_the_trace_is_the_same_for_the_same_seed_and_differs_for_another() -> None:
    async def main(seed: int) -> list[Passage]:
        network, link, _ = pair(seed=seed, reply=lambda message: message.value, latency_s=(0.0, 1.0))
        link.send("y@b", "x@a", Number(1))
        await link.ask("y@b", "x@a", Number(2), 60)
        link.send("y@b", "x@a", Number(3))
        network.kill("b")
        await asyncio.sleep(5)
        return network.trace

    trace = run(main(1))
    assert [(passage.kind, passage.what) for passage in trace if passage.kind != "down"] == [
        ("tell", "Number"),
        ("ask", "Number"),
        ("answer", "int"),
        ("loss", "Number"),
    ]
    assert trace == run(main(1)) != run(main(2))
