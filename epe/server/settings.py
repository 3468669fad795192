"""What the server takes from a stage file."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping

from msgspec import Struct

from epe.config.api_keys import ApiKey, read_keys
from epe.config.stage import RequestLimits, Stage

_FAST = "numerics are fast here: pictures may differ in their last bits from those of exact numerics"


class HttpSettings(Struct, frozen=True, kw_only=True):
    """`advertised` is the address in the URLs of results (None: where the client has reached the service); `notes` are
    among the warnings of every answer."""

    limits: RequestLimits = RequestLimits()
    keys: Mapping[str, ApiKey] = {}
    origins: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    results_bytes: int = 256 * 2**20
    advertised: str | None = None
    notes: tuple[str, ...] = ()


def http_settings(stage: Stage, *, port: int) -> HttpSettings:
    """The settings of a stage that is served on `port`. Raises `BadSetting` for what is wrong in the file of keys."""
    service = stage.service
    return HttpSettings(
        limits=service.limits,
        keys=read_keys(service.keys_file),
        origins=service.cors_origins,
        aliases=service.model_aliases,
        results_bytes=service.results_mb * 2**20,
        advertised=_address(service.advertise_host, port=port),
        notes=(_FAST,) if stage.numerics == "fast" else (),
    )


def _address(host: str | None, *, port: int) -> str | None:
    if host is None:
        return None
    if "://" in host:
        return host.rstrip("/")
    has_port = ":" in host.rpartition("]")[2]
    return f"http://{host}" if has_port else f"http://{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether only programs of this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
