"""`GET /` and `GET /page/{name}`: one page to look at, whose files lie in `assets` and are read once.

What is asked is looked up by its name and never becomes a path. The page itself is no secret, so no key is asked for;
all that it shows comes from the guarded routes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from aiohttp import web

_START = "index.html"
_MEDIA_TYPES = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
PAGE_TYPES = (_MEDIA_TYPES["html"],)
ASSET_TYPES = tuple(_MEDIA_TYPES.values())
# Nothing of other origins, nothing inline; and no text becomes markup, even by mistake (`trusted-types`).
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' blob:",
        "media-src blob:",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Content-Security-Policy": POLICY,
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    # Asked again each time, and answered with 304: a new version of the service has a new page.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """One file of the page; `tag` is its entity tag."""

    data: bytes
    media_type: str
    tag: str


def _read_assets() -> Mapping[str, Asset]:
    files = (each for each in (resources.files("epe.server") / "assets").iterdir() if each.is_file())
    return {each.name: _asset(each.name, each.read_bytes()) for each in files}


def _asset(name: str, data: bytes) -> Asset:
    return Asset(data, _MEDIA_TYPES[name.rpartition(".")[2]], hashlib.sha256(data).hexdigest()[:32])


ASSETS = _read_assets()


async def get_page(http: web.Request) -> web.Response:
    """The page."""
    return _send(http, ASSETS[_START])


async def get_asset(http: web.Request) -> web.Response:
    """A file that the page is made of."""
    name = http.match_info["name"]
    if (asset := ASSETS.get(name)) is None:
        raise web.HTTPNotFound(text="the page has no such file; it begins at /")
    return _send(http, asset)


def _send(http: web.Request, asset: Asset) -> web.Response:
    known = {tag.value for tag in http.if_none_match or ()}
    if asset.tag in known:
        response = web.Response(status=304, headers=_HEADERS)
    else:
        response = web.Response(
            body=asset.data, content_type=asset.media_type, charset="utf-8", headers=_HEADERS
        )
    response.etag = asset.tag
    return response
