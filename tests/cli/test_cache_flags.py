from __future__ import annotations

from pathlib import Path

import pytest

from epe.cli.generate import build_options
from epe.errors import BadInput
from epe.messages import MagCache, TaylorSeer


def reuse_of(base: list[str], flags: str):
    return build_options([*base, *flags.split()], env={}).request.reuse


def test_without_the_flags_every_step_is_computed(base):
    assert reuse_of(base, "") is None
    assert reuse_of(base, "--cache-strategy none") is None


def test_each_strategys_own_flags_arrive(base):
    reuse = reuse_of(
        base,
        "--cache-strategy taylorseer --taylorseer-fresh-threshold 4 --taylorseer-max-order 2 "
        "--taylorseer-first-enhance 1 --cache-warmup-steps 2 --cache-cooldown-steps 3",
    )
    strategy = reuse.strategy
    assert isinstance(strategy, TaylorSeer)
    assert (strategy.fresh_threshold, strategy.max_order, strategy.first_enhance) == (4, 2, 1)
    assert reuse.computed[:2] == (0, 1)
    assert reuse.computed[-3:] == (47, 48, 49)


def test_few_steps_are_skipped_only_where_that_is_asked_for(base):
    flags = "--steps 6 --cache-strategy taylorseer --taylorseer-first-enhance 0"
    assert reuse_of(base, flags).computed == tuple(range(6))
    assert len(reuse_of(base, f"{flags} --cache-few-steps").computed) < 6


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        ("--cache-warmup-steps 3", "--cache-warmup-steps: it has no effect: no --cache-strategy is given"),
        ("--magcache-threshold 0.1", "--magcache-threshold: it has no effect: no --cache-strategy"),
        (
            "--cache-strategy taylorseer --meancache-fresh-steps 25",
            "--meancache-fresh-steps: it has no effect: --cache-strategy is taylorseer",
        ),
        ("--cache-strategy none --cache-cooldown-steps 2", "--cache-strategy is none"),
        ("--cache-strategy taylorseer --taylorseer-max-order 9", "--taylorseer-max-order: 9 is not allowed"),
        ("--cache-strategy teacache --teacache-coefficients 1,a", "'a' is not a number"),
        (
            "--cache-strategy teacache --teacache-coefficients nan",
            "--teacache-coefficients: .*nan.* is not allowed",
        ),
        ("--cache-strategy magcache", "--cache-strategy: magcache is not supported with this model"),
        ("--freecache-profile demo:5", "--freecache-profile: it has no effect: no --cache-strategy is given"),
        (
            "--cache-strategy none --freecache-profile demo:5",
            "--freecache-profile: it has no effect: --cache-strategy is none",
        ),
        ("--cache-strategy freecache --freecache-profile demo", "not of the form MODEL:N"),
        ("--cache-strategy freecache --freecache-profile demo:²", "'demo:²' is not of the form MODEL:N"),
        ("--steps 4 --cache-strategy freecache", "--cache-strategy: freecache is not supported with this"),
        ("--cache-strategy freecache --freecache-profile demo:17", "the profile of this checkpoint is none"),
    ],
)
def test_what_does_not_fit_together_is_refused_before_any_work(base, flags, message):
    with pytest.raises(BadInput, match=message.replace("(", "\\(")):
        reuse_of(base, flags)


def test_a_video_has_the_published_table_of_its_model(film):
    (folder := Path(film[3]) / "transformer").mkdir()
    (folder / "config.json").write_text('{"num_layers": 30, "num_attention_heads": 12}')
    reuse = reuse_of(film, "--steps 50 --cache-strategy magcache --magcache-max-skip-steps 2")
    assert isinstance(reuse.strategy, MagCache)
    assert (reuse.strategy.threshold, reuse.strategy.max_skip_steps) == (0.12, 2)
    assert len(reuse.computed) < 50
