"""Which passes are captured, and for how long they are kept."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

import torch

from epe.errors import Gone
from epe.graphs.call import Tree
from epe.graphs.capture import CapturedPass, Pass, capture, lane_key
from epe.graphs.graph import GraphDevice
from epe.graphs.retries import Retries
from epe.messages import GraphCounts
from epe.telemetry.log import get_logger
from epe.transport.exchange import Exchange

log = get_logger("graphs")

# Shapes of calls that are remembered, with how they went.
MAX_KNOWN = 4096
# What CUDA says where another call on the device broke a capture off, and how often one is tried again then.
_DISTURBED = "StreamCaptureInvalidated"
MAX_DISTURBED = 3
# Graphs of one size of picture: prompts of other lengths, batches, lanes of other widths.
MAX_PASSES = 64


@dataclass(slots=True)
class Statistics:
    """Counts since the start; `num_bytes` is what the captured passes have now."""

    num_eager: int = 0
    num_replayed: int = 0
    num_captured: int = 0
    num_evicted: int = 0
    num_refused: int = 0
    num_bytes: int = 0

    @property
    def counts(self) -> GraphCounts:
        """As they are now."""
        return GraphCounts(**asdict(self))


class Memory(Protocol):
    """What a pass reads and writes beside its arguments: a graph does so always at the same place, and holds it."""

    @property
    def nbytes(self) -> int: ...


@dataclass(frozen=True, slots=True)
class _Kept:
    """A captured pass, with the memory that its graphs hold."""

    captured: CapturedPass
    memory: Memory | None


@dataclass(slots=True)
class _Size:
    """The passes that give latents of one size. They share a pool, since only one runs at a time."""

    pool: object
    passes: OrderedDict[Hashable, _Kept] = field(default_factory=OrderedDict)
    num_bytes: int = 0

    def bytes_of(self, memory: Memory | None) -> int:
        """Those that a pass with it would hold and no other holds yet."""
        if memory is None or any(kept.memory is memory for kept in self.passes.values()):
            return 0
        return memory.nbytes


@dataclass(frozen=True, slots=True)
class _Seen:
    """A call that ran as it is, and may be captured; `again` if it was not the first of its shape.

    What else its thread was set to is kept with it: captured with gradients, a pass would keep all that it computes.
    """

    work: Pass
    call: Tree
    exchange: Exchange
    memory: Memory | None
    again: bool
    infers: bool
    has_gradients: bool

    @contextmanager
    def as_it_ran(self) -> Iterator[None]:
        """The modes of torch that it ran in."""
        with torch.inference_mode(self.infers), torch.set_grad_enabled(self.has_gradients):
            yield


class Graphs:
    """Runs passes: the first of its shape as it is, which warms the device up, the second is captured, and from then on
    they are replayed, with the bits of the first. One that cannot be captured runs as it is, and the log says so once;
    one that had no memory is tried again later. With `in_gaps` no pass waits for a capture: who runs them says by
    `capture_seen` when there is time.

    Beyond `budget_bytes` the passes of the size that was used least recently are let go. For one thread.
    """

    def __init__(self, device: GraphDevice, *, budget_bytes: int) -> None:
        self.statistics = Statistics()
        self._device = device
        self.in_gaps = False
        self._seen: dict[Hashable, _Seen] = {}
        self.budget_bytes = budget_bytes
        self._sizes: OrderedDict[Hashable, _Size] = OrderedDict()
        # Of each shape of call the size that it gives; None if it is not captured.
        self._known: OrderedDict[Hashable, Hashable | None] = OrderedDict()
        # How often the capture of a shape was broken off from outside.
        self._disturbed: dict[Hashable, int] = {}
        self._retries = Retries()
        # Shapes that made all of their size go, having no room beside them, and have not fitted since.
        self._crowded: set[Hashable] = set()

    def run(
        self,
        work: Pass,
        exchange: Exchange,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        variant: Hashable = None,
        memory: Memory | None = None,
    ) -> Any:
        """What `work` gives for the arguments over the lane of `exchange`. Work that differs in more than these says so
        by its `variant`. A pass that was captured with one `memory` runs as it is with another."""
        call = Tree.of((args, kwargs))
        key = (call.key, lane_key(exchange), variant)
        if (size := self._retries.due(key)) is not None:
            self._learn(key, size)
        kept = self._find(key)
        if kept is None and not self.in_gaps and self._known.get(key) is not None:
            kept = self._capture(key, work, call, exchange, memory)
        if kept is not None and kept.memory is memory:
            self.statistics.num_replayed += 1
            return kept.captured.replay(call.tensors, exchange)
        self.statistics.num_eager += 1
        output = work(exchange, args, kwargs)
        again = key in self._known
        if not again:
            self._learn(key, tuple(tensor.shape for tensor in Tree.of(output).tensors))
        if self.in_gaps and kept is None and self._known[key] is not None:
            self._seen[key] = _Seen(
                work,
                call,
                exchange,
                memory,
                again=again,
                infers=torch.is_inference_mode_enabled(),
                has_gradients=torch.is_grad_enabled(),
            )
        return output

    @property
    def has_seen(self) -> bool:
        """Whether passes have run as they are since the last gap that may be captured, now or when they come again."""
        return bool(self._seen)

    def capture_seen(self, *, goes_on: bool) -> None:
        """Capture what has run as it is since the last gap, if its shape came again or is about to: its request
        `goes_on`. Whatever goes wrong is a reason not to."""
        while self._seen:
            key, seen = self._seen.popitem()
            if seen.again or goes_on:
                with seen.as_it_ran():
                    self._capture(key, seen.work, seen.call, seen.exchange, seen.memory)

    def clear(self) -> None:
        """Let all captured passes go, so that their memory serves others."""
        while self._sizes:
            self._evict()
        self._device.let_go()

    @property
    def memory_bytes(self) -> int:
        """What captured passes hold beside what their graphs keep: requests have used it, and others will."""
        held = {
            id(kept.memory): kept.memory.nbytes
            for shelf in self._sizes.values()
            for kept in shelf.passes.values()
            if kept.memory is not None
        }
        return sum(held.values())

    def _find(self, key: Hashable) -> _Kept | None:
        size = self._known.get(key)
        if size is None or size not in self._sizes:
            return None
        shelf = self._sizes[size]
        self._sizes.move_to_end(size)
        if key in shelf.passes:
            shelf.passes.move_to_end(key)
        return shelf.passes.get(key)

    def _capture(
        self, key: Hashable, work: Pass, call: Tree, exchange: Exchange, memory: Memory | None
    ) -> _Kept | None:
        size = self._known[key]
        shelf = self._sizes.get(size) or _Size(self._device.new_pool())
        before_bytes, begin_s = self._device.used_bytes(), time.perf_counter()
        try:
            exchange.check()
            captured = capture(work, call, exchange, device=self._device, pool=shelf.pool)
        except Gone:
            return None  # The lane was given up, before or meanwhile; its shape will come on another one.
        except Exception as error:  # The pass has run before: this is the capture's own, whatever it is.
            if not self._was_disturbed(key, error):
                self._refuse(key, str(error), again=isinstance(error, torch.OutOfMemoryError))
            return None
        self._disturbed.pop(key, None)
        num_bytes = max(0, self._device.used_bytes() - before_bytes) + shelf.bytes_of(memory)
        self._sizes[size] = shelf
        self._sizes.move_to_end(size)
        shelf.passes[key] = kept = _Kept(captured, memory)
        shelf.num_bytes += num_bytes
        self.statistics.num_captured += 1
        self.statistics.num_bytes += num_bytes
        log.info(
            "graph.captured", size=size, seconds=round(time.perf_counter() - begin_s, 3), bytes=num_bytes
        )
        return self._fitted(key, size, kept)

    def _fitted(self, key: Hashable, size: Hashable, kept: _Kept) -> _Kept | None:
        """Keep within the budget; None if `kept` could not be. Alone beyond it, it is refused. Others of its size go
        too, since they share a pool; all are captured anew, but one that makes them go twice in turn has to wait."""
        shelf = self._sizes[size]
        if len(shelf.passes) > MAX_PASSES:
            shelf.passes.popitem(last=False)
            self.statistics.num_evicted += 1
        while self.statistics.num_bytes > self.budget_bytes and len(self._sizes) > 1:
            self._evict()
        if self.statistics.num_bytes <= self.budget_bytes:
            self._retries.forget(key)
            self._crowded.discard(key)
            return kept
        used_bytes, num_others = shelf.num_bytes, len(shelf.passes) - 1
        self._evict()
        if num_others and key not in self._crowded:
            self._crowded.add(key)
            return None
        who = f"it and {num_others} of its size need" if num_others else "it needs"
        reason = f"{who} {used_bytes} bytes; graphs may have {self.budget_bytes}"
        self._refuse(key, reason, again=num_others > 0)
        return None

    def _evict(self) -> None:
        """Let the passes of one size go, those that were used least recently."""
        _, shelf = self._sizes.popitem(last=False)
        self.statistics.num_evicted += len(shelf.passes)
        self.statistics.num_bytes -= shelf.num_bytes
        shelf.passes.clear()
        self._device.let_go()

    def _refuse(self, key: Hashable, reason: str, *, again: bool) -> None:
        """Run it as it is from now on, or until it is tried `again`."""
        size = self._known[key]
        self.statistics.num_refused += 1
        if not again or key not in self._retries:  # Of one that is put off once more the log has it already.
            log.warning("graph.refused", size=size, reason=reason, falls_back="as it is, with equal bits")
        self._learn(key, None)
        if again:
            self._retries.put_off(key, size)
            self._device.let_go()
        else:
            self._retries.forget(key)

    def _was_disturbed(self, key: Hashable, error: Exception) -> bool:
        """Whether something else on the device broke the capture off: it is tried again when its shape comes."""
        times = self._disturbed.get(key, 0) + 1
        if _DISTURBED not in str(error) or times > MAX_DISTURBED:
            self._disturbed.pop(key, None)
            return False
        self._disturbed[key] = times
        log.info(
            "graph.was_disturbed", size=self._known[key], times=times, reason=str(error).partition("\n")[0]
        )
        return True

    def _learn(self, key: Hashable, size: Hashable | None) -> None:
        self._known[key] = size
        if len(self._known) > MAX_KNOWN:
            oldest, _ = self._known.popitem(last=False)
            self._disturbed.pop(oldest, None)
            self._retries.forget(oldest)
            self._crowded.discard(oldest)
