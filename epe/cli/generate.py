"""`epe generate`: one picture or video, on one rank or on all those that torchrun or Slurm started."""

from __future__ import annotations

import os
import re
import sys
from argparse import SUPPRESS, ArgumentParser, Namespace
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Literal

from epe import __version__
from epe.cache import CacheRules, find_profile
from epe.cli.cache_flags import add_cache, strategy_of
from epe.cli.flags import FIELD_FLAGS, add_common, add_family, add_parallel, guidance_flag
from epe.cli.parser import Parser
from epe.config import demo
from epe.config.degrees import check_degree, check_width
from epe.config.demo import unknown_words_warning
from epe.config.generate import GenerateOptions, check_output
from epe.config.model_path import check_model_path, check_planes
from epe.config.request import resolve_request
from epe.config.stage import VideoCodec
from epe.config.transport import ENVIRONMENT, Given, Transport, resolve_transport
from epe.errors import BadSetting
from epe.families import FAMILIES, Family, available_family, family
from epe.launch.environment import read_placement
from epe.launch.gpus import check_enough
from epe.messages import OutputFormat, Request


def run(argv: Sequence[str]) -> int:
    options = build_options(argv)
    place = read_placement(os.environ)
    check_degree(options.tensor_parallel_degree, place.world_size, path="--tensor-parallel-degree")
    check_width(place.world_size // options.tensor_parallel_degree, path="the number of processes")
    # Read when torch is loaded: its RPC prints a line for each peer that leaves, though that is the usual end.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

    from epe.cli.meeting import meeting_of
    from epe.runtime.generate import run_generate, stage_of

    with _in_the_users_words(options.flags):
        check_enough(stage_of(options, place.world_size), os.environ)
    if place.rank == 0 and (warning := unknown_words_warning(options.model_path, options.request.prompt)):
        print(f"epe: {warning}", file=sys.stderr)
    elapsed_s = run_generate(options, meeting_of(place, gpu=range(place.world_size), env=os.environ))
    if elapsed_s is not None:
        print(f"elapsed_s={elapsed_s:.3f}")
        print(options.output)
    return 0


@contextmanager
def _in_the_users_words(flags: Mapping[str, object]) -> Iterator[None]:
    """Have a `BadSetting` of a stage that follows from these flags name what was given: the flag, or the variable."""
    names = {"device": "--device"}
    for method, variable in ENVIRONMENT.items():
        given = (
            name for name in ("cp_backend", f"{method}_transport") if flags.get(name) not in (None, "auto")
        )
        flag = next(given, None)
        names[f"parallelism.cp.{method}_transport"] = f"--{flag.replace('_', '-')}" if flag else variable
    try:
        yield
    except BadSetting as error:
        message = str(error).removeprefix(f"{error.path}: ")
        raise BadSetting(message, path=names.get(error.path, error.path)) from None


def build_options(argv: Sequence[str], *, env: Mapping[str, str] = os.environ) -> GenerateOptions:
    """Everything that can be said against a command line is said here, before any work.

    Raises `BadSetting` or `BadRequest`.
    """
    chosen = _family_of(argv)
    args = _parser(chosen).parse_args(argv)
    is_demo = args.model in (None, demo.FAMILY) and args.model_path in (None, demo.DEMO)
    model = demo.FAMILY if is_demo else _required(args.model, "--model")
    ready = available_family(model, path="--model")
    model_path = demo.DEMO if is_demo else _required(args.model_path, "--model-path")
    output = args.output or _output(args.prompt, ready)
    file_format = check_output(output, makes=ready.makes, path="--output")
    transport = _transport(args, env)
    _refuse_what_is_not_there(args)
    check_model_path(model_path, ready, path="--model-path")
    request = _request(args, ready, file_format, model_path=model_path)
    num_planes = getattr(args, "tensor_parallel_degree", None) or 1
    check_planes(num_planes, model_path, ready, path="--tensor-parallel-degree")
    return GenerateOptions(
        family=ready.name,
        model_path=model_path,
        request=request,
        output=output,
        device=args.device or "auto",
        dtype=args.dtype or "auto",
        cfg_parallel_degree=_cfg_degree(args, ready),
        tensor_parallel_degree=num_planes,
        transport=transport,
        video_codec=_video_codec(args, ready, file_format),
        parallel_vae=args.parallel_vae,
        vae_parallel_halo=getattr(args, "vae_parallel_halo", None),
        version=__version__,
        flags={name: value for name, value in vars(args).items() if value is not None},
    )


def _family_of(argv: Sequence[str]) -> Family | None:
    """The family that the command line names, before the flags of that family can be known."""
    early = ArgumentParser(add_help=False, allow_abbrev=False, argument_default=SUPPRESS, exit_on_error=False)
    early.add_argument("--model", nargs="?")
    name = getattr(early.parse_known_args(argv)[0], "model", None)
    return None if name is None else family(name, path="--model")


def _parser(chosen: Family | None) -> Parser:
    if chosen is None:
        shown, title = FAMILIES["zimage"], "one picture (the defaults shown are those of zimage)"
    else:
        shown, title = chosen, f"one {chosen.makes} with {chosen.title}"
    later = "" if shown.available else f" {shown.name} is not yet available."
    parser = Parser(
        "epe generate",
        description=f"Draw {title}.{later}",
        epilog="`epe generate --model FAMILY --help` shows the flags and defaults of that family.",
        explain=partial(_whose, shown=shown),
    )
    add_common(parser)
    add_family(parser, shown)
    add_parallel(parser, shown)
    add_cache(parser)
    return parser


def _whose(flag: str, *, shown: Family) -> str | None:
    """Which families take a flag that this one does not."""
    others = [each for each in FAMILIES.values() if each.available and each is not shown]
    owners = [each.name for each in others if flag in _parser(each).flags()]
    return f"for {shown.name}; families that have it: {', '.join(owners)}" if owners else None


def _required(value: str | None, flag: str) -> str:
    if not value:
        raise BadSetting("this flag must be given", path=flag)
    return value


def _output(prompt: str | None, chosen: Family) -> str:
    """A file named after the prompt."""
    words = re.findall(r"[A-Za-z0-9]+", prompt or "")[:8]
    return f"outputs/{'-'.join(words).lower()[:80] or 'picture'}{'.png' if chosen.makes == 'picture' else '.mp4'}"


def _request(args: Namespace, chosen: Family, file_format: OutputFormat, *, model_path: str) -> Request:
    names = {**FIELD_FLAGS, "guidance_scale": guidance_flag(chosen)}
    profile = find_profile(demo.model_folder(model_path), chosen.name)
    return resolve_request(
        chosen,
        prompt=args.prompt,
        negative_prompt=getattr(args, "negative_prompt", None),
        height=args.height,
        width=args.width,
        num_frames=getattr(args, "frames", None),
        fps=getattr(args, "fps", None),
        num_steps=args.steps,
        guidance_scale=getattr(args, "guidance_scale", None),
        flow_shift=getattr(args, "flow_shift", None),
        seed=args.seed,
        output_format=file_format,
        cache=strategy_of(args, profile),
        cache_rules=CacheRules(profile=profile, attention=chosen.attention),
        defaults=demo.DEFAULTS if model_path == demo.DEMO else None,
        names=names,
    )


def _cfg_degree(args: Namespace, chosen: Family) -> Literal[1, 2]:
    """2 runs the guidance branches each alone, 1 as one batch; the two forms of the flag must agree."""
    if not chosen.owns("cfg"):
        return 1
    degree, flag = args.cfg_parallel_degree, "--cfg-parallel-degree"
    if degree not in (None, 1, 2):
        raise BadSetting(f"{degree} is not 1 or 2", path=flag)
    if degree is not None and args.cfg_parallel not in (None, degree == 2):
        given = "--cfg-parallel" if args.cfg_parallel else "--no-cfg-parallel"
        raise BadSetting(f"{degree} contradicts {given}; give one of them", path=flag)
    return 1 if degree == 1 or args.cfg_parallel is False else 2


def _transport(args: Namespace, env: Mapping[str, str]) -> Transport:
    return resolve_transport(
        methods=(Given("--cp-method", args.cp_method), Given("--attention-mode", args.attention_mode)),
        backend=Given("--cp-backend", args.cp_backend),
        agkv=Given("--agkv-transport", args.agkv_transport),
        ulysses=Given("--ulysses-transport", args.ulysses_transport),
        degree=Given("--ulysses-degree", None if args.ulysses_degree is None else str(args.ulysses_degree)),
        env=env,
    )


def _video_codec(args: Namespace, chosen: Family, file_format: OutputFormat) -> VideoCodec:
    """How a video's file is encoded; refused now where it cannot be done later."""
    if chosen.makes == "picture":
        return "auto"
    codec: VideoCodec = args.video_codec or "auto"
    if codec == "h264" and file_format is OutputFormat.WEBM:
        raise BadSetting(
            "a .webm file holds no h264; write an .mp4, or choose av1 or vp9", path="--video-codec"
        )

    from epe.media.video import check_codec

    check_codec(codec, path="--video-codec")
    return codec


def _refuse_what_is_not_there(args: Namespace) -> None:
    degree = getattr(args, "tensor_parallel_degree", None)
    if degree is not None and degree < 1:
        raise BadSetting(f"{degree} is not 1 or more", path="--tensor-parallel-degree")
    if (getattr(args, "vae_parallel_halo", None) or 0) < 0:
        raise BadSetting(f"{args.vae_parallel_halo} is not 0 or more", path="--vae-parallel-halo")
