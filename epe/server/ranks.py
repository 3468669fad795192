"""`/v1/ranks`: take a rank out of service and back, and restart all of them, while pictures are drawn."""

from __future__ import annotations

from typing import Literal

import msgspec
from aiohttp import web
from msgspec import Struct

from epe.errors import UnknownRank
from epe.messages import Action, RankStatus, RestartStatus, Status
from epe.server.body import Body, read_json
from epe.server.route import JSON
from epe.server.service import SERVICE


class RankOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall be done to one rank."""

    action: Action


class AllRanksOrder(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What shall be done to all ranks."""

    action: Literal["restart"]


class RankList(Struct, frozen=True, kw_only=True):
    """`restart` is None where the ranks are not being restarted."""

    data: tuple[RankStatus, ...]
    restart: RestartStatus | None
    object: str = "list"


async def list_ranks(http: web.Request) -> web.Response:
    """Raises `Gone` where nobody is left to ask."""
    return _listed(await http.app[SERVICE].engine.status())


async def operate_rank(http: web.Request) -> web.Response:
    """One rank; answered at once, a drained one says later when it is."""
    name = http.match_info["rank"]
    order = await _read_order(http, RankOrder)
    if not (name.isascii() and name.isdigit()):
        raise UnknownRank(f"rank {name[:20]!r} is no whole number", param="rank")
    status = await http.app[SERVICE].engine.operate(order.action, int(name[:20]))
    rank = next(each for each in status.ranks if each.rank == int(name))
    return web.Response(body=msgspec.json.encode(rank), content_type=JSON)


async def restart_ranks(http: web.Request) -> web.Response:
    """All ranks; answered as soon as the restart has begun."""
    await _read_order(http, AllRanksOrder)
    return _listed(await http.app[SERVICE].restart(), status_code=202)


async def _read_order(http: web.Request, body_type: type[Body]) -> Body:
    """A page of another origin can send a body without a type past the browser's questions; it must not do this."""
    if "Content-Type" not in http.headers:
        raise web.HTTPUnsupportedMediaType(text="the content-type is missing; send application/json")
    return await read_json(http, body_type)


def _listed(status: Status, *, status_code: int = 200) -> web.Response:
    body = msgspec.json.encode(RankList(data=status.ranks, restart=status.restart))
    return web.Response(status=status_code, body=body, content_type=JSON)
