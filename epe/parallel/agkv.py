"""AGKV: each rank attends with its own query rows to all keys and values, gathered in global row order."""

from __future__ import annotations

from collections.abc import Callable

import torch

from epe.transport.exchange import Exchange

Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def attend_to_gathered(
    attend: Attend,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    *,
    sizes: tuple[int, ...],
    exchange: Exchange,
) -> torch.Tensor:
    """Attention of local rows to all rows: (batch, local rows, heads, head dim) each, as is the result.

    Keys and values travel in one exchange, rows first: the parts in lane order are the whole as it is.
    A block of query rows against all keys gives the bits of the whole attention. One exception is known: on a
    CPU, queries go in blocks of 32, 64 or 256, and a last block of one to three rows uses another kernel. Streams
    of a multiple of 32 rows, as Z-Image's, never have one on up to 8 ranks.
    """
    rows_first = torch.cat((key.transpose(0, 1), value.transpose(0, 1)), dim=-1)
    gathered = exchange.gather(rows_first, sizes, dim=0).transpose(0, 1)
    all_keys, all_values = gathered.split(key.shape[-1], dim=-1)
    return attend(query, all_keys, all_values)
