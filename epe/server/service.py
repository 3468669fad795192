"""What every route knows: the engine, the names under which the model is served, and the limits."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from aiohttp import web

from epe.cache import NOTHING_KNOWN, CacheRules
from epe.errors import UnknownModel
from epe.families import Defaults, Family
from epe.jobs.jobs import Jobs
from epe.messages import Status
from epe.server.clients import Client, Clients
from epe.server.engine import Engine
from epe.server.results import Results
from epe.server.spans import Spans, TraceParent


@dataclass(frozen=True, slots=True)
class Service:
    """One served stage. `jobs` are the requests that outlive their connection, `defaults` those of all requests;
    `aliases` are further names of its model; `warn` says what the model cannot make of a prompt, or nothing; `notes`
    are told to every client. `cache_rules` are what requests may have of FlexCache; their plans are made in `planning`,
    one at a time. `restart` begins to restart all ranks. `advertised` is where clients reach the service (None: where
    they have)."""

    engine: Engine
    jobs: Jobs
    family: Family
    name: str
    aliases: tuple[str, ...]
    defaults: Defaults
    started_at_s: int
    clients: Clients
    results: Results
    spans: Spans
    advertised: str | None
    restart: Callable[[], Awaitable[Status]]
    warn: Callable[[str], str | None] = lambda prompt: None
    notes: tuple[str, ...] = ()
    cache_rules: CacheRules = NOTHING_KNOWN
    planning: Executor = field(default_factory=partial(ThreadPoolExecutor, 1, "planning"))

    @property
    def model_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((self.name, self.family.name, *self.aliases)))

    def check_model(self, model: str | None) -> None:
        """Raises `UnknownModel` for a name that is not served; None is whatever is served."""
        if model is not None and model not in self.model_names:
            names = ", ".join(self.model_names)
            raise UnknownModel(f"model {model[:64]!r} is not served here; served are {names}", param="model")


SERVICE = web.AppKey("service", Service)
# The name of one HTTP request: that of `x-request-id` where the client gave a good one.
REQUEST_ID = web.RequestKey("request_id", str)
CLIENT = web.RequestKey("client", Client)
# The span of the client that asks, where it has sent one.
TRACE_PARENT = web.RequestKey("trace_parent", TraceParent)
