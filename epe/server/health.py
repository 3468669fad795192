"""How the service fares and what it serves: always an answer, always JSON."""

from __future__ import annotations

import asyncio
from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.errors import EpeError
from epe.messages import CostsStatus, PolicyStatus, RankStatus, RestartStatus, Status
from epe.server.engine import Engine
from epe.server.service import SERVICE, Service

_ANSWER_WITHIN_S = 2.0


class Health(Struct, frozen=True, kw_only=True):
    """`status` is the phase of the service: loading, warming, running, draining or failed. `makes` is what its model
    draws, which says on which route it is asked for; `restart` says how far a restart of all ranks is."""

    status: str
    reason: str
    model: str
    makes: Literal["picture", "video"]
    ranks: tuple[RankStatus, ...]
    num_waiting: int
    num_running: int
    num_finished: int
    costs: CostsStatus | None
    policy: PolicyStatus | None
    restart: RestartStatus | None


class Alive(Struct, frozen=True, kw_only=True):
    status: str = "alive"


class Model(Struct, frozen=True, kw_only=True):
    id: str
    created: int
    object: str = "model"
    owned_by: str = "epe"


class ModelList(Struct, frozen=True, kw_only=True):
    data: tuple[Model, ...]
    object: str = "list"


async def get_livez(http: web.Request) -> web.Response:
    """The loop turns; nobody else is asked."""
    return _json(Alive())


async def get_health(http: web.Request) -> web.Response:
    """200 while requests are taken, else 503 with the phase and the reason."""
    service = http.app[SERVICE]
    status = await inspect(service.engine)
    health = Health(
        status=status.phase,
        reason=status.reason,
        model=service.name,
        makes=service.family.makes,
        ranks=status.ranks,
        num_waiting=status.num_waiting,
        num_running=status.num_running,
        num_finished=status.num_finished,
        costs=status.costs,
        policy=status.policy,
        restart=status.restart,
    )
    return _json(health, status=200 if status.phase == "running" else 503)


async def inspect(engine: Engine) -> Status:
    """The engine's status; an engine that does not answer has failed."""
    try:
        async with asyncio.timeout(_ANSWER_WITHIN_S):
            return await engine.status()
    except TimeoutError:
        reason = f"the planner has not answered for {_ANSWER_WITHIN_S:g} s"
    except EpeError as error:
        reason = str(error)
    return Status(phase="failed", ranks=(), num_waiting=0, num_running=0, num_finished=0, reason=reason)


async def list_models(http: web.Request) -> web.Response:
    service = http.app[SERVICE]
    return _json(ModelList(data=tuple(_model(service, name) for name in service.model_names)))


async def get_model(http: web.Request) -> web.Response:
    service = http.app[SERVICE]
    name = http.match_info["model"]
    service.check_model(name)
    return _json(_model(service, name))


def _model(service: Service, name: str) -> Model:
    return Model(id=name, created=service.started_at_s)


def _json(body: Struct, *, status: int = 200) -> web.Response:
    return web.Response(status=status, body=msgspec.json.encode(body), content_type="application/json")
