"""The requests that a policy sees, kept from event to event: a long queue costs nothing where nothing changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from epe.planning.view import TrajectoryView


class Backlog(Sequence[TrajectoryView]):
    """Mutable, owned by whoever keeps the books; a view that shows it holds until it changes. In the order in which
    the requests were first put.

    `by_id` finds one. `edition` grows with each change, and `since` says which requests changed after an edition, so
    that whoever keeps an order of his own mends it instead of sorting anew.
    """

    # Who looks less often than once in so many changes starts anew.
    MAX_CHANGES = 4096

    def __init__(self) -> None:
        self.by_id: dict[str, TrajectoryView] = {}
        self.edition = 0
        self._changes: list[str] = []
        self._all: tuple[TrajectoryView, ...] | None = ()

    def put(self, trajectory: TrajectoryView) -> None:
        """Take in a request, or what it is now."""
        self.by_id[trajectory.request_id] = trajectory
        self._changed(trajectory.request_id)

    def drop(self, request_id: str) -> None:
        """Forget a request, if it is known."""
        if self.by_id.pop(request_id, None) is not None:
            self._changed(request_id)

    def since(self, edition: int) -> Sequence[str] | None:
        """The requests that were put or dropped after an edition, in order, perhaps several times; None if that is
        too long ago to tell."""
        num_changes = self.edition - edition
        if num_changes > len(self._changes):
            return None
        return self._changes[len(self._changes) - num_changes :]

    def _changed(self, request_id: str) -> None:
        self.edition += 1
        self._all = None
        if len(self._changes) >= 2 * self.MAX_CHANGES:
            del self._changes[: self.MAX_CHANGES]
        self._changes.append(request_id)

    @property
    def _tuple(self) -> tuple[TrajectoryView, ...]:
        if self._all is None:
            self._all = tuple(self.by_id.values())
        return self._all

    def __len__(self) -> int:
        return len(self.by_id)

    def __iter__(self) -> Iterator[TrajectoryView]:
        return iter(self.by_id.values())

    @overload
    def __getitem__(self, place: int) -> TrajectoryView: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[TrajectoryView]: ...
    def __getitem__(self, place: int | slice) -> TrajectoryView | Sequence[TrajectoryView]:
        return self._tuple[place]
