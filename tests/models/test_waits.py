"""Whether a step waits for the device, found out on one that is not there: torch's `meta`, which has no values.

A copy between host and device makes the host wait until all earlier work is done, and so does a question for a value.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from benchmarks.random_pipeline import make_adapter
from epe.cache import CacheRules, resolve
from epe.errors import NonFinite
from epe.execution import run
from epe.execution.run import SoloLanes, run_lease
from epe.execution.states import States
from epe.families import FAMILIES
from epe.messages import Lane, MeanCache, Pab, Request, Split, Stage, Strategy, TeaCache
from epe.models import pixels
from epe.models.contract import Adapter, BatchAdapter, State
from epe.models.finite import check_finite
from epe.transport.exchange import Bytes, Exchange, GroupExchange, SoloExchange
from tests.cache.profiles import made_up
from tests.execution.counting import lease
from tests.models.every_family import Ranks, adapters_of, make_request
from tests.oracle import load_oracle

NOWHERE = torch.device("meta")
# An adapter, by the ranks that divide its guidance.
Emptied = Callable[[int], Adapter]
COPIES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Copies(TorchDispatchMode):
    """Collects the copies between the host and the device. Questions for a value fail by themselves."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        outputs = func(*args, **(kwargs or {}))
        if func in COPIES:
            leaves = tree_leaves((args, outputs))
            if len({leaf.device.type for leaf in leaves if isinstance(leaf, torch.Tensor)}) > 1:
                self._seen.append(f"{func} of {tuple(args[0].shape)}")
        return outputs


class Lists(TorchFunctionMode):
    """Collects what no copy shows: lists of numbers that are sent to the device, and systems of equations, of which the
    host asks whether they could be solved."""

    def __init__(self, seen: list[str]) -> None:
        super().__init__()
        self._seen = seen

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and torch.device(kwargs.get("device") or "cpu") == NOWHERE:
            self._seen.append(f"a list of {args[0]}")
        if func is torch.linalg.solve:
            self._seen.append("a solution that is checked")
        return func(*args, **kwargs)


@contextmanager
def waits() -> Iterator[list[str]]:
    seen: list[str] = []
    with Lists(seen), Copies(seen):
        yield seen


@pytest.mark.parametrize(
    "strategy", [None, MeanCache(fresh_steps=3), Pab()], ids=lambda each: type(each).__name__
)
def test_no_step_of_a_request_but_the_first_waits_for_the_device(
    checkpoint: Path, ranks: Ranks, on_no_device: Emptied, strategy: Strategy | None
) -> None:
    """With FlexCache each step asked the device for the noise levels, twice."""
    rules = CacheRules(profile=made_up(), attention=FAMILIES[checkpoint.name].attention)
    if isinstance(strategy, Pab) and not rules.attention:
        pytest.skip("this family has no attention that can be used again")
    reuse = resolve(strategy and replace(strategy, few_steps=True, warmup_steps=1), rules, num_steps=6)
    request = make_request(checkpoint, height=64, width=96, num_frames=1, num_steps=6, reuse=reuse)
    state, adapter = encoded(ranks, request), on_no_device(1)
    state = adapter.step(state, SoloExchange(), Split())
    with waits() as seen:
        for _ in range(4):
            state = adapter.step(state, SoloExchange(), Split())
    assert seen == []
    # All are asked at once whether they are finite.
    assert {tensor.device for tensor in state.tensors.values()} == {NOWHERE}


@pytest.fixture(scope="module")
def on_no_device(checkpoint: Path) -> Emptied:
    """Gives one whose transformer and VAE have no values, which no test changes."""

    @cache
    def load(cfg: int) -> Adapter:
        pipeline = load_oracle(checkpoint)
        pipeline.transformer.to(NOWHERE)
        pipeline.vae.to(NOWHERE)
        return make_adapter(checkpoint.name, pipeline, device=NOWHERE, mode="agkv", cfg=cfg)

    return load


class NoWires:
    """Nothing has to pass for what has no values."""

    closed = False

    def start(self, outgoing: Bytes, incoming: Bytes) -> Callable[[], None]:
        return lambda: None

    def close(self) -> None:
        pass


def lane_at(position: int) -> GroupExchange:
    """One of two ranks, whose other one is nowhere."""
    return GroupExchange(Lane(ranks=(0, 1)), position=position, wires=NoWires())


@pytest.mark.parametrize("split", [Split(cp=2), Split(cfg=2)], ids=["rows", "guidance"])
def test_no_step_of_a_lane_but_the_first_waits_for_the_device(
    checkpoint: Path, ranks: Ranks, on_no_device: Emptied, split: Split
) -> None:
    request = make_request(checkpoint, height=64, width=96, num_frames=1)
    if split.cfg > FAMILIES[checkpoint.name].num_conditions(request.guidance_scale):
        pytest.skip("this family has one guidance branch")
    state, adapter, exchange = encoded(ranks, request), on_no_device(split.cfg), lane_at(1)
    state = adapter.step(state, exchange, split)
    with waits() as seen:
        state = adapter.step(state, exchange, split)
    assert seen == []
    assert state.step == 2


def test_no_step_of_a_batch_but_the_first_waits_for_the_device(
    checkpoint: Path, ranks: Ranks, on_no_device: Emptied
) -> None:
    adapter = on_no_device(1)
    if not isinstance(adapter, BatchAdapter):
        pytest.skip("this family draws one request at a time")
    exchange = SoloExchange()
    asked = [make_request(checkpoint, id=name, height=64, width=96, num_frames=1) for name in "ab"]
    states = [encoded(ranks, request) for request in asked]
    states = adapter.step_together(states, exchange, Split())
    with waits() as seen:
        states = adapter.step_together(states, exchange, Split())
    assert seen == []
    assert [state.step for state in states] == [2, 2]


@pytest.mark.parametrize("exchange", [None, SoloExchange(), lane_at(0)], ids=["whole", "bands", "lane"])
def test_a_decode_waits_for_the_device_once_and_when_it_has_all_its_work(
    checkpoint: Path,
    ranks: Ranks,
    on_no_device: Emptied,
    exchange: Exchange | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It asks whether its pixels are finite, and nothing else. It asked before it made bytes of them."""
    asked: list[int] = []
    request = make_request(checkpoint, height=64, width=96, num_frames=1)
    state, adapter = encoded(ranks, request), on_no_device(1)
    with Work() as work, waits() as seen:
        monkeypatch.setattr(pixels, "require_finite", lambda *_, **__: asked.append(work.count))
        adapter.decode(state, exchange)
    assert seen == []
    assert asked == [work.count]


def test_a_lease_waits_for_the_device_at_its_end_alone(
    checkpoint: Path, ranks: Ranks, on_no_device: Emptied, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once to be told whether all is finite, then for the end, when nothing is left to wait for."""
    asked: list[int] = []
    request = make_request(checkpoint, height=64, width=96, num_frames=1)
    adapter, states = on_no_device(1), States()
    states.put(adapter.step(encoded(ranks, request), SoloExchange(), Split()))
    with Work() as work, waits() as seen:
        monkeypatch.setattr(run, "check_finite", lambda *_: asked.append(work.count))
        (done,) = run_lease(
            [replace(lease(2, Stage.DENOISE, first_step=1, num_steps=2, name=request.id), request=request)],
            adapter=adapter,
            lanes=SoloLanes(),
            states=states,
            synchronize=lambda: asked.append(work.count),
        )
    assert seen == []
    assert asked == [work.count, work.count]
    assert done.next_step == 3


class Work(TorchDispatchMode):
    """Counts what is given to the device."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def encoded(ranks: Ranks, request: Request) -> State:
    """Its state on the device that is not there."""
    state = ranks(1)[0].encode(request)
    tensors = {name: tensor.to(NOWHERE) for name, tensor in state.tensors.items()}
    return State(request=state.request, step=state.step, tensors=tensors, scalars=state.scalars)


class Questions(TorchDispatchMode):
    """Counts questions for a value, each of which waits."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


def test_teacache_asks_the_device_once_a_step_and_only_where_the_answer_decides(checkpoint: Path) -> None:
    """It asked three times: for the change, to send what follows from it, and to read that again."""
    strategy = TeaCache(threshold=1e6, coefficients=(1.0, 0.0), max_skip_steps=3)
    reuse = resolve(strategy, CacheRules(), num_steps=9)
    request = make_request(checkpoint, height=64, width=96, num_frames=1, num_steps=9, reuse=reuse)
    (adapter,) = adapters_of(checkpoint, 1)
    state, counts = adapter.encode(request), []
    for _ in range(request.num_steps):
        with Questions() as asked:
            state = adapter.step(state, SoloExchange(), Split())
        counts.append(asked.count)
    # The last step is computed in any case, and so is one after three that were not.
    assert counts[1:] == [1, 1, 1, 0, 1, 1, 1, 0]


def test_whether_all_is_finite_is_asked_once() -> None:
    """A lease asked for each tensor of each of its requests."""
    request = make_request(Path("zimage"))
    one = State(request=request, step=3, tensors={"a": torch.ones(2), "b": torch.ones(3)})
    bad = State(request=request, step=4, tensors={"a": torch.ones(2), "b": torch.tensor([1.0, torch.inf])})
    with Questions() as asked:
        check_finite(one, one)
    assert asked.count <= 1
    with pytest.raises(NonFinite, match=r"^non-finite values in b after denoise before step 4$"):
        check_finite(one, bad)


def test_what_would_wait_is_seen() -> None:
    with waits() as seen:
        tensor = torch.tensor([1.0], device=NOWHERE)
        tensor.copy_(torch.ones(1))
        torch.ones(3).to(NOWHERE)
    assert seen == ["a list of [1.0]", "aten.copy_.default of (1,)", "aten._to_copy.default of (3,)"]
    with pytest.raises(RuntimeError, match="meta"):
        bool(tensor > 0)
