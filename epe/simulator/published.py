"""Cost sets from published figures: nobody here measured them. What is derived from a figure is said in `sources`."""

from __future__ import annotations

from collections.abc import Mapping

from epe.planning.costs import Migration
from epe.simulator.costs import CostSet, Size, TaskCost

_GFDIT = "github.com/SJTU-Liquid/GF-DiT README @442531e"
_CHITU = "github.com/thu-pacman/ChituDiffusion ChituBench/result_parallel_dit.md and result_parallel_vae.md @f836afa"
_XDIT = "github.com/xdit-project/xdit_assets performance/scalability/Flux-A100-crop.png and performance/flux"

# Not published for any of these: GF-DiT's simulator takes 3 ms and calls real moves tens of milliseconds.
_MOVE = Migration(latency_s=0.01, bytes_per_s=1e10)
_MOVE_NOTE = (
    "migration: 10 ms and 10 GB/s are an assumption, between GF-DiT's simulator (3 ms) and its real runs"
)


def _tasks(
    size: Size, *, encode_s: float, step_s: Mapping[int, float], decode_s: Mapping[int, float]
) -> tuple[TaskCost, ...]:
    """The rows of one size: encode on one rank, steps and decode by width."""
    tokens, model = size.workload.tokens, size.model
    encode = TaskCost(
        stage="encode", tokens=tokens, model=model, conditions=size.conditions, seconds=encode_s
    )
    steps = (
        TaskCost(
            stage="denoise", tokens=tokens, model=model, conditions=size.conditions, width=width, seconds=s
        )
        for width, s in step_s.items()
    )
    decodes = (
        TaskCost(stage="decode", tokens=tokens, model=model, width=width, seconds=s)
        for width, s in decode_s.items()
    )
    return (encode, *steps, *decodes)


def _square(
    name: str, side: int, *, family: str, model: str = "", steps: int = 50, conditions: int = 1
) -> Size:
    return Size(
        name=name,
        family=family,
        model=model,
        height=side,
        width=side,
        num_steps=steps,
        conditions=conditions,
    )


def qwen_h20() -> CostSet:
    """Qwen-Image on H20, Ulysses at 1, 2 and 4 ranks: the table of GF-DiT."""
    step_ms = {
        512: {1: 155, 2: 161, 4: 172},
        1024: {1: 605, 2: 350, 4: 207},
        1536: {1: 1557, 2: 880, 4: 464},
    }
    sizes = tuple(_square(f"{side}x{side}", side, family="qwen-image") for side in step_ms)
    tasks = tuple(
        task
        for size, by_width in zip(sizes, step_ms.values(), strict=True)
        for task in _tasks(
            size,
            encode_s=0.055,
            step_s={width: ms / 1e3 for width, ms in by_width.items()},
            # ChituBench's decode of 1328x1328 on one rank, by area.
            decode_s={1: 0.520 * size.workload.tokens / 6889},
        )
    )
    return CostSet(
        name="qwen-h20",
        hardware="H20, NVLink",
        sources=(
            f"denoise: {_GFDIT}, ms a step, no guidance",
            "encode: 55 ms, generate_runtime_v2_synthetic_cost_model.py of the same repository",
            f"decode: 520 ms at 1328x1328 on one rank, {_CHITU}, scaled here by area",
            "between the sizes: log-log in tokens, an assumption made here",
            _MOVE_NOTE,
        ),
        interpolation="tokens",
        migration=_MOVE,
        sizes=sizes,
        tasks=tasks,
    )


def four_models() -> CostSet:
    """FLUX.2-klein, FLUX.1-dev, Qwen-Image and Wan 2.1 1.3B at one size each: the tables of ChituBench."""
    klein = _square("flux2-klein", 1024, family="flux2-klein", model="flux2-klein", steps=4)
    flux = _square("flux1-dev", 1024, family="flux1", model="flux1-dev")
    qwen = _square("qwen-image", 1328, family="qwen-image", model="qwen-image", conditions=2)
    wan = Size(
        name="wan",
        family="wan",
        model="wan",
        height=480,
        width=832,
        num_frames=81,
        num_steps=50,
        conditions=2,
    )
    step_s = {
        klein: {width: s / 4 for width, s in {1: 1.358, 2: 0.74, 4: 0.409, 8: 0.278}.items()},
        flux: {width: s / 50 for width, s in {1: 38.027, 2: 21.018, 4: 11.58, 8: 7.852}.items()},
        qwen: {width: s / 50 for width, s in {1: 138.819, 2: 69.569, 4: 41.325, 8: 25.688}.items()},
        wan: {width: s / 50 for width, s in {1: 311.412, 2: 155.658, 4: 80.912, 8: 42.939}.items()},
    }
    decode_s = {
        klein: {1: 0.171, 2: 0.094, 4: 0.063, 8: 0.044},
        flux: {1: 0.177, 4: 0.072},
        qwen: {1: 0.520, 8: 0.225},
        wan: {1: _wan_decode_s(wan)},
    }
    return CostSet(
        name="four-models",
        hardware="H20 (inferred: the launch line excludes a node named bjdb-h20)",
        sources=(
            f"denoise and decode: {_CHITU}; seconds of the loop divided by its steps; Ulysses for FLUX, "
            "guidance split then Ulysses for Qwen-Image and Wan",
            "encode: 49 ms for all (FLUX.2-klein's figure; the others are given as 49 to 55 ms)",
            "decode of Wan: 100 ms + 9e-8 s a voxel, the formula of GF-DiT's synthetic cost model",
            "all four models are resident on every rank, an assumption made here",
            _MOVE_NOTE,
        ),
        migration=_MOVE,
        sizes=(klein, flux, qwen, wan),
        tasks=tuple(
            task
            for size in (klein, flux, qwen, wan)
            for task in _tasks(size, encode_s=0.049, step_s=step_s[size], decode_s=decode_s[size])
        ),
    )


def wan() -> CostSet:
    """A Wan-like video model of any shape: GF-DiT's synthetic formula, at anchors from 480p to 720p."""
    shapes = {
        "480p-17f": (480, 832, 17),
        "480p-49f": (480, 832, 49),
        "480p-81f": (480, 832, 81),
        "720p-49f": (720, 1280, 49),
        "720p-81f": (720, 1280, 81),
    }
    anchors = {
        name: Size(name=name, family="wan", height=height, width=width, num_frames=frames, num_steps=50)
        for name, (height, width, frames) in shapes.items()
    }
    efficiency = {1: 1.0, 2: 1.82, 4: 3.33, 8: 5.88}
    return CostSet(
        name="wan",
        hardware="synthetic; its authors state about 5 % against a fit at 75600 tokens",
        sources=(
            "denoise: 0.1323 ms * tokens / efficiency + 20 ms * (width - 1), efficiency 1, 1.82, 3.33, 5.88: "
            "GF-DiT benchmarks/diffusion/generate_runtime_v2_synthetic_cost_model.py @442531e",
            "encode: its text 55 ms + dit_prepare 50 ms + timestep 2 ms",
            "decode: its 100 ms + 9e-8 a voxel, read as seconds (6.8 s for 720p, 81 frames)",
            "between the anchors: log-log in tokens, within 1 % of the formula",
            _MOVE_NOTE,
        ),
        interpolation="tokens",
        migration=_MOVE,
        sizes=(anchors["480p-49f"], anchors["480p-81f"], anchors["720p-81f"]),
        tasks=tuple(
            task
            for size in anchors.values()
            for task in _tasks(
                size,
                encode_s=0.107,
                step_s={
                    width: (0.1323 * size.workload.tokens / gain + 20 * (width - 1)) / 1e3
                    for width, gain in efficiency.items()
                },
                decode_s={1: _wan_decode_s(size)},
            )
        ),
    )


def _wan_decode_s(size: Size) -> float:
    return 0.1 + 9e-8 * size.height * size.width * size.num_frames


def flux() -> CostSet:
    """FLUX.1 schnell (4 steps) and dev (28 steps) on A100 at 1024x1024 and 2048x2048: the figures of xDiT."""
    whole_s = {
        ("schnell-1024", 4, 1024): {1: 1.88, 2: 1.25, 4: 0.96, 8: 0.82},
        ("schnell-2048", 4, 2048): {1: 10.31, 2: 5.42, 4: 3.4, 8: 2.4},
        ("dev-1024", 28, 1024): {1: 12.77, 2: 8.16, 4: 5.55, 8: 4.13},
        ("dev-2048", 28, 2048): {1: 65.0, 2: 37.7, 4: 20.6, 8: 11.0},
    }
    encode_s, decode_1024_s = 0.049, 0.177
    sizes: list[Size] = []
    tasks: list[TaskCost] = []
    for (name, steps, side), by_width in whole_s.items():
        size = _square(name, side, family="flux1", model=name.partition("-")[0], steps=steps)
        decode_s = decode_1024_s * (side / 1024) ** 2
        step_s = {width: (s - encode_s - decode_s) / steps for width, s in by_width.items()}
        sizes.append(size)
        tasks += _tasks(size, encode_s=encode_s, step_s=step_s, decode_s={1: decode_s})
    return CostSet(
        name="flux",
        hardware="A100; schnell compiled, dev eager",
        sources=(
            f"whole requests: {_XDIT}; a step is (whole - encode - decode) / steps",
            "dev at 2048x2048 is read from the axis of the figure; its printed labels disagree",
            f"encode 49 ms and decode 177 ms at 1024x1024 (by area at 2048x2048): {_CHITU}, other hardware",
            _MOVE_NOTE,
        ),
        migration=_MOVE,
        sizes=tuple(sizes),
        tasks=tuple(tasks),
    )


PUBLISHED = {"qwen-h20": qwen_h20, "four-models": four_models, "wan": wan, "flux": flux}
