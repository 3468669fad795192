"""The protocol under schedules by seeds: each rank has several blocks, and between any two of their operations, or two
words of a copy, any other block may go on."""

from __future__ import annotations

import ast
import inspect
import random
from collections.abc import Callable, Generator, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

import pytest

from epe.transport import ring
from epe.transport.ring import Layout

OPERATIONS = {"address_at", "count_at", "wait", "copy", "signal", "note"}
SLOT_BYTES, NUM_BLOCKS, WORD = 64, 2, ring.WORD_BYTES
# Of one rank's memory, and of the tensors that it sends from and receives into.
SPACE = 1 << 32
SEEDS = range(80)

Step = tuple[str, tuple[int, ...]]
Block = Generator[Step, int | None, None]


class _Steps(ast.NodeTransformer):
    """Operations become what a generator yields."""

    def visit_Call(self, node: ast.Call) -> ast.expr:
        self.generic_visit(node)
        if isinstance(node.func, ast.Name) and node.func.id in OPERATIONS:
            step = ast.Tuple([ast.Constant(node.func.id), ast.Tuple(node.args, ast.Load())], ast.Load())
            return ast.Yield(step)
        return node


def in_steps(change: Callable[[str], str] = lambda source: source) -> tuple[Callable[..., Block], ...]:
    """`ring.put` and `ring.take` as generators of their operations; `change` may break them."""
    found = []
    for function in (ring.put, ring.take):
        tree = _Steps().visit(ast.parse(change(inspect.getsource(function))))
        namespace = dict(vars(ring))
        exec(compile(ast.fix_missing_locations(tree), function.__name__, "exec"), namespace)
        found.append(namespace[function.__name__])
    return tuple(found)


class Machine:
    """Ranks that run exchanges one after the other, each a launch of all blocks, on words of memory."""

    def __init__(self, protocol: tuple[Callable[..., Block], ...], *, width: int, seed: int) -> None:
        self.protocol, self.width = protocol, width
        self.random = random.Random(seed)
        self.layout = Layout(width=width, num_blocks=NUM_BLOCKS, slot_bytes=SLOT_BYTES)
        self.words: dict[int, Any] = {}
        self.sizes: list[dict[tuple[int, int], int]] = [
            self._sizes() for _ in range(self.random.randint(2, 5))
        ]
        for rank in range(width):
            rows = self.layout.table(
                rank, [SPACE * (1 + peer) for peer in range(width)], stop=self.stop(rank)
            )
            for row, addresses in enumerate(rows):
                for number, address in enumerate(addresses):
                    self.words[self.table(rank) + row * ring.ROW_BYTES + 8 * number] = address

    def table(self, rank: int) -> int:
        return SPACE * (1 + rank) + SPACE // 2

    def stop(self, rank: int) -> int:
        return self.table(rank) - 64

    def tensor(self, rank: int, number: int, peer: int, *, received: bool) -> int:
        """Of the exchange `number`."""
        return self.table(rank) + (((number + 1) * 16 + peer) * 2 + received << 16)

    def _sizes(self) -> dict[tuple[int, int], int]:
        """Bytes from one rank to another: none, few, or more than all slots hold."""
        pairs = ((a, b) for a in range(self.width) for b in range(self.width) if a != b)
        most = 5 * NUM_BLOCKS * SLOT_BYTES // WORD
        return {pair: WORD * self.random.choice((0, 1, 3, self.random.randint(4, most))) for pair in pairs}

    def launches(self, rank: int) -> Iterator[list[Block]]:
        for number, sizes in enumerate(self.sizes):
            for offset in range(1, self.width):
                target, origin = (rank + offset) % self.width, (rank - offset) % self.width
                sent, received = sizes[rank, target], sizes[origin, rank]
                source = self.tensor(rank, number, target, received=False)
                for place in range(0, sent, WORD):
                    self.words[source + place] = (rank, target, number, place)
                into = self.tensor(rank, number, origin, received=True)
                put, take = self.protocol
                messages = (
                    (put, target, source, sent, self._piece(sent)),
                    (take, origin, into, received, self._piece(received)),
                )
                yield [
                    does(self.table(rank), *message, SLOT_BYTES, block)
                    for does, *message in messages
                    for block in range(NUM_BLOCKS)
                ]

    def _piece(self, num_bytes: int) -> int:
        """As the layout's, of blocks that are worth it from one word on."""
        return WORD * max(1, -(-num_bytes // WORD // NUM_BLOCKS))

    def run(self, *, stops_after: int | None = None, without: int | None = None) -> bool:
        """Whether all came to their ends; `without` one rank, and with all let go after so many steps."""
        ranks = [rank for rank in range(self.width) if rank != without]
        launches = {rank: self.launches(rank) for rank in ranks}
        running: dict[int, list[SimpleNamespace]] = {rank: [] for rank in ranks}
        num_idle = num_steps = 0
        while launches:
            rank = self.random.choice(list(launches))
            if not running[rank]:
                blocks = next(launches[rank], None)
                if blocks is None:
                    del launches[rank]
                    continue
                running[rank] = [SimpleNamespace(steps=block, todo=None, answer=None) for block in blocks]
            moved = self._go_on(rank, running[rank], self.random.choice(running[rank]))
            num_idle, num_steps = (0 if moved else num_idle + 1), num_steps + 1
            if num_steps == stops_after:
                self.words |= {self.stop(each): 1 for each in ranks}
            elif num_idle > 2000 and (stops_after is None or num_steps > stops_after):
                return False
        return True

    def _go_on(self, rank: int, blocks: list[SimpleNamespace], block: SimpleNamespace) -> bool:
        """One operation of a block, or one word of a copy; whether it could."""
        if block.todo is None:
            try:
                block.todo = block.steps.send(block.answer)
            except StopIteration:
                blocks.remove(block)
                return True
        name, places = block.todo
        block.answer, block.todo = None, None
        match name, places:
            case "wait", (place, count, stop):
                if self.words.get(place, 0) < count and not self.words.get(stop, 0):
                    block.todo = name, places
                    return False
            case "copy", (into, source, num_bytes):
                self.words[into] = self.words.get(source)
                if num_bytes > WORD:
                    block.todo = "copy", (into + WORD, source + WORD, num_bytes - WORD)
            case (("signal" | "note"), (place, count)):
                self.words[place] = count
            case _, (place,):
                block.answer = self.words.get(place, 0)
        return True

    def is_right(self) -> bool:
        """Whether every rank has what was sent to it."""
        return all(
            self.words.get(self.tensor(b, number, a, received=True) + place) == (a, b, number, place)
            for number, sizes in enumerate(self.sizes)
            for (a, b), size in sizes.items()
            for place in range(0, size, WORD)
        )


@pytest.mark.parametrize("width", [2, 3, 4])
def test_whatever_the_schedule_each_rank_gets_what_was_sent_and_none_waits_for_ever(width: int) -> None:
    for seed in SEEDS:
        machine = Machine(in_steps(), width=width, seed=seed)
        assert machine.run(), f"seed {seed} ends in a circle"
        assert machine.is_right(), f"seed {seed}"


@pytest.mark.parametrize("width", [2, 4])
def test_whoever_waits_for_a_rank_that_is_gone_comes_to_its_end_once_it_is_let_go(width: int) -> None:
    for seed in SEEDS[:50]:
        assert not Machine(in_steps(), width=width, seed=seed).run(without=width - 1)
        assert Machine(in_steps(), width=width, seed=seed).run(without=width - 1, stops_after=400)


def does_not_wait_for_room(source: str) -> str:
    return source.replace("count + 1 - RING", "count + 1 - 2 * RING")


def tells_before_it_has_put(source: str) -> str:
    waits = "wait(record + FREED, count + 1 - RING, stop)"
    return source.replace(waits, f"{waits}; signal(their_record + FILLED, count + 1)")


def gives_room_before_it_has_taken(source: str) -> str:
    waits = "wait(record + FILLED, count + 1, stop)"
    return source.replace(waits, f"{waits}; signal(their_record + FREED, count + 1)")


@pytest.mark.parametrize(
    "broken", [does_not_wait_for_room, tells_before_it_has_put, gives_room_before_it_has_taken]
)
def test_the_schedules_find_a_protocol_that_is_wrong(broken: Callable[[str], str]) -> None:
    sources = inspect.getsource(ring.put), inspect.getsource(ring.take)
    assert [broken(source) for source in sources] != list(sources)
    machines = [Machine(in_steps(broken), width=2, seed=seed) for seed in SEEDS]
    assert not all(machine.run() and machine.is_right() for machine in machines)


def test_memory_is_of_one_peer_each_and_as_large_as_it_says() -> None:
    layout = Layout(width=3, num_blocks=4, slot_bytes=1024)
    bases = [1 << 40, 2 << 40, 3 << 40]
    pieces = set()
    for position in range(3):
        for peer, (_, _, slots, records, stop) in enumerate(layout.table(position, bases, stop=7)):
            if peer == position:
                continue
            assert stop == 7
            for start, size in ((slots, layout.slots_bytes), (records, layout.records_bytes)):
                assert bases[position] <= start
                assert start + size <= bases[position] + layout.num_bytes
                pieces |= {(start, start + size)}
    ordered = sorted(pieces)
    assert len(ordered) == 12
    assert all(end <= begin for (_, end), (begin, _) in pairwise(ordered))


def test_what_one_rank_sees_there_is_what_the_other_sees_here() -> None:
    layout, bases = Layout(width=4, num_blocks=2, slot_bytes=256), [10_000, 20_000, 30_000, 40_000]
    tables = [layout.table(position, bases, stop=1) for position in range(4)]
    for one in range(4):
        for other in set(range(4)) - {one}:
            assert tables[one][other][:2] == tables[other][one][2:4]


@pytest.mark.parametrize("num_bytes", [0, 1, 4095, 4097, 1 << 20, (1 << 20) + 1])
def test_pieces_cover_a_message_and_begin_where_words_do(num_bytes: int) -> None:
    layout = Layout(width=2, num_blocks=32, slot_bytes=1 << 17)
    piece = layout.piece_bytes(num_bytes)
    assert piece % ring.WORD_BYTES == 0
    assert layout.num_blocks * piece >= num_bytes
    assert num_bytes <= ring.LEAST_BYTES or -(-num_bytes // piece) > 1
