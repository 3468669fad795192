"""What strategies keep of a request, against what was measured on an H200 (docs/results/flexcache.md)."""

from __future__ import annotations

import pytest

from epe.cache import CacheRules, RowBytes, Sizes, resolve
from epe.messages import Pab, TaylorSeer

# FLUX.1: 57 modules on 4096 rows of a picture and 512 of its text, each of 3072 values of two bytes.
FLUX = CacheRules(
    attention=("joint",),
    attention_rows=(RowBytes(kind="joint", picture=57 * 6144, text=57 * 6144),),
)
# Wan 2.1 1.3B: 30 modules of each kind on 7800 rows, each of 1536 values of two bytes, in both branches.
WAN = CacheRules(
    attention=("self", "cross"),
    attention_rows=(RowBytes(kind="self", picture=30 * 3072), RowBytes(kind="cross", picture=30 * 3072)),
)


def kept(rules: CacheRules, pab: Pab, sizes: Sizes, *, num_steps: int = 20) -> int:
    reuse = resolve(pab, rules, num_steps=num_steps, sizes=sizes)
    assert reuse is not None
    return reuse.attention_bytes


def test_pab_keeps_what_was_measured() -> None:
    assert kept(FLUX, Pab(), Sizes(picture_rows=4096, text_rows=512)) == 1539 * 2**20


def test_kinds_that_are_computed_at_every_step_are_not_kept() -> None:
    sizes = Sizes(picture_rows=7800, text_rows=512, branches=2)
    one = 2 * 7800 * 30 * 3072
    assert kept(WAN, Pab(self_interval=2, cross_interval=3), sizes) == 2 * one
    assert kept(WAN, Pab(self_interval=1, cross_interval=3), sizes) == one
    assert kept(WAN, Pab(self_interval=1, cross_interval=1), sizes) == 0
    assert kept(WAN, Pab(warmup_steps=20), sizes) == 0


def test_other_strategies_keep_nothing_of_the_inside() -> None:
    reuse = resolve(TaylorSeer(), FLUX, num_steps=20, sizes=Sizes(picture_rows=4096, text_rows=512))
    assert reuse is not None
    assert reuse.attention_bytes == 0


@pytest.mark.parametrize("num_steps", [4, 8])
def test_few_steps_keep_nothing(num_steps: int) -> None:
    assert kept(FLUX, Pab(), Sizes(picture_rows=4096, text_rows=512), num_steps=num_steps) == 0
