"""What follows the loss of a leader: another one and all ranks anew, after a pause, but not for ever."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from epe.launch.child import Child
from epe.launch.revivals import Revivals
from epe.launch.spec import ChildSpec
from epe.telemetry.trace_file import later_trace

# A leader that is lost more often than this, each time soon after it had begun to serve, has no successor.
MAX_IN_A_ROW = 5


class Succession:
    """The worlds of one parent, one after the other; `epoch` counts them. `specs` are those of the first one."""

    def __init__(self, specs: Sequence[ChildSpec], revivals: Revivals) -> None:
        self.epoch = 0
        self._specs = specs
        self._revivals = revivals

    @property
    def is_possible(self) -> bool:
        """Whether this parent has the leader and all of its ranks. Under a launcher others have some, and it is the
        launcher who starts all again."""
        first = next(iter(self._specs), None)
        return first is not None and first.role == "leader" and len(self._specs) == first.world_size + 1

    def pause_s(self, leader: Child) -> float | None:
        """How long to wait before the next world begins; None: there shall be none."""
        pause_s = self._revivals.pause_s(leader.name, lived_s=leader.served_s)
        return None if self.num_in_a_row(leader) > MAX_IN_A_ROW else pause_s

    def num_in_a_row(self, leader: Child) -> int:
        """How often a leader was lost since one served well."""
        return self._revivals.num_in_a_row(leader.name)

    def begin(self) -> tuple[ChildSpec, ...]:
        """The children of the next world."""
        self.epoch += 1
        return tuple(self._successor(spec) for spec in self._specs)

    def _successor(self, spec: ChildSpec) -> ChildSpec:
        # The times of a trace begin anew with its recorder, which needs a file of its own.
        trace_path = None if spec.trace_path is None else later_trace(spec.trace_path, self.epoch)
        return replace(spec, epoch=self.epoch, trace_path=trace_path)
