"""What must hold between the settings of a stage, and what is not there yet."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from msgspec.structs import replace

from epe.cache import NAMES, Unsupported, resolve, sizes_of
from epe.config import limits, sizes
from epe.config.convert import value_at
from epe.config.degrees import check_degree, check_width
from epe.config.faults import check_faults
from epe.config.keys import Tree
from epe.config.model_path import check_model_path, check_planes
from epe.config.policy_keys import POLICIES, check_policy_widths, policy_notes
from epe.config.stage import Stage
from epe.errors import BadSetting

MAX_RANKS = 1024
TENSOR_DEGREE = "parallelism.model.tensor_parallel_degree"

# Settings that are part of the file already, with the values that nothing acts on yet.
NOT_YET: tuple[tuple[str, Callable[[Stage], bool], str], ...] = (
    ("terminal", lambda s: not s.terminal, "a stage that hands its latents on is not yet available"),
    (
        "record_timeline",
        lambda s: s.record_timeline,
        "recording a timeline by the stage file is not yet available; use --timeline",
    ),
    (
        "parallelism.scheduler.balanced_k",
        lambda s: not s.parallelism.scheduler.balanced_k,
        "leases of equal step counts are not yet available; leave it out or write true",
    ),
)

# Keys that the reference's files have, and that change nothing here: they are named in the log.
WITHOUT_EFFECT = {
    "parallelism.vae.halo": "the rows to exchange follow from each layer's kernel",
    "output_root": "results are sent, not written to disk",
    "process": "the processes of a stage go by its name",
}


def check_stage(stage: Stage) -> None:
    """Raises `BadSetting` for the first thing that does not fit together."""
    _check_named_once(stage)
    _check_gpus(stage)
    for path, is_asked, message in NOT_YET:
        if is_asked(stage):
            raise BadSetting(message, path=path)
    _check_world(stage)
    _check_numerics(stage)
    _check_ulysses(stage)
    _check_vae(stage)
    _check_policy(stage)
    _check_widths(stage)
    check_policy_widths(stage)
    _check_requests(stage)
    check_faults(stage.faults, world_size=stage.world_size)
    check_model_path(stage.factory_args.model_path, stage.family, path="factory_args.model_path")
    _check_cache(stage)
    check_planes(stage.num_planes, stage.factory_args.model_path, stage.family, path=TENSOR_DEGREE)


def notes(tree: Tree) -> list[str]:
    """Keys that were given and have no effect, each with the reason."""
    given = (path for path in WITHOUT_EFFECT if value_at(tree, path) not in (None, False))
    found = [
        f"{path}: {WITHOUT_EFFECT[path]}"
        for path in given
        if path != "process" or tree["process"] != tree.get("name")
    ]
    return [*found, *policy_notes(tree)]


def _check_cache(stage: Stage) -> None:
    """A default must fit the stage's own requests, else nobody would ever get it."""
    defaults = stage.request_defaults
    allow_all = replace(stage.cache_rules, allowed=NAMES)
    try:
        resolve(
            stage.cache.default,
            allow_all,
            num_steps=defaults.num_steps,
            sizes=sizes_of(stage.family, defaults),
        )
    except Unsupported as error:
        raise BadSetting(str(error), path="cache.default") from None


def _check_named_once(stage: Stage) -> None:
    """Who names a thing twice meant another one; and a rank cannot be two, nor a size cost twice."""
    lists: dict[str, Sequence[object]] = {
        "gpu": stage.gpu,
        sizes.PATH: [sizes.named(*size) for size in stage.warmup_sizes],
        "cache.allowed": stage.cache.allowed,
        "service.model_aliases": stage.service.model_aliases,
        "service.cors_origins": stage.service.cors_origins,
    }
    for path, entries in lists.items():
        for twice in (entry for entry in entries if entries.count(entry) > 1):
            raise BadSetting(f"{twice} stands there twice; name it once", path=path)


def _check_gpus(stage: Stage) -> None:
    if len(stage.gpu) > MAX_RANKS:
        raise BadSetting(f"{len(stage.gpu)} entries are more than {MAX_RANKS}", path="gpu")


def _check_world(stage: Stage) -> None:
    cp, tensor = stage.parallelism.cp.world_size, stage.num_planes
    check_degree(tensor, stage.world_size, path=TENSOR_DEGREE)
    if cp * tensor != stage.world_size:
        raise BadSetting(
            f"{cp} (times a tensor_parallel_degree of {tensor}) must be the number of gpu entries, "
            f"which is {stage.world_size}",
            path="parallelism.cp.world_size",
        )


def _check_numerics(stage: Stage) -> None:
    """Blocks are compiled for a GPU, as one piece, and in planes they exchange sums."""
    if stage.numerics == "exact":
        return
    if stage.device == "cpu":
        raise BadSetting(
            "fast numerics compile blocks for a GPU, and device is cpu; use exact, or device auto or cuda",
            path="numerics",
        )
    if stage.num_planes > 1:
        raise BadSetting(
            f"fast numerics compile blocks, which a tensor_parallel_degree of {stage.num_planes} cuts in pieces; "
            "use exact, or a degree of 1",
            path="numerics",
        )


def _check_ulysses(stage: Stage) -> None:
    cp, path = stage.parallelism.cp, "parallelism.cp.ulysses_degree"
    if cp.ulysses_degree is None:
        return
    if cp.attention_mode != "ulysses":
        raise BadSetting(
            f"only attention_mode ulysses has a degree, and attention_mode is {cp.attention_mode}", path=path
        )
    if cp.ulysses_degree > cp.world_size:
        raise BadSetting(f"{cp.ulysses_degree} is more than the world of {cp.world_size} ranks", path=path)


def _check_vae(stage: Stage) -> None:
    """A degree is one fixed group, which only a policy of one lane can always give."""
    vae, policy, path = stage.parallelism.vae, stage.parallelism.scheduler.policy, "parallelism.vae.degree"
    if vae.degree is None or vae.degree == 1:
        return
    if not vae.enabled:
        raise BadSetting(
            f"{vae.degree} ranks cannot decode where parallelism.vae.enabled is false", path=path
        )
    if policy != "static_cp":
        raise BadSetting(
            f"a fixed degree of {vae.degree} needs the policy static_cp, and the policy is {policy}; "
            "leave it out, and the policy decides",
            path=path,
        )
    if vae.degree > stage.parallelism.cp.world_size:
        raise BadSetting(
            f"{vae.degree} is more than the {stage.parallelism.cp.world_size} ranks that decode", path=path
        )
    check_width(vae.degree, path=path)


def _check_policy(stage: Stage) -> None:
    policy, path = stage.parallelism.scheduler.policy, "parallelism.scheduler.policy"
    if policy not in POLICIES and "." not in policy:
        raise BadSetting(
            f"{policy!r} is not one of {', '.join(POLICIES)}, nor the dotted path of a class of your own",
            path=path,
        )
    if not stage.family.migratable and policy != "static_cp":
        raise BadSetting(f"the state of {stage.factory} cannot change lanes; use static_cp", path=path)


def _check_widths(stage: Stage) -> None:
    widths, world = stage.parallelism.scheduler.allowed_lane_widths, stage.parallelism.cp.world_size
    path = "parallelism.scheduler.allowed_lane_widths"
    if widths != tuple(sorted(set(widths))):
        right = sorted(set(widths))
        raise BadSetting(f"{list(widths)} must be sorted, each width once: {right}", path=path)
    if widths[-1] > world:
        raise BadSetting(f"{widths[-1]} is wider than the world of {world} ranks", path=path)
    check_width(widths[-1], path=path)


def _too_many_steps(stage: Stage) -> str | None:
    """A warm-up of fewer than the family draws has as many as that."""
    num_steps = stage.parallelism.scheduler.warmup_steps
    return limits.problem_with_steps(stage.family, max(num_steps, stage.family.min_steps))


def _check_requests(stage: Stage) -> None:
    """The defaults and the sizes to measure are within the limits of the family."""
    family, args = stage.family, stage.factory_args
    found = {
        "factory_args.default_height": limits.problem_with_side(family, args.default_height),
        "factory_args.default_width": limits.problem_with_side(family, args.default_width),
        "factory_args.num_frames": limits.problem_with_frames(family, args.num_frames),
        "factory_args.num_steps": limits.problem_with_steps(family, args.num_steps),
        "parallelism.scheduler.warmup_steps": _too_many_steps(stage),
        "factory_args.guidance_scale": limits.problem_with_guidance(family, args.guidance_scale),
    }
    for index, size in enumerate(stage.warmup_sizes):
        found[f"{sizes.PATH}[{index}]"] = limits.problem_with_size(family, *size)
    for path, problem in found.items():
        if problem is not None:
            raise BadSetting(problem, path=path)
