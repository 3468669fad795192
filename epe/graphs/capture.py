"""One forward pass, captured: fixed inputs, graphs with the lane's exchanges between them, fixed outputs."""

from __future__ import annotations

import gc
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

from epe.graphs.call import Tree
from epe.graphs.graph import Graph, GraphDevice
from epe.transport.exchange import Exchange, Pending, SoloExchange
from epe.transport.fast import FastExchange

# A forward pass over a lane: its arguments are positional and by name.
Pass = Callable[[Exchange, tuple[Any, ...], dict[str, Any]], Any]
# What is done anew at each replay, on the lane of the moment.
Turn = Callable[[Exchange], object]


class CapturedPass:
    """A pass that can be replayed with other values in tensors of the same shapes, on lanes of its kind."""

    def __init__(self, inputs: list[torch.Tensor], turns: list[Turn], output: Tree) -> None:
        self._inputs = inputs
        self._turns = turns
        self._output = output

    def replay(self, tensors: Sequence[torch.Tensor], exchange: Exchange) -> Any:
        """What the pass gives for `tensors`, in memory that no later replay touches."""
        for place, given in zip(self._inputs, [*tensors, *_tables(exchange)], strict=True):
            place.copy_(given)
        for turn in self._turns:
            turn(exchange)
        return self._output.holding(tensor.clone() for tensor in self._output.tensors)


def lane_key(exchange: Exchange) -> Hashable:
    """Equal for lanes that can replay the same passes."""
    return exchange.width, exchange.position, isinstance(exchange, FastExchange)


def capture(work: Pass, call: Tree, exchange: Exchange, *, device: GraphDevice, pool: object) -> CapturedPass:
    """Capture `work`, which has run before with such a call. Nothing is exchanged meanwhile.

    Raises `RuntimeError` where it cannot be captured.
    """
    given = [*call.tensors, *_tables(exchange)]
    inputs = [_place_for(tensor) for tensor in given]
    for place, tensor in zip(inputs, given, strict=True):
        place.copy_(tensor)
    tape = _Tape(device, pool)
    with device.aside(), _garbage_left_alone():
        tape.begin()
        try:
            output = work(_while_captured(exchange, inputs, tape), *call.holding(inputs))
        except BaseException:
            tape.abort()
            raise
        tape.end()
    return CapturedPass(inputs, tape.turns, Tree.of(output))


@contextmanager
def _garbage_left_alone() -> Iterator[None]:
    """Graphs and memory of the device that are collected while another graph is captured may break its capture off."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _tables(exchange: Exchange) -> list[torch.Tensor]:
    """What a graph that holds the exchanges of a lane reads of it, as it does of its other inputs."""
    return [exchange.table] if isinstance(exchange, FastExchange) else []


def _while_captured(exchange: Exchange, inputs: list[torch.Tensor], tape: _Tape) -> Exchange:
    """What stands for the lane: if its exchanges are work of the device, the graph holds them, else it ends there."""
    if isinstance(exchange, FastExchange):
        return exchange.reading(inputs[-1])
    return CapturedExchange(exchange, tape)


def _place_for(tensor: torch.Tensor) -> torch.Tensor:
    """Memory laid out as that of `tensor`: other strides may mean other kernels, and so other bits."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)


class _Tape:
    """Graphs and what is done between them, in order."""

    def __init__(self, device: GraphDevice, pool: object) -> None:
        self._device = device
        self.turns: list[Turn] = []
        self._pool = pool
        self._open: Graph | None = None

    def begin(self) -> None:
        self._open = self._device.graph(self._pool)
        self._open.begin()

    def end(self) -> None:
        graph, self._open = self._open, None
        assert graph is not None
        graph.end()
        self.turns.append(lambda exchange: graph.replay())

    def cut(
        self, turn: Callable[[Exchange, list[torch.Tensor]], object], tensors: list[torch.Tensor]
    ) -> None:
        """End a graph, let `turn` be done after it on the memory of `tensors`, and begin the next one.

        The memory is not owned: the layers of a model receive into the same, one after the other, as without a graph.
        """
        self.end()
        memory = [self._device.without_owning(tensor) for tensor in tensors]
        self.turns.append(lambda exchange: turn(exchange, memory))
        self.begin()

    def abort(self) -> None:
        """End a graph that has failed; what that says is known."""
        if self._open is not None:
            with suppress(RuntimeError):
                self._open.end()


class CapturedExchange:
    """Stands for the exchange of a lane while a pass is captured: each call is noted, and done at each replay."""

    def __init__(
        self, lane: Exchange, tape: _Tape, find: Callable[[Exchange], Exchange] | None = None
    ) -> None:
        self.width = lane.width
        self.position = lane.position
        self._lane = lane
        self._tape = tape
        self._find = find or (lambda exchange: exchange)

    def gather(self, part: torch.Tensor, sizes: tuple[int, ...], *, dim: int) -> torch.Tensor:
        shape = list(part.shape)
        shape[dim] = sum(sizes)
        whole = part.new_empty(shape)

        def turn(lane: Exchange, memory: list[torch.Tensor]) -> None:
            place, mine = memory
            place.copy_(lane.gather(mine, sizes, dim=dim))

        self._note(turn, [whole, part.contiguous()])
        return whole

    def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
        own = parts[self.position]
        received = [own if p == self.position else own.new_empty(shape) for p, shape in enumerate(shapes)]
        peers = [p for p in range(self.width) if p != self.position]

        def turn(lane: Exchange, memory: list[torch.Tensor]) -> None:
            places, sent = memory[: len(peers)], memory[len(peers) :]
            arrived = lane.all_to_all(sent, shapes)
            for place, peer in zip(places, peers, strict=True):
                place.copy_(arrived[peer])

        self._note(turn, [*(received[p] for p in peers), *(part.contiguous() for part in parts)])
        return received

    def start_all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> Pending:
        """Begun between two graphs and awaited between two later ones: those in between run meanwhile."""
        own = parts[self.position]
        received = [own if p == self.position else own.new_empty(shape) for p, shape in enumerate(shapes)]
        peers = [p for p in range(self.width) if p != self.position]
        sent = [part.contiguous() for part in parts]
        begun: list[Pending] = []

        def begin(lane: Exchange, memory: list[torch.Tensor]) -> None:
            begun[:] = [lane.start_all_to_all(memory, shapes)]  # One that failed may have left its own.

        def finish(_: Exchange, memory: list[torch.Tensor]) -> None:
            arrived = begun.pop()()
            for place, peer in zip(memory, peers, strict=True):
                place.copy_(arrived[peer])

        def take() -> list[torch.Tensor]:
            self._note(finish, [received[p] for p in peers])
            sent.clear()  # Until now its memory could not serve others.
            return received

        self._note(begin, sent)
        return take

    def broadcast(self, tensor: torch.Tensor, *, source: int) -> torch.Tensor:
        whole = tensor.new_empty(tensor.shape)

        def turn(lane: Exchange, memory: list[torch.Tensor]) -> None:
            place, mine = memory
            place.copy_(lane.broadcast(mine, source=source))

        self._note(turn, [whole, tensor.contiguous()])
        return whole

    def send(self, tensor: torch.Tensor, *, target: int) -> None:
        self._note(lambda lane, memory: lane.send(memory[0], target=target), [tensor.contiguous()])

    def receive(self, like: torch.Tensor, *, source: int) -> torch.Tensor:
        whole = like.new_empty(like.shape)

        def turn(lane: Exchange, memory: list[torch.Tensor]) -> None:
            memory[0].copy_(lane.receive(memory[0], source=source))

        self._note(turn, [whole])
        return whole

    def narrow(self, positions: tuple[int, ...]) -> Exchange:
        part = self._lane.narrow(positions)
        if part.width == 1:
            return SoloExchange()
        return CapturedExchange(part, self._tape, lambda lane: self._find(lane).narrow(positions))

    def check(self) -> None:
        self._lane.check()

    def close(self) -> None:
        self._lane.close()

    def _note(
        self, turn: Callable[[Exchange, list[torch.Tensor]], object], tensors: list[torch.Tensor]
    ) -> None:
        """End the graph; at each replay `turn` exchanges what is in the memory of `tensors` by then."""
        find = self._find
        self._tape.cut(lambda exchange, memory: turn(find(exchange), memory), tensors)
