"""How bytes pass between two ranks whose memory each of them reaches: through slots at the receiver, which counters on
both sides say to be full or free.

`put` and `take` are the protocol itself, in integers and six operations on memory. A GPU runs the same code as a kernel
(`ring_kernel`), whose operations are its own; those here are for threads of one process on a CPU. A count never goes
back, so a late signal cannot be taken for another one, and whoever waits is let go by `stop`.
"""

from __future__ import annotations

import ctypes
import time

import msgspec

# Slots of a block, a power of two: a sender fills one while the receiver empties the other.
RING = 2
# Each count has a line of memory of its own, since others write beside it.
LINE_BYTES = 128
# Of a block, for one peer. It counts what the peer has put here, and what it has taken of what was put there;
FILLED, FREED = 0, LINE_BYTES
# and what this rank has put there and taken here.
PUT, TAKEN = 2 * LINE_BYTES, 3 * LINE_BYTES
RECORD_BYTES = 4 * LINE_BYTES
# Of a lane's table, one row a position: addresses of the slots and records for each other, and of `stop`.
SLOTS_THERE, RECORDS_THERE, SLOTS_HERE, RECORDS_HERE, STOP = range(0, 40, 8)
ROW_BYTES = 40
ROW_LENGTH = ROW_BYTES // 8
# What is copied at once begins at a multiple of so many bytes.
WORD_BYTES = 16
# Fewer bytes are not worth a block.
LEAST_BYTES = 4096

_LOOK_S = 20e-6


class Layout(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of the memory that each rank of a lane offers to the others: records, then slots, peer after peer. All ranks have
    the same."""

    width: int
    num_blocks: int
    slot_bytes: int

    @property
    def records_bytes(self) -> int:
        """Those for one peer."""
        return self.num_blocks * RECORD_BYTES

    @property
    def slots_bytes(self) -> int:
        """Those for one peer."""
        return self.num_blocks * RING * self.slot_bytes

    @property
    def num_bytes(self) -> int:
        return (self.width - 1) * (self.records_bytes + self.slots_bytes)

    def piece_bytes(self, num_bytes: int) -> int:
        """Which part of a message each block passes on, the last one what is left."""
        each = max(LEAST_BYTES, -(-num_bytes // self.num_blocks))
        return -(-each // LINE_BYTES) * LINE_BYTES

    def table(self, position: int, memory: list[int], *, stop: int) -> list[list[int]]:
        """The table of `position`, from where it sees the memory of all positions, and its `stop`."""
        rows = []
        for peer, there in enumerate(memory):
            if peer == position:
                rows.append([0] * ROW_LENGTH)
                continue
            mine, theirs = self._offsets(peer, of=position), self._offsets(position, of=peer)
            here = memory[position]
            rows.append([there + theirs[0], there + theirs[1], here + mine[0], here + mine[1], stop])
        return rows

    def _offsets(self, peer: int, *, of: int) -> tuple[int, int]:
        """Of the slots and the records for `peer` in the memory of another position."""
        number = peer if peer < of else peer - 1
        records = (self.width - 1) * self.records_bytes
        return records + number * self.slots_bytes, number * self.records_bytes


def put(table, target, source, num_bytes, piece_bytes, slot_bytes, block):  # type: ignore[no-untyped-def]
    """Pass the piece of a block, of a message at `source`, to position `target`: slot by slot, as many as it needs.

    It waits only for what was put two slots before to be taken. So ranks that make the same exchanges in the same
    order, each with puts and takes at once, cannot wait for each other in a circle.
    """
    row = table + target * ROW_BYTES
    record = address_at(row + RECORDS_HERE) + block * RECORD_BYTES
    their_record = address_at(row + RECORDS_THERE) + block * RECORD_BYTES
    slots = address_at(row + SLOTS_THERE) + block * RING * slot_bytes
    stop = address_at(row + STOP)
    first = block * piece_bytes
    num_left = min(piece_bytes, num_bytes - first)
    count = count_at(record + PUT)
    for start in range(0, num_left, slot_bytes):
        wait(record + FREED, count + 1 - RING, stop)
        slot = slots + (count & RING - 1) * slot_bytes
        copy(slot, source + first + start, min(slot_bytes, num_left - start))
        count += 1
        signal(their_record + FILLED, count)
    note(record + PUT, count)


def take(table, origin, into, num_bytes, piece_bytes, slot_bytes, block):  # type: ignore[no-untyped-def]
    """Take the piece of a block, of a message from position `origin`, to where it belongs `into`."""
    row = table + origin * ROW_BYTES
    record = address_at(row + RECORDS_HERE) + block * RECORD_BYTES
    their_record = address_at(row + RECORDS_THERE) + block * RECORD_BYTES
    slots = address_at(row + SLOTS_HERE) + block * RING * slot_bytes
    stop = address_at(row + STOP)
    first = block * piece_bytes
    num_left = min(piece_bytes, num_bytes - first)
    count = count_at(record + TAKEN)
    for start in range(0, num_left, slot_bytes):
        wait(record + FILLED, count + 1, stop)
        slot = slots + (count & RING - 1) * slot_bytes
        copy(into + first + start, slot, min(slot_bytes, num_left - start))
        count += 1
        signal(their_record + FREED, count)
    note(record + TAKEN, count)


def address_at(place: int) -> int:
    return ctypes.c_int64.from_address(place).value


def count_at(place: int) -> int:
    return ctypes.c_int32.from_address(place).value


def wait(place: int, count: int, stop: int) -> None:
    """Until the count at `place` has come to `count`, or `stop` is set. Counts have 32 bits, and go round."""
    while ctypes.c_int32(count - count_at(place)).value > 0 and not count_at(stop):
        time.sleep(_LOOK_S)


def copy(into: int, source: int, num_bytes: int) -> None:
    ctypes.memmove(into, source, num_bytes)


def signal(place: int, count: int) -> None:
    """Tell a peer, after all that was copied before."""
    note(place, count)


def note(place: int, count: int) -> None:
    ctypes.c_int32.from_address(place).value = count
