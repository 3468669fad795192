"""Which rows the watch over a lane takes for those of a rank."""

from __future__ import annotations

import pytest
import torch

from benchmarks.lane_probe import rows_of, told

TEXT, PICTURE = 200, 323
LENGTHS = {TEXT, PICTURE, TEXT + PICTURE}


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("num_rows", sorted(LENGTHS))
def test_the_ranks_of_a_lane_have_all_rows_and_each_once(num_rows: int, width: int) -> None:
    shares = [
        rows_of(num_rows, LENGTHS, num_picture=PICTURE, position=place, width=width) for place in range(width)
    ]
    assert sorted(torch.cat(shares).tolist()) == list(range(num_rows))


def test_the_first_operation_with_other_bits_is_told_with_its_rank() -> None:
    whole = [("linear", torch.zeros(PICTURE, 2)), ("layer norm", torch.zeros(PICTURE, 2))]
    ranks = [[(name, output[:162].clone()) for name, output in whole] for _ in range(2)]
    ranks[1] = [(name, output[162:].clone()) for name, output in whole]
    assert list(told(whole, ranks, PICTURE)) == []
    ranks[1][1][1][5, 0] = 0.5
    (line,) = told(whole, ranks, PICTURE)
    assert (line["number"], line["operation"], line["position"]) == (1, "layer norm", 1)
    assert line["largest_difference"] == 0.5
