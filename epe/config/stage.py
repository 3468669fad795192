"""The stage file's structs: each field is a key, all of them documented in `docs/stage-file.md`.

A `Stage` is complete: what the file leaves out has been filled in by `epe.config.load`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

from msgspec import Meta, Struct

from epe.cache import CacheRules, find_profile
from epe.config import demo
from epe.config.attention import attention_rows
from epe.config.faults import Fault
from epe.config.limits import MAX_TEXT_CHARS
from epe.families import Defaults, Family, family
from epe.messages import ActiveStrategy, StrategyName

Device = Literal["auto", "cpu", "cuda"]
Dtype = Literal["auto", "float32", "bfloat16", "float16"]
CpMethod = Literal["agkv", "ulysses", "auto"]
CpBackend = Literal["auto", "nccl", "fast"]
VideoCodec = Literal["auto", "av1", "vp9", "h264"]
Milliseconds = Annotated[int, Meta(ge=0)]
Positive = Annotated[int, Meta(ge=1)]
# In 2**20 bytes; 2**60 bytes are more than a machine has, and as bytes a message still holds them.
Mebibytes = Annotated[int, Meta(ge=0, le=2**40)]
SomeMebibytes = Annotated[int, Meta(ge=1, le=2**40)]

# What `Stage` holds beside the keys of the file.
DERIVED_FIELDS = ("unused",)


class Cp(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The ranks that guidance and sequence parallelism share, and how they exchange tensors."""

    world_size: Positive
    attention_mode: CpMethod = "agkv"
    ulysses_degree: Positive | None = None
    ulysses_transport: CpBackend = "auto"
    agkv_transport: CpBackend = "auto"

    @property
    def transport(self) -> CpBackend:
        """That of the method in use; of several they have the same."""
        return self.ulysses_transport if self.attention_mode == "ulysses" else self.agkv_transport


class Vae(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How pictures are decoded: if `enabled`, in bands over the rows of a lane of `degree` ranks (None: as many as
    the policy says)."""

    enabled: bool
    degree: Positive | None = None
    halo: Annotated[int, Meta(ge=0)] = 8


class Scheduler(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the planner goes by. `warmup_resolutions` are (height, width) in pixels, and the frames of a video where
    they are not those of `factory_args`."""

    policy: str = "elastic"
    allowed_lane_widths: Annotated[tuple[Positive, ...], Meta(min_length=1)]
    switch_allowed_until_step: Annotated[int, Meta(ge=0)] | None = None
    pulse_steps: Positive = 1
    pulse_ms: Positive = 50
    balanced_k: bool = True
    starvation_ms: Milliseconds = 30000
    default_deadline_ms: Positive | None = None
    deadline_guard_ms: Milliseconds = 3000
    min_resize_gain_ms: Milliseconds = 0
    resize_hysteresis_ms: Milliseconds = 0
    resize_control_cost_ms: Milliseconds = 0
    max_inflight_requests: Positive = 64
    max_pending_requests: Positive = 256
    max_batch: Annotated[int, Meta(ge=1, le=64)] = 1
    admission: Literal["accept", "refuse"] = "accept"
    warmup_resolutions: tuple[Annotated[tuple[Positive, ...], Meta(min_length=2, max_length=3)], ...]
    warmup_steps: Annotated[int, Meta(ge=3)] = 5
    online_calibration: bool = True
    cost_file: Annotated[str, Meta(min_length=1)] = "auto"
    rank_memory_mib: SomeMebibytes | None = None


class Model(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The family's own parallel axes, fixed while the service lives."""

    cfg_parallel_degree: Literal[1, 2] = 1
    tensor_parallel_degree: Positive = 1
    expert_parallel_degree: Positive | None = None


class Parallelism(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who works together, and how that is decided."""

    cp: Cp
    vae: Vae
    scheduler: Scheduler
    model: Model


class Capture(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whether a GPU's forward passes are captured, and the memory (2**20 bytes) that those of a rank may keep (None: a
    tenth of the GPU's)."""

    enabled: bool = True
    memory_mib: SomeMebibytes | None = None


class Prompts(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The memory (2**20 bytes) in which a rank keeps encoded prompts for requests with the same words; 0: none."""

    memory_mib: Mebibytes = 128


class FactoryArgs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The checkpoint, and a request's values where the client gives none."""

    model_path: str
    num_steps: Positive = 20
    sample_solver: Literal["flowmatch_euler"] = "flowmatch_euler"
    default_width: Positive
    default_height: Positive
    num_frames: Positive
    guidance_scale: Annotated[float, Meta(ge=0)]


class Jobs(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where jobs are kept (None: in memory alone), and for how long after their end: for at most `max_age_s`, and the
    newest `max_mb` (2**20 bytes) of them."""

    path: Annotated[str, Meta(min_length=1)] | None = None
    max_mb: SomeMebibytes = 1024
    max_age_s: Annotated[float, Meta(gt=0)] = 86400.0


class RequestLimits(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one HTTP request may ask for. `body_kb` are 2**10 bytes; `megapixel_steps` bounds pixels x frames x steps of
    all its pictures, in millions; `at_once` the pictures that one client has in work or in the queue."""

    body_kb: Annotated[int, Meta(ge=1, le=2**40)] = 1024
    prompt_chars: Annotated[int, Meta(ge=1, le=MAX_TEXT_CHARS)] = MAX_TEXT_CHARS
    megapixel_steps: Positive | None = None
    at_once: Positive | None = None


class Service(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where HTTP is served and how the service ends. Port 0 takes a free port. The leader keeps at most `checkpoint_mb`
    (2**20 bytes) of the states of requests, and `results_mb` of the files that clients fetch by URL; 0: none. The
    service must take requests within `start_s`; a lease that is
    `hang_s` late, beyond ten times its expected time, hangs."""

    host: Annotated[str, Meta(min_length=1)] = "127.0.0.1"
    port: Annotated[int, Meta(ge=0, le=65535)] = 18200
    advertise_host: str | None = None
    drain_s: Annotated[float, Meta(ge=0)] = 60.0
    checkpoint_mb: Mebibytes = 1024
    jobs: Jobs = Jobs()
    results_mb: Mebibytes = 256
    model_aliases: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    keys_file: Annotated[str, Meta(min_length=1)] | None = None
    cors_origins: tuple[Annotated[str, Meta(min_length=1)], ...] = ()
    limits: RequestLimits = RequestLimits()
    start_s: Annotated[float, Meta(gt=0)] = 1800.0
    hang_s: Annotated[float, Meta(gt=0)] = 60.0


class Cache(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """FlexCache: the strategy of requests that name none, those that they may name, the least part of the steps that is
    computed in any case, and the most that is kept of one request (2**20 bytes). On a move that is exported, or, where
    to compute one more step is `cheaper`, let go, which changes the picture."""

    default: ActiveStrategy | None = None
    allowed: tuple[StrategyName, ...] = ("magcache", "meancache", "teacache", "taylorseer", "freecache")
    least_computed: Annotated[float, Meta(ge=0, le=1)] = 0.0
    memory_mib: Mebibytes = 256
    on_move: Literal["export", "cheaper"] = "export"


class Stage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One service: a world of ranks with one model. `unused` names the given keys without effect, and why."""

    name: Annotated[str, Meta(min_length=1)]
    process: Annotated[str, Meta(min_length=1)]
    factory: str
    gpu: Annotated[tuple[Annotated[int, Meta(ge=0)], ...], Meta(min_length=1)]
    device: Device = "auto"
    dtype: Dtype = "auto"
    numerics: Literal["exact", "fast"] = "exact"
    terminal: bool = True
    output_root: str = "outputs"
    record_timeline: bool = False
    postprocess_workers: Positive = 4
    video_codec: VideoCodec = "auto"
    parallelism: Parallelism
    factory_args: FactoryArgs
    service: Service
    cache: Cache = Cache()
    capture: Capture = Capture()
    prompts: Prompts = Prompts()
    faults: tuple[Fault, ...] = ()
    unused: tuple[str, ...] = ()

    @property
    def family(self) -> Family:
        """The model family that the factory names."""
        return family(self.factory)

    @property
    def world_size(self) -> int:
        """Ranks of this stage."""
        return len(self.gpu)

    @property
    def warmup_sizes(self) -> tuple[tuple[int, int, int], ...]:
        """(height, width, frames) of all that is measured at the start."""
        return tuple(map(self.size_of, self.parallelism.scheduler.warmup_resolutions))

    def size_of(self, given: Sequence[int]) -> tuple[int, int, int]:
        """(height, width, frames) of [height, width], with the frames behind where they are not `num_frames`."""
        height, width, num_frames = (*given, self.factory_args.num_frames)[:3]
        return height, width, num_frames

    @property
    def decode_widths(self) -> tuple[int, ...]:
        """The widths of lanes that may decode. Where that is one rank alone it decodes whole, as diffusers does; else
        all decode in bands, one rank too, so that a picture does not depend on who decoded it."""
        parallelism = self.parallelism
        if not parallelism.vae.enabled or parallelism.scheduler.policy == "static_dp":
            return (1,)
        degree = parallelism.vae.degree
        return parallelism.scheduler.allowed_lane_widths if degree is None else (degree,)

    @property
    def decodes_in_bands(self) -> bool:
        """Whether several ranks may decode a picture together."""
        return self.decode_widths != (1,)

    @property
    def num_planes(self) -> int:
        """Planes of tensor parallelism, each `parallelism.cp.world_size` ranks wide: rank r is in plane
        r // world_size."""
        return self.parallelism.model.tensor_parallel_degree

    @property
    def cache_rules(self) -> CacheRules:
        """What requests may have of FlexCache. Raises `BadSetting` for a profile that cannot be read."""
        return CacheRules(
            profile=find_profile(demo.model_folder(self.factory_args.model_path), self.factory),
            default=self.cache.default,
            allowed=self.cache.allowed,
            # Compiled blocks leave nothing out.
            attention=self.family.attention if self.numerics == "exact" else (),
            attention_rows=attention_rows(
                self.factory_args.model_path, self.family, value_bytes=self._value_bytes
            ),
            least_computed=self.cache.least_computed,
            max_bytes=self.cache.memory_mib * 2**20,
        )

    @property
    def _value_bytes(self) -> int:
        """Of what the model computes; where nobody has said it, as on a GPU."""
        in_full = self.dtype == "float32" or (self.dtype == "auto" and self.device == "cpu")
        return 4 if in_full else 2

    @property
    def request_defaults(self) -> Defaults:
        """A request's values where the client gives none."""
        is_demo = self.factory_args.model_path == demo.DEMO
        own = demo.DEFAULTS if is_demo else self.family.defaults
        deadline_ms = self.parallelism.scheduler.default_deadline_ms
        return Defaults(
            height=self.factory_args.default_height,
            width=self.factory_args.default_width,
            num_steps=self.factory_args.num_steps,
            guidance_scale=self.factory_args.guidance_scale,
            seed=own.seed,
            num_frames=self.factory_args.num_frames,
            fps=own.fps,
            negative_prompt=own.negative_prompt,
            max_sequence_length=own.max_sequence_length,
            deadline_s=None if deadline_ms is None else deadline_ms / 1e3,
        )
