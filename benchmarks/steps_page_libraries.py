"""Of `docs/results/h200.md`: other libraries, which drew in turn with our best."""

from __future__ import annotations

from collections.abc import Iterator

from benchmarks.steps_page_cells import BEST, TITLES, Line, middle_of, name_of, ratio

# Other libraries that draw all steps, and those that leave some out beside ours that leaves out as many.
ALL_STEPS = {"cache_dit": "cache-dit, all blocks", "xfuser": "xfuser"}
SOME_STEPS = {"cache_dit_reusing": "ours_reusing"}
LIBRARIES = {
    **ALL_STEPS,
    "cache_dit_reusing": "cache-dit, every second step left out",
    "ours_reusing": "ours, every second step left out",
}
HOW = (
    "`python -m benchmarks.h200_steps --only FAMILY --sizes SIZE --entrants diffusers,ours_compiled,cache_dit,xfuser "
    ">> RUN.jsonl`, each case in a process of its own; all runs, the oldest of a case first. Most processes of a GPU "
    "compiled side by side, which takes longest, and then drew one after the other. cache-dit 1.5.3 compiles "
    "diffusers' blocks with its own settings of torch's compiler, which times kernels: for 46 to 267 s a case, where "
    "ours took 10 to 20 (6 where its form before had just been compiled). xfuser 0.7.0 compiles whole transformers, "
    "for 74 to 133 s: diffusers' own of FLUX.1 (its latents are 26 and 27 dB from diffusers', those of all others "
    "here 45 to 60), its own of Qwen-Image and Wan. Its own of Z-Image takes no call of diffusers 0.42.1 "
    "(`joint_attention_kwargs`)."
)
DISTURBED = (
    "By the clock, these drew while another process still compiled on the same GPU: Z-Image at 256x256 and 512x512, "
    "Qwen-Image at 256x256, two rounds of Qwen-Image at 1024x1024 and one of FLUX.1 at 256x256. In the second of those "
    "two, and in that one, the other process drew as well: ours took 386 ms (252 and 245 in the other rounds) and 31.6 "
    "(13.7 in both others). The second round of Z-Image at 1024x1024 in the older run has no such cause. There "
    "cache-dit had timed its kernels beside three other processes, for 267 s; in the later run beside ours alone, for "
    "108. In the later one alone Z-Image had one product for queries, keys and values; with three, as in its other "
    "runs here, it took 97.7 ms in that run, and less than cache-dit in all twelve rounds."
)


def libraries(runs: list[Line]) -> Iterator[str]:
    """A table of the runs in which others drew beside our best; `runs` are in order of time."""
    runs = [run for run in runs if BEST in run["step_ms"] and LIBRARIES.keys() & run["step_ms"].keys()]
    if not runs:
        return
    drawn = {name for run in runs for name in run["step_ms"]}
    titles = {BEST: TITLES[BEST], **{name: title for name, title in LIBRARIES.items() if name in drawn}}
    yield from ("", "## Other libraries", "", HOW, "")
    yield f"| family, size, text rows | rounds | diffusers, ms a step | {' | '.join(titles.values())} |"
    yield "|---|--:|--:|" + "--:|" * len(titles)
    names = list(dict.fromkeys(map(name_of, runs)))
    for run in sorted(runs, key=lambda run: names.index(name_of(run))):
        cells = [ratio(run["against_diffusers"].get(name)) for name in titles]
        host_ms = run["step_ms"]["diffusers"]
        yield f"| {name_of(run)} | {len(host_ms)} | {middle_of(host_ms):.1f} | {' | '.join(cells)} |"
    yield from ("", _round_by_round(runs), "", DISTURBED)


def _round_by_round(runs: list[Line]) -> str:
    """In which rounds another that draws all steps took less than ours."""
    pairs = [
        (run, other, number, own_ms, ms)
        for run in runs
        for other in ALL_STEPS.keys() & run["step_ms"].keys()
        for number, (own_ms, ms) in enumerate(
            zip(run["step_ms"][BEST], run["step_ms"][other], strict=True), 1
        )
    ]
    less = [
        f"{other} in round {number} of {name_of(run)} ({ms:.1f} ms, ours {own_ms:.1f})"
        for run, other, number, own_ms, ms in sorted(pairs, key=lambda pair: (name_of(pair[0]), pair[1:3]))
        if ms < own_ms
    ]
    return (
        f"Round by round, of {len(pairs)} times that one of them drew beside ours, it took less in {len(less)}"
        f"{': ' if less else ''}{'; '.join(less)}."
    )


def faster_before(runs: list[Line]) -> Iterator[str]:
    """Where another that draws all steps was faster by the medians of a run that is not the last of its case."""
    last = {name_of(run): run for run in runs if BEST in run["step_ms"]}
    told = [
        f"{name_of(run)} ({other} {theirs:.2f}×, ours {own:.2f}×, rounds: {len(run['step_ms'][BEST])})"
        for run in runs
        if BEST in run["step_ms"] and run is not last[name_of(run)]
        for other in ALL_STEPS
        if (theirs := _median(run, other)) > (own := _median(run, BEST))
    ]
    if told:
        yield from ("", f"By those of a run before the last: {'; '.join(told)}.")


def _median(run: Line, name: str) -> float:
    """How many times as fast as diffusers; 0 for who did not draw."""
    median: float = run["against_diffusers"].get(name, [0.0])[0]
    return median
