"""The flags of `epe generate`: those of every family, and those that follow from a family's data.

A flag that is not given is None; defaults are filled in by `epe.config`, and only told here.
"""

from __future__ import annotations

from argparse import BooleanOptionalAction
from typing import get_args

from epe.cli.parser import Parser, number, whole_number
from epe.config.stage import CpBackend, CpMethod, Device, Dtype, VideoCodec
from epe.config.transport import methods_of
from epe.families import FAMILIES, Family

# What the command calls a request's fields, for error messages.
FIELD_FLAGS = {
    "prompt": "--prompt",
    "negative_prompt": "--negative-prompt",
    "height": "--height",
    "width": "--width",
    "num_frames": "--frames",
    "fps": "--fps",
    "num_steps": "--steps",
    "guidance_scale": "--guidance-scale",
    "flow_shift": "--flow-shift",
    "seed": "--seed",
    "cache": "--cache-strategy",
}


def add_common(parser: Parser) -> None:
    """What every family has."""
    parser.add_argument("--model", metavar="FAMILY", help=f"one of {', '.join(FAMILIES)}")
    parser.add_argument("--model-path", metavar="DIR", help="folder of the checkpoint, in diffusers' format")
    parser.add_argument("--prompt", metavar="TEXT", help="what to draw; may be empty")
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="file to write (.png, .jpg, .webp; .mp4, .webm); facts go to a .json beside it",
    )
    parser.add_argument("--device", choices=get_args(Device), help="default auto: cuda where there is one")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), help="default auto: bfloat16 on cuda, float32 on a cpu"
    )
    parser.add_argument(
        "--local-files-only", action="store_true", default=None, help="always so: weights are never fetched"
    )


def add_family(parser: Parser, family: Family) -> None:
    """What one family has, with its defaults."""
    own, sides = family.defaults, f"a multiple of {family.side_multiple}"
    parser.add_argument("--height", type=whole_number, help=f"pixels, {sides} (default {own.height})")
    parser.add_argument("--width", type=whole_number, help=f"pixels, {sides} (default {own.width})")
    if family.makes == "video":
        rule = f"{family.frames.step}n+{family.frames.base}"
        parser.add_argument("--frames", type=whole_number, help=f"{rule} (default {own.num_frames})")
        parser.add_argument("--fps", type=whole_number, help=f"frames a second (default {own.fps})")
        parser.add_argument(
            "--video-codec",
            choices=get_args(VideoCodec),
            help="default auto: av1, or vp9 where there is no encoder for it; h264 only when asked for",
        )
    parser.add_argument("--steps", type=whole_number, help=f"denoising steps (default {own.num_steps})")
    parser.add_argument("--seed", type=whole_number, help=f"0 or more (default {own.seed})")
    if family.guidance is not None:
        parser.add_argument(
            guidance_flag(family),
            dest="guidance_scale",
            type=number,
            help=f"{_what_it_means(family)} (default {own.guidance_scale:g})",
        )
    if family.flow_shift:
        parser.add_argument(
            "--flow-shift",
            type=number,
            help="how far steps lean to the noisy end; large videos want more (default: the checkpoint's)",
        )
    if family.negative_prompt:
        parser.add_argument(
            "--negative-prompt", metavar="TEXT", help=f"what not to draw (default {own.negative_prompt!r})"
        )


def add_parallel(parser: Parser, family: Family) -> None:
    """How the work is divided when there are several ranks."""
    if family.owns("cfg"):
        parser.add_argument(
            "--cfg-parallel",
            action=BooleanOptionalAction,
            help="each guidance branch alone, at once on an even lane (default); --no-: both as one batch",
        )
        parser.add_argument(
            "--cfg-parallel-degree",
            type=whole_number,
            metavar="DEGREE",
            help="2: as --cfg-parallel; 1: as --no-cfg-parallel",
        )
    if family.owns("tp"):
        parser.add_argument(
            "--tensor-parallel-degree",
            type=whole_number,
            metavar="RANKS",
            help="ranks that share heads, inner features and their weights (default 1)",
        )
    parser.add_argument(
        "--parallel-vae",
        action=BooleanOptionalAction,
        help=f"decode in bands on all ranks (default {'on' if family.parallel_vae else 'off'})",
    )
    if family.vae_halo:
        parser.add_argument(
            "--vae-parallel-halo", type=whole_number, metavar="ROWS", help="kept for compatibility; not used"
        )
    _add_transport(parser)


def guidance_flag(family: Family) -> str:
    """The family's name for the guidance scale."""
    return f"--{(family.guidance or 'guidance_scale').replace('_', '-')}"


def _what_it_means(family: Family) -> str:
    if family.branches_above is None:
        return "how closely to follow the prompt"
    return f"up to {family.branches_above:g}: no guidance" if family.branches_above else "0: no guidance"


def _add_transport(parser: Parser) -> None:
    methods, backends = get_args(CpMethod), get_args(CpBackend)
    parser.add_argument(
        "--cp-method",
        choices=methods,
        help="parallel attention: each rank gathers all keys (agkv, default), ranks share heads (ulysses), or each "
        "lane takes what is faster (auto)",
    )
    parser.add_argument(
        "--ulysses-degree", type=whole_number, metavar="RANKS", help="ranks that share heads (default: all)"
    )
    parser.add_argument(
        "--cp-backend",
        choices=[each for each in backends if each != "auto"],
        help="how ranks exchange tensors (default: what is there): nccl, or fast: over memory that GPUs share",
    )
    parser.add_argument("--attention-mode", choices=methods, help="older name of --cp-method")
    for method in methods_of("auto"):
        parser.add_argument(
            f"--{method}-transport",
            choices=backends,
            help=f"older form of --cp-backend, for {method}; environment EPE_{method.upper()}_TRANSPORT",
        )
