"""What a client asked for, to a `Request`: checked and completed here and nowhere else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeVar
from uuid import uuid4

from msgspec.structs import replace

from epe.cache import NOTHING_KNOWN, CacheRules, Unsupported, resolve, sizes_of
from epe.config import limits
from epe.errors import BadRequest
from epe.families import Defaults, Family
from epe.messages import OutputFormat, Request, Reuse, Strategy

T = TypeVar("T")

# The format of a file where the client names none.
FORMATS = {"picture": OutputFormat.PNG, "video": OutputFormat.MP4}


def resolve_request(
    family: Family,
    *,
    prompt: str | None,
    id: str | None = None,
    negative_prompt: str | None = None,
    height: int | None = None,
    width: int | None = None,
    num_frames: int | None = None,
    fps: int | None = None,
    num_steps: int | None = None,
    guidance_scale: float | None = None,
    flow_shift: float | None = None,
    seed: int | None = None,
    max_sequence_length: int | None = None,
    priority: int | None = None,
    client_id: str = "",
    deadline_s: float | None = None,
    on_deadline: Literal["continue", "expire"] | None = None,
    output_format: OutputFormat | None = None,
    output_compression: int | None = None,
    cache: Strategy | None = None,
    cache_rules: CacheRules = NOTHING_KNOWN,
    defaults: Defaults | None = None,
    names: Mapping[str, str] | None = None,
) -> Request:
    """The request with every default filled in; None means not given.

    `defaults` (a stage's `request_defaults`) go before the family's, and `cache_rules` are its. `names` says
    what the client calls a field, for the message and `param` of the `BadRequest` that a value outside the limits
    raises.
    """
    own = defaults or family.defaults
    if prompt is None:
        raise _bad("prompt", "is missing; an empty one is allowed", names)
    request = Request(
        id=uuid4().hex if id is None else id,
        prompt=prompt,
        negative_prompt=_or(negative_prompt, own.negative_prompt),
        height=_or(height, own.height),
        width=_or(width, own.width),
        num_frames=_or(num_frames, own.num_frames),
        fps=_or(fps, own.fps),
        num_steps=_or(num_steps, own.num_steps),
        guidance_scale=float(_or(guidance_scale, own.guidance_scale)),
        flow_shift=None if flow_shift is None else float(flow_shift),
        seed=_or(seed, own.seed),
        max_sequence_length=_or(max_sequence_length, own.max_sequence_length),
        priority=_or(priority, 0),
        client_id=client_id,
        deadline_s=_or(deadline_s, own.deadline_s),
        on_deadline=_or(on_deadline, "continue"),
        output_format=_or(output_format, FORMATS[family.makes]),
        output_compression=_or(output_compression, 100),
    )
    _check(request, family, names=names)
    request = replace(request, reuse=_reuse(request, family, cache, cache_rules, names=names))
    if negative_prompt and (problem := _problem_with_negative_prompt(family, request.guidance_scale)):
        raise _bad("negative_prompt", problem, names)
    if fps is not None and family.makes == "picture":
        raise _bad("fps", f"has no effect; {family.name} draws pictures", names)
    return request


def _reuse(
    request: Request,
    family: Family,
    cache: Strategy | None,
    rules: CacheRules,
    *,
    names: Mapping[str, str] | None,
) -> Reuse | None:
    try:
        return resolve(cache, rules, num_steps=request.num_steps, sizes=sizes_of(family, request))
    except Unsupported as error:
        raise _bad("cache", str(error), names, between=": ") from None


def _problem_with_negative_prompt(family: Family, guidance_scale: float) -> str | None:
    """Why a negative prompt would not be used, or None."""
    if not family.negative_prompt:
        return f"is not used by {family.title}; leave it out"
    if family.num_conditions(guidance_scale) == 1:
        least = family.branches_above or 0.0
        return f"has no effect without guidance; leave it out or give a guidance scale above {least:g}"
    return None


def _check(request: Request, family: Family, *, names: Mapping[str, str] | None) -> None:
    """Raises `BadRequest` for the first field that is outside the family's limits."""
    problems = {
        "prompt": limits.problem_with_text(request.prompt),
        "negative_prompt": limits.problem_with_text(request.negative_prompt),
        "height": limits.problem_with_side(family, request.height),
        "width": limits.problem_with_side(family, request.width),
        "num_frames": limits.problem_with_frames(family, request.num_frames),
        "fps": limits.problem_with_fps(request.fps),
        "num_steps": limits.problem_with_steps(family, request.num_steps),
        "guidance_scale": limits.problem_with_guidance(family, request.guidance_scale),
        "flow_shift": limits.problem_with_flow_shift(family, request.flow_shift),
        "seed": limits.problem_with_seed(request.seed),
        "max_sequence_length": limits.problem_with_text_tokens(family, request.max_sequence_length),
        "priority": limits.problem_with_priority(request.priority),
        "deadline_s": limits.problem_with_deadline(request.deadline_s),
        "output_format": limits.problem_with_format(family, request.output_format),
        "output_compression": limits.problem_with_compression(request.output_compression),
    }
    for field, problem in problems.items():
        if problem is not None:
            raise _bad(field, problem, names)


def _bad(field: str, problem: str, names: Mapping[str, str] | None, *, between: str = " ") -> BadRequest:
    """What is wrong with a field, under the name that the client has for it."""
    param = (names or {}).get(field, field)
    return BadRequest(f"{param}{between}{problem}", param=param)


def _or(given: T | None, default: T) -> T:
    return default if given is None else given
