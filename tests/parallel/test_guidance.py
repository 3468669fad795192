from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from epe.messages import Split
from epe.parallel import predict_apart, predict_together
from epe.transport.exchange import Exchange, SoloExchange
from tests.lanes import ThreadExchange, on_lane

BRANCHES = (1.0, 2.0)
SHAPE = (3, 1, 5, 7)


class Model:
    """Predicts its branch, and notes with whom it worked."""

    def __init__(self) -> None:
        self.calls: list[tuple[tuple[float, ...], int]] = []

    def __call__(self, branches: Sequence[float], exchange: Exchange) -> list[torch.Tensor]:
        self.calls.append((tuple(branches), exchange.width))
        return [branch * torch.arange(105.0).view(SHAPE) for branch in branches]


EXPECTED = Model()(BRANCHES, SoloExchange())


@pytest.mark.parametrize(
    ("split", "calls"),
    [
        (Split(cp=3), [[((1.0,), 3), ((2.0,), 3)]] * 3),
        (Split(cfg=2, cp=1), [[((1.0,), 1)], [((2.0,), 1)]]),
        (Split(cfg=2, cp=2), [[((1.0,), 2)]] * 2 + [[((2.0,), 2)]] * 2),
        (Split(cfg=2, cp=3), [[((1.0,), 3)]] * 3 + [[((2.0,), 3)]] * 3),
    ],
    ids=str,
)
def test_every_rank_has_both_predictions_and_computes_its_share(
    split: Split, calls: list[list[tuple[tuple[float, ...], int]]]
) -> None:
    models = [Model() for _ in calls]

    def predict(exchange: ThreadExchange) -> list[torch.Tensor]:
        return predict_apart(models[exchange.position], BRANCHES, exchange=exchange, split=split)  # type: ignore[arg-type]

    for predictions in on_lane(len(calls), predict):
        assert len(predictions) == 2
        assert all(torch.equal(p, e) for p, e in zip(predictions, EXPECTED, strict=True))
    assert [model.calls for model in models] == calls


def test_together_is_one_batch_over_the_whole_lane() -> None:
    model = Model()
    predict_together(model, BRANCHES, exchange=SoloExchange(), split=Split())
    assert model.calls == [(BRANCHES, 1)]


@pytest.mark.parametrize("predict", [predict_together, predict_apart])
def test_a_split_that_does_not_fit_the_lane_is_an_error(predict: object) -> None:
    with pytest.raises(ValueError, match="a lane of 1 ranks cannot work as 1 x 2"):
        predict(Model(), BRANCHES, exchange=SoloExchange(), split=Split(cp=2))  # type: ignore[operator]


def test_one_branch_cannot_be_split() -> None:
    exchange = ThreadExchange(None, 0, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="1 branches cannot run 2 at once"):
        predict_apart(Model(), BRANCHES[:1], exchange=exchange, split=Split(cfg=2))  # type: ignore[arg-type]
