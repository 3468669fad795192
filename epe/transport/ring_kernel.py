"""`epe.transport.ring` as a kernel of a GPU; to be imported where there is Triton."""

from __future__ import annotations

from types import FunctionType
from typing import Any

import torch
import triton
import triton.language as tl

from epe.transport import ring
from epe.transport.ring import WORD_BYTES, Layout

NUM_WARPS = 16
# Copied by a block at once: each of its threads has four words of 16 bytes under way.
_TILE = tl.constexpr(NUM_WARPS * 32 * 4 * 2)
_BYTES_TILE = tl.constexpr(NUM_WARPS * 32)

# One thread of a block looks at a count in its own memory, and every 2048th time over the bus whether the host wants it
# to stop. Such reads of one word come one after the other, and what all blocks read must take far less than the looks
# before it: else a rank that has waited long is late by its own reading, the other waits as long for it and reads too,
# and so on. When all threads read it, some steps on two H200 took 2.6 ms more at each exchange.
_WAIT = tl.constexpr(
    """
    {
        .reg .pred p;
        .reg .u32 thread, stopped;
        .reg .s32 seen, left, looks;
        mov.u32 thread, %tid.x;
        setp.ne.u32 p, thread, 0;
        @p bra done;
        mov.s32 looks, 0;
    look:
        ld.acquire.sys.global.s32 seen, [$1];
        sub.s32 left, $2, seen;
        setp.le.s32 p, left, 0;
        @p bra done;
        add.s32 looks, looks, 1;
        and.b32 left, looks, 2047;
        setp.ne.s32 p, left, 0;
        @p bra look;
        ld.volatile.global.u32 stopped, [$3];
        setp.eq.u32 p, stopped, 0;
        @p bra look;
    done:
        mov.s32 $0, 0;
    }
    """
)


@triton.jit
def _address_at(place):  # type: ignore[no-untyped-def]
    return tl.load(place.to(tl.pointer_type(tl.int64)))


@triton.jit
def _count_at(place):  # type: ignore[no-untyped-def]
    return tl.load(place.to(tl.pointer_type(tl.int32)))


@triton.jit
def _wait(place, count, stop):  # type: ignore[no-untyped-def]
    tl.inline_asm_elementwise(_WAIT, "=r,l,r,l", [place, count, stop], dtype=tl.int32, is_pure=False, pack=1)
    # What the one has seen holds for all.
    tl.debug_barrier()


@triton.jit
def _copy_words(into, source, num_bytes):  # type: ignore[no-untyped-def]
    into = tl.multiple_of(into.to(tl.pointer_type(tl.int64)), 16)
    source = tl.multiple_of(source.to(tl.pointer_type(tl.int64)), 16)
    num_words = num_bytes // 16 * 2
    places = tl.arange(0, _TILE)
    num_tiled = num_words // _TILE * _TILE
    for start in range(0, num_tiled, _TILE):
        tl.store(into + start + places, tl.load(source + start + places, cache_modifier=".cg"))
    is_there = num_tiled + places < num_words
    words = tl.load(source + num_tiled + places, mask=is_there, cache_modifier=".cg")
    tl.store(into + num_tiled + places, words, mask=is_there)


@triton.jit
def _copy_bytes(into, source, num_bytes):  # type: ignore[no-untyped-def]
    into = into.to(tl.pointer_type(tl.int8))
    source = source.to(tl.pointer_type(tl.int8))
    for start in range(0, num_bytes, _BYTES_TILE):
        places = start + tl.arange(0, _BYTES_TILE)
        each = tl.load(source + places, mask=places < num_bytes, cache_modifier=".cg")
        tl.store(into + places, each, mask=places < num_bytes)


@triton.jit
def _signal(place, count):  # type: ignore[no-untyped-def]
    # All threads have copied; the one that signals does so for all of them.
    tl.debug_barrier()
    tl.atomic_xchg(place.to(tl.pointer_type(tl.int32)), count, sem="release", scope="sys")


@triton.jit
def _note(place, count):  # type: ignore[no-untyped-def]
    tl.store(place.to(tl.pointer_type(tl.int32)), count)


_CONSTANTS = (
    "RING",
    "FILLED",
    "FREED",
    "PUT",
    "TAKEN",
    "RECORD_BYTES",
    "SLOTS_THERE",
    "RECORDS_THERE",
    "SLOTS_HERE",
    "RECORDS_HERE",
    "STOP",
    "ROW_BYTES",
)


def _on_gpu(function: Any, copy: Any) -> Any:
    """A function of the protocol with a GPU's operations: the same code, in whose namespace they have the names of the
    CPU's."""
    operations = {
        "address_at": _address_at,
        "count_at": _count_at,
        "wait": _wait,
        "copy": copy,
        "signal": _signal,
        "note": _note,
    }
    numbers = {name: tl.constexpr(getattr(ring, name)) for name in _CONSTANTS}
    namespace = {"__name__": __name__, **operations, **numbers}
    return triton.jit(FunctionType(function.__code__, namespace, function.__name__))


_BY_WORDS = _on_gpu(ring.put, _copy_words), _on_gpu(ring.take, _copy_words)
_BY_BYTES = _on_gpu(ring.put, _copy_bytes), _on_gpu(ring.take, _copy_bytes)

_NUMBERS = (
    "table",
    "target",
    "origin",
    "source",
    "num_sent",
    "sent_piece",
    "into",
    "num_received",
    "received_piece",
    "slot_bytes",
)


# One kernel for all numbers: a graph that is being captured cannot wait for another one.
@triton.jit(do_not_specialize=_NUMBERS)  # type: ignore[untyped-decorator]
def _pass(  # type: ignore[no-untyped-def]
    table: tl.int64,
    target: tl.int64,
    origin: tl.int64,
    source: tl.int64,
    num_sent: tl.int64,
    sent_piece: tl.int64,
    into: tl.int64,
    num_received: tl.int64,
    received_piece: tl.int64,
    slot_bytes: tl.int64,
    PUT: tl.constexpr,
    TAKE: tl.constexpr,
):
    block = tl.program_id(0)
    if tl.program_id(1) == 0:
        PUT(table, target, source, num_sent, sent_piece, slot_bytes, block)
    else:
        TAKE(table, origin, into, num_received, received_piece, slot_bytes, block)


def launch(
    layout: Layout,
    table: torch.Tensor,
    target: int,
    origin: int,
    sent: torch.Tensor,
    received: torch.Tensor,
) -> None:
    """Pass `sent` to the position `target` of a lane's table, and take `received` from `origin`: bytes, of which either
    may have none. All of its programs are on the GPU at once, or they would wait for each other."""
    num_sent, num_received = sent.numel(), received.numel()
    sent_piece, received_piece = layout.piece_bytes(num_sent), layout.piece_bytes(num_received)
    num_blocks = max(-(-num_sent // sent_piece), -(-num_received // received_piece))
    source, into = sent.data_ptr(), received.data_ptr()
    in_words = not (source | into | num_sent | num_received) % WORD_BYTES
    put, take = _BY_WORDS if in_words else _BY_BYTES
    with torch.cuda.device_of(table):
        _pass[(num_blocks, 2)](
            table.data_ptr(),
            target,
            origin,
            source,
            num_sent,
            sent_piece,
            into,
            num_received,
            received_piece,
            layout.slot_bytes,
            PUT=put,
            TAKE=take,
            num_warps=NUM_WARPS,
        )
