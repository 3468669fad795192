"""`epe cache`: what FlexCache can do with a model, and the profile that it needs for more."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Sequence
from pathlib import Path
from typing import get_args

import msgspec

from epe.cache import FILE, CacheRules, Profile, find_profile, read_profile, supported
from epe.cli.parser import Parser, number, whole_number
from epe.config import demo
from epe.config.model_path import check_model_path
from epe.config.outputs import check_apart, check_writable, writing
from epe.config.request import resolve_request
from epe.config.stage import Dtype
from epe.errors import BadSetting
from epe.families import Family, available_family
from epe.files import write_whole
from epe.messages import Request

# What of a profile a strategy needs.
_NEEDS = {"magcache": "gram", "meancache": "gram", "freecache": "gram", "teacache": "tea"}
_OF_TEA = "; teacache: "


def run(argv: Sequence[str]) -> int:
    args = _parser().parse_args(argv)
    family = available_family(args.model, path="--model")
    check_model_path(args.model_path, family, path="--model-path")
    if args.action == "show":
        print(_shown(find_profile(demo.model_folder(args.model_path), family.name), family))
        return 0
    return _fit(args, family)


def _parser() -> Parser:
    parser = Parser("epe cache", description="FlexCache: which strategies a model can have, and its profile.")
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", prog="epe cache")
    show = actions.add_parser(
        "show", description="What is known of a model.", help="what is known of a model"
    )
    fitting = actions.add_parser(
        "fit",
        description="Draw whole trajectories and make the profile of a model of them.",
        help="make the profile of a model",
    )
    for each in (show, fitting):
        each.add_argument("--model", metavar="FAMILY", default=demo.FAMILY, help=f"default {demo.FAMILY}")
        each.add_argument("--model-path", metavar="DIR", default=demo.DEMO, help=f"default {demo.DEMO}")
    _add_fit(fitting)
    return parser


def _add_fit(parser: Parser) -> None:
    strategies = ("all", *_NEEDS)
    parser.add_argument("--strategy", choices=strategies, default="all", help="whose numbers (default all)")
    parser.add_argument("--prompts", metavar="FILE", required=True, help="one a line; 20 to 40 are enough")
    parser.add_argument("--output", metavar="FILE", help=f"default {FILE} in the checkpoint's folder")
    parser.add_argument("--steps", type=whole_number, default=50, help="of each trajectory (default 50)")
    parser.add_argument("--height", type=whole_number)
    parser.add_argument("--width", type=whole_number)
    parser.add_argument("--frames", type=whole_number, help="of a video")
    parser.add_argument("--guidance-scale", type=number)
    parser.add_argument("--seed", type=whole_number, default=0, help="of the first prompt (default 0)")
    parser.add_argument("--batch", type=whole_number, default=1, help="trajectories at once (default 1)")
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    parser.add_argument(
        "--dtype", choices=get_args(Dtype), default="auto", help="default as in `epe generate`"
    )


def _fit(args: Namespace, family: Family) -> int:
    requests = _requests(args, family)
    target = Path(args.output) if args.output else demo.model_folder(args.model_path) / FILE
    if not target.parent.is_dir():
        raise BadSetting(f"there is no folder {target.parent}", path="--output")
    check_writable(target, path="--output")
    check_apart({"--output": target}, inputs={"--prompts": args.prompts})
    known = read_profile(target, family.name) if args.strategy != "all" and target.is_file() else None

    from epe.models.catalog import load_adapter
    from epe.models.loading import Loading
    from epe.runtime.fitting import NUM_PROBED, Drawer, fit_profile
    from epe.runtime.gpus import pick_device
    from epe.runtime.rank import DTYPES

    loading = Loading(device=pick_device(args.device, index=0), dtype=DTYPES[args.dtype])
    adapter = load_adapter(family.name, demo.model_folder(args.model_path), loading)
    assert isinstance(adapter, Drawer)
    fitted = fit_profile(
        adapter,
        requests,
        model=Path(args.model_path).name,
        source=f"epe cache fit: {_described(requests)}",
        num_probed=0 if args.strategy == "teacache" else NUM_PROBED,
        batch=args.batch,
        tell=lambda line: print(line, file=sys.stderr, flush=True),
    )
    profile = _with_part(fitted, known, args.strategy)
    with writing(target, path="--output"):
        write_whole(target, msgspec.json.encode(profile) + b"\n")
    print(_shown(profile, family))
    print(target)
    return 0


def _requests(args: Namespace, family: Family) -> list[Request]:
    try:
        prompts = [
            line for line in Path(args.prompts).read_text(encoding="utf-8").splitlines() if line.strip()
        ]
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(f"{args.prompts} cannot be read: {error}", path="--prompts") from error
    if not prompts:
        raise BadSetting(f"{args.prompts} has no prompt", path="--prompts")
    if args.steps < 4:
        raise BadSetting(f"{args.steps} steps are too few to learn from; give 4 or more", path="--steps")
    if args.batch < 1:
        raise BadSetting(f"{args.batch} is not 1 or more", path="--batch")
    return [
        resolve_request(
            family,
            prompt=prompt,
            height=args.height,
            width=args.width,
            num_frames=args.frames,
            num_steps=args.steps,
            guidance_scale=args.guidance_scale,
            seed=args.seed + place,
            defaults=demo.DEFAULTS if args.model_path == demo.DEMO else None,
        )
        for place, prompt in enumerate(prompts)
    ]


def _described(requests: Sequence[Request]) -> str:
    first = requests[0]
    size = (first.height, first.width, *([first.num_frames] if first.num_frames > 1 else []))
    return (
        f"{len(requests)} trajectories of {first.num_steps} steps at {' x '.join(map(str, size))}, "
        f"guidance {first.guidance_scale:g}, seeds from {first.seed}"
    )


def _with_part(fitted: Profile, known: Profile | None, strategy: str) -> Profile:
    """Of what was fitted what the strategy needs, beside what the file had."""
    if strategy == "all":
        return fitted
    has_tea = _NEEDS[strategy] == "tea"
    replace = msgspec.structs.replace
    if known is None:
        return replace(fitted, gram=(), sigmas=(), gains=()) if has_tea else replace(fitted, tea=())
    rest, of_tea = (known, fitted) if has_tea else (fitted, known)
    source = _source(rest, of_tea)
    return replace(rest, tea=of_tea.tea, tea_threshold=of_tea.tea_threshold, source=source)


def _source(rest: Profile, of_tea: Profile) -> str:
    """Where the numbers of two profiles that have become one come from, those of TeaCache after the others."""
    parts = [rest.source.partition(_OF_TEA)[0]] if rest.gram or rest.mag else []
    parts += [of_tea.source.rpartition(_OF_TEA)[2]] if of_tea.tea else []
    return _OF_TEA.join(dict.fromkeys(parts))


def _shown(profile: Profile | None, family: Family) -> str:
    known = supported(CacheRules(profile=profile, attention=family.attention))
    lacking = [name for name in _NEEDS if name not in known]
    lines = [f"supported: {', '.join(known)}"]
    if lacking:
        lines.append(f"not without `epe cache fit`: {', '.join(lacking)}")
    if profile is not None:
        lines.append(f"profile of {profile.model}: {profile.source}")
    return "\n".join(lines)
