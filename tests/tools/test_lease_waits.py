"""What leases wait for: only the device's thread counts, and only within a lease."""

from __future__ import annotations

import warnings
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from benchmarks import lease_waits
from epe.execution.run import Work, run_lease
from epe.messages import Lease

MESSAGE = f"{lease_waits.SYNCHRONISING} (somewhere)"


async def test_waits_are_counted_by_stage_in_the_leases_of_the_third_picture(
    tiny_zimage: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def waiting(batch: Sequence[Lease], **others: Any) -> list[Work]:
        if batch[0].stage.value == "decode":
            warnings.warn(MESSAGE, stacklevel=1)
        warnings.warn("something else", stacklevel=1)
        return run_lease(batch, **others)

    monkeypatch.setattr(lease_waits, "run_lease", waiting)
    arguments = Namespace(checkpoint=tiny_zimage, family="zimage", sides=[64], device="cpu")
    line = await lease_waits.counted(arguments, numerics="exact", captured=True)
    assert (line["num_leases"]["encode"], line["num_leases"]["decode"]) == (1, 1)
    assert line["num_waits"] == 1
    (place,) = line["places"]
    assert place.startswith("decode: test_lease_waits.py:")


def test_waits_of_other_threads_do_not_count() -> None:
    waits = lease_waits.Waits()
    waits.note(MESSAGE, UserWarning, "a.py", 1)
    assert waits.places.total() == 0
