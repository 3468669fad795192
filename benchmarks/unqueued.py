"""A policy for comparison: that of `static_cp`, but no lease waits in a rank's queue while another one runs."""

from __future__ import annotations

from epe.planning.static import StaticCp
from epe.planning.view import Assignment, View


class Unqueued:
    """The next lease is sent when the report of the last one is here, as engines do that plan every step."""

    def __init__(self) -> None:
        self._policy = StaticCp(widths=(4,), pulse_s=0.05, pulse_steps=1)

    def plan(self, view: View) -> tuple[Assignment, ...]:
        if any(rank.num_leases for rank in view.ranks):
            return ()
        return self._policy.plan(view)
