"""Which steps a request computes, and what is refused before anything runs."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from epe.cache import (
    CacheRules,
    MagTable,
    Profile,
    Sizes,
    Unsupported,
    find_profile,
    published_profile,
    resolve,
    reused_kinds,
    supported,
    weights,
)
from epe.cache.freecache import choice_of, free_choice, gaps_of
from epe.cache.products import gains_at, products_at
from epe.cache.schedule import forced
from epe.messages import (
    FreeCache,
    MagCache,
    MeanCache,
    NoCache,
    Pab,
    Reuse,
    Strategy,
    TaylorSeer,
    TeaCache,
)
from tests.cache.profiles import made_up

FITTED = CacheRules(profile=made_up())
EVERY = (MagCache(), MeanCache(fresh_steps=10), TeaCache(), TaylorSeer(), FreeCache(fresh_budget=10))


def computed(strategy: Strategy, rules: CacheRules = FITTED, *, num_steps: int = 20) -> tuple[int, ...]:
    reuse = resolve(strategy, rules, num_steps=num_steps)
    assert reuse is not None
    return reuse.computed


@pytest.mark.parametrize("strategy", EVERY, ids=lambda each: type(each).__name__)
@pytest.mark.parametrize("num_steps", [9, 20, 50])
def test_first_and_last_steps_are_computed_unless_asked_otherwise(strategy: Strategy, num_steps: int) -> None:
    steps = computed(type(strategy)(**_small(strategy)), num_steps=num_steps)
    assert steps[0] == 0
    assert steps[-1] == num_steps - 1
    assert list(steps) == sorted(set(steps))


def _small(strategy: Strategy) -> dict[str, int]:
    names = {FreeCache: "fresh_budget", MeanCache: "fresh_steps"}
    return {names[type(strategy)]: 6} if type(strategy) in names else {}


@pytest.mark.parametrize("strategy", EVERY, ids=lambda each: type(each).__name__)
def test_a_request_of_few_steps_skips_nothing_by_default(strategy: Strategy) -> None:
    assert computed(strategy, num_steps=8) == tuple(range(8))


def test_few_steps_are_skipped_where_that_is_asked_for() -> None:
    assert len(computed(FreeCache(fresh_budget=4, few_steps=True), num_steps=8)) == 4


def test_a_warm_up_and_a_cool_down_are_computed() -> None:
    steps = computed(TaylorSeer(fresh_threshold=4, first_enhance=0, warmup_steps=5, cooldown_steps=3))
    assert {*range(5), 17, 18, 19} <= set(steps)
    assert len(steps) < 20


def test_the_last_step_is_skipped_when_that_is_asked_for() -> None:
    steps = computed(TaylorSeer(fresh_threshold=7, first_enhance=0, cooldown_steps=0))
    assert steps == (0, 7, 14)


@settings(max_examples=25, deadline=None)
@given(
    num_steps=st.integers(1, 40),
    known=st.integers(2, 30),
    warmup=st.integers(0, 3),
    cooldown=st.integers(0, 3),
    seed=st.integers(0, 9),
)
def test_freecache_has_a_plan_for_every_budget_and_a_larger_one_never_fits_worse(
    num_steps: int, known: int, warmup: int, cooldown: int, seed: int
) -> None:
    always = frozenset(forced(num_steps, warmup=warmup, cooldown=cooldown))
    profile = made_up(num_steps=known, seed=seed)
    choices = [free_choice(profile, num_steps, always, budget) for budget in range(1, num_steps + 1)]
    for budget, choice in enumerate(choices, start=1):
        assert always <= set(choice.computed)
        assert len(choice.computed) <= max(budget, len(always))
        assert len(choice.pulls) == len(choice.computed)
        assert choice.error <= choices[budget - 2].error or budget == 1
    assert choices[-1].error == 0


@settings(max_examples=25, deadline=None)
@given(chosen=st.sets(st.integers(1, 18), max_size=12), seed=st.integers(0, 3))
def test_no_other_steps_are_expected_to_do_better_than_those_of_freecache(
    chosen: set[int], seed: int
) -> None:
    steps = tuple(sorted({0, 19, *chosen}))
    best = free_choice(made_up(seed=seed), 20, frozenset({0, 19}), len(steps))
    other = choice_of(gaps_of(made_up(seed=seed), 20), steps)
    assert best.error <= other.error * (1 + 1e-9) + 1e-15


@settings(max_examples=25, deadline=None)
@given(chosen=st.sets(st.integers(1, 18), max_size=12), seed=st.integers(0, 3))
def test_the_error_of_a_plan_is_what_its_gaps_miss_by_what_of_it_is_left_at_the_end(
    chosen: set[int], seed: int
) -> None:
    """Worked out velocity by velocity; a pull is never worse than none."""
    profile = replace(made_up(seed=seed), gains=tuple(0.1 * step for step in range(21)))
    steps = tuple(sorted({0, *chosen}))
    choice = choice_of(gaps_of(profile, 20), steps)
    reuse = Reuse(strategy=FreeCache(), computed=steps, pulls=choice.pulls)
    assert choice.error == pytest.approx(missed(reuse, profile), rel=1e-3, abs=1e-9)
    assert choice.error <= missed(Reuse(strategy=MagCache(), computed=steps), profile) * (1 + 1e-9)


def missed(reuse: Reuse, profile: Profile) -> float:
    """The sum over gaps of the squared distances at which they arrive, by the gains of the steps after them."""
    gains, total = gains_at(profile, 20), 0.0
    for step, after in pairwise((*reuse.computed, 20)):
        rows = [strayed(reuse, profile, each) for each in range(step + 1, after)]
        row = np.sum([np.zeros(20), *rows], axis=0)
        total += gains[after] ** 2 * float(row @ products_at(profile, 20)[1] @ row)
    return total


def strayed(reuse: Reuse, profile: Profile, step: int) -> np.ndarray:
    """How far from where it should have led a step leads, as weights of velocities."""
    sigmas = products_at(profile, 20)[0]
    row = np.zeros(20)
    row[step] -= 1.0
    for source, weight in weights(reuse, sigmas, step).items():
        row[source] += weight
    return np.asarray(row * (sigmas[step + 1] - sigmas[step]))


def test_meancache_computes_as_many_steps_as_were_asked_for() -> None:
    for fresh in (2, 5, 13, 20):
        reuse = resolve(MeanCache(fresh_steps=fresh), FITTED, num_steps=20)
        assert reuse is not None
        assert len(reuse.computed) == fresh
        assert all(1 <= order <= 6 for order in reuse.orders)


def test_magcache_waits_for_its_retention_and_is_bounded_by_its_longest_skip() -> None:
    steps = computed(MagCache(threshold=99.0, max_skip_steps=3, retention_ratio=0.3))
    assert steps == (0, 1, 2, 3, 4, 5, 9, 13, 17, 19)


def test_magcache_computes_more_where_its_threshold_is_lower() -> None:
    counts = [len(computed(MagCache(threshold=value, max_skip_steps=9))) for value in (0.01, 0.05, 0.2, 1.0)]
    assert counts == sorted(counts, reverse=True)
    assert counts[0] > counts[-1]


def test_there_is_no_cliff_between_one_threshold_and_the_next() -> None:
    """The error grows with the threshold, within bounds and not at a leap. (For FreeCache it never falls: above.)"""
    profile, products = made_up(), products_at(made_up(), 20)[1]
    sweep = [computed(MagCache(threshold=0.02 * 1.2**power, max_skip_steps=4)) for power in range(20)]
    plans = [Reuse(strategy=MagCache(), computed=steps) for steps in sweep]
    rows = [np.stack([strayed(plan, profile, step) for step in range(20)]) for plan in plans]
    found = [float(np.einsum("ij,jk,ik->", each, products, each)) for each in rows]
    assert len(sweep[-1]) < len(sweep[0])
    assert max(found) < 0.02, "in parts of the way from noise to picture"
    assert all(later < 5 * earlier for earlier, later in pairwise(found))
    assert found[-1] > 5 * found[0]


def test_published_tables_are_read_and_named() -> None:
    for family, num_steps in (("flux1", 28), ("qwen-image", 50), ("wan", 50)):
        profile = published_profile(family)
        assert profile is not None
        assert profile.mag is not None
        assert len(profile.mag.ratios) == num_steps
        assert "github.com" in profile.source
        assert supported(CacheRules(profile=profile)) == ("magcache", "taylorseer")
        assert len(computed(MagCache(), CacheRules(profile=profile), num_steps=40)) < 40


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("wan", {"num_layers": 30, "num_attention_heads": 12}),
        ("flux1", {"num_layers": 19, "num_single_layers": 38, "guidance_embeds": True}),
        ("qwen-image", {"num_layers": 60, "num_attention_heads": 24}),
    ],
)
def test_a_published_table_is_not_taken_for_another_model_of_its_family(
    tmp_path: Path, family: str, settings: dict[str, int]
) -> None:
    """Wan 2.1 14B skipped by the ratios of 1.3B, and FLUX.1-schnell by those of dev."""
    others = [settings | {name: value - 1} for name, value in settings.items()]
    for place, found in enumerate([settings, *others]):
        (folder := tmp_path / str(place) / "transformer").mkdir(parents=True)
        (folder / "config.json").write_text(json.dumps({"patch_size": 2, **found}))
        expected = published_profile(family) if found == settings else None
        assert find_profile(folder.parent, family) == expected


def test_what_is_not_known_of_a_model_is_refused_and_what_is_supported_said() -> None:
    for strategy in (MagCache(), MeanCache(fresh_steps=10), TeaCache(), FreeCache(fresh_budget=10)):
        with pytest.raises(Unsupported, match="supported are taylorseer; `epe cache fit --strategy"):
            resolve(strategy, CacheRules(), num_steps=20)
    assert resolve(TaylorSeer(), CacheRules(), num_steps=20) is not None


@pytest.mark.parametrize("strategy", [*EVERY[:3], EVERY[4], Pab()], ids=lambda each: type(each).__name__)
def test_what_a_model_cannot_have_is_refused_for_few_steps_too(strategy: Strategy) -> None:
    """It was taken without a word, for of so few steps nothing is skipped."""
    with pytest.raises(Unsupported, match="is not supported with this"):
        resolve(strategy, CacheRules(), num_steps=4)
    assert resolve(None, CacheRules(default=strategy), num_steps=4) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("strategy", [FreeCache(warmup_steps=3), MeanCache(warmup_steps=3)])
@pytest.mark.parametrize(("num_steps", "expected"), [(4, 4), (9, 5), (20, 10), (50, 25)])
def test_without_a_budget_half_of_the_steps_are_computed(
    strategy: FreeCache | MeanCache, num_steps: int, expected: int
) -> None:
    """Of any number of steps: 25, which is half of 50, was refused for 20 steps."""
    strategy = replace(strategy, few_steps=True)
    assert len(computed(strategy, num_steps=num_steps)) == expected


@pytest.mark.parametrize(
    ("strategy", "message"),
    [
        (FreeCache(fresh_budget=21), "more than the 20 steps of the request; give 2 to 20"),
        (MeanCache(fresh_steps=1), "less than the 2 steps that are always computed"),
        (FreeCache(fresh_budget=4, warmup_steps=3, cooldown_steps=3), "lower warmup_steps"),
    ],
)
def test_a_budget_that_cannot_be_kept_is_refused(strategy: Strategy, message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        resolve(strategy, FITTED, num_steps=20)


def test_the_threshold_of_teacache_is_the_profiles_unless_it_or_a_polynomial_is_given() -> None:
    rules = CacheRules(profile=replace(made_up(), tea_threshold=0.03))
    for asked, expected in (
        (TeaCache(), 0.03),
        (TeaCache(threshold=0.5), 0.5),
        (TeaCache(coefficients=(2.0, 0.0)), 0.2),
    ):
        reuse = resolve(asked, rules, num_steps=20)
        assert reuse is not None
        assert isinstance(reuse.strategy, TeaCache)
        assert reuse.strategy.threshold == expected


def test_a_service_limits_what_requests_may_have() -> None:
    strict = CacheRules(profile=made_up(), allowed=("taylorseer",), least_computed=0.5, max_bytes=2**20)
    with pytest.raises(Unsupported, match="not allowed by this service; allowed are taylorseer"):
        resolve(MagCache(), strict, num_steps=20)
    with pytest.raises(Unsupported, match="computes at least 10"):
        resolve(TaylorSeer(fresh_threshold=4), strict, num_steps=20)
    undecided = replace(strict, allowed=("teacache",))
    with pytest.raises(Unsupported, match="might compute 5 of 20 steps; this service computes at least 10"):
        resolve(TeaCache(), undecided, num_steps=20)
    assert resolve(TeaCache(max_skip_steps=1), undecided, num_steps=20) is not None
    with pytest.raises(Unsupported, match=r"keep 2 MiB of this request; allowed are 1"):
        resolve(TaylorSeer(fresh_threshold=2), strict, num_steps=20, sizes=Sizes(record_bytes=2**20))
    assert (
        resolve(TaylorSeer(fresh_threshold=2), strict, num_steps=20, sizes=Sizes(record_bytes=2**19))
        is not None
    )


def test_a_default_is_for_who_asks_for_nothing_and_none_means_none() -> None:
    rules = CacheRules(profile=made_up(), default=FreeCache(fresh_budget=12))
    reuse = resolve(None, rules, num_steps=20)
    assert reuse is not None
    assert len(reuse.computed) == 12
    assert resolve(NoCache(), rules, num_steps=20) is None
    assert resolve(None, rules, num_steps=10) is None, "a default that does not fit is nobody's wish"
    assert resolve(None, CacheRules(), num_steps=20) is None


def test_attention_is_used_again_only_within_its_window() -> None:
    rules = CacheRules(attention=("self", "cross"))
    pab = Pab(self_interval=2, cross_interval=3, warmup_steps=4, cooldown_steps=5)
    reuse = resolve(pab, rules, num_steps=20)
    assert reuse is not None
    assert reuse.computed == tuple(range(20))
    kinds = [reused_kinds(pab, step, 20, kinds=reuse.kinds) for step in range(20)]
    assert all(not each for each in [*kinds[:5], *kinds[15:]])
    assert kinds[5] == {"self", "cross"}
    assert kinds[6] == {"cross"}
    assert kinds[7] == {"self"}
    assert reuse.joints == (0, 1, 2, 3, 4, 10, 15, 16, 17, 18, 19)
    assert reuse.end_of(4, 1, num_steps=20) == 10
    assert (reuse.num_lent(4, 10), reuse.num_lent(0, 20), reuse.num_lent(15, 20)) == (5, 9, 0)
    with pytest.raises(Unsupported, match="more than attention"):
        resolve(pab, CacheRules(), num_steps=20)


def test_by_default_pab_leaves_out_the_steps_that_decide_on_the_picture() -> None:
    """The reference reuses attention from the second step on, and its pictures fall apart."""
    rules = CacheRules(attention=("joint",))
    for num_steps, first in ((50, 8), (20, 3), (9, 1)):
        reuse = resolve(Pab(), rules, num_steps=num_steps)
        assert reuse is not None
        assert set(range(first + 1)) <= set(reuse.joints)
        assert first + 1 not in reuse.joints
    early = resolve(Pab(warmup_steps=0), rules, num_steps=50)
    assert early is not None
    assert early.joints[:3] == (0, 1, 3)


def test_steps_of_a_lease_are_counted_by_what_they_cost() -> None:
    reuse = Reuse(strategy=MagCache(), computed=(0, 1, 4, 7))
    assert reuse.num_computed(0, 10) == 4
    assert reuse.num_computed(2, 4) == 0
    assert reuse.end_of(0, 1, num_steps=10) == 1
    assert reuse.end_of(1, 1, num_steps=10) == 4
    assert reuse.end_of(1, 2, num_steps=10) == 7
    assert reuse.end_of(4, 9, num_steps=10) == 10


def test_a_profile_of_another_number_of_steps_is_one_between_its_steps() -> None:
    profile = made_up(num_steps=20)
    sigmas, products = products_at(profile, 40)
    assert sigmas[::2] == pytest.approx(profile.sigmas)
    assert products[::2, ::2] == pytest.approx(products_at(profile, 20)[1])


def test_profiles_that_are_none_are_refused_with_the_reason(tmp_path: Path) -> None:
    import msgspec

    from epe.cache import read_profile
    from epe.errors import BadSetting

    good: Profile = made_up()
    table = MagTable(ratios=(1.0,), threshold=0.1, max_skip_steps=3, retention_ratio=0.2)
    file = tmp_path / "flexcache.json"
    spoilt = {
        "family wan, not zimage": replace(good, family="wan"),
        "rows of gram": replace(good, gram=good.gram[1:]),
        "sigmas do not fall": replace(good, sigmas=tuple(reversed(good.sigmas))),
        "20 steps, and sigmas 20 levels": replace(good, sigmas=good.sigmas[1:]),
        "the velocity of step 0 no length": replace(good, gram=((0.0,), *good.gram[1:])),
        "length >= 1": replace(good, mag=replace(table, ratios=())),
        "<= 1.0": replace(good, mag=replace(table, retention_ratio=5.0)),
        r"<= 1000000000000.0 - at `\$.gains": replace(good, gains=(1e300,) * 21),
    }
    for reason, profile in spoilt.items():
        file.write_bytes(msgspec.json.encode(profile))
        with pytest.raises(BadSetting, match=reason if "family" not in reason else "a profile of family wan"):
            read_profile(file, "zimage")
    file.write_text("{")
    with pytest.raises(BadSetting, match="no profile of FlexCache"):
        read_profile(file, "zimage")
