"""The probe that asks of each operation whether some rows alone have the bits that they have among all."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.row_probe import RowProbe, compared

IMAGE_ROWS, TEXT_ROWS = 200, 256


def _bounds(num_rows: int, width: int) -> dict[int, tuple[tuple[int, int], ...]]:
    size = num_rows // width
    return {width: tuple((place * size, (place + 1) * size) for place in range(width))}


def test_each_operation_on_rows_is_seen_once_and_has_the_bits_of_the_whole() -> None:
    model = nn.Sequential(nn.Linear(32, 64), nn.LayerNorm(64), nn.Linear(64, 32))
    probe = RowProbe(IMAGE_ROWS)
    with probe, torch.no_grad():
        for rows in (IMAGE_ROWS, TEXT_ROWS + IMAGE_ROWS, IMAGE_ROWS):
            model(torch.randn(1, rows, 32))
    assert [(line["operation"], line["rows"]) for line in probe.lines] == [
        (operation, rows) for rows in (200, 456) for operation in ("linear", "layer norm", "linear")
    ]
    assert all(line["differs"] == {2: 0.0, 3: 0.0, 4: 0.0, 8: 0.0} for line in probe.lines)


def test_attention_is_seen_by_rows_and_by_heads() -> None:
    query, key = torch.randn(1, 4, IMAGE_ROWS, 16), torch.randn(1, 4, 77, 16)
    probe = RowProbe(IMAGE_ROWS)
    with probe:
        nn.functional.scaled_dot_product_attention(query, query, query)
        nn.functional.scaled_dot_product_attention(query=query, key=key, value=key)
    assert [line["operation"] for line in probe.lines] == [
        "attention of rows",
        "attention of heads",
        "attention of rows",
    ]


def test_an_operation_that_depends_on_how_many_rows_there_are_is_told_with_what_mends_it() -> None:
    def centred(rows: torch.Tensor) -> torch.Tensor:
        return rows + (rows.shape[1] % 128 != 0)

    line = compared(centred, torch.zeros(1, 256, 8), 1, _bounds(256, 4))
    assert line["differs"] == {4: 1.0}
    assert (line["cause"]["rows"], line["cause"]["filled"]) == (64, [128, 256, 512])
    assert "cause" not in compared(centred, torch.zeros(1, 256, 8), 1, _bounds(256, 2))
