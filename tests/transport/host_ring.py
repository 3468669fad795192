"""The exchanges of `epe.transport.fast` on a CPU: the ranks of a lane are threads, and the protocol is as it stands."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from epe.messages import Lane
from epe.transport import ring
from epe.transport.fast import FastExchange, FastWires
from epe.transport.ring import Layout
from tests.graphs.tape import WAITS

T = TypeVar("T")


@torch.library.custom_op("epe_tests::swap", mutates_args=("received", "memory"))
def _swap(
    num_blocks: int,
    slot_bytes: int,
    table: torch.Tensor,
    target: int,
    origin: int,
    sent: torch.Tensor,
    received: torch.Tensor,
    memory: torch.Tensor,
) -> None:
    """An operation, so that a graph on a CPU can hold it. Blocks go one after the other, and takes beside puts."""
    layout = Layout(width=len(table), num_blocks=num_blocks, slot_bytes=slot_bytes)
    num_sent, num_received = sent.numel(), received.numel()
    pieces = layout.piece_bytes(num_sent), layout.piece_bytes(num_received)
    addresses = table.data_ptr(), sent.data_ptr(), received.data_ptr()

    def takes() -> None:
        for block in range(num_blocks):
            ring.take(addresses[0], origin, addresses[2], num_received, pieces[1], slot_bytes, block)

    beside = threading.Thread(target=takes)
    beside.start()
    for block in range(num_blocks):
        ring.put(addresses[0], target, addresses[1], num_sent, pieces[0], slot_bytes, block)
    beside.join()


WAITS.append(torch.ops.epe_tests.swap.default)


class HostMemory:
    """The memory of one position."""

    def __init__(self, layout: Layout, position: int, all_memory: list[torch.Tensor]) -> None:
        self.layout = layout
        self.closed = False
        self.freed_by: threading.Thread | None = None
        self.memory = all_memory
        self.own = all_memory[position]
        self._stop = torch.zeros(1, dtype=torch.int32)
        addresses = [memory.data_ptr() for memory in all_memory]
        self.table = torch.tensor(layout.table(position, addresses, stop=self._stop.data_ptr()))

    def close(self) -> None:
        self.closed = True
        self._stop.fill_(1)

    def free(self) -> None:
        self.freed_by = threading.current_thread()

    def launch(
        self,
        layout: Layout,
        table: torch.Tensor,
        target: int,
        origin: int,
        sent: torch.Tensor,
        received: torch.Tensor,
    ) -> None:
        _swap(layout.num_blocks, layout.slot_bytes, table, target, origin, sent, received, self.own)


def host_lane(
    ranks: tuple[int, ...], *, num_blocks: int = 3, slot_bytes: int = 256, begin: int = 0
) -> list[FastExchange]:
    """The exchange of each rank of a lane, whose counts stand at `begin`."""
    layout = Layout(width=len(ranks), num_blocks=num_blocks, slot_bytes=slot_bytes)
    all_memory = [torch.zeros(layout.num_bytes, dtype=torch.uint8) for _ in ranks]
    for memory in all_memory:
        memory[: (layout.width - 1) * layout.records_bytes].view(torch.int32).fill_(begin)
    memories = [HostMemory(layout, position, all_memory) for position in range(len(ranks))]
    return [
        FastExchange(
            Lane(ranks=ranks), position=position, wires=FastWires(memory, memory.launch, position=position)
        )
        for position, memory in enumerate(memories)
    ]


def on_ranks(lane: list[FastExchange], task: Callable[[FastExchange], T]) -> list[T]:
    """What `task` gives on each rank, run at once. One that raises closes its exchange, as a device thread does."""

    def run(exchange: FastExchange) -> T:
        torch.set_num_threads(1)
        try:
            return task(exchange)
        except BaseException:
            for each in lane:
                each.close()
            raise

    with ThreadPoolExecutor(len(lane)) as pool:
        return list(pool.map(run, lane))
