from __future__ import annotations

import weakref

import pytest
import torch
from diffusers.models.transformers.transformer_z_image import ZImageTransformerBlock
from torch import nn

from epe.geometry import max_width
from epe.parallel import InputSplit, JointAttention, OutputGather, SequenceSharding, ShardPlan
from epe.transport.exchange import SoloExchange
from tests.lanes import ThreadExchange, on_lane

DIM = 48
PLAN = ShardPlan(
    splits=(InputSplit("blocks.0", "x", "rows"), InputSplit("blocks.*", "freqs_cis", "rows")),
    gathers=(OutputGather("head", "rows"),),
    attention=(JointAttention("blocks.*.attention", ("rows",)),),
)


class Toy(nn.Module):
    """Two blocks of one stream and a head with bias."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            ZImageTransformerBlock(n, DIM, 3, 3, 1e-5, True, modulation=False) for n in range(2)
        )
        self.head = nn.Linear(DIM, 8)
        self.block_rows: list[int] = []
        self.last_freqs: weakref.ref[torch.Tensor] | None = None

    def forward(self, x: torch.Tensor, mask: torch.Tensor | None = None) -> torch.Tensor:
        freqs = torch.polar(torch.ones(x.shape[0], x.shape[1], 8), torch.arange(8.0).expand(*x.shape[:2], 8))
        self.last_freqs = weakref.ref(freqs)
        for block in self.blocks:
            x = block(x, mask, freqs_cis=freqs)
            self.block_rows.append(x.shape[1])
        return self.head(x)


def _toys(count: int) -> list[Toy]:
    torch.manual_seed(0)
    toys = [Toy().eval() for _ in range(count)]
    for toy in toys:
        toy.load_state_dict(toys[0].state_dict())
    return toys


def _over(
    toy: Toy, sharding: SequenceSharding, exchange: ThreadExchange, *inputs: torch.Tensor
) -> torch.Tensor:
    with torch.inference_mode(), sharding.over(exchange):
        return toy(*inputs)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("num_rows", [16, 17, 61, 320, 1023])
@pytest.mark.parametrize("batch", [1, 2])
def test_uneven_shards_give_the_bits_of_the_whole(width: int, num_rows: int, batch: int) -> None:
    plain, *toys = _toys(width + 1)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]
    rows = torch.randn(batch, num_rows, DIM)
    mask = torch.ones(batch, num_rows, dtype=torch.bool)
    mask[-1, num_rows - 5 :] = False
    for inputs in ((rows,), (rows, mask)):
        with torch.inference_mode():
            expected = plain(*inputs)
        outputs = on_lane(width, lambda e, i=inputs: _over(toys[e.position], shardings[e.position], e, *i))
        assert all(torch.equal(output, expected) for output in outputs)
    assert sum(toy.block_rows[0] for toy in toys) == num_rows
    assert max(toy.block_rows[0] for toy in toys) == -(-num_rows // width)


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("num_rows", [98, 131, 200, 257, 771])
def test_short_blocks_of_queries_cost_no_bits_on_a_cpu(width: int, num_rows: int) -> None:
    # On a CPU a last block of one to three query rows goes through another kernel: those of the whole do
    # (98, 257 and 771 rows), those of a part (131 rows over 2 ranks, 200 over 3) would.
    plain, *toys = _toys(width + 1)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]
    rows = torch.randn(1, num_rows, DIM)
    with torch.inference_mode():
        expected = plain(rows)
    outputs = on_lane(width, lambda e: _over(toys[e.position], shardings[e.position], e, rows))
    assert all(torch.equal(output, expected) for output in outputs)


def test_a_pass_needs_one_exchange_a_layer_and_one_for_the_output() -> None:
    toys = _toys(2)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]

    def count(exchange: ThreadExchange) -> int:
        _over(toys[exchange.position], shardings[exchange.position], exchange, torch.randn(1, 32, DIM))
        return exchange.num_exchanges

    assert on_lane(2, count) == [3, 3]


def test_shards_are_contiguous_in_a_batch() -> None:
    # A linear layer with bias gives other bits over a strided slice of a batch.
    toys = _toys(2)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]
    seen: list[bool] = []
    for toy in toys:
        toy.blocks[0].register_forward_pre_hook(lambda module, args: seen.append(args[0].is_contiguous()))
    on_lane(2, lambda e: _over(toys[e.position], shardings[e.position], e, torch.randn(2, 32, DIM)))
    assert seen == [True, True]


def test_nothing_of_a_pass_is_kept_after_it() -> None:
    toys = _toys(2)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]
    on_lane(2, lambda e: _over(toys[e.position], shardings[e.position], e, torch.randn(1, 32, DIM)))
    assert all(toy.last_freqs is not None and toy.last_freqs() is None for toy in toys)


def test_a_lane_of_one_and_no_lane_leave_the_model_as_it_was() -> None:
    plain, toy = _toys(2)
    sharding = SequenceSharding(toy, PLAN)
    rows = torch.randn(2, 37, DIM)
    with sharding.over(SoloExchange()):
        assert torch.equal(toy(rows), plain(rows))
    assert torch.equal(toy(rows), plain(rows))


@pytest.mark.parametrize(("num_rows", "width", "widest"), [(11, 3, 2), (15, 4, 3), (3, 2, 1)])
def test_a_lane_that_leaves_a_rank_too_few_rows_is_an_error(num_rows: int, width: int, widest: int) -> None:
    toys = _toys(width)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]
    assert max_width(num_rows) == widest
    with pytest.raises(
        ValueError, match=rf"fewer than 4 of {num_rows} rows; the widest lane for them is {widest}"
    ):
        on_lane(
            width, lambda e: _over(toys[e.position], shardings[e.position], e, torch.randn(1, num_rows, DIM))
        )


def test_after_an_error_in_a_pass_the_model_works_again() -> None:
    plain, toy = _toys(2)
    sharding = SequenceSharding(toy, PLAN)
    rows = torch.randn(1, 32, DIM)

    class Broken(ThreadExchange):
        def all_to_all(self, parts: list[torch.Tensor], shapes: list[tuple[int, ...]]) -> list[torch.Tensor]:
            raise ConnectionError("a rank is gone")

    with pytest.raises(ConnectionError):
        _over(toy, sharding, Broken(None, 0, 2), rows)  # type: ignore[arg-type]
    assert torch.equal(toy(rows), plain(rows))


def test_a_model_works_for_one_lane_at_a_time() -> None:
    (toy,) = _toys(1)
    sharding = SequenceSharding(toy, PLAN)
    with (
        sharding.over(ThreadExchange(None, 0, 2)),
        pytest.raises(ValueError, match="already works for a lane"),
    ):  # type: ignore[arg-type]
        sharding.over(SoloExchange()).__enter__()


def test_a_mask_over_queries_is_an_error_on_a_lane() -> None:
    toys = _toys(2)
    shardings = [SequenceSharding(toy, PLAN) for toy in toys]
    rows, mask = torch.randn(1, 32, DIM), torch.ones(1, 1, 32, 32, dtype=torch.bool)
    with pytest.raises(ValueError, match="masks over keys only"):
        on_lane(2, lambda e: _over(toys[e.position], shardings[e.position], e, rows, mask))
