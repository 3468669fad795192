"""The web application: routes, the border where errors become answers, and how it is put on a socket."""

from __future__ import annotations

import re
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from functools import partial
from uuid import uuid4

import msgspec
from aiohttp import hdrs, web
from aiohttp.typedefs import Handler

from epe.cache import NOTHING_KNOWN, CacheRules
from epe.errors import Conflict, EpeError, Gone, Refused
from epe.families import Defaults, Family
from epe.jobs.jobs import Jobs
from epe.jobs.store import MemoryStore
from epe.messages import Status
from epe.server.answers import answer, answer_crash, answer_http
from epe.server.clients import Clients
from epe.server.engine import Engine
from epe.server.events import EVENTS, Events
from epe.server.guard import ORIGINS, UNGUARDED, allow_origin, guard
from epe.server.health import inspect
from epe.server.lines import aiohttp_logger
from epe.server.metrics import METRICS, Metrics
from epe.server.openapi import DOCUMENT, describe_routes
from epe.server.results import Results
from epe.server.routes import ROUTES
from epe.server.service import REQUEST_ID, SERVICE, TRACE_PARENT, Service
from epe.server.settings import HttpSettings
from epe.server.spans import Spans, parse_traceparent, provider_from
from epe.telemetry.log import get_logger

# Connections that wait to be taken. aiohttp would make it 128, whatever the socket had before, and a burst of clients
# would be reset.
BACKLOG = 1024
# Probes ask these every few seconds, which no log needs to tell.
_OFTEN_ASKED = ("/livez", "/readyz", "/health", "/metrics")
_GIVEN_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")

_log = get_logger("server")


def make_app(
    engine: Engine,
    *,
    family: Family,
    name: str,
    jobs: Jobs | None = None,
    defaults: Defaults | None = None,
    settings: HttpSettings | None = None,
    warn: Callable[[str], str | None] = lambda prompt: None,
    cache_rules: CacheRules = NOTHING_KNOWN,
    restart: Callable[[], Awaitable[Status]] | None = None,
) -> web.Application:
    """The application that serves the stage `name` of `family`; `defaults` go before the family's. Without `jobs` it
    keeps its own, in memory; without `restart` its ranks are not restarted here."""
    settings = settings or HttpSettings()
    app = web.Application(client_max_size=settings.limits.body_kb * 2**10, middlewares=[_border, guard])
    if jobs is None:
        jobs = Jobs(MemoryStore(), engine=engine, made_for=name)
        app.cleanup_ctx.append(partial(_living, jobs))
    app[SERVICE] = Service(
        engine=engine,
        jobs=jobs,
        family=family,
        name=name,
        aliases=settings.aliases,
        defaults=defaults or family.defaults,
        started_at_s=int(time.time()),
        clients=Clients(settings.keys, limits=settings.limits),
        spans=Spans(provider_from()),
        results=Results(limit_bytes=settings.results_bytes),
        advertised=settings.advertised,
        warn=warn,
        notes=settings.notes,
        cache_rules=cache_rules,
        restart=restart or _never_restart,
    )
    _have_listeners(app, engine)
    _add_routes(app, origins=settings.origins)
    return app


def _have_listeners(app: web.Application, engine: Engine) -> None:
    """All that hears what goes on in the engine."""
    events, metrics = app[EVENTS], app[METRICS] = Events(), Metrics()
    engine.listen(events.hear)
    engine.listen(metrics.hear)
    engine.listen(app[SERVICE].spans.hear)
    app.on_shutdown.append(events.close)
    app.on_cleanup.append(app[SERVICE].spans.close)


def _add_routes(app: web.Application, *, origins: Iterable[str]) -> None:
    """The table of routes, the document that describes it, and who may come in where."""
    app[UNGUARDED] = frozenset(route.path for route in ROUTES if not route.guarded)
    app[ORIGINS] = frozenset(origins)
    app[DOCUMENT] = msgspec.json.encode(describe_routes(ROUTES, app[SERVICE]))
    app.on_response_prepare.append(_sign)
    for route in ROUTES:
        app.router.add_route(route.method, route.path, route.handler)


async def _never_restart() -> Status:
    raise Conflict("restart: nobody starts the ranks of this service again")


async def _living(jobs: Jobs, app: web.Application) -> AsyncIterator[None]:
    await jobs.open()
    yield
    await jobs.close(in_order=True)


async def serve(app: web.Application, sock: socket.socket, *, end_within_s: float = 5.0) -> web.AppRunner:
    """Answer on a socket that is already bound; `cleanup` of the result ends it.

    A client that leaves cancels the handler of its request, and so the request. At the end, handlers have
    `end_within_s` before they are cancelled.
    """
    runner = web.AppRunner(
        app,
        handler_cancellation=True,
        access_log=None,
        auto_decompress=False,  # it would inflate a body, or fail over it, before its size is looked at
        logger=aiohttp_logger(),
        shutdown_timeout=end_within_s,
    )
    await runner.setup()
    await web.SockSite(runner, sock, backlog=BACKLOG).start()
    return runner


@web.middleware
async def _border(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Names the request, and makes an answer of all that is raised, except that the client has left."""
    request[REQUEST_ID] = _request_id(request)
    if parent := parse_traceparent(request.headers.get("traceparent", "")):
        request[TRACE_PARENT] = parent
    start_s = time.monotonic()
    status = 0
    try:
        response = await _answered(request, handler)
        status = response.status
        return response
    finally:
        _report(request, status=status, seconds=time.monotonic() - start_s)


async def _answered(http: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(http)
    except EpeError as error:
        engine = http.app[SERVICE].engine
        phase = (await inspect(engine)).phase if isinstance(error, Refused) else "running"
        return answer(error, phase=phase)
    except TimeoutError:
        return answer(Gone("the planner has not answered in time; send the request again"))
    except web.HTTPException as error:
        return answer_http(error)
    except ConnectionError:
        raise
    except Exception:
        _log.exception("http.crashed", request_id=http[REQUEST_ID], path=http.path)
        return answer_crash(http[REQUEST_ID])


def _report(http: web.Request, *, status: int, seconds: float) -> None:
    """One line an answer, and one in the metrics; status 0 where the client had left before it."""
    resource = http.match_info.route.resource
    route = "" if resource is None else resource.canonical
    http.app[METRICS].answered(method=_known_method(http), route=route, status=status)
    log = _log.debug if http.path in _OFTEN_ASKED else _log.info
    parent = http.get(TRACE_PARENT)
    log(
        "http.answered" if status else "client.left",
        request_id=http[REQUEST_ID],
        method=http.method,
        path=http.path,
        status=status,
        seconds=round(seconds, 4),
        **({} if parent is None else {"trace_id": parent.trace_id}),
    )


def _known_method(http: web.Request) -> str:
    """Clients may send any word for one, and each would be a series of its own."""
    return http.method if http.method in hdrs.METH_ALL else "other"


async def _sign(http: web.Request, response: web.StreamResponse) -> None:
    response.headers["x-request-id"] = http.get(REQUEST_ID, "")
    response.headers["X-Content-Type-Options"] = "nosniff"
    allow_origin(http, response.headers.__setitem__)


def _request_id(http: web.Request) -> str:
    given = http.headers.get("x-request-id", "")
    return given if _GIVEN_ID.fullmatch(given) else f"req-{uuid4().hex[:16]}"
