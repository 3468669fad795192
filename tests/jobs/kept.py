"""Jobs and stores for the tests: an engine that draws when it is told to, and clocks that are moved by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from epe.errors import EpeError
from epe.jobs.job import Job, ResultFile, finished
from epe.jobs.jobs import Jobs
from epe.jobs.open_job import Order
from epe.jobs.store import JobStore
from epe.messages import Accepted, Account, Again, OutputFormat, Progress, Request, Stage
from epe.transport.link import Parcel


def request(name: str, *, seed: int = 1, **fields: object) -> Request:
    return Request(
        id=name,
        prompt="a cube",
        height=64,
        width=64,
        num_steps=4,
        guidance_scale=5.0,
        seed=seed,
        output_format=OutputFormat.PNG,
        **fields,
    )


def order(name: str, *, num: int = 1, key: str | None = None, digest: str = "", **fields: object) -> Order:
    requests = tuple(request(f"{name}-{index}", **fields) for index in range(num))
    return Order(id=name, requests=requests, key=key, digest=digest)


def open_job(name: str, *, key: str | None = None, now_s: float = 0.0) -> Job:
    job = order(name, key=key).accepted(made_for="zimage", now_s=now_s)
    return Job(
        **{**{f: getattr(job, f) for f in job.__struct_fields__}, "accepted": (accepted(f"{name}-0"),)}
    )


def finished_job(name: str, *, num_bytes: int = 3, key: str | None = None, now_s: float = 1.0) -> Job:
    file = ResultFile(name=f"{name}-0", media_type="image/png", num_bytes=num_bytes)
    return finished(
        open_job(name, key=key), accounts=(Account(request_id=f"{name}-0"),), files=(file,), now_s=now_s
    )


def accepted(request_id: str) -> Accepted:
    return Accepted(request_id=request_id, predicted_s=1.0)


@dataclass
class Drawn:
    data: bytes
    account: Account
    media_type: str = "image/png"


@dataclass
class Drawing:
    """A request in the engine's hands."""

    engine: Engine
    request: Request
    again: Again | None
    watcher: object
    state: Parcel | None
    ending: asyncio.Future = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    @property
    def accepted(self) -> Accepted:
        return accepted(self.request.id)

    async def result(self) -> Drawn:
        return await asyncio.shield(self.ending)

    def cancel(self) -> None:
        self.engine.cancelled.append(self.request.id)

    def step(self, step: int) -> None:
        self.watcher(Progress(request_id=self.request.id, stage=Stage.DENOISE, step=step, num_steps=4))

    def finish(self) -> None:
        self.ending.set_result(Drawn(picture_of(self.request), Account(request_id=self.request.id)))


def picture_of(request: Request) -> bytes:
    """The same request gives the same bits."""
    return f"picture of {request.prompt} with seed {request.seed}".encode()


@dataclass
class Engine:
    """Takes every request unless there is a refusal, and finishes none before it is told to."""

    refusal: EpeError | None = None
    at_once: bool = False
    drawings: list[Drawing] = field(default_factory=list)
    cancelled: list[str] = field(default_factory=list)

    async def submit(
        self,
        request: Request,
        *,
        watcher: object = None,
        again: Again | None = None,
        state: Parcel | None = None,
    ) -> Drawing:
        await asyncio.sleep(0)
        if self.refusal is not None:
            raise self.refusal
        self.drawings.append(Drawing(self, request, again, watcher, state))
        if self.at_once:
            self.drawings[-1].finish()
        return self.drawings[-1]

    def draw_all(self) -> None:
        for drawing in self.drawings:
            if not drawing.ending.done():
                drawing.finish()


@dataclass
class Clock:
    now_s: float = 1000.0

    def __call__(self) -> float:
        return self.now_s


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """Wait for what a store or another task does."""
    async with asyncio.timeout(30):
        while not await holds():  # noqa: ASYNC110 (a store has no event)
            await asyncio.sleep(0.01)


async def open_jobs(store: JobStore, engine: Engine, *, made_for: str = "zimage", **more: object) -> Jobs:
    """A life of the service, in which requests are taken."""
    jobs = Jobs(store, engine=engine, made_for=made_for, **more)
    await jobs.open()
    jobs.resume()
    return jobs
