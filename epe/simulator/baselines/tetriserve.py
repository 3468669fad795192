"""TetriServe (ASPLOS'26, arXiv 2510.01565, section 4): the narrowest widths in time, packed for most survivors.

In rounds, as the paper has it, and asked anew at every event, as GF-DiT's repository does it.
"""

from __future__ import annotations

from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from epe.messages import Stage
from epe.planning.draft import Draft
from epe.planning.view import Assignment, TrajectoryView, View
from epe.simulator.baselines.gfdit import widened
from epe.simulator.baselines.mix import Segment, cheapest_mix
from epe.simulator.baselines.serving import (
    assemble,
    begin_s,
    by_deadline,
    deadline_s,
    serve_other_stages,
)
from epe.simulator.baselines.settings import BaselineSettings


class Choice(NamedTuple):
    """What the knapsack decides on: if the request runs now at `width`, will it still be able to end in time
    (`survives`), and if it waits (`can_wait`)?"""

    trajectory: TrajectoryView
    width: int
    survives: bool
    can_wait: bool


def packed(choices: Iterable[Choice], capacity: int) -> list[Choice]:
    """The knapsack of the paper's algorithm 1. Each survivor counts one, so taking the narrowest of those that
    die by waiting is its exact solution; equal widths go in the order given."""
    chosen = []
    dying = [choice for choice in choices if choice.survives and not choice.can_wait]
    for choice in sorted(dying, key=lambda choice: choice.width):
        if choice.width <= capacity:
            chosen.append(choice)
            capacity -= choice.width
    return chosen


def filled(
    draft: Draft, order: list[TrajectoryView], choices: dict[str, Choice], capacity: int
) -> list[tuple[TrajectoryView, int]]:
    """Widths for the pool, most urgent first: the packed ones, then whoever is left in the order given, late ones
    on one rank, then what is left over widens."""
    widths = {choice.trajectory.request_id: choice.width for choice in packed(choices.values(), capacity)}
    capacity -= sum(widths.values())
    for trajectory in order:
        if capacity <= 0:
            break
        if trajectory.request_id in widths:
            continue
        width, narrow = choices[trajectory.request_id].width, draft.speeds.of(trajectory).ladder[0]
        width = width if width <= capacity else narrow
        if width <= capacity:
            widths[trajectory.request_id] = width
            capacity -= width
    layout = [(t, widths[t.request_id]) for t in order if t.request_id in widths]
    return widened(draft, layout, capacity)


class TetriServeRounds:
    """Steps run in rounds of `round_steps` median steps. Each request plans the mix of two widths that meets its
    deadline with the fewest rank-seconds and offers the segment of it that fits into the round.

    A round ends when its last lease ends, which is never later than the fixed length of the paper, and the next
    one begins at once. Encodes and decodes run on idle ranks at any time.
    """

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        order = by_deadline(draft, late_last=self.settings.late_last)
        serve_other_stages(draft, order)
        if draft.free and not any(_in_round(t) for t in order):
            self._begin(draft, [t for t in order if t.stage is Stage.DENOISE and draft.may_start(t)])
        return draft.plan

    def _begin(self, draft: Draft, order: list[TrajectoryView]) -> None:
        if not order:
            return
        round_s = self._round_s(draft, order)
        choices = {t.request_id: self._choice(draft, t, round_s) for t in order}
        for trajectory, width in filled(draft, order, choices, len(draft.free)):
            steps = max(1, fitting(round_s, draft.speeds.of(trajectory).step_s(width)))
            ranks = draft.nearest(trajectory, width, draft.free)
            draft.start(trajectory, ranks, num_steps=min(steps, trajectory.num_steps - trajectory.step))

    def _round_s(self, draft: Draft, order: list[TrajectoryView]) -> float:
        """At least one step of everybody fits."""
        steps = [speed.step_s(speed.fastest) for speed in (draft.speeds.of(t) for t in order)]
        return max(max(steps), self.settings.round_steps * median(steps))

    def _choice(self, draft: Draft, trajectory: TrajectoryView, round_s: float) -> Choice:
        """The narrowest planned segment with which the request survives the round; the first one if none does."""
        speed = draft.speeds.of(trajectory)
        now_s, steps = draft.view.now_s, trajectory.num_steps - trajectory.step
        mix = cheapest_mix(speed, steps, deadline_s(trajectory) - speed.decode_s - now_s)
        spare_s = deadline_s(trajectory) - speed.decode_s - now_s - round_s
        fastest_s = speed.step_s(speed.fastest)

        def survives(segment: Segment) -> bool:
            done = min(segment.num_steps, fitting(round_s, speed.step_s(segment.width)))
            return done > 0 and (steps - done) * fastest_s <= spare_s

        width = next((segment.width for segment in mix if survives(segment)), 0)
        return Choice(
            trajectory=trajectory,
            width=width or (mix[0].width if mix else speed.ladder[0]),
            survives=width > 0,
            can_wait=steps * fastest_s <= spare_s,
        )


class TetriServeContinuous:
    """Asked at every event, over the whole pool: running requests count with what they will have left. A request
    whose width is not free yet keeps the idle ranks until the leases of the others end (`hold`).

    Ranks that are busy for longer than any waiting step (a long decode) are not counted as part of the pool.
    """

    def __init__(self, settings: BaselineSettings) -> None:
        self.settings = settings

    def plan(self, view: View) -> tuple[Assignment, ...]:
        draft = self.settings.draft(view)
        if not draft.free:
            return ()
        order = by_deadline(draft, late_last=self.settings.late_last)
        serve_other_stages(draft, [t for t in order if t.stage is Stage.DECODE])
        active = [t for t in order if t.stage is not Stage.DECODE]
        if not active or not draft.free:
            return draft.plan
        choices = {t.request_id: self._choice(draft, t) for t in active}
        layout = filled(draft, active, choices, self._capacity(draft, active))
        assemble(draft, layout, hold=self.settings.hold)
        return draft.plan

    def _capacity(self, draft: Draft, active: list[TrajectoryView]) -> int:
        patience_s = max(draft.lease_s(t, draft.speeds.of(t).fastest) for t in active)
        running = {rank for t in active if t.num_leases for rank in t.lane}
        return sum(
            rank in running or until_s <= draft.view.now_s + patience_s
            for rank, until_s in draft.until_s.items()
        )

    def _choice(self, draft: Draft, trajectory: TrajectoryView) -> Choice:
        speed = draft.speeds.of(trajectory)
        left_s = deadline_s(trajectory) - begin_s(draft, trajectory)
        width = next((width for width in speed.ladder if speed.remaining_s(trajectory, width) <= left_s), 0)
        wait_s = draft.lease_s(trajectory, speed.fastest)
        return Choice(
            trajectory=trajectory,
            width=1 if trajectory.stage is Stage.ENCODE or not width else width,
            survives=width > 0,
            can_wait=wait_s + speed.best_s(trajectory) <= left_s,
        )


def fitting(round_s: float, step_s: float) -> int:
    """Steps that fit into a round; one that is too long only by rounding does."""
    return int(round_s / step_s + 1e-9)


def _in_round(trajectory: TrajectoryView) -> bool:
    """Whether a lease of denoising steps is running (a view shows what comes after it)."""
    steps_ran = trajectory.step > 0 or trajectory.stage is Stage.DECODE
    return trajectory.num_leases > 0 and steps_ran
