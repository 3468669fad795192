"""Bits of torch's CPU attention over some of the query rows."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from epe.geometry import row_bounds
from epe.parallel.blocks import attend_to_all


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rows = (tensor.transpose(1, 2) for tensor in (query, keys, values))
    return scaled_dot_product_attention(*rows).transpose(1, 2)


@pytest.mark.parametrize("num_parts", [2, 3, 4, 8])
def test_rows_have_the_bits_that_they_have_among_all_rows(num_parts: int) -> None:
    torch.manual_seed(0)
    # Around the lengths of blocks: 32 and 64 and 256 of rows, 512 of keys.
    for num_rows in (33, 50, 67, 97, 131, 192, 193, 200, 257, 513, 514, 771, 835, 1025, 1026, 1539):
        query, keys, values = (torch.randn(1, num_rows, 3, 16) for _ in range(3))
        expected = _attend(query, keys, values)
        for start, end in row_bounds(num_rows, num_parts):
            part = attend_to_all(
                _attend,
                query[:, start:end],
                keys,
                values,
                num_rows=num_rows,
                has_last=end == num_rows,
            )
            assert torch.equal(part, expected[:, start:end]), (num_rows, start, end)


@pytest.mark.parametrize("num_keys", [3, 35, 226, 512])
def test_rows_have_their_bits_also_over_keys_that_are_other_rows(num_keys: int) -> None:
    torch.manual_seed(0)
    keys, values = (torch.randn(1, num_keys, 3, 16) for _ in range(2))
    for num_rows in (33, 105, 200, 771, 1026):
        query = torch.randn(1, num_rows, 3, 16)
        expected = _attend(query, keys, values)
        for start, end in row_bounds(num_rows, 3):
            part = attend_to_all(
                _attend,
                query[:, start:end],
                keys,
                values,
                num_rows=num_rows,
                has_last=end == num_rows,
            )
            assert torch.equal(part, expected[:, start:end]), (num_rows, start, end)


def test_without_filling_a_short_block_has_other_bits() -> None:
    # The reason for all this; where it no longer holds, `epe.parallel.blocks` can go.
    torch.manual_seed(0)
    query, keys, values = (torch.randn(1, 200, 3, 16) for _ in range(3))
    expected = _attend(query, keys, values)
    assert not torch.equal(_attend(query[:, :67], keys, values), expected[:, :67])
