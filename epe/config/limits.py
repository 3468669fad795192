"""What a family allows in a request: each check gives the reason against a value, or None.

Shared by requests and the stage file's defaults, so that both say the same.
"""

from __future__ import annotations

import math

from epe.families import Family
from epe.geometry import nearest_multiples
from epe.messages import OutputFormat

MAX_GUIDANCE = 100.0
MAX_FLOW_SHIFT = 100.0
MAX_SEED = 2**63 - 1
MAX_PRIORITY = 1_000_000
MAX_FPS = 240
# Far beyond what the tokens of any family hold; to count the tokens of a megabyte takes seconds.
MAX_TEXT_CHARS = 2**16


def problem_with_side(family: Family, side: int) -> str | None:
    """A height or width in pixels."""
    if not family.min_side <= side <= family.max_side:
        return f"{side} is not from {family.min_side} to {family.max_side}"
    if side % family.side_multiple:
        below, above = nearest_multiples(side, family.side_multiple)
        return f"{side} is not a multiple of {family.side_multiple}; nearest are {below} and {above}"
    return None


def problem_with_size(family: Family, height: int, width: int, num_frames: int) -> str | None:
    """The first of its sides and frames."""
    problems = (problem_with_side(family, side) for side in (height, width))
    return next(filter(None, problems), None) or problem_with_frames(family, num_frames)


def problem_with_steps(family: Family, num_steps: int) -> str | None:
    return _outside(num_steps, family.min_steps, family.max_steps)


def problem_with_frames(family: Family, num_frames: int) -> str | None:
    if family.makes == "picture":
        return None if num_frames == 1 else f"{num_frames} is not 1; {family.name} draws pictures"
    if num_frames > family.max_frames:
        return f"{num_frames} is more than {family.max_frames}"
    if family.frames.allows(num_frames):
        return None
    below, above = family.frames.nearest(num_frames)
    near = f"nearest is {below}" if below == above else f"nearest are {below} and {above}"
    rule = f"{family.frames.step}n+{family.frames.base}"
    return f"{num_frames} is not of the form {rule}; {near}"


def problem_with_fps(fps: int) -> str | None:
    """Frames a second of a video's file."""
    return _outside(fps, 1, MAX_FPS)


def problem_with_format(family: Family, output_format: OutputFormat) -> str | None:
    """What a file of this format can hold; the array can be had of everything."""
    if output_format.holds in ("array", family.makes):
        return None
    right = ", ".join(each for each in OutputFormat if each.holds == family.makes)
    return f"{output_format} holds a {output_format.holds}; {family.name} draws a {family.makes}: {right}"


def problem_with_guidance(family: Family, guidance_scale: float) -> str | None:
    if not math.isfinite(guidance_scale) or not 0 <= guidance_scale <= MAX_GUIDANCE:
        return f"{guidance_scale:g} is not a number from 0 (no guidance) to {MAX_GUIDANCE:g}"
    fixed = family.defaults.guidance_scale
    if family.guidance is None and guidance_scale != fixed:
        return f"{guidance_scale:g} is not {fixed:g}, which is built into {family.name}"
    return None


def problem_with_flow_shift(family: Family, flow_shift: float | None) -> str | None:
    if flow_shift is None:
        return None
    if not family.flow_shift:
        return f"is not used by {family.title}; leave it out"
    if not math.isfinite(flow_shift) or not 0 < flow_shift <= MAX_FLOW_SHIFT:
        return f"{flow_shift:g} is not a number above 0, up to {MAX_FLOW_SHIFT:g}"
    return None


def problem_with_seed(seed: int) -> str | None:
    return None if 0 <= seed <= MAX_SEED else f"{seed} is not from 0 to {MAX_SEED} (2**63 - 1)"


def problem_with_text_tokens(family: Family, num_tokens: int) -> str | None:
    return _outside(num_tokens, 1, family.max_text_tokens)


def problem_with_priority(priority: int) -> str | None:
    return _outside(priority, -MAX_PRIORITY, MAX_PRIORITY)


def problem_with_deadline(deadline_s: float | None) -> str | None:
    if deadline_s is None or (math.isfinite(deadline_s) and deadline_s > 0):
        return None
    return f"{deadline_s:g} is not a time above 0"


def problem_with_compression(level: int) -> str | None:
    return _outside(level, 0, 100)


def problem_with_text(text: str) -> str | None:
    """Text that came from broken bytes cannot be tokenized, sent or written; endless text keeps a rank busy."""
    if len(text) > MAX_TEXT_CHARS:
        return f"has {len(text)} characters; at most {MAX_TEXT_CHARS} are allowed"
    try:
        text.encode()
    except UnicodeEncodeError as error:
        return f"is not valid Unicode text (at character {error.start})"
    return None


def _outside(value: int, least: int, most: int) -> str | None:
    return None if least <= value <= most else f"{value} is not from {least} to {most}"
