"""`docs/results/h200.md` from the lines of `benchmarks.h200_steps`: later runs fill in what earlier ones left out.

python -m benchmarks.steps_page RUN.jsonl ... > docs/results/h200.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Line = dict[str, Any]

TITLES = {
    "diffusers_compiled": "diffusers, compiled",
    "ours": "ours",
    "ours_captured": "captured",
    "ours_compiled": "compiled and captured",
}
BEST = "ours_compiled"
# Of the latents that compiled steps end with to those of our own steps as they are; `docs/numerics.md` promises it.
TOLERANCE_DB = 40
COMMAND = "python -m benchmarks.h200_steps > RUN.jsonl; python -m benchmarks.steps_page RUN.jsonl"

DECODING = (
    "`python -m benchmarks.h200_decode >> RUN.jsonl`: whole decodes, in turn; ratios as above. As it is: in bands, "
    "as a service decodes whose stage file asks for it, pictures captured. Compiled, diffusers has pictures' channels "
    "last and torch's `max-autotune`, as its documentation has them.",
)

ROWS = (
    "`python -m benchmarks.compiled_rows >> RUN.jsonl`: two steps of compiled blocks on lanes of 2 and 4 ranks, which "
    "were threads on one GPU, each with blocks of its own; with `--own-gpus` four steps of ranks with a GPU each, over "
    "NCCL, captured too. `=` are the bits of one rank, else the largest difference.",
)
ROW_TITLES = {"width_2": "2 threads", "width_4": "4 threads", "own_gpus": "2 GPUs"}

# Beside diffusers and our best.
LIBRARIES = {
    "cache_dit": "cache-dit, all blocks",
    "xfuser": "xfuser",
    "cache_dit_reusing": "cache-dit, every second step left out",
    "ours_reusing": "ours, every second step left out",
}
LIBRARIES_COMMAND = (
    "`python -m benchmarks.h200_steps --only flux1 --sizes 1024x1024 --timed-steps 10 --entrants "
    f"diffusers,ours_compiled,{','.join(LIBRARIES)} >> RUN.jsonl`: the mean of ten steps. cache-dit 1.5.3 compiles "
    "with its own settings of torch's compiler; of steps that it leaves out it computes the first eight blocks, its "
    "default. Ours leave them out by FreeCache. xfuser 0.7.0 leaves the model to diffusers on one GPU, and compiles it "
    "whole.",
)

UNTIMED = (
    "Z-Image as the other families are compiled, in a later run with all five columns: its kernels are left to torch's "
    "choice since then, and the tables above have runs of that.",
)

SINCE = (
    "## Since these runs",
    "",
    "Norm and rotation of queries and keys are one kernel, with which Qwen-Image and Z-Image drew at 1024x1024, and no "
    "other row: Qwen-Image took 265.3 ms a step there before, Z-Image 99.9. All families but Wan have it now. "
    "Qwen-Image at 512x512 drew before its modulations were computed once a step, Z-Image at 256x256 and 512x512 "
    "before its two gate layers were one product.",
)

NOT_RUN = (
    "## Not run",
    "",
    "Empty cells. Steps as they are now (above). cache-dit 1.5.3 and xfuser "
    f"0.7.0 beside ours, which `--entrants {','.join(LIBRARIES)}` draws with where they are installed: "
    "cache-dit drew with small models on a CPU, xfuser refuses to be imported without an accelerator. "
    "Compiled blocks of other families on lanes, and on lanes of several GPUs (`--own-gpus`); captured "
    "ones ran on two ([lanes](multi-gpu.md)). Lanes of more than two GPUs. On one GPU two ranks, which "
    "were threads, replayed captured passes in pieces between their exchanges with equal bits (`python -m "
    "benchmarks.graph_checks`). A stream of requests through the whole service, and many short ones for "
    "the sake of memory, are [on their own page](stream-h200.md).",
)


def main() -> None:
    print(page(line for path in sys.argv[1:] for line in _lines(Path(path))))


def page(lines: Iterable[Line]) -> str:
    """The whole page."""
    everything = list(lines)
    setting = next(line for line in everything if "torch" in line)
    steps = [line for line in everything if "step_ms" in line]
    against = [line for line in steps if LIBRARIES.keys() & line["step_ms"].keys()]
    cases = _latest(line for line in steps if "kernels" not in line and line not in against)
    return "\n".join(
        [
            "# Steps on H200",
            "",
            f"`{COMMAND}`",
            "",
            f"{setting['device']}, Python {setting['python']}, torch {setting['torch']}, diffusers "
            f"{setting['diffusers']}; real sizes with random weights in bfloat16. What stands in a row was measured "
            "in one run, in turn, with diffusers as it is; columns that the last run of a row left out are those of "
            "the run before. A ratio is diffusers' time over that of the column, the median of at least "
            f"{setting['rounds']} rounds with the least and the most. Steps of a drawing follow each other without "
            "waiting, as in a service. Qwen-Image and Wan have two guidance branches a step, the others one. Roofline: "
            "products at 790 TFLOP/s and attention at 600, or all weights read once a branch at 4.3 TB/s, if that "
            "takes longer.",
            "",
            *_speeds(cases),
            "",
            "## Bits and memory",
            "",
            "Of each column: whether all rounds gave the expected latents, bit for bit, else the largest difference "
            "and the largest value. Expected are, of diffusers' and our own as they are, those of diffusers as it is; "
            "of captured and compiled steps those of our own as they are, if these were in the run. Graphs: device "
            "memory of all captured passes of the family so far.",
            "",
            *_tolerance(cases),
            *_bits(cases),
            *_decodes([line for line in everything if "decode" in line]),
            *_rows([line for line in everything if "compiled_rows" in line]),
            *_libraries(_latest(against)),
            *_untimed([line for line in everything if "kernels" in line], cases),
            "",
            *SINCE,
            "",
            *NOT_RUN,
        ]
    )


def _latest(lines: Iterable[Line]) -> list[Line]:
    """Of each case the last run, filled in by the runs before; in the order of families and then of sizes."""
    latest: dict[tuple[str, str], Line] = {}
    for line in lines:
        key = line["family"], line["size"]
        latest[key] = _filled_in(line, latest.get(key, {}))
    families = list(dict.fromkeys(family for family, _ in latest))
    return sorted(latest.values(), key=lambda line: (families.index(line["family"]), _sides(line)))


def _filled_in(line: Line, before: Line) -> Line:
    """What is told of each column, of those that a run left out as the one before has it."""
    columns = {name for name, value in line.items() if isinstance(value, dict) and name != "errors"}
    return {**line, **{name: {**before.get(name, {}), **line[name]} for name in columns}}


def _sides(case: Line) -> list[int]:
    return [int(side) for side in case["size"].split("x")]


def _untimed(lines: list[Line], cases: list[Line]) -> Iterator[str]:
    """Another run of some cases, without kernels that torch picks by timing them."""
    if not lines:
        return
    timed = {_name(case): case for case in cases}
    yield from ("", "## Kernels that are not picked by timing", "", *UNTIMED, "")
    yield "| family, size, text rows | diffusers, compiled | compiled and captured | ms | ms in the table above |"
    yield "|---|--:|--:|--:|--:|"
    for line in sorted(lines, key=_sides):
        cells = [_ratio(line["against_diffusers"].get(name)) for name in ("diffusers_compiled", BEST)]
        cells += [f"{_middle(each['step_ms'][BEST]):.1f}" for each in (line, timed[_name(line)])]
        yield f"| {_name(line)} | " + " | ".join(cells) + " |"


def _speeds(cases: list[Line]) -> Iterator[str]:
    titles = " | ".join(TITLES.values())
    yield f"| family, size, text rows | diffusers, ms a step | {titles} | the last one's ms | roofline, ms | of it |"
    yield "|---|--:|" + "--:|" * (len(TITLES) + 3)
    for case in cases:
        cells = [_ratio(case["against_diffusers"].get(name)) for name in TITLES]
        cells += _roofline(case)
        yield f"| {_name(case)} | {_middle(case['step_ms']['diffusers']):.1f} | " + " | ".join(cells) + " |"


def _roofline(case: Line) -> list[str]:
    if BEST not in case["step_ms"] or "least_ms" not in case:
        return ["", "", ""]
    step_ms, least_ms = _middle(case["step_ms"][BEST]), case["least_ms"]
    return [f"{step_ms:.1f}", f"{least_ms:.1f}", f"{100 * least_ms / step_ms:.0f} %"]


def _bits(cases: list[Line]) -> Iterator[str]:
    titles = " | ".join(TITLES.values())
    memory = "captured graphs, MiB | compiled ones | peak of diffusers, GiB | of the last"
    yield f"| family, size, text rows | {titles} | {memory} |"
    yield "|---|" + "---|" * len(TITLES) + "--:|" * 4
    for case in cases:
        cells = [_difference(case, name) for name in TITLES]
        cells += [str(case["graphs"].get(name, {}).get("mib", "")) for name in ("ours_captured", BEST)]
        cells += [str(case["peak_gib"].get(name, "")) for name in ("diffusers", BEST)]
        yield f"| {_name(case)} | " + " | ".join(cells) + " |"


def _decodes(lines: list[Line]) -> Iterator[str]:
    """Of `benchmarks.h200_decode`."""
    if not lines:
        return
    yield from ("", "## Decoding", "", *DECODING, "")
    titles = "diffusers, ms | fast, ms | diffusers, compiled | as it is | fast | fast to diffusers, dB"
    yield f"| decoder | pixels | type | {titles} |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for line in {(line["decode"], line["pixels"]): line for line in lines}.values():
        cells = [line["decode"], line["pixels"], line["dtype"].removeprefix("torch.")]
        cells += [f"{line['ms'][name]:.1f}" for name in ("diffusers", "fast")]
        cells += [_ratio(line["ratio"].get(name)) for name in ("diffusers_compiled", "exact", "fast")]
        yield f"| {' | '.join(cells)} | {line['psnr_db']['fast'] or '='} |"


def _rows(lines: list[Line]) -> Iterator[str]:
    """Of `benchmarks.compiled_rows`."""
    if not lines:
        return
    yield from ("", "## Compiled blocks on lanes", "", *ROWS, "")
    found: dict[str, Line] = {}
    for line in lines:
        name = f"{line['compiled_rows']} {line['size']}, {line['text_rows']}"
        found.setdefault(name, {}).update(line)
    yield f"| family, size, text rows | {' | '.join(ROW_TITLES.values())} |"
    yield "|---" * (1 + len(ROW_TITLES)) + "|"
    for name, given in found.items():
        cells = ("=" if given.get(each) == 0 else str(given.get(each, "")) for each in ROW_TITLES)
        yield f"| {name} | {' | '.join(cells)} |"


def _libraries(cases: list[Line]) -> Iterator[str]:
    if not cases:
        return
    names = {BEST: TITLES[BEST], **LIBRARIES}
    yield from ("", "## Other libraries", "", *LIBRARIES_COMMAND, "")
    yield f"| family, size, text rows | diffusers, ms a step | {' | '.join(names.values())} |"
    yield "|---|" + "--:|" * (1 + len(names))
    for case in cases:
        cells = [_ratio(case["against_diffusers"].get(name)) for name in names]
        yield f"| {_name(case)} | {_middle(case['step_ms']['diffusers']):.1f} | {' | '.join(cells)} |"


def _name(case: Line) -> str:
    return f"{case['family']} {case['size']}, {case['text_rows']}"


def _ratio(ratios: list[float] | None) -> str:
    if ratios is None:
        return ""
    middle, least, most = ratios
    return f"{middle:.2f}× ({least:.2f} to {most:.2f})"


def _difference(case: Line, name: str) -> str:
    if name not in case["equal_bits"]:
        return ""
    if case["equal_bits"][name]:
        return "="
    difference, largest = case["largest_difference"][name]
    psnr_db = case.get("psnr_db", {}).get(name)
    return f"{difference:.3g} of {largest:.3g}" + (f", {psnr_db:.0f} dB" if psnr_db else "")


def _tolerance(cases: list[Line]) -> Iterator[str]:
    """Whether compiled steps keep what is promised of their latents."""
    known = {_name(case): value for case in cases if (value := case.get("psnr_db", {}).get(BEST))}
    if not known:
        return
    below = ", ".join(name for name, value in known.items() if value < TOLERANCE_DB) or "none"
    yield (
        f"Compiled steps are to keep {TOLERANCE_DB} dB: the range of the latents to the root of the mean square of "
        f"what they differ by. The least here is {min(known.values()):.0f} dB; below it: {below}."
    )
    yield ""


def _middle(values: list[float]) -> float:
    return sorted(values)[len(values) // 2]


def _lines(path: Path) -> Iterator[Line]:
    for text in path.read_text().splitlines():
        if text.startswith("{"):
            yield json.loads(text)


if __name__ == "__main__":
    main()
