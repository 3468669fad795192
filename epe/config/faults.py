"""Faults that strike on purpose, for tests: what, where, how often. Refused unless the environment consents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

from msgspec import Meta, Struct

from epe.errors import BadSetting

CONSENT = "EPE_FAULTS"

FaultKind = Literal["raise", "nan", "oom", "hang", "kill", "stop", "slow"]
# The file is made on the leader, in a thread among others: a rank's faults make no sense there.
FINISH_KINDS = ("raise", "slow")


class Fault(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One kind of fault. What is None holds for all: every stage of a rank, rank, step, prompt (else those that contain
    it) and life of a rank. It strikes at most `count` times in a life (None: always), each time with `probability`,
    drawn from `seed`; `seconds` is how long a slow one lasts. In the warm-up only if `warm_up` says so."""

    kind: FaultKind
    stage: Literal["encode", "denoise", "decode", "finish"] | None = None
    rank: Annotated[int, Meta(ge=0)] | None = None
    step: Annotated[int, Meta(ge=0)] | None = None
    prompt: str | None = None
    life: Annotated[int, Meta(ge=0)] | None = 0
    count: Annotated[int, Meta(ge=1)] | None = 1
    probability: Annotated[float, Meta(gt=0, le=1)] = 1.0
    seed: Annotated[int, Meta(ge=0)] = 0
    seconds: Annotated[float, Meta(gt=0)] = 1.0
    warm_up: bool = False


def check_consent(faults: object, env: Mapping[str, str]) -> None:
    """Raises `BadSetting` where a stage file asks for faults and the environment knows nothing of it."""
    if faults and env.get(CONSENT) != "1":
        raise BadSetting(
            f"these make requests fail and kill ranks on purpose, for tests; remove them, or set {CONSENT}=1 in the "
            "environment to have them",
            path="faults",
        )


def check_faults(faults: tuple[Fault, ...], *, world_size: int) -> None:
    """Raises `BadSetting` for a fault that could never strike."""
    for index, fault in enumerate(faults):
        path = f"faults[{index}]"
        if fault.rank is not None and fault.rank >= world_size:
            raise BadSetting(
                f"{fault.rank} is no rank of {world_size}, which count from 0", path=f"{path}.rank"
            )
        if fault.step is not None and fault.stage not in (None, "denoise"):
            raise BadSetting(f"only denoise has steps, and stage is {fault.stage}", path=f"{path}.step")
        if fault.stage == "finish":
            _check_finish(fault, path)


def _check_finish(fault: Fault, path: str) -> None:
    if fault.kind not in FINISH_KINDS:
        allowed = " or ".join(FINISH_KINDS)
        raise BadSetting(
            f"files are made on the leader, where only {allowed} strike, not {fault.kind}",
            path=f"{path}.kind",
        )
    for key in ("rank", "prompt"):
        if getattr(fault, key) is not None:
            raise BadSetting(
                "files are made on the leader, which knows no rank or prompt", path=f"{path}.{key}"
            )
