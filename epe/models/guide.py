"""Guidance without a classifier (Ho and Salimans, 2022): how the predictions of the branches become one."""

from __future__ import annotations

import torch


def lead_away(predictions: list[torch.Tensor], *, scale: float) -> torch.Tensor:
    """The first branch's prediction, led away from the second's where there is one."""
    if len(predictions) == 1:
        return predictions[0]
    positive, negative = predictions
    return negative + scale * (positive - negative)


def lead_away_at_length(predictions: list[torch.Tensor], *, scale: float) -> torch.Tensor:
    """`lead_away`, and each row (the last dim) brought back to the length that it has in the first branch."""
    guided = lead_away(predictions, scale=scale)
    if len(predictions) == 1:
        return guided
    length, guided_length = (torch.norm(each, dim=-1, keepdim=True) for each in (predictions[0], guided))
    return guided * (length / guided_length)
