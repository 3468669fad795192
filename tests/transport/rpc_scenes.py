"""What the ranks do in the tests of the RPC link: `leader`, on rank 0, plays; `r0` and `r1` answer."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import socket
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import uvloop
from torch.distributed import rpc

from epe.errors import BadRequest, Gone, NonFinite, Overloaded, Refused, StartFailed
from epe.messages import Cancel, Drain, Drop, Inspect, StateHeader
from epe.transport import agent, door, guard, listener
from epe.transport.delivery import ENDPOINT, Kind, deliver
from epe.transport.link import Parcel
from epe.transport.rpc import RpcLink
from epe.transport.store import interface_of
from tests.world import RankContext

NODES = ("leader", "r0", "r1")
TENSORS = tuple(
    torch.arange(12).reshape(3, 4).to(dtype)
    for dtype in (
        torch.bfloat16,
        torch.float32,
        torch.float16,
        torch.uint8,
        torch.int64,
        torch.complex64,
        torch.bool,
    )
)
ERRORS = {
    "bad": BadRequest("height 1000 is not a multiple of 16", param="height"),
    "later": Refused("the queue is full", retry_after_s=2.5),
    "nan": NonFinite("NaN in the latents", stage="denoise", step=7),
    "full": Overloaded("the mailbox is full"),
}


class Desk:
    """A receiver that keeps what comes, and answers in a way that the message asks for."""

    def __init__(self) -> None:
        self.came: list[Any] = []
        self.down: dict[str, str] = {}
        self.changed = asyncio.Event()

    def deliver(self, target: str, sender: str, message: Any) -> None:
        self.came.append(message)
        self.changed.set()

    def answer(self, target: str, sender: str, message: Any) -> Awaitable[Any]:
        self.came.append(message)
        self.changed.set()
        return self.reply(message)

    async def reply(self, message: Any) -> Any:
        match message:
            case Cancel(request_id=name) if name in ERRORS:
                raise ERRORS[name]
            case Cancel(request_id="broken"):
                raise ZeroDivisionError("a bug")
            case Cancel(request_id="strange"):
                return object()
            case Drain():
                await asyncio.Event().wait()
            case Parcel() | Drop():
                return message
        return True

    def node_down(self, node: str, reason: str) -> None:
        self.down[node] = reason
        self.changed.set()

    async def until(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(20):
            while not condition():
                self.changed.clear()
                await self.changed.wait()


Scene = Callable[[RpcLink, Desk, RankContext], Awaitable[Any]]


def play(context: RankContext, scene: Scene, *, nodes: tuple[str, ...] = NODES, epoch: int = 4) -> Any:
    """Open the link on this rank, if it is one of `nodes`, and play the scene; all that stay close together."""
    if context.rank >= len(nodes):
        return None

    async def run() -> Any:
        desk = Desk()
        link = await RpcLink.open(
            desk, store=context.store, epoch=epoch, node=nodes[context.rank], members=nodes
        )
        try:
            result = await scene(link, desk, context)
            context.store.set(f"done{epoch}/{link.node}", "1")
            await until_all(context, [f"done{epoch}/{node}" for node in nodes if node not in desk.down])
        finally:
            await link.close()
        return result

    return uvloop.run(run())


async def settle(link: RpcLink, context: RankContext) -> None:
    """Until each has reached each. torch's listener closes for good when a connection breaks before its first bytes, so
    a node that leaves at once may leave others that nobody can reach any more."""
    for peer in (node for node in NODES if node != link.node):
        await link.ask(f"worker@{peer}", f"planner@{link.node}", Inspect(), 10.0)
    context.store.set(f"settled{link.epoch}/{link.node}", "1")
    await until_all(context, [f"settled{link.epoch}/{node}" for node in NODES])


async def until_all(context: RankContext, keys: list[str], *, within_s: float = 20.0) -> None:
    async with asyncio.timeout(within_s):
        while not context.store.check(keys):  # noqa: ASYNC110 (another process sets them)
            await asyncio.sleep(0.01)


def round_trips(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return None
        small = await link.ask("worker@r1", "planner@leader", Cancel(request_id="a"), 5.0)
        large = Drop(request_ids=tuple(f"request-{number}" for number in range(20_000)))
        back = await link.ask("worker@r0", "planner@leader", large, 5.0)
        return small, back == large

    return play(context, scene)


def a_stream_of_messages(context: RankContext) -> Any:
    num = 2000

    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node == "leader":
            await send_numbered(link, num)
        elif link.node == "r0":
            await desk.until(lambda: len(desk.came) == num)
        return [number_of(message) for message in desk.came]

    return play(context, scene)


async def send_numbered(link: RpcLink, num: int) -> None:
    """Every tenth message has a big tensor, every seventh is an ask, some are large."""
    asks = []
    for number in range(num):
        message: Any = Cancel(request_id=str(number))
        if number % 10 == 0:
            message = Parcel(message, (torch.zeros(1 << 18),))
        elif number % 97 == 0:
            message = Drop(request_ids=(str(number), "x" * 100_000))
        if number % 7 == 0:
            asks.append(asyncio.ensure_future(link.ask("worker@r0", "planner@leader", message, 20.0)))
            await asyncio.sleep(0)  # the task starts, which sends the ask
        else:
            link.send("worker@r0", "planner@leader", message)
    await asyncio.gather(*asks)


def number_of(message: Any) -> int:
    match message:
        case Parcel(message=inner):
            return number_of(inner)
        case Drop(request_ids=(number, _)):
            return int(number)
        case _:
            return int(message.request_id)


def parcels(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return None
        header = StateHeader(request_id="a", step=3, names=tuple("abcdefg"))
        whole = torch.arange(1 << 20)
        sent = (*TENSORS, whole[5:9], whole.view(1024, 1024).t()[:2], torch.tensor(2.5), torch.empty(0))
        back = await link.ask("worker@r0", "worker@leader", Parcel(header, sent), 5.0)
        assert back.message == header
        assert all(
            torch.equal(got, want) and got.dtype == want.dtype
            for got, want in zip(back.tensors, sent, strict=True)
        )
        sizes = [tensor.untyped_storage().nbytes() for tensor in back.tensors[-4:-2]]
        array = await link.ask("w@r1", "w@leader", Parcel(header, (np.arange(6, dtype=np.uint8),)), 5.0)
        bare = await link.ask("w@r1", "w@leader", Parcel(header), 5.0)
        return sizes, np.asarray(array.tensors[0]).tolist(), bare == Parcel(header, ())

    return play(context, scene)


def errors(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return None
        found = []
        for name in (*ERRORS, "broken", "strange"):
            try:
                await link.ask("worker@r0", "planner@leader", Cancel(request_id=name), 5.0)
            except Exception as error:
                found.append((type(error), str(error), vars(error)))
        assert await link.ask("worker@r0", "planner@leader", Inspect(), 5.0) is True
        return found

    return play(context, scene)


def what_may_not_be_sent(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return None
        with pytest.raises(TypeError, match="cannot cross a link"):
            link.send("worker@r0", "planner@leader", {"a": 1})
        with pytest.raises(TypeError, match="host memory"):
            link.send("worker@r0", "planner@leader", Parcel(Inspect(), (torch.empty(1, device="meta"),)))
        with pytest.raises(Gone, match="r7 is no peer in epoch 4; peers are r0, r1"):
            link.send("worker@r7", "planner@leader", Inspect())
        return await link.ask("worker@r0", "planner@leader", Inspect(), 5.0)

    return play(context, scene)


class Gadget:
    """Pickles as a call of `function` at the receiver."""

    def __init__(self, function: Any, *args: Any) -> None:
        self.function, self.args = function, args

    def __reduce__(self) -> Any:
        return self.function, self.args


def attacks(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node != "leader":
            return None
        refused = []
        for function, args in (
            (eval, ("__import__('os').environ.setdefault('EPE_ATTACKED', '1')",)),
            (os.getcwd, ()),
            (deliver, (Gadget(os.putenv, "EPE_ATTACKED", "1"),)),
            (deliver, (Gadget(getattr, deliver, "__globals__"),)),
            (rpc.backend_registry._get_device_infos, ()),
        ):
            try:
                result = await asyncio.to_thread(rpc.rpc_sync, link._workers["r0"], function, args, timeout=5)
                refused.append(f"answered {result}")
            except RuntimeError as error:
                refused.append(str(error))
        return refused, await link.ask("worker@r0", "planner@leader", Inspect(), 5.0)

    result = play(context, scene)
    assert "EPE_ATTACKED" not in os.environ
    return result


def another_epoch(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return desk.came
        call = {"args": (3, int(Kind.ASK), "worker@r0", "planner@leader", b"\xc0", False), "timeout": 5}
        data, *_ = await asyncio.to_thread(rpc.rpc_sync, link._workers["r0"], deliver, **call)
        return link._codec.decode(data)

    return play(context, scene)


def bytes_that_are_no_message(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return None
        call = {"args": (4, int(Kind.ASK), "worker@r0", "planner@leader", b"\xc1junk", False), "timeout": 5}
        data, *_ = await asyncio.to_thread(rpc.rpc_sync, link._workers["r0"], deliver, **call)
        return link._codec.decode(data).text, await link.ask("w@r0", "p@leader", Inspect(), 5.0)

    return play(context, scene)


def late_and_cancelled_asks(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        if link.node != "leader":
            return None
        with pytest.raises(TimeoutError, match=r"worker@r0 has not answered within 0.2 s"):
            await link.ask("worker@r0", "planner@leader", Drain(), 0.2)
        for number in range(1000):
            asked = asyncio.ensure_future(link.ask("worker@r0", "planner@leader", Inspect(), 5.0))
            for _ in range(number % 5):
                await asyncio.sleep(0)
            asked.cancel()
            await asyncio.wait([asked])
        assert not link._asked
        return await link.ask("worker@r0", "planner@leader", Inspect(), 5.0)

    return play(context, scene)


def where_it_listens(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        return listening_addresses()

    return play(context, scene)


def listening_addresses() -> set[str]:
    """Local addresses, as /proc writes them, on which this process listens."""
    links = [path.readlink().name for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    inodes = {link[len("socket:[") : -1] for link in links if link.startswith("socket:[")}
    rows = [
        row.split()
        for name in ("tcp", "tcp6")
        for row in Path(f"/proc/self/net/{name}").read_text().splitlines()[1:]
    ]
    return {row[1].split(":")[0] for row in rows if row[3] == "0A" and row[9] in inodes}


def a_missing_member(context: RankContext) -> str:
    if context.rank != 0:
        return ""

    async def run() -> str:
        with pytest.raises(StartFailed) as caught:
            await RpcLink.open(
                Desk(), store=context.store, epoch=9, node="leader", members=NODES, timeout_s=0.5
            )
        return str(caught.value)

    return asyncio.run(run())


def a_second_link(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        with pytest.raises(StartFailed, match="already in use in this process"):
            await RpcLink.open(Desk(), store=context.store, epoch=5, node="leader", members=("leader",))
        return await link.ask(f"w@{'r0' if link.node == 'leader' else 'leader'}", "x@y", Inspect(), 5.0)

    return play(context, scene)


def one_leaves(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node == "r1":
            await link.close()
            return "left"
        await desk.until(lambda: "r1" in desk.down)
        with pytest.raises(Gone, match="r1 is gone"):
            await link.ask("worker@r1", "x@y", Inspect(), 5.0)
        return await link.ask(f"w@{'r0' if link.node == 'leader' else 'leader'}", "x@y", Inspect(), 5.0)

    return play(context, scene)


def one_comes_back(context: RankContext) -> Any:
    """Twice: `r1` leaves and joins again as a new agent, while `r0` and the leader talk all the time."""

    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node == "r1":
            return await comes_and_goes(link, desk, context)
        talks, calls = 0, {}
        for life in (1, 2):
            await desk.until(lambda: "r1" in desk.down)
            while link.has_lost:
                if link.node == "leader":
                    await link.readmit(context.store)
                talks += await link.ask(
                    f"w@{'r0' if link.node == 'leader' else 'leader'}", "x@y", Inspect(), 5.0
                )
            del desk.down["r1"]
            assert await link.ask("worker@r1", f"x@{link.node}", Inspect(), 5.0) is True
            await desk.until(lambda life=life: Cancel(request_id=str(life)) in desk.came)
            context.store.set(f"heard{life}/{link.node}", "1")
            await until_all(context, [f"heard{life}/{peer}" for peer in ("leader", "r0")])
            calls[life] = await num_calls()
            context.store.set(f"met{life}/{link.node}", "1")
        return talks > 0, sum(isinstance(message, Cancel) for message in desk.came), calls[2] - calls[1]

    return play(context, scene)


async def num_calls() -> int:
    """The calls that this process has to answer or waits for, when nobody talks; each keeps its connection."""
    least = sys.maxsize
    for _ in range(10):
        await asyncio.sleep(0.02)  # torch lets go of what is done in its own time
        gc.collect()
        kinds = (torch.futures.Future, torch._C.Future)
        least = min(least, sum(isinstance(each, kinds) for each in gc.get_objects()))
    return least


async def comes_and_goes(link: RpcLink, desk: Desk, context: RankContext) -> Any:
    for life in (1, 2):
        await link.close()
        link = await RpcLink.open(
            desk, store=context.store, epoch=link.epoch, node="r1", members=NODES, life=life, timeout_s=20.0
        )
        for peer in ("leader", "r0"):
            link.send(f"worker@{peer}", "x@r1", Cancel(request_id=str(life)))
        await until_all(context, [f"met{life}/{peer}" for peer in ("leader", "r0")])
    await until_all(context, ["done4/leader", "done4/r0"])
    await link.close()
    return [str(message) for message in desk.came]


def two_are_lost(context: RankContext) -> Any:
    """`r0` and `r1` leave at once. `r1` dies in the door and comes back, and only then does `r0`."""

    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node == "leader":
            await desk.until(lambda: len(desk.down) == 2)
            while link.has_lost:
                await link.readmit(context.store)
                await asyncio.sleep(0.01)
            desk.down.clear()
            return [await link.ask(f"w@{peer}", "x@leader", Inspect(), 5.0) for peer in ("r0", "r1")]
        await link.close()
        if link.node == "r1":
            await asyncio.to_thread(die_in_the_door, context, link.epoch)
        else:
            await until_all(context, ["back/r1"])
        again = await RpcLink.open(
            desk, store=context.store, epoch=link.epoch, node=link.node, members=NODES, life=2, timeout_s=20.0
        )
        context.store.set(f"back/{link.node}", "1")
        await until_all(context, ["done4/leader"])
        await again.close()
        return True

    return play(context, scene)


def one_cannot_be_reached(context: RankContext) -> Any:
    """`r0` listens no more; when `r1` comes back that is found, and `r0` comes back too."""

    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node == "leader":
            back = ["back/r0", "back/r1"]
            async with asyncio.timeout(60):
                while not context.store.check(back):
                    await link.readmit(context.store)
                    await asyncio.sleep(0.01)
            return [await link.ask(f"w@{peer}", "x@leader", Inspect(), 5.0) for peer in ("r0", "r1")]
        reason = ""
        if link.node == "r0":
            await asyncio.to_thread(break_listener)
            context.store.set("deaf/r0", "1")
            async with asyncio.timeout(60):
                reason = await link.failure
        await until_all(context, ["deaf/r0"])
        await link.close()
        again = await come_back(link, desk, context)
        context.store.set(f"back/{link.node}", "1")
        await until_all(context, ["done4/leader"])
        await again.close()
        return reason

    return play(context, scene)


def one_dies_while_another_joins(context: RankContext) -> Any:
    """`r1` comes back; `r0` has said that it knows, and dies before `r1` has called it."""

    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node == "leader":
            while not context.store.check(["back/r0", "back/r1"]):
                # Longer than the test lasts: nobody is to wait for this limit.
                await link.readmit(context.store, timeout_s=300.0)
                await asyncio.sleep(0.01)
            return [await link.ask(f"w@{peer}", "x@leader", Inspect(), 5.0) for peer in ("r0", "r1")]
        if link.node == "r0":
            await desk.until(lambda: "r1" in desk.down)
            while not listener_door_is_open():  # noqa: ASYNC110 (the leader's word opens it)
                await asyncio.sleep(0.001)
        await link.close()
        if link.node == "r0":
            await until_all(context, ["back/r1"], within_s=100.0)
        again = await come_back(link, desk, context, timeout_s=300.0)
        context.store.set(f"back/{link.node}", "1")
        await until_all(context, ["done4/leader"], within_s=100.0)
        await again.close()
        return True

    return play(context, scene)


def listener_door_is_open() -> bool:
    """Whether this process has been told that a node comes back."""
    return bool(guard._JOINING & rpc.internal._unpickler.allowed)


def break_listener() -> None:
    """As a scan of ports does, or a peer that dies while it connects."""
    rows = [row.split() for row in Path("/proc/self/net/tcp").read_text().splitlines()[1:]]
    port = next(int(row[1].rpartition(":")[2], 16) for row in rows if row[9] in listener._listeners)
    while listener.still_listens():
        with contextlib.suppress(ConnectionError):
            socket.create_connection(("127.0.0.1", port)).close()
        time.sleep(0.01)


async def come_back(link: RpcLink, desk: Desk, context: RankContext, *, timeout_s: float = 20.0) -> RpcLink:
    """In a later life: one that meets a peer who is about to end does not come in."""
    for life in range(1, 6):
        with contextlib.suppress(Gone, StartFailed):
            return await RpcLink.open(
                desk,
                store=context.store,
                epoch=link.epoch,
                node=link.node,
                members=NODES,
                life=life,
                timeout_s=timeout_s,
            )
    raise AssertionError(f"{link.node} did not come back")


def die_in_the_door(context: RankContext, epoch: int) -> None:
    """Let in, and listed among the agents, but gone before the others hear of it."""
    door.knock(context.store, "r1", 1, 20.0)
    membership = agent.Membership(
        epoch=epoch, node="r1", members=NODES, timeout_s=20.0, interface=interface_of(context.store), life=1
    )
    agent.join(context.store, membership, endpoint=ENDPOINT, present={})
    agent.leave()


def one_is_killed(context: RankContext) -> Any:
    async def scene(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        await settle(link, context)
        if link.node == "r1":
            await desk.until(lambda: sum(isinstance(message, Drain) for message in desk.came) == 2)
            os.kill(os.getpid(), 9)
        begin_s = time.perf_counter()
        with pytest.raises(Gone) as caught:
            await link.ask("worker@r1", f"x@{link.node}", Drain(), 30.0)
        await desk.until(lambda: "r1" in desk.down)
        waited_s = time.perf_counter() - begin_s
        with pytest.raises(Gone, match="r1 is gone"):
            link.send("worker@r1", "x@y", Inspect())
        other = "r0" if link.node == "leader" else "leader"
        assert await link.ask(f"worker@{other}", "x@y", Inspect(), 5.0) is True
        return str(caught.value), dict(desk.down), waited_s

    async def after(link: RpcLink, desk: Desk, context: RankContext) -> Any:
        return await link.ask(f"worker@{'r0' if link.node == 'leader' else 'leader'}", "x@y", Inspect(), 5.0)

    first = play(context, scene)
    # The survivors go on in the next epoch.
    return first, play(context, after, nodes=("leader", "r0"), epoch=5)
