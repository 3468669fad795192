"""How much faster FlexCache makes real models: random weights at the published sizes, one request of 50 steps alone on
the device, each setting beside steps without FlexCache. What such a model draws means nothing; nothing is said of it.

    python -m benchmarks.flexcache_speed --captured --seconds 150 --output SPEED.jsonl  # on CUDA, about eight minutes
    python -m benchmarks.flexcache_speed --tiny --device cpu --output SPEED.jsonl       # the same on small models

One JSON object a line, as it goes. Where a plan would follow from a fitted profile its steps are evenly spaced: which
ones are computed changes no time.
"""

from __future__ import annotations

import argparse
import gc
import json
import time
from collections.abc import Callable, Iterator
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any, TextIO

import torch
from msgspec.structs import replace

from benchmarks.flexcache_settings import evenly, pab_of
from benchmarks.random_pipeline import Factory, make_adapter
from benchmarks.real_sizes import MODELS
from epe.cache import CacheRules, published_profile, resolve
from epe.families import FAMILIES
from epe.graphs import CudaGraphs, Graphs
from epe.messages import FreeCache, MagCache, MeanCache, Request, Reuse, Split, Strategy, TaylorSeer, TeaCache
from epe.models.capturing import Capturable
from epe.models.contract import Adapter, State
from epe.models.reusing import kept_bytes, num_computed
from epe.transport.exchange import SoloExchange

NUM_STEPS, NUM_PLAIN = 50, 6
# Of PAB, captured and not: rounds of its window, in which all kinds of passes come twice; so the last are replayed.
NUM_CHECKED = 9
FAMILIES_MEASURED = ("flux1", "zimage", "qwen-image", "wan")
STRATEGIES = ("freecache", "magcache", "taylorseer", "meancache", "pab", "teacache")
FREE, MEAN, INTERVALS, CHANGES = (25, 10, 17, 31, 13), (17, 25, 10, 13), (3, 2, 4), (0.2, 0.4, 0.6)
# Of MagCache's published thresholds.
LOOSER = (1.0, 0.25, 4.0)


# Family, whether passes are captured, strategy, value.
Known = tuple[str, bool, str, float]


def settings(family: str) -> Iterator[tuple[str, float, Reuse]]:
    """(strategy, its value, plan) of the reference's table, one of each strategy first; last the others of TeaCache,
    with which random weights may compute every step."""
    first, *more = _teacache()
    every = [
        list(_freecache()),
        list(_published(family)),
        list(_taylorseer()),
        list(_meancache()),
        list(_pab(family)),
        [first],
    ]
    for row in zip_longest(*every):
        yield from filter(None, row)
    yield from more


def _freecache() -> Iterator[tuple[str, float, Reuse]]:
    for budget in FREE:
        computed = evenly(budget, NUM_STEPS).computed
        yield (
            "freecache",
            budget,
            Reuse(strategy=FreeCache(fresh_budget=budget), computed=computed, pulls=(0.5,) * budget),
        )


def _meancache() -> Iterator[tuple[str, float, Reuse]]:
    for fresh in MEAN:
        computed, orders = evenly(fresh, NUM_STEPS).computed, (3,) * NUM_STEPS
        yield (
            "meancache",
            fresh,
            Reuse(strategy=MeanCache(fresh_steps=fresh), computed=computed, orders=orders),
        )


def _taylorseer() -> Iterator[tuple[str, float, Reuse]]:
    for interval in INTERVALS:
        strategy = TaylorSeer(fresh_threshold=interval)
        yield "taylorseer", interval, _resolved(strategy, CacheRules())


def _pab(family: str) -> Iterator[tuple[str, float, Reuse]]:
    rules = CacheRules(attention=FAMILIES[family].attention)
    for interval in INTERVALS if rules.attention else ():
        yield "pab", interval, _resolved(pab_of(interval, NUM_STEPS), rules)


def _published(family: str) -> Iterator[tuple[str, float, Reuse]]:
    """MagCache with the table that is published for the model, if one is; and at a quarter of its threshold and four
    times it."""
    profile = published_profile(family)
    if profile is None or profile.mag is None:
        return
    for times in LOOSER:
        strategy = MagCache(threshold=times * profile.mag.threshold)
        reuse = _resolved(strategy, CacheRules(profile=profile))
        yield "magcache", len(reuse.computed), reuse


def _teacache() -> Iterator[tuple[str, float, Reuse]]:
    """With a polynomial that nobody has fitted: what is computed of random weights says nothing, what it takes does."""
    for threshold in CHANGES:
        strategy = TeaCache(threshold=threshold, coefficients=(4.0, 0.0))
        yield "teacache", threshold, _resolved(strategy, CacheRules())


def _resolved(strategy: Strategy, rules: CacheRules) -> Reuse:
    reuse = resolve(strategy, rules, num_steps=NUM_STEPS)
    assert reuse is not None
    return reuse


def measure(
    family: str,
    *,
    device: torch.device,
    tiny: bool,
    captured: bool,
    seconds: float,
    wanted: Callable[[Known], bool],
) -> Iterator[dict[str, Any]]:
    """Only what is `wanted`; stops to begin settings after so many seconds."""
    begin_s = time.perf_counter()
    factory = Factory(
        name=family, device=device, dtype=torch.float32 if device.type == "cpu" else torch.bfloat16, tiny=tiny
    )
    adapter = make_adapter(family, factory.pipeline(factory.weights()), device=device, mode="agkv")
    begun = adapter.encode(_request(family, tiny=tiny))
    made_s = time.perf_counter() - begin_s
    checks = wanted((family, captured, "pab", INTERVALS[0])) and bool(adapter.family.attention)
    if captured and isinstance(adapter, Capturable):
        expected = _passes_of_pab(adapter, begun, INTERVALS[0]) if checks else None
        adapter.use_graphs(Graphs(CudaGraphs(device), budget_bytes=16 * 2**30))
        if expected is not None:
            equal = torch.equal(_passes_of_pab(adapter, begun, INTERVALS[0]), expected)
            yield {"case": "bits", "family": family, "equal": equal}
    _steps(adapter, begun, reuse=None, count=3)
    plain = _steps(adapter, begun, reuse=None, count=NUM_PLAIN)
    step_s = median(plain)
    named = {"family": family, "captured": captured}
    yield {"case": "plain", **named, "step_s": step_s, "made_s": round(made_s, 1)}
    for strategy, value, reuse in settings(family):
        if not wanted((family, captured, strategy, value)):
            continue
        if time.perf_counter() - begin_s > seconds:
            yield {"case": "left out", **named, "strategy": strategy, "value": value}
            continue
        if strategy == "pab" and value != INTERVALS[0]:
            _passes_of_pab(adapter, begun, int(value))  # which captures them
        measured = _whole(adapter, begun, reuse)
        yield {"case": "setting", **named, "strategy": strategy, "value": value, **measured}
    yield {"case": "again", **named, "step_s": median(_steps(adapter, begun, reuse=None, count=NUM_PLAIN))}


def _whole(adapter: Adapter, begun: State, reuse: Reuse) -> dict[str, Any]:
    """A whole request: speed-up against as many plain steps, and a computed step against a plain one. Plain steps
    before and after it, since a device that has become warm is slower."""
    before = _steps(adapter, begun, reuse=None, count=2)
    state, laps, num_fresh = _again(begun, reuse), [], []
    most, clock = 0, time.perf_counter()
    for _ in range(NUM_STEPS):
        earlier, state = state, adapter.step(state, SoloExchange(), Split())
        clock, lap = _lap(state, clock)
        laps.append(lap)
        num_fresh.append(num_computed(earlier, state))
        most = max(most, kept_bytes(state))
    after = _steps(adapter, begun, reuse=None, count=2)
    plain_s = median([*before, *after])
    fresh = set(reuse.joints) or {step for step, count in enumerate(num_fresh) if count}
    computed = median(laps[step] for step in fresh)
    cheap = [lap for step, lap in enumerate(laps) if step not in fresh]
    return {
        "computed": sum(num_fresh),
        "speed_up": NUM_STEPS * plain_s / sum(laps),
        "plain_s": plain_s,
        "computed_step": computed / plain_s,
        "reused_step_s": median(cheap),
        "kept_bytes": most,
    }


def _passes_of_pab(adapter: Adapter, begun: State, interval: int) -> torch.Tensor:
    """The latents after steps with all passes that PAB makes at an interval, which do not depend on its warm-up."""
    strategy = replace(pab_of(interval, NUM_STEPS), warmup_steps=1)
    state = _again(begun, _resolved(strategy, CacheRules(attention=adapter.family.attention)))
    for _ in range(NUM_CHECKED):
        state = adapter.step(state, SoloExchange(), Split())
    return state.tensors["latents"]


def _steps(adapter: Adapter, state: State, *, reuse: Reuse | None, count: int) -> list[float]:
    state = _again(state, reuse)
    laps, clock = [], _lap(state, 0.0)[0]
    for _ in range(count):
        state = adapter.step(state, SoloExchange(), Split())
        clock, lap = _lap(state, clock)
        laps.append(lap)
    return laps


def _lap(state: State, before_s: float) -> tuple[float, float]:
    """Now, with the device's work done, and the seconds since."""
    if state.tensors["latents"].is_cuda:
        torch.cuda.synchronize()
    now_s = time.perf_counter()
    return now_s, now_s - before_s


def _again(state: State, reuse: Reuse | None) -> State:
    return State(request=replace(state.request, reuse=reuse), step=0, tensors=state.tensors)


def _request(family: str, *, tiny: bool) -> Request:
    model = MODELS[family]
    height, width, num_frames = (model.tiny_sizes if tiny else model.sizes)[0]
    return Request(
        id=family,
        prompt="a red cube on a white table, beside a blue ball",
        negative_prompt=" " if FAMILIES[family].negative_prompt else "",
        height=height,
        width=width,
        num_frames=num_frames,
        num_steps=NUM_STEPS,
        guidance_scale=model.guidance_scale,
        seed=11,
    )


def _measured(path: Path) -> Iterator[Known]:
    for text in path.read_text(encoding="utf-8").splitlines():
        line = json.loads(text)
        if line["case"] == "setting":
            yield line["family"], line["captured"], line["strategy"], line["value"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--families", nargs="+", default=list(FAMILIES_MEASURED))
    parser.add_argument("--strategies", nargs="+", choices=STRATEGIES, default=list(STRATEGIES))
    parser.add_argument(
        "--values", nargs="+", type=float, default=[], help="of the strategies, instead of all"
    )
    parser.add_argument("--output", type=Path, required=True, help="gets a line of each setting")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--captured", action="store_true", help="forward passes are captured and replayed")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="of each family; settings after that are left out"
    )
    parser.add_argument(
        "--after", type=Path, nargs="*", default=[], help="what these runs have measured is left out"
    )
    args = parser.parse_args()
    known = {each for path in args.after for each in _measured(path)}

    def wanted(each: Known) -> bool:
        _, _, strategy, value = each
        is_named = strategy in args.strategies and (not args.values or value in args.values)
        return is_named and each not in known

    device = torch.device(args.device)
    gpu = torch.cuda.get_device_name(0) if device.type == "cuda" else None
    about = {"gpu": gpu, "torch": torch.__version__, "tiny": args.tiny}
    with args.output.open("a", encoding="utf-8") as lines:
        _tell({"case": "machine", **about}, lines)
        for family in args.families:
            for line in measure(
                family,
                device=device,
                tiny=args.tiny,
                captured=args.captured,
                seconds=args.seconds,
                wanted=wanted,
            ):
                _tell(line, lines)
            gc.collect()
            if device.type == "cuda":
                torch.cuda.empty_cache()


def _tell(line: dict[str, Any], lines: TextIO) -> None:
    print(json.dumps(line), file=lines, flush=True)
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
