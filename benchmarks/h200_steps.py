"""What a step costs at real size with random weights: diffusers as it is and with its compiled blocks, and ours as it
is, captured, and compiled and captured; in turn, in one run.

    python -m benchmarks.h200_steps                        # on CUDA
    python -m benchmarks.h200_steps --tiny --device cpu    # the same program on small models, with graphs of the CPU
    python -m benchmarks.h200_steps --only flux1 --sizes 1024x1024 --timed-steps 10 \
        --entrants diffusers,ours_compiled,cache_dit,cache_dit_reusing,ours_reusing,xfuser    # other libraries

One JSON object a line after each round, as it goes: the last of a case counts. A case that fails costs its own line
alone. Text has 128 rows, unless a case says otherwise.
"""

from __future__ import annotations

import argparse
import gc
import json
import math
import platform
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from importlib.metadata import version
from statistics import median
from typing import Any

import torch

from benchmarks.real_sizes import MODELS
from benchmarks.roofline import least_ms
from benchmarks.step_entrants import ENTRANTS, Bench, Entrant, StepCase
from benchmarks.step_libraries import LIBRARIES
from epe.parallel import activations
from epe.telemetry.log import configure

ROUNDS = 3
# The large ones first: what is left out for want of time is small.
CASES = (
    StepCase("flux1", 1024, 1024, text_rows=512),
    StepCase("flux1", 512, 512),
    StepCase("flux1", 256, 256),
    StepCase("zimage", 1024, 1024),
    StepCase("zimage", 512, 512),
    StepCase("zimage", 256, 256),
    StepCase("qwen-image", 1024, 1024),
    StepCase("qwen-image", 512, 512),
    StepCase("qwen-image", 256, 256),
    StepCase("wan", 480, 832, num_frames=17, text_rows=512),
    StepCase("wan", 480, 832, num_frames=81, text_rows=512, timed_steps=2),
    StepCase("flux2-klein", 1024, 1024, text_rows=512),
    StepCase("flux2-klein", 256, 256, text_rows=512),
)
EVERYBODY = ENTRANTS | LIBRARIES


@dataclass(frozen=True, slots=True)
class Drawing:
    """Milliseconds of a step, and the finished latents."""

    step_ms: float
    latents: torch.Tensor


def main() -> None:
    arguments = _arguments()
    configure(json=True, level="warning")
    activations.IN_PRODUCT = bool(arguments.gelu_in_product)
    deadline_s = _now_s() + arguments.budget_s
    _say(_setting(arguments))
    for name in arguments.only:
        entrants = Entrants(
            Bench(name, device=torch.device(arguments.device), tiny=arguments.tiny), arguments.entrants
        )
        for case in (case for case in CASES if case.family == name and case.size in arguments.sizes):
            if _now_s() > deadline_s:
                _say({"family": name, "size": case.size, "left_out": "no time was left"})
                continue
            case = replace(case, timed_steps=arguments.timed_steps or case.timed_steps)
            for line in _lines(entrants, case, deadline_s):
                _say(line)
        del entrants
        empty(arguments.device)


class Entrants:
    """Those that are asked for, each made when it first draws."""

    def __init__(self, bench: Bench, names: list[str]) -> None:
        self.bench = bench
        self.names = names
        self._made: dict[str, Entrant] = {}

    def __getitem__(self, name: str) -> Entrant:
        if name not in self._made:
            self._made[name] = EVERYBODY[name](self.bench)
        return self._made[name]


def _lines(entrants: Entrants, case: StepCase, deadline_s: float) -> Iterator[dict[str, Any]]:
    begin_s = _now_s()
    about: dict[str, Any] = {"family": case.family, "size": case.size, "text_rows": case.text_rows}
    try:
        warm = {"least_ms": _least_ms(entrants, case), **_warm_up(entrants, case, deadline_s)}
        drawings: dict[str, list[Drawing]] = {name: [] for name in warm["warm_up_s"]}
        for num_rounds in range(1, 1 + ROUNDS):
            for name, drawn in drawings.items():
                drawn.append(_drawn(entrants, name, case))
            measured = {**warm, **_measured(entrants, case, drawings)}
            took_s = round(_now_s() - begin_s, 1)
            yield {**about, "rounds_done": num_rounds, **measured, "took_s": took_s}
    except Exception as error:
        yield {**about, "error": f"{type(error).__name__}: {error}"[:600]}


def _warm_up(entrants: Entrants, case: StepCase, deadline_s: float) -> dict[str, Any]:
    """Seconds of each entrant's first drawing, the memory that it took, and who failed."""
    warm_s, errors, memory = {}, {}, {}
    for name in entrants.names:
        begin_s = _now_s()
        if begin_s > deadline_s:
            errors[name] = "no time was left"
            continue
        try:
            memory[name] = _peak(entrants, name, case)
            warm_s[name] = round(_now_s() - begin_s, 2)
        except Exception as error:
            errors[name] = f"{type(error).__name__}: {error}"[:400]
    return {"warm_up_s": warm_s, "peak_gib": memory, **({"errors": errors} if errors else {})}


def _measured(entrants: Entrants, case: StepCase, drawings: dict[str, list[Drawing]]) -> dict[str, Any]:
    return {
        "step_ms": {name: [round(each.step_ms, 2) for each in drawn] for name, drawn in drawings.items()},
        "against_diffusers": dict(_ratios(drawings)),
        "equal_bits": {name: _same(drawings, name) for name in drawings},
        "largest_difference": {name: _difference(drawings, name) for name in drawings},
        "psnr_db": {name: _psnr_db(drawings, name) for name in drawings},
        "graphs": {name: facts for name in drawings if (facts := entrants[name].facts())},
    }


def _peak(entrants: Entrants, name: str, case: StepCase) -> float:
    """GiB of the device that a first drawing takes at most: kernels are chosen and graphs captured in it."""
    if entrants.bench.device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    _drawn(entrants, name, case)
    if entrants.bench.device.type == "cpu":
        return 0.0
    return round(torch.cuda.max_memory_reserved() / 2**30, 2)


def _drawn(entrants: Entrants, name: str, case: StepCase) -> Drawing:
    """A drawing whose steps but the first are timed as one: the device is waited for before them and after them."""
    bench, entrant, clock = entrants.bench, entrants[name], []
    num_steps = 1 + case.timed_steps

    def watch(step: int) -> None:
        if step in (1, num_steps):
            bench.synchronize()
            clock.append(_now_s())

    latents = entrant.draw(bench.request(case, num_steps), watch)
    return Drawing(1e3 * (clock[1] - clock[0]) / case.timed_steps, latents)


def _ratios(drawings: dict[str, list[Drawing]]) -> Iterator[tuple[str, list[float]]]:
    """How many times as fast as diffusers: the median of the rounds, the least and the most."""
    for name, drawn in drawings.items():
        pairs = zip(drawings["diffusers"], drawn, strict=False)
        ratios = [theirs.step_ms / ours.step_ms for theirs, ours in pairs]
        if ratios:
            yield name, [round(each, 3) for each in (median(ratios), min(ratios), max(ratios))]


def _expected(drawings: dict[str, list[Drawing]], name: str) -> torch.Tensor:
    """Of ours what it draws as it is, of all else, and of that itself, what diffusers draws: a rank on a GPU adds long
    sums in one order, which torch by itself does not."""
    wanted = "ours" if name.startswith("ours_") and "ours" in drawings else "diffusers"
    return drawings[wanted][0].latents


def _same(drawings: dict[str, list[Drawing]], name: str) -> bool:
    """Whether all rounds gave the bits that are expected."""
    expected = _expected(drawings, name)
    return all(torch.equal(each.latents, expected) for each in drawings[name])


def _difference(drawings: dict[str, list[Drawing]], name: str) -> list[float]:
    """The largest one to what is expected, and its largest value."""
    ours, expected = drawings[name][-1].latents.double(), _expected(drawings, name).double()
    return [round((ours - expected).abs().max().item(), 6), round(expected.abs().max().item(), 3)]


def _psnr_db(drawings: dict[str, list[Drawing]], name: str) -> float | None:
    """Of the latents to those that are expected, whose range is the peak; None for equal ones."""
    ours, expected = drawings[name][-1].latents.double(), _expected(drawings, name).double()
    noise = (ours - expected).square().mean().item()
    return round(10 * math.log10((expected.max() - expected.min()).item() ** 2 / noise), 1) if noise else None


def _least_ms(entrants: Entrants, case: StepCase) -> float:
    """Of a step, by the arithmetic of diffusers' own pipeline as it is."""
    bench, entrant = entrants.bench, entrants["diffusers"]
    request = bench.request(case, 1)
    least = least_ms(lambda: entrant.draw(request, lambda step: None), read_bytes=bench.read_bytes(case))
    return round(least, 3)


def _now_s() -> float:
    return time.perf_counter()


def empty(device: str) -> None:
    """Without the next family having to share the memory: compiled code holds on to its model."""
    torch.compiler.reset()
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()


def _setting(arguments: argparse.Namespace) -> dict[str, Any]:
    is_gpu = arguments.device != "cpu"
    return {
        "device": torch.cuda.get_device_name() if is_gpu else platform.processor() or "cpu",
        "python": platform.python_version(),
        "torch": torch.__version__,
        "diffusers": version("diffusers"),
        "tiny": arguments.tiny,
        "rounds": ROUNDS,
        "gelu_in_product": activations.IN_PRODUCT,
    }


def _say(line: dict[str, Any]) -> None:
    print(json.dumps(line), flush=True)


def _names(allowed: tuple[str, ...], text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - set(allowed):
        raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}; there are {', '.join(allowed)}")
    return names


def _entrants(text: str) -> list[str]:
    names = _names(tuple(EVERYBODY), text)
    if "diffusers_compiled" in names and {"cache_dit", "cache_dit_reusing"} & set(names):
        raise argparse.ArgumentTypeError(
            "diffusers_compiled and cache-dit compile the same blocks, and torch gives the code of the first to the "
            "second: ask for them in two runs"
        )
    return names


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    families = tuple(MODELS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--tiny", action="store_true", help="small models in place of the real ones")
    parser.add_argument("--only", type=lambda text: _names(families, text), default=list(families))
    parser.add_argument(
        "--entrants",
        type=_entrants,
        default=list(ENTRANTS),
        help=f"of {', '.join(EVERYBODY)} (default: all but other libraries)",
    )
    parser.add_argument("--timed-steps", type=int, help="for all cases (default: as they have them)")
    sizes = tuple(dict.fromkeys(case.size for case in CASES))
    parser.add_argument("--sizes", type=lambda text: _names(sizes, text), default=list(sizes))
    parser.add_argument(
        "--gelu-in-product",
        type=int,
        choices=(0, 1),
        default=int(activations.IN_PRODUCT),
        help="whether compiled blocks leave GELU to the library of products (default: as ranks do)",
    )
    parser.add_argument(
        "--budget-s", type=float, default=1e6, help="begin no case and warm nobody up after so many seconds"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
