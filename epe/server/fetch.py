"""`GET /v1/results/{name}`: the file that a reply with `response_format: url` has named."""

from __future__ import annotations

from aiohttp import web

from epe.server.results import MAX_AGE_S
from epe.server.service import SERVICE


async def get_result(http: web.Request) -> web.Response:
    """`GET /v1/results/{name}`: the file that a reply with `response_format: url` has named."""
    found = http.app[SERVICE].results.get(http.match_info["name"])
    if found is None:
        text = f"there is no such result; results are kept for {MAX_AGE_S / 60:g} minutes at most"
        raise web.HTTPNotFound(text=text)
    file, media_type = found
    headers = {"Cache-Control": "private, immutable", "Content-Disposition": "inline"}
    return web.Response(body=file, content_type=media_type, headers=headers)


def url_of(name: str, http: web.Request) -> str:
    """The absolute address of a result, as this client can reach it."""
    advertised = http.app[SERVICE].advertised
    return f"{advertised or f'{http.scheme}://{http.host}'}/v1/results/{name}"
