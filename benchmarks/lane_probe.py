"""Which operation of a step is the first to give other bits on a lane than on one rank: the lane is threads on one GPU.

    python -m benchmarks.lane_probe --family flux2-klein --width 2 --size 1 --blas as-it-is

`benchmarks.row_bits` asks each operation by itself; this one watches a whole step of the model at its full depth.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from benchmarks.blas import BLAS
from benchmarks.place import Case, Place, Setting
from benchmarks.real_sizes import MODELS
from epe.geometry import row_bounds
from epe.messages import Request, Split
from epe.models.contract import Adapter
from epe.parallel.shares import share_rows
from epe.transport.exchange import Exchange, SoloExchange
from tests.lanes import on_lane
from tests.world import RankContext

MOST_TOLD = 12
_WATCHED = {
    functional.linear: "linear",
    functional.layer_norm: "layer norm",
    functional.rms_norm: "rms norm",
    functional.scaled_dot_product_attention: "attention",
}


@dataclass
class Watch(TorchFunctionMode):
    """Keeps what each operation on rows gave, rows first, in the order of the calls."""

    seen: list[tuple[str, torch.Tensor]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        output = function(*args, **(kwargs or {}))
        if (name := _WATCHED.get(function)) and output.ndim > 2:
            self.seen.append((name, output.transpose(1, 2)[0] if name == "attention" else output[0]))
        return output


def watched(
    adapter: Adapter, request: Request, exchange: Exchange, width: int
) -> list[tuple[str, torch.Tensor]]:
    watch, state = Watch(), adapter.encode(request)
    with watch:
        adapter.step(state, exchange, Split(cp=width))
    return watch.seen


def rows_of(num_rows: int, lengths: set[int], *, num_picture: int, position: int, width: int) -> torch.Tensor:
    """Which rows of a sequence a rank has: of text, of the picture, or of text with the picture after it, which is so
    where both are among the `lengths` of all sequences."""
    picture = torch.arange(*row_bounds(num_picture, width)[position])
    if num_rows == num_picture:
        return picture
    is_joint = num_rows - num_picture in lengths
    num_text = num_rows - num_picture if is_joint else num_rows
    text = torch.arange(*share_rows(num_text, width=width, replicable=True).bounds(position))
    return torch.cat((text, num_text + picture)) if is_joint else text


def told(
    whole: list[tuple[str, torch.Tensor]], ranks: list[list[tuple[str, torch.Tensor]]], num_picture: int
) -> Iterator[dict[str, Any]]:
    """A line for each operation of a rank that gave other bits than one rank, in the order of the calls."""
    lengths = {len(each) for _, each in whole}
    for number, (name, expected) in enumerate(whole):
        for position, seen in enumerate(ranks):
            ours = seen[number][1]
            rows = rows_of(
                len(expected), lengths, num_picture=num_picture, position=position, width=len(ranks)
            )
            theirs = expected if len(ours) == len(expected) else expected[rows.to(expected.device)]
            if not torch.equal(ours, theirs):
                yield {
                    "case": "differs",
                    "number": number,
                    "operation": name,
                    "position": position,
                    "rows": len(expected),
                    "own_rows": len(ours),
                    "values": list(ours.shape[1:]),
                    "largest_difference": float((ours.double() - theirs.double()).abs().max()),
                }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--family", choices=list(MODELS), required=True)
    parser.add_argument("--width", type=int, default=2)
    parser.add_argument("--size", type=int, choices=(0, 1), default=1)
    parser.add_argument("--blas", choices=list(BLAS), default="exact")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true")
    args = parser.parse_args()
    dtype = "float32" if args.device == "cpu" else "bfloat16"
    setting = Setting(
        device=args.device, num_ranks=1, backend="gloo", dtype=dtype, tiny=args.tiny, blas=args.blas
    )
    place = Place(RankContext(0, 1, None), setting, Case(family=args.family), kind="lane probe")
    factory = place.factory(shared=True)
    weights = factory.weights()
    adapters = [place.adapter_around(factory.pipeline(weights)) for _ in range(args.width)]
    request = place.request(args.size, num_steps=2)
    num_picture = place.num_rows(request)
    whole = watched(adapters[0], request, SoloExchange(), 1)
    ranks = on_lane(args.width, lambda lane: watched(adapters[lane.position], request, lane, args.width))
    print(json.dumps({"case": "watched", "operations": len(whole), **vars(args)}), flush=True)
    for line in islice(told(whole, ranks, num_picture), MOST_TOLD):
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
