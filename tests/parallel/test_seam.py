from __future__ import annotations

from collections.abc import Callable
from inspect import signature
from typing import Any

import pytest
import torch
from diffusers.models import attention_dispatch
from diffusers.models.attention_processor import Attention, AttnProcessor
from diffusers.models.transformers import transformer_z_image
from diffusers.models.transformers.transformer_z_image import ZSingleStreamAttnProcessor
from torch import nn

from epe.errors import StartFailed
from epe.parallel import seam


def _attention(processor: object) -> Attention:
    return Attention(query_dim=16, heads=2, dim_head=8, bias=False, out_bias=False, processor=processor)


def test_the_installed_diffusers_has_the_seam() -> None:
    seam.check_seam()


def test_another_series_of_diffusers_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam.diffusers, "__version__", "0.43.0")
    with pytest.raises(StartFailed, match=r"diffusers 0\.43\.0 is installed; 0\.42\.x is needed"):
        seam.check_seam()


def test_another_signature_fails_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(seam, "dispatch_attention_fn", lambda query, key: None)
    with pytest.raises(StartFailed, match=r"takes \(query, key\)"):
        seam.check_seam()


def test_only_the_redirected_module_calls_elsewhere() -> None:
    calls = []

    def attend(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, **options: object
    ) -> torch.Tensor:
        calls.append(options)
        return attention_dispatch.dispatch_attention_fn(query, key, value, **options)

    redirected, plain = (_attention(ZSingleStreamAttnProcessor()) for _ in range(2))
    plain.load_state_dict(redirected.state_dict())
    redirected.processor._attention_backend = "native"
    seam.redirect_attention({redirected: as_it_is}, attend)
    rows = torch.randn(1, 5, 16)
    assert torch.equal(redirected(rows), plain(rows))
    assert [options["backend"] for options in calls] == ["native"]
    assert transformer_z_image.dispatch_attention_fn is attention_dispatch.dispatch_attention_fn
    assert isinstance(redirected.processor, ZSingleStreamAttnProcessor)
    # Attention passes on only what the processor names.
    assert list(signature(redirected.processor).parameters) == list(signature(plain.processor).parameters)


def as_it_is(call: Callable[[], Any]) -> Any:
    """An `Around` that changes nothing."""
    return call()


def test_a_processor_without_the_seam_fails_the_start() -> None:
    with pytest.raises(StartFailed, match="AttnProcessor does not call diffusers' dispatch_attention_fn"):
        seam.redirect_attention({_attention(AttnProcessor()): as_it_is}, torch.add)
    with pytest.raises(StartFailed, match="Linear has no attention processor"):
        seam.redirect_attention({nn.Linear(1, 1): as_it_is}, torch.add)
