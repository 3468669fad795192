"""Where the jobs of a stage are kept: in memory, or in a folder with their files and states."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from epe.config.demo import model_folder
from epe.config.stage import Stage
from epe.jobs.engine import Engine
from epe.jobs.jobs import Jobs
from epe.jobs.retention import Limits
from epe.jobs.sqlite import SqliteStore
from epe.jobs.states import States
from epe.jobs.store import JobStore, MemoryStore
from epe.runtime.state_files import StateFiles
from epe.runtime.weights import weights_digest


@dataclass(frozen=True, slots=True)
class Kept:
    """What an earlier life of the service has left. `weights` tells one set of weights from another."""

    stage: Stage
    store: JobStore
    states: States
    files: StateFiles | None = None
    weights: str = ""

    @classmethod
    async def open(cls, stage: Stage) -> Kept:
        """Raises `BadSetting` for a folder that cannot be used."""
        path = stage.service.jobs.path
        if path is None:
            return cls(stage, MemoryStore(), States())
        store = await SqliteStore.open(path)
        files = StateFiles(store.folder.states)
        weights = await asyncio.to_thread(weights_digest, model_folder(stage.factory_args.model_path))
        return cls(stage, store, States(files), files, weights)

    def jobs(self, engine: Engine) -> Jobs:
        """The jobs of the stage, drawn by this engine."""
        limits = self.stage.service.jobs
        return Jobs(
            self.store,
            engine=engine,
            made_for=_name_of(self.stage),
            limits=Limits(max_bytes=limits.max_mb * 2**20, max_age_s=limits.max_age_s),
            states=self.states,
        )

    def renewed(self, stage: Stage, weights: str, *, jobs: Jobs) -> None:
        """The ranks are restarted into this stage. With other weights nobody can tell of a state that comes from now on
        with which ones it was drawn: no later life may believe it."""
        jobs.made_for = _name_of(stage)
        if self.files is not None and weights != self.weights:
            self.files.drawn_by = "ranks whose weights were renewed meanwhile"

    def drawn_by(self, fingerprint: str) -> None:
        """All ranks are there: from now on states are of a world like this one."""
        if self.files is not None:
            self.files.drawn_by = f"{fingerprint}; weights {self.weights}"


def _name_of(stage: Stage) -> str:
    """The model that jobs are made for."""
    return f"{stage.factory} {stage.factory_args.model_path}"
