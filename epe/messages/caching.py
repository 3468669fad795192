"""FlexCache in words: which strategy a request asks for, and what was made of it when the request was taken."""

from __future__ import annotations

from bisect import bisect_left
from typing import Annotated, Literal

from msgspec import Meta, Struct

from epe.families import AttentionKind

# All are bounded above: a message can hold no integer of more than 64 bits, and what is not finite can be compared with
# nothing. No request has so many steps, and no published polynomial comes near.
Count = Annotated[int, Meta(ge=0, le=1_000_000)]
Positive = Annotated[int, Meta(ge=1, le=1_000_000)]
Above0 = Annotated[float, Meta(gt=0, le=1_000_000)]
Coefficient = Annotated[float, Meta(ge=-1e12, le=1e12)]
# A lease holds as many steps as the least common multiple of two of them, in which nothing can take its ranks.
Interval = Annotated[int, Meta(ge=1, le=4)]
Share = Annotated[float, Meta(ge=0, le=1)]
# With which the names of tensors begin that a state has because of FlexCache alone.
KEPT = "kept_"


class _Strategy(Struct, frozen=True, kw_only=True, tag_field="strategy", forbid_unknown_fields=True):
    """The first `warmup_steps` (None: one, of PAB a sixth) and the last `cooldown_steps` are always computed. Of a
    request of few steps nothing is skipped unless `few_steps` asks for it. Where nothing else is said, None is the
    profile's value."""

    warmup_steps: Count | None = None
    cooldown_steps: Count = 1
    few_steps: bool = False


class NoCache(
    Struct, frozen=True, kw_only=True, tag_field="strategy", tag="none", forbid_unknown_fields=True
):
    """Every step is computed, whatever the stage's default is."""


class MagCache(_Strategy, frozen=True, kw_only=True, tag="magcache", forbid_unknown_fields=True):
    """Holds the last velocity while the ratios of their lengths stay near 1 (Ma et al., 2025): at most `max_skip_steps`
    in a row, the sum of their errors up to `threshold`, none in the first `retention_ratio` of the steps."""

    threshold: Above0 | None = None
    max_skip_steps: Positive | None = None
    retention_ratio: Share | None = None


class MeanCache(_Strategy, frozen=True, kw_only=True, tag="meancache", forbid_unknown_fields=True):
    """Computes `fresh_steps` steps (None: half of them), chosen for the model; between them the mean velocity of a
    window leads on."""

    fresh_steps: Positive | None = None


class TeaCache(_Strategy, frozen=True, kw_only=True, tag="teacache", forbid_unknown_fields=True):
    """Holds the last velocity until the change of the model's input, by a polynomial of five `coefficients` (highest
    power first) that of its output, has summed up to `threshold` (Liu et al., 2025), at most `max_skip_steps` in a row.
    Decided step by step."""

    threshold: Above0 | None = None
    max_skip_steps: Positive = 5
    coefficients: Annotated[tuple[Coefficient, ...], Meta(min_length=1, max_length=5)] | None = None


class TaylorSeer(_Strategy, frozen=True, kw_only=True, tag="taylorseer", forbid_unknown_fields=True):
    """Computes the first `first_enhance` steps and then every `fresh_threshold`-th; between them a Taylor series of
    `max_order` in the number of steps leads on (Liu et al., 2025)."""

    fresh_threshold: Positive = 3
    max_order: Annotated[int, Meta(ge=0, le=4)] = 1
    first_enhance: Count = 3


class FreeCache(_Strategy, frozen=True, kw_only=True, tag="freecache", forbid_unknown_fields=True):
    """Computes at most `fresh_budget` steps (None: half of them), those whose absence the model's profile says to cost
    most."""

    fresh_budget: Positive | None = None


class Pab(_Strategy, frozen=True, kw_only=True, tag="pab", forbid_unknown_fields=True):
    """Pyramid attention broadcast (Zhao et al., 2024): of `self_interval` steps in a row, within the window between
    warm-up and cool-down, the first computes self-attention and the others use what it gave; `cross_interval` likewise
    where text is attended to alone, `joint_interval` where text and picture are attended to together."""

    self_interval: Interval = 2
    cross_interval: Interval = 3
    joint_interval: Interval = 2


Strategy = NoCache | MagCache | MeanCache | TeaCache | TaylorSeer | FreeCache | Pab
StrategyName = Literal["magcache", "meancache", "teacache", "taylorseer", "freecache", "pab"]
ActiveStrategy = MagCache | MeanCache | TeaCache | TaylorSeer | FreeCache | Pab


class Reuse(Struct, frozen=True, kw_only=True):
    """A strategy with all its values, and the steps that are `computed`, ascending; the velocities of the others are
    combinations of those before (`epe.cache.weights`).

    `orders` are MeanCache's windows by step. `pulls` are FreeCache's: how much of the difference of a computed velocity
    to the one before is added to it in the gap behind it. TeaCache knows only the steps that it computes in any case.
    PAB computes something of every step, and uses what lies within a lease: one may begin only at its `joints`, where
    attention of every kind is computed (none: at every step), `kinds` are those that the model has, and
    `attention_bytes` are the most that the ranks of a lane keep of them together (0: nobody knows).

    Before each step of `refreshed` what was kept was let go, as was cheaper than to move it: no velocity from before is
    used from there on.
    """

    strategy: ActiveStrategy
    computed: tuple[int, ...]
    orders: tuple[int, ...] = ()
    pulls: tuple[float, ...] = ()
    joints: tuple[int, ...] = ()
    kinds: tuple[AttentionKind, ...] = ()
    attention_bytes: int = 0
    refreshed: tuple[int, ...] = ()

    @property
    def is_static(self) -> bool:
        """Whether `computed` is the whole truth; if not, steps are decided on when they are reached."""
        return not isinstance(self.strategy, TeaCache)

    @property
    def is_drawn_alone(self) -> bool:
        """Whether others can never be sure to compute the same at each step, so that no batch can hold it."""
        return isinstance(self.strategy, TeaCache | Pab)

    @property
    def has_usual_steps(self) -> bool:
        """Whether a computed step takes what one without FlexCache takes."""
        return not isinstance(self.strategy, Pab)

    def computes(self, step: int) -> bool:
        """Whether a step is computed in any case."""
        place = bisect_left(self.computed, step)
        return place < len(self.computed) and self.computed[place] == step

    def first_used(self, step: int) -> int:
        """The first step whose velocity `step` may use."""
        place = bisect_left(self.refreshed, step + 1)
        return self.refreshed[place - 1] if place else 0

    def is_open(self, first_step: int, num_steps: int) -> bool:
        """Whether some step from `first_step` on is yet to be decided on."""
        num_certain = len(self.computed) - bisect_left(self.computed, first_step)
        return not self.is_static and num_certain < num_steps - first_step

    def may_end(self, step: int, num_steps: int) -> bool:
        """Whether a lease may end before `step`."""
        return not self.joints or step == num_steps or step in self.joints

    def end_of(self, first_step: int, num_computed: int, *, num_steps: int) -> int:
        """The step before which `num_computed` from `first_step` on are done, and those after them that are free."""
        if not self.is_static:
            return min(first_step + num_computed, num_steps)
        if self.joints:
            later = bisect_left(self.joints, first_step + num_computed)
            return self.joints[later] if later < len(self.joints) else num_steps
        later = bisect_left(self.computed, first_step) + num_computed
        return self.computed[later] if later < len(self.computed) else num_steps

    def num_lent(self, first_step: int, end_step: int) -> int:
        """Of the steps that cost what a step costs, those that take some attention from others."""
        if not self.joints:
            return 0
        return (
            end_step - first_step - bisect_left(self.joints, end_step) + bisect_left(self.joints, first_step)
        )

    def num_computed(self, first_step: int, end_step: int) -> int:
        """Steps from `first_step` to before `end_step` that cost what a step costs: at most, where it is not static."""
        if not self.is_static:
            return end_step - first_step
        return bisect_left(self.computed, end_step) - bisect_left(self.computed, first_step)
