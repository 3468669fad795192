"""A policy as a user would write one."""

from __future__ import annotations

from epe.planning.view import Assignment, View


class Lazy:
    """Never plans anything."""

    def plan(self, view: View) -> tuple[Assignment, ...]:
        return ()
