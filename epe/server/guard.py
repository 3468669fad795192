"""Who may come in: keys at every guarded route, and pages of other origins where they are listed."""

from __future__ import annotations

from collections.abc import Callable

from aiohttp import web
from aiohttp.typedefs import Handler

from epe.server.service import CLIENT, SERVICE

ORIGINS = web.AppKey("origins", frozenset[str])
# Paths of the table at which no key is asked for.
UNGUARDED = web.AppKey("unguarded", frozenset[str])
_ALLOWED_HEADERS = "Authorization, Content-Type, Idempotency-Key, traceparent, x-request-id"
_EXPOSED_HEADERS = "Retry-After, x-request-id, x-should-retry"


@web.middleware
async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Asks for keys, except at the paths that are open to everybody."""
    if is_preflight(request):
        return web.Response(status=204)
    resource = request.match_info.route.resource
    if resource is None or resource.canonical not in request.app[UNGUARDED]:
        request[CLIENT] = request.app[SERVICE].clients.recognise(request.headers.get("Authorization", ""))
    return await handler(request)


def is_preflight(http: web.Request) -> bool:
    """Whether a browser asks if a page of a listed origin may call; it sends no key with that."""
    return (
        http.method == "OPTIONS"
        and "Access-Control-Request-Method" in http.headers
        and allowed_origin(http) is not None
    )


def allowed_origin(http: web.Request) -> str | None:
    """The origin of a page that may call, as it is to be answered."""
    origin, origins = http.headers.get("Origin", ""), http.app[ORIGINS]
    if not origin:
        return None
    return origin if origin in origins else "*" if "*" in origins else None


def allow_origin(http: web.Request, set_header: Callable[[str, str], None]) -> None:
    """The headers that let a browser hand the answer to its page."""
    if (origin := allowed_origin(http)) is None:
        return
    set_header("Access-Control-Allow-Origin", origin)
    set_header("Vary", "Origin")
    set_header("Access-Control-Expose-Headers", _EXPOSED_HEADERS)
    if is_preflight(http):
        set_header("Access-Control-Allow-Methods", "GET, POST, DELETE")
        set_header("Access-Control-Allow-Headers", _ALLOWED_HEADERS)
        set_header("Access-Control-Max-Age", "600")
