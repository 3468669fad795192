"""Which operations give the rows of one rank other bits than those rows have among all, and which setting of the
linear algebra mends it.

    python -m benchmarks.row_bits > BITS.jsonl                 # on CUDA, about four minutes
    python -m benchmarks.row_bits --tiny --device cpu          # the same program on small models

Every family's transformer at its real width, but with one layer of each kind and random weights, makes a step on one
rank; each operation in it is repeated for the rows that a rank of a lane would have. Each setting has a process of its
own, since some are read once; one of them works at a time. One JSON object a line.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from statistics import median

from benchmarks.blas import BLAS
from benchmarks.place import Case, Clock, Place, Setting, advance
from benchmarks.real_sizes import MODELS, Model, Size
from benchmarks.row_probe import WIDTHS, Line, RowProbe
from epe.messages import Split
from epe.models.contract import Adapter
from epe.parallel.products import unlike_widths
from epe.transport.exchange import SoloExchange
from tests.world import RankContext

TIMED_STEPS = 6


def measure(setting: Setting, *, families: list[str]) -> Iterator[Line]:
    """The lines of one setting."""
    context = RankContext(0, 1, None)
    for family in families:
        place = Place(context, setting, Case(family=family), kind="row bits")
        factory = place.factory(shared=False, shallow=True)
        adapter = place.adapter_around(factory.pipeline(factory.weights()))
        yield {"blas": setting.blas, "family": family, "size": "", **_trial(place, adapter)}
        for sides in _sizes(MODELS[family], tiny=setting.tiny):
            described = {"blas": setting.blas, "family": family, "size": "x".join(map(str, sides))}
            for line in _of_size(place, adapter, sides):
                yield {**described, **line}


def _sizes(model: Model, *, tiny: bool) -> tuple[Size, ...]:
    """From the usual ones to those of which a rank of a wide lane has but a few rows."""
    height, width, frames = model.sizes[0]
    halves = (height // 2, width // 2, frames)
    return model.tiny_sizes if tiny else (*model.sizes, halves, *model.tiny_sizes)


def _trial(place: Place, adapter: Adapter) -> Line:
    """What a rank that starts finds, and how long it takes to."""
    height, width, frames = MODELS[place.family.name].sizes[0]
    tokens = place.family.num_tokens(height=height // 2, width=width // 2, num_frames=frames)
    clock = Clock(place.device)
    found = unlike_widths(
        adapter.pipeline.transformer, row_counts=(tokens, place.family.max_text_tokens), widths=WIDTHS
    )
    clock.lap()
    return {"operation": "trial", "unlike": found, "ms": round(1e3 * clock.laps_s[0], 1)}


def _of_size(place: Place, adapter: Adapter, sides: Size) -> Iterator[Line]:
    """The time of a step, and each operation in it."""
    request, clock = place.request_of("size", *sides, num_steps=TIMED_STEPS), Clock(place.device)
    state = adapter.encode(request)
    advance(adapter, state, clock=clock)
    yield {"operation": "step", "ms": round(1e3 * median(clock.laps_s[1:]), 3)}
    probe = RowProbe(place.num_rows(request))
    with probe:
        adapter.step(state, SoloExchange(), Split())
    yield from probe.lines


def say_all(lines: Callable[[], Iterator[Line]]) -> None:
    """A setting that this torch lacks costs its own lines alone."""
    try:
        for line in lines():
            print(json.dumps(line), flush=True)
    except (RuntimeError, TypeError, ValueError) as error:
        print(json.dumps({"error": f"{type(error).__name__}: {error}"[:400]}), flush=True)


def begin(name: str, arguments: list[str]) -> subprocess.Popen[str]:
    """A process that imports everything and then waits for its turn."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks.row_bits", *arguments, "--waits", "--blas", name],
        stdin=subprocess.PIPE,
        text=True,
        env=os.environ | dict(BLAS[name].environment),
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="small models of the same shape")
    parser.add_argument("--families", nargs="+", choices=list(MODELS), default=list(MODELS))
    parser.add_argument("--blas", nargs="+", choices=list(BLAS), default=list(BLAS), help="these settings")
    parser.add_argument(
        "--waits", action="store_true", help="measure one setting, here, once a line has come"
    )
    args = parser.parse_args()
    if not args.waits:
        processes = [begin(name, sys.argv[1:]) for name in args.blas]
        for process in processes:
            process.communicate("go\n")
        return
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    setting = Setting(
        device=args.device, num_ranks=1, backend="gloo", dtype=dtype, tiny=args.tiny, blas=args.blas[0]
    )
    sys.stdin.readline()
    say_all(lambda: measure(setting, families=args.families))


if __name__ == "__main__":
    main()
