"""Attention on a lane against attention on one rank: equal bits, and no more bytes than they cost."""

from __future__ import annotations

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention

from epe.parallel.attention import attend_on_lane, team_limits, team_size
from epe.parallel.shares import Share, share_rows
from tests.lanes import ThreadExchange, on_lane

TEXTS = (5, 40, 150)  # replicated, replicated, shared


def _attend(query: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    rows = (tensor.transpose(1, 2) for tensor in (query, keys, values))
    return scaled_dot_product_attention(*rows).transpose(1, 2)


def _held(whole: torch.Tensor, shares: tuple[Share, ...], position: int) -> torch.Tensor:
    """What a rank holds of [first stream, next stream ...]."""
    parts = []
    for stream, share in zip(whole.split([s.num_rows for s in shares], dim=1), shares, strict=True):
        start, end = share.bounds(position)
        parts.append(stream[:, start:end])
    return torch.cat(parts, dim=1)


def _check(
    width: int, *, limit: int | None, num_heads: int, num_text: int, num_image: int, batch: int = 1
) -> None:
    torch.manual_seed(0)
    shares = (
        share_rows(num_text, width=width, replicable=True),
        share_rows(num_image, width=width, replicable=False),
    )
    query, key, value = (torch.randn(batch, num_text + num_image, num_heads, 16) for _ in range(3))
    expected = _attend(query, key, value)

    def work(exchange: ThreadExchange) -> torch.Tensor:
        own = (_held(whole, shares, exchange.position) for whole in (query, key, value))
        return attend_on_lane(_attend, *own, shares=shares, exchange=exchange, limit=limit)  # type: ignore[misc,arg-type]

    for position, attended in enumerate(on_lane(width, work)):
        assert torch.equal(attended, _held(expected, shares, position))
        assert attended[0].is_contiguous()


@pytest.mark.parametrize("width", [2, 3, 4, 6, 8])
@pytest.mark.parametrize("limit", [1, 2, 3, None])
@pytest.mark.parametrize("num_text", TEXTS)
def test_any_teams_of_any_lane_give_the_bits_of_one_rank(
    width: int, limit: int | None, num_text: int
) -> None:
    _check(width, limit=limit, num_heads=12, num_text=num_text, num_image=323)


@pytest.mark.parametrize(("width", "num_heads"), [(2, 3), (3, 5), (4, 3), (4, 30), (5, 3), (7, 30), (8, 30)])
def test_heads_need_not_divide_nor_be_as_many_as_the_ranks(width: int, num_heads: int) -> None:
    _check(width, limit=None, num_heads=num_heads, num_text=150, num_image=209)


@pytest.mark.parametrize("limit", [1, 2, None])
def test_a_batch_has_the_bits_of_a_batch(limit: int | None) -> None:
    _check(4, limit=limit, num_heads=6, num_text=150, num_image=209, batch=2)


@pytest.mark.parametrize(
    ("width", "num_heads", "limit", "size"),
    [
        (4, 24, None, 4),
        (4, 24, 1, 1),
        (8, 12, None, 8),
        (8, 6, None, 4),
        (4, 3, None, 2),
        (5, 3, None, 1),
        (6, 24, 4, 3),
        (3, 24, 2, 1),
        (2, 24, 8, 2),
    ],
)
def test_teams_divide_the_lane_within_the_limit_and_the_heads(
    width: int, num_heads: int, limit: int | None, size: int
) -> None:
    assert team_size(width, num_heads=num_heads, limit=limit) == size


@pytest.mark.parametrize(
    ("limit", "num_exchanges", "received"),
    # In units of one tensor of all rows, on 4 ranks: AGKV 2 x 3/4, Ulysses 4 x 3/16, teams of two
    # 2/2 x 1/2 between them and 4 x 1/8 within.
    [(1, 1, 1.5), (None, 2, 0.75), (2, 2, 1.0)],
)
def test_the_bytes_that_move_are_those_of_the_method(
    limit: int | None, num_exchanges: int, received: float
) -> None:
    whole = torch.randn(1, 64, 4, 8)
    shares = (share_rows(64, width=4, replicable=False),)

    def work(exchange: ThreadExchange) -> tuple[int, int]:
        own = _held(whole, shares, exchange.position)
        attend_on_lane(_attend, own, own, own, shares=shares, exchange=exchange, limit=limit)  # type: ignore[arg-type]
        return exchange.num_exchanges, exchange.num_received_bytes

    assert on_lane(4, work) == [(num_exchanges, received * whole.nbytes)] * 4


def test_keys_of_other_heads_than_the_queries_are_not_shared_by_heads() -> None:
    shares = (share_rows(16, width=2, replicable=False),)
    query, key = torch.randn(1, 8, 4, 8), torch.randn(1, 8, 2, 8)
    exchange = ThreadExchange(None, 0, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="4 heads of queries and 2 of keys"):
        attend_on_lane(_attend, query, key, key, shares=shares, exchange=exchange, limit=None)  # type: ignore[arg-type]


def test_the_settings_name_the_limits_of_a_team() -> None:
    assert team_limits("agkv", None) == (1,)
    assert team_limits("ulysses", None) == (None,)
    assert team_limits("ulysses", 4) == (4,)
    assert team_limits("auto", None) == (1, None)


@pytest.mark.parametrize(("mode", "degree"), [("agkv", 2), ("ring", None), ("ulysses", 0), ("auto", 2)])
def test_settings_that_do_not_fit_are_an_error(mode: str, degree: int | None) -> None:
    with pytest.raises(ValueError, match="has no ulysses_degree"):
        team_limits(mode, degree)
