from __future__ import annotations

import pytest
import torch
from torch import nn

from epe.errors import StartFailed
from epe.messages import Split
from epe.parallel import Cut, DividedLayers, Plane, TensorSharding
from epe.parallel.tensor import add_up
from epe.transport.exchange import SoloExchange
from tests.lanes import on_lane

LAYERS = (DividedLayers("mlp", columns=("up",), rows=("down",)),)


class Toy(nn.Module):
    def __init__(self, features: int, *, heads: int | None = None) -> None:
        super().__init__()
        self.mlp = nn.ModuleDict(
            {"up": nn.Linear(8, features, bias=True), "down": nn.Linear(features, 8, bias=True)}
        )
        if heads is not None:
            self.mlp.heads = heads  # type: ignore[assignment]


@pytest.mark.parametrize("width", [2, 3, 4])
@pytest.mark.parametrize("shape", [(1, 5, 7), (2, 300, 64)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_parts_are_added_in_the_order_of_the_planes_on_every_rank(
    width: int, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    parts = [torch.randn(shape).to(dtype) for _ in range(width)]
    expected = parts[0].float()
    for part in parts[1:]:
        expected = expected + part.float()
    totals = on_lane(width, lambda e: add_up(parts[e.position], e))  # type: ignore[arg-type]
    assert all(torch.equal(total, expected.to(dtype)) for total in totals)


def test_large_parts_of_many_planes_cross_the_lane_twice_and_not_as_often_as_there_are_planes() -> None:
    part = torch.randn(4, 8192)

    def received_bytes(exchange: object) -> int:
        add_up(part, exchange)  # type: ignore[arg-type]
        return exchange.num_received_bytes  # type: ignore[attr-defined]

    assert on_lane(4, received_bytes) == [part.nbytes * 2 * 3 // 4] * 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("features", "degree", "bounds"),
    [
        (10240, 4, [(0, 2560), (2560, 5120), (5120, 7680), (7680, 10240)]),
        (10240, 3, [(0, 3456), (3456, 6912), (6912, 10240)]),
        (128, 3, [(0, 64), (64, 96), (96, 128)]),
        (9, 2, [(0, 5), (5, 9)]),
    ],
)
def test_features_are_divided_in_whole_tiles_where_there_are_enough(
    features: int, degree: int, bounds: list[tuple[int, int]]
) -> None:
    found = [TensorSharding(Toy(features), LAYERS, plane=Plane(i, degree)).cuts for i in range(degree)]
    assert [cuts["mlp.down.weight"] for cuts in found] == [Cut(1, start, end) for start, end in bounds]
    assert [cuts["mlp.up.bias"] for cuts in found] == [Cut(0, start, end) for start, end in bounds]
    assert "mlp.down.bias" not in found[0]


@pytest.mark.parametrize(("degree", "heads"), [(4, [8, 8, 7, 7]), (7, [5, 5, 4, 4, 4, 4, 4]), (30, [1] * 30)])
def test_heads_that_do_not_divide_are_shared_as_evenly_as_they_go(degree: int, heads: list[int]) -> None:
    rule = (DividedLayers("mlp", columns=("up",), rows=("down",), heads="heads"),)
    toys = [Toy(30 * 4, heads=30) for _ in range(degree)]
    cuts = [TensorSharding(toy, rule, plane=Plane(i, degree)).cuts for i, toy in enumerate(toys)]
    assert [toy.mlp.heads for toy in toys] == heads
    assert [cut["mlp.up.weight"].end - cut["mlp.up.weight"].start for cut in cuts] == [4 * h for h in heads]


def test_more_planes_than_heads_are_refused_with_what_is_possible() -> None:
    rule = (DividedLayers("mlp", columns=("up",), rows=("down",), heads="heads"),)
    with pytest.raises(StartFailed, match=r"mlp has 3 heads, which 4 planes cannot share; .* may be 1 to 3"):
        TensorSharding(Toy(12, heads=3), rule, plane=Plane(0, 4))


def test_a_model_in_one_plane_is_left_as_it_is() -> None:
    toy = Toy(12)
    sharding = TensorSharding(toy, LAYERS)
    assert sharding.cuts == {}
    assert type(toy.mlp["down"]) is nn.Linear
    with sharding.over(SoloExchange(), Split()) as plane:
        assert plane.width == 1


def test_a_rank_that_stands_in_another_plane_than_it_holds_is_refused() -> None:
    shardings = [TensorSharding(Toy(12), LAYERS, plane=Plane(0, 2)) for _ in range(2)]

    def enter(exchange: object) -> str:
        try:
            with shardings[exchange.position].over(exchange, Split(tp=2)):  # type: ignore[attr-defined, arg-type]
                return ""
        except ValueError as error:
            return str(error)

    assert on_lane(2, enter) == [  # type: ignore[arg-type]
        "",
        "a rank with plane 0 of the model stands in plane 1 of a lane",
    ]


def test_a_model_in_planes_does_not_work_outside_a_lane() -> None:
    toy = Toy(12)
    TensorSharding(toy, LAYERS, plane=Plane(0, 2))
    with pytest.raises(ValueError, match="only within `over`"):
        toy.mlp["down"](torch.randn(1, 8))


def test_the_planes_of_a_lane_stand_one_after_the_other_and_columns_across_them() -> None:
    shardings = [TensorSharding(Toy(12), LAYERS, plane=Plane(i // 2, 2)) for i in range(4)]

    def meet(exchange: object) -> tuple[list[float], list[float]]:
        mine = torch.tensor([float(exchange.position)])  # type: ignore[attr-defined]
        sharding = shardings[exchange.position]  # type: ignore[attr-defined]
        with sharding.over(exchange, Split(cp=2, tp=2)) as plane:  # type: ignore[arg-type]
            return plane.gather(mine, (1, 1), dim=0).tolist(), sharding.add_up(mine).tolist()

    assert on_lane(4, meet) == [  # type: ignore[arg-type]
        ([0.0, 1.0], [2.0]),
        ([0.0, 1.0], [4.0]),
        ([2.0, 3.0], [2.0]),
        ([2.0, 3.0], [4.0]),
    ]
