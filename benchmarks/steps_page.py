"""`docs/results/h200.md` from the lines of `benchmarks.h200_steps`: later runs fill in what earlier ones left out.

python -m benchmarks.steps_page RUN.jsonl ... > docs/results/h200.md
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from benchmarks.steps_page_cells import BEST, TITLES, Line, middle_of, name_of, ratio
from benchmarks.steps_page_forms import forms, joined
from benchmarks.steps_page_hosts import exact_behind, hosts
from benchmarks.steps_page_libraries import ALL_STEPS, LIBRARIES, SOME_STEPS, faster_before, libraries
from benchmarks.steps_page_text import DECODING, NOT_RUN, ROWS, SINCE, SLOWER

# Of the latents that compiled steps end with to those of our own steps as they are; `docs/numerics.md` promises it.
TOLERANCE_DB = 40
COMMAND = "python -m benchmarks.h200_steps > RUN.jsonl; python -m benchmarks.steps_page RUN.jsonl"

ROW_TITLES = {"width_2": "2 threads", "width_4": "4 threads", "own_gpus": "2 GPUs"}


def main() -> None:
    print(page(line for path in sys.argv[1:] for line in _lines(Path(path))))


def page(lines: Iterable[Line]) -> str:
    """The whole page."""
    everything = list(lines)
    setting = next(line for line in everything if "torch" in line)
    steps = [line for line in everything if "step_ms" in line]
    against = [line for line in steps if LIBRARIES.keys() & line["step_ms"].keys()]
    decodes = [line for line in everything if "decode" in line]
    cases = _latest(line for line in steps if line not in against)
    drawn = {name_of(case): case for case in cases}
    beside = [_filled_in(line, drawn.get(name_of(line), {})) for line in _latest(against)]
    rows = [line for line in everything if "compiled_rows" in line]
    return "\n".join(
        [
            "# Steps on H200",
            "",
            f"`{COMMAND}`",
            "",
            f"{setting['device']}, Python {setting['python']}, torch {setting['torch']}, diffusers "
            f"{setting['diffusers']}; real sizes with random weights in bfloat16. What stands in a row was measured "
            "in one run, in turn, with diffusers as it is; columns that the last run of a row left out are those of "
            "the run before, told with the milliseconds that diffusers took there. A ratio is diffusers' time over "
            f"that of the column, the median of at least {setting['rounds']} rounds, if no other number is told, with "
            "the least and the most. Steps of a drawing follow each other without waiting, as in a service. Qwen-Image "
            "and Wan have two guidance branches a step, the others one. Roofline: products at 790 TFLOP/s and "
            "attention at 600, or all weights read once a branch at 4.3 TB/s, if that takes longer.",
            "",
            *_speeds(cases),
            *hosts(steps),
            "",
            "## Bits and memory",
            "",
            "Of each column: whether all rounds gave the expected latents, bit for bit, else the largest difference "
            "and the largest value. Expected are, of diffusers' and our own as they are, those of diffusers as it is; "
            "of captured and compiled steps those of our own as they are, if these were in the run. Ours differ from "
            "diffusers as it is since ranks [divide no product](../decisions/0018-products-are-not-divided.md); with "
            "one setting for both, in runs before, [they did not](h200-families.md). Graphs: device memory of all "
            "captured passes of the family so far. Peaks: what torch had reserved at most when an entrant first drew, "
            "with what those before it kept.",
            "",
            *_tolerance(cases),
            *_bits(cases),
            *_decodes(decodes),
            *_rows([line for line in rows if "form" not in line]),
            *libraries(against),
            *_slower([*cases, *beside], decodes),
            *faster_before(against),
            *exact_behind(steps),
            *forms(steps),
            *joined(steps),
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
    hosts_ms = dict.fromkeys(line["step_ms"], middle_of(line["step_ms"]["diffusers"]))
    line = {**line, "hosts_ms": {**hosts_ms, **line.get("hosts_ms", {})}}
    columns = {name for name, value in line.items() if isinstance(value, dict) and name != "errors"}
    return {**line, **{name: {**before.get(name, {}), **line[name]} for name in columns}}


def _sides(case: Line) -> list[int]:
    return [int(side) for side in case["size"].split("x")]


def _speeds(cases: list[Line]) -> Iterator[str]:
    titles = " | ".join(TITLES.values())
    yield f"| family, size, text rows | diffusers, ms a step | {titles} | the last one's ms | roofline, ms | of it |"
    yield "|---|--:|" + "--:|" * (len(TITLES) + 3)
    for case in cases:
        cells = [_speed(case, name) for name in TITLES]
        cells += _roofline(case)
        yield f"| {name_of(case)} | {case['hosts_ms']['diffusers']:.1f} | {' | '.join(cells)} |"


def _speed(case: Line, name: str) -> str:
    """With what diffusers took, if that is not what it took in the run of the row."""
    text, host_ms = ratio(case["against_diffusers"].get(name)), case["hosts_ms"].get(name)
    return f"{text} of {host_ms:.1f}" if text and host_ms != case["hosts_ms"]["diffusers"] else text


def _roofline(case: Line) -> list[str]:
    if BEST not in case["step_ms"] or "least_ms" not in case:
        return ["", "", ""]
    step_ms, least_ms = middle_of(case["step_ms"][BEST]), case["least_ms"]
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
        yield f"| {name_of(case)} | " + " | ".join(cells) + " |"


def _decodes(lines: list[Line]) -> Iterator[str]:
    """Of `benchmarks.h200_decode`."""
    if not lines:
        return
    yield from ("", "## Decoding", "", *DECODING, "")
    titles = "diffusers, ms | fast, ms | diffusers, compiled | as it is | fast | fast to diffusers, dB"
    yield f"| decoder | pixels | type | {titles} |"
    yield "|---|---|---|--:|--:|--:|--:|--:|--:|"
    for line in _last_rounds(lines):
        cells = [line["decode"], line["pixels"], line["dtype"].removeprefix("torch.")]
        cells += [f"{line['ms'][name]:.1f}" for name in ("diffusers", "fast")]
        cells += [ratio(line["ratio"].get(name)) for name in ("diffusers_compiled", "exact", "fast")]
        yield f"| {' | '.join(cells)} | {line['psnr_db']['fast'] or '='} |"


def _last_rounds(decodes: list[Line]) -> list[Line]:
    return list({(line["decode"], line["pixels"]): line for line in decodes}.values())


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
        cells = (_apart(given.get(each)) for each in ROW_TITLES)
        yield f"| {name} | {' | '.join(cells)} |"


def _apart(largest: float | None) -> str:
    if largest is None:
        return ""
    return f"{largest:.3g}" if largest else "="


def _slower(cases: list[Line], decodes: list[Line]) -> Iterator[str]:
    """Where somebody else was faster than our best in what was drawn beside it."""
    found = [f"{name_of(case)} ({each})" for case in cases for each in _faster(case)]
    found += [
        f"{line['decode']} {line['pixels']} (diffusers_compiled)"
        for line in _last_rounds(decodes)
        if _is_faster(line["ratio"], "diffusers_compiled", "fast")
    ]
    yield from ("", "## Where another is faster", "")
    yield f"{'; '.join(found) or 'Nowhere'}: {SLOWER}"


def _faster(case: Line) -> list[str]:
    """Of those that draw all steps, and of those that leave some out; by milliseconds too, since of two columns of two
    runs the ratios are to two hosts."""
    others = {**dict.fromkeys(("diffusers", "diffusers_compiled", *ALL_STEPS), BEST), **SOME_STEPS}
    ratios, rates = case["against_diffusers"], _rates(case)
    return [
        other
        for other, own in others.items()
        if _is_faster(ratios, other, own) or _is_faster(rates, other, own)
    ]


def _rates(case: Line) -> dict[str, list[float]]:
    """Steps a millisecond, of the median."""
    return {name: [1 / middle_of(each)] for name, each in case["step_ms"].items()}


def _is_faster(ratios: dict[str, list[float]], other: str, own: str) -> bool:
    """By the median; False where one of the two did not draw."""
    return other in ratios and own in ratios and ratios[other][0] > ratios[own][0]


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
    known = {name_of(case): value for case in cases if (value := case.get("psnr_db", {}).get(BEST))}
    if not known:
        return
    below = ", ".join(name for name, value in known.items() if value < TOLERANCE_DB) or "none"
    yield (
        f"Compiled steps are to keep {TOLERANCE_DB} dB: the range of the latents to the root of the mean square of "
        f"what they differ by. The least here is {min(known.values()):.0f} dB; below it: {below}."
    )
    yield ""


def _lines(path: Path) -> Iterator[Line]:
    for text in path.read_text().splitlines():
        if text.startswith("{"):
            yield json.loads(text)


if __name__ == "__main__":
    main()
