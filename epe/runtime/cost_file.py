"""The file in which a service keeps its costs: written whole or not at all, and believed only where it fits."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path

import msgspec

from epe.files import write_whole
from epe.planning.cost_set import CostSet
from epe.telemetry.log import get_logger

log = get_logger("runtime")

AUTO = "auto"
# (`off` without quotes is false in YAML.)
NONE = "none"


class CostFile:
    """`setting` is `auto` (a file of its own for each fingerprint, in the user's cache folder) or a path."""

    def __init__(self, setting: str, *, name: str, env: Mapping[str, str] = os.environ) -> None:
        self.setting = setting
        self.name = name
        self.env = env

    def path(self, fingerprint: str) -> Path:
        """Where the costs of this fingerprint are kept."""
        if self.setting != AUTO:
            return Path(self.setting).expanduser()
        digest = hashlib.sha256(fingerprint.encode()).hexdigest()[:16]
        return cache_folder(self.env) / "costs" / f"{self.name}-{digest}.json"

    def read(self, fingerprint: str) -> CostSet | None:
        """What was kept under a fingerprint; None, and a line that says why, if it must be measured."""
        try:
            path = self.path(fingerprint)
            found = msgspec.json.decode(path.read_bytes(), type=CostSet)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError) as error:
            reason = f"{error}; the costs are measured again"
            log.warning("costs.unreadable", path=self._named(fingerprint), reason=reason)
            return None
        if found.fingerprint != fingerprint:
            reason = "they are of another model, device, library or division; the costs are measured again"
            log.warning(
                "costs.outdated", path=str(path), reason=reason, kept=found.fingerprint, now=fingerprint
            )
            return None
        log.info("costs.loaded", path=str(path), tasks=len(found.tasks), moves=len(found.moves))
        return found

    def write(self, costs: CostSet) -> None:
        """Keep them; a folder that cannot be written to is said and costs nothing else."""
        try:
            path = self.path(costs.fingerprint)
            write_whole(path, msgspec.json.format(msgspec.json.encode(costs)) + b"\n")
        except OSError as error:
            reason = f"{error}; the next start measures again"
            log.warning("costs.not_kept", path=self._named(costs.fingerprint), reason=reason)
        else:
            log.info("costs.kept", path=str(path), tasks=len(costs.tasks), moves=len(costs.moves))

    def _named(self, fingerprint: str) -> str:
        """The file, or the setting of a user who has no folder for it."""
        try:
            return str(self.path(fingerprint))
        except OSError:
            return self.setting


def cache_folder(env: Mapping[str, str]) -> Path:
    """The user's folder for what can be made again (XDG: a relative path there counts as none). Raises `OSError` for
    a user without a home."""
    given = Path(env.get("XDG_CACHE_HOME", ""))
    home = Path(os.path.expanduser("~"))  # pathlib's raises another error than one of files
    if not given.is_absolute() and not home.is_absolute():
        raise FileNotFoundError(
            "this user has no home folder; name a file in parallelism.scheduler.cost_file"
        )
    return (given if given.is_absolute() else home / ".cache") / "epe"
