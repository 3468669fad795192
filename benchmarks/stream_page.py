"""The page of what `benchmarks.h200_stream` gave.

    python -m benchmarks.stream_page RUN.jsonl ... [--output docs/results/stream-h200.md]

Streams are shown of all runs; of what else several runs have measured of a family the last one counts.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from statistics import median, quantiles
from typing import Any

from benchmarks.stream_checks_page import checks

Line = dict[str, Any]

PAGE = """\
# A stream through the service on H200

`python -m benchmarks.h200_stream > RUN.jsonl`, shown by `python -m benchmarks.stream_page RUN.jsonl`.

{device}, Python {python}, torch {torch}, diffusers {diffusers}. Transformers and VAEs
of real size with random weights in bfloat16, text encoders of one or two layers; {drafts}.
Square pictures of {sides} pixels, equally many of each in random order, Poisson arrivals, every prompt
another one of 5 to 60 words.

The service is `epe serve` as it is shipped, on one rank; of its stage file only the sizes to warm up are set, and for
the rows with `fast` also `numerics: fast`: blocks and decoders are compiled before the service is ready. The loop
is diffusers' own pipeline, not compiled, in a process behind the same HTTP, first come, first served, that makes the
same files in threads. Both have the same arrivals on the same GPU, one after the other; who comes first changes from
round to round. Before, both had drawn each size, Z-Image with prompts of four lengths. A load is a share of what the
loop draws in a second when requests follow each other. Ratios are the medians of the rounds, with the least and the
most where there were several. Each run had a GPU of its own; those with 32 cores shared them with each other and with
work on the other GPU of their host, the rest had cores of their own and other work on other cores.

## Throughput

Pictures a second from the first arrival to the last picture, the median of the rounds; of that time, where it was
noted, the share in which the rank of the service was at work. A row is a run.

| family | load | cores | rounds | arrivals a second | loop | service | ratio | at work |
|---|--:|--:|--:|--:|--:|--:|--:|--:|
{throughput}

Below the capacity of an entrant its throughput is that of the arrivals.

## Latency

Seconds from sending a request to having its file, over all rounds. Of 8 requests P95 is nearly the longest.

| family | load | cores | side | requests | loop P50 | loop P95 | service P50 | service P95 | P95, service to loop |
|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|
{latency}

## One request alone

Seconds, the median of two, of the last run of each; the largest and the mean difference of a pixel's values of the last
picture, of 255.

| family | side | loop | service | ratio | largest | mean |
|---|--:|--:|--:|--:|--:|--:|
{alone}

{repeated}
{soak}
## What was asked, and what was not run

Asked were 1.5 times the throughput and half the P95 of the small pictures. The tails of the small are far below half
at every load: they do not wait for large ones. Of throughput 1.5 times is reached with `numerics: fast` in every round
that the table has: three of each family in one run, one of each in an earlier one, whose loop was slower. With `exact`
it is not: with equally many pictures of each size those of 1024 pixels take more than half of the time, and both
entrants need about as long for them, since their steps and their decode are bound by the same kernels
([steps](h200.md)).

The streams of Z-Image with `fast` are from before its queries, keys and values were [one product](h200.md). The soak
shared its GPU with other work. It repeats 25 prompts: encoded prompts are kept up to 128 MiB
(`prompts.memory_mib`), and of ever new ones what is allocated would grow up to that. Not run: a soak of FLUX.1, and
more than one round of a load of 0.9.
"""
SOAK = """
## Soak

{num_requests} requests of {num_steps} steps for {family}, of sides {sides}, by {num_clients} clients, in
{took_s} s. MiB after so many:

| requests | allocated | reserved | captured passes | host, all processes |
|--:|--:|--:|--:|--:|
{samples}

In all: {counts}.
Between a quarter of the requests and the last, reserved memory changed by {reserved:+} MiB, that of the host by
{host:+} MiB.
"""
SHOWN_SAMPLES = 9
# The stages that a rank does; files are made elsewhere.
ON_RANK = ("encode", "denoise", "decode")
_RANK = '{{kind="{kind}",rank="0"}}'


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--output", type=Path, default=Path("docs/results/stream-h200.md"))
    arguments = parser.parse_args()
    arguments.output.write_text(page(lines_of(arguments.runs)))


def lines_of(runs: Iterable[Path]) -> list[Line]:
    """Each line with the number of its run, and the family named with its numerics where these are fast."""
    lines: list[Line] = []
    for number, run in enumerate(runs):
        own = [json.loads(text) for text in run.read_text().splitlines() if text[:1] == "{"]
        is_fast = own[0]["case"] == "setting" and own[0]["numerics"] == "fast"
        for line in own:
            named = {"family": f"{line['family']}, fast"} if is_fast and "family" in line else {}
            lines.append({**line, "run": number, **named})
    return lines


def page(lines: Sequence[Line]) -> str:
    """Of what `lines_of` gives."""
    setting = [line for line in lines if line["case"] == "setting"][-1]
    drafts = ", ".join(
        f"{name} in {draft['num_steps']} steps" for name, draft in sorted(setting["drafts"].items())
    )
    return PAGE.format(
        **{name: setting[name] for name in ("device", "python", "torch", "diffusers")},
        drafts=drafts,
        sides=_listed(setting["sides"]),
        throughput="\n".join(_throughput(lines)),
        latency="\n".join(_latency(lines)),
        alone="\n".join(_alone(lines)),
        repeated="\n".join(map(_repeated, _last(lines, "repeated"))),
        soak="".join(map(_soak, _last(lines, "soak"))) + checks(lines),
    )


def _throughput(lines: Sequence[Line]) -> Iterator[str]:
    for run, rounds in _rounds(lines):
        ratios = [each["service"]["throughput"] / each["loop"]["throughput"] for each in rounds]
        loop, service = (median(each[name]["throughput"] for each in rounds) for name in ("loop", "service"))
        figures = (f"{rounds[0]['rate']:.2f}", f"{loop:.2f}", f"{service:.2f}", _spread(ratios))
        yield _row(*run, len(rounds), *figures, _at_work(rounds))


def _at_work(rounds: Sequence[Line]) -> str:
    """The median share of the rounds that tell it."""
    shares = [
        sum(each["service_work_s"][stage] for stage in ON_RANK) / each["service"]["took_s"]
        for each in rounds
        if "service_work_s" in each
    ]
    return f"{100 * median(shares):.0f} %" if shares else ""


def _latency(lines: Sequence[Line]) -> Iterator[str]:
    for run, rounds in _rounds(lines):
        for side in sorted(rounds[0]["loop"]["latency_s"], key=int):
            each = {
                name: [latency for line in rounds for latency in line[name]["latency_s"][side]]
                for name in ("loop", "service")
            }
            cells = [f"{part(each[name]):.2f}" for name in ("loop", "service") for part in (median, p95)]
            ratios = [
                p95(line["service"]["latency_s"][side]) / p95(line["loop"]["latency_s"][side])
                for line in rounds
            ]
            yield _row(*run, side, len(each["loop"]), *cells, _spread(ratios))


def _alone(lines: Sequence[Line]) -> Iterator[str]:
    for line in _last(lines, "alone"):
        for side, away in line["pixel_difference"].items():
            loop, service = (median(line[f"{name}_s"][side]) for name in ("loop", "service"))
            ratio = f"{loop / service:.2f}×"
            yield _row(line["family"], side, f"{loop:.3f}", f"{service:.3f}", ratio, *away)


def _repeated(line: Line) -> str:
    bits = "with equal pixels" if line["equal_pixels"] else "with **other** pixels"
    seconds = ", ".join(f"{each:.3f}" for each in line["service_s"])
    return (
        f"{line['family']}, a size that nobody has asked for ({line['side']}), the same request three times: "
        f"{seconds} s, {bits}; its first steps ran as they are, the others were replayed.\n"
    )


def _soak(line: Line) -> str:
    samples = line["samples"]
    step = max(1, (len(samples) - 1) // (SHOWN_SAMPLES - 1))
    shown = [*samples[:-1:step], samples[-1]]
    quarter, last = samples[len(samples) // 4], samples[-1]
    passes = re.compile(r'^epe_graph_passes_total\{kind="(\w+)"')
    counts = {found[1]: int(value) for name, value in last.items() if (found := passes.match(name))}
    return SOAK.format(
        **{name: line[name] for name in ("num_requests", "num_steps", "family", "took_s")},
        num_clients=line.get("num_clients", 4),
        sides=_listed(line["sides"]),
        samples="\n".join(_row(sample["num_done"], *_memory(sample)) for sample in shown),
        counts=", ".join(f"{count} passes {kind}" for kind, count in sorted(counts.items())) or "no passes",
        reserved=_memory(last)[1] - _memory(quarter)[1],
        host=_memory(last)[3] - _memory(quarter)[3],
    )


def _memory(sample: Line) -> tuple[int, int, int, int]:
    """MiB: allocated, reserved, graphs, host."""
    allocated, reserved = (
        sample.get("epe_rank_memory_bytes" + _RANK.format(kind=kind), 0) for kind in ("allocated", "reserved")
    )
    graphs = sample.get('epe_graph_bytes{rank="0"}', 0)
    device = (round(num_bytes / 2**20) for num_bytes in (allocated, reserved, graphs))
    return (*device, sample["host_mib"])  # type: ignore[return-value]


def _rounds(lines: Sequence[Line]) -> Iterator[tuple[tuple[str, float, int], list[Line]]]:
    """The rounds of each family, load and run; of the run the family, the load and its cores."""
    cores = {line["run"]: line["num_cores"] for line in lines if line["case"] == "setting"}
    rounds: dict[tuple[str, float, int], list[Line]] = {}
    for line in lines:
        if line["case"] == "stream":
            rounds.setdefault((line["family"], line["load"], line["run"]), []).append(line)
    families = list(dict.fromkeys(family for family, *_ in rounds))
    for key in sorted(rounds, key=lambda key: (families.index(key[0]), *key[1:])):
        family, load, run = key
        yield (family, load, cores[run]), rounds[key]


def _last(lines: Sequence[Line], case: str) -> list[Line]:
    """One line a family."""
    return list({line["family"]: line for line in lines if line["case"] == case}.values())


def p95(values: Sequence[float]) -> float:
    return quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def _spread(ratios: Sequence[float]) -> str:
    spread = f" ({min(ratios):.2f} to {max(ratios):.2f})" if len(ratios) > 1 else ""
    return f"{median(ratios):.2f}×{spread}"


def _listed(values: Sequence[int]) -> str:
    *first, last = map(str, values)
    return f"{', '.join(first)} and {last}"


def _row(*cells: object) -> str:
    return "| " + " | ".join(map(str, cells)) + " |"


if __name__ == "__main__":
    main()
