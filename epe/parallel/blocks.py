"""Attention of some query rows on a CPU, with the bits that they have among all rows.

torch takes query rows there in blocks, whose length follows from the number of rows, and keys in blocks of 512. A last
block of one to three rows goes through another kernel, with other last bits. GPUs have no such blocks to mind.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from epe.geometry import round_up

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]

# From so many query rows on, their blocks have so many rows.
_BLOCKS = ((768, 256), (192, 64), (0, 32))
_KEY_BLOCK = 512
# With fewer rows or keys than this, another kernel multiplies.
_FEW = 4


def attend_to_all(
    attend: Attend,
    query: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    *,
    num_rows: int,
    has_last: bool,
) -> torch.Tensor:
    """Attention of some of `num_rows` query rows to all keys; `has_last` if the last of all is among them.

    Query (batch, rows, heads, head dim). Repeated rows fill blocks up, so that a row is in a last block of a few
    rows here exactly if it is in one among all rows; a last block of a few keys wants whole blocks of rows. Known
    not to hold: keys that are other rows, one more than a multiple of 512 (text, which has at most 512).
    """
    if query.device.type != "cpu" or query.shape[1] == num_rows:
        return attend(query, keys, values)
    num_tail = _num_few(num_rows, _block(num_rows)) if has_last else 0
    num_body = query.shape[1] - num_tail
    whole_blocks = num_tail > 0 or _num_few(keys.shape[1], _KEY_BLOCK) > 0
    filling = _to_whole_blocks(num_body, num_tail) if whole_blocks else _to_enough(num_body)
    if filling == 0:
        return attend(query, keys, values)
    body, tail = query.split((num_body, num_tail), dim=1)
    attended = attend(torch.cat((body, *[body[:, -1:]] * filling, tail), dim=1), keys, values)
    return torch.cat((attended[:, :num_body], attended[:, num_body + filling :]), dim=1)


def _block(num_rows: int) -> int:
    return next(length for least, length in _BLOCKS if num_rows >= least)


def _num_few(num_rows: int, block: int) -> int:
    """Rows in the last block if they are too few for the common kernel, else 0."""
    left = num_rows % block
    return left if left < _FEW else 0


def _to_enough(num_rows: int) -> int:
    """Rows that a last block of a few lacks."""
    return -_num_few(num_rows, _block(num_rows)) % _FEW


def _to_whole_blocks(num_body: int, num_tail: int) -> int:
    """Rows after which a tail is a block of its own."""
    padded = (round_up(num_body, length) for _, length in reversed(_BLOCKS))
    return next(rows for rows in padded if rows % _block(rows + num_tail) == 0) - num_body
