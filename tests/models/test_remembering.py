"""Encoded prompts that are kept: the same bits, and never those of another prompt or other options."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace

from epe.models.catalog import load_adapter
from epe.models.loading import Loading
from epe.models.remembering import Remembered
from epe.planning.calibration import WARM_UP_PROMPT
from tests.models.every_family import make_request

CPU = torch.device("cpu")


class Encoder:
    """Counts; gives 4 bytes for each letter."""

    def __init__(self) -> None:
        self.num_runs = 0

    def __call__(self, *, prompt: Any, **options: Any) -> tuple[list[torch.Tensor], None]:
        self.num_runs += 1
        if "bad" in prompt:
            raise ValueError("no such prompt")
        return [torch.full((len(each),), self.num_runs, dtype=torch.float32) for each in prompt], None


def test_the_same_words_and_options_are_encoded_once() -> None:
    encoder = Encoder()
    remembered = Remembered(encoder, budget_bytes=2**20)
    first = remembered(prompt=["abc"], device=CPU, max_sequence_length=8)
    again = remembered(prompt=["abc"], max_sequence_length=8, device=CPU)
    assert encoder.num_runs == 1
    assert torch.equal(first[0][0], again[0][0])
    assert again[0] is not first[0], "a list may be changed by who gets it"


@pytest.mark.parametrize(
    "other",
    [
        {"prompt": ["abd"]},
        {"prompt": ["abc"], "negative_prompt": ["x"]},
        {"prompt": ["abc"], "max_sequence_length": 9},
        {"prompt": ["abc", "abc"]},
    ],
)
def test_other_words_and_other_options_are_other_prompts(other: dict[str, Any]) -> None:
    encoder = Encoder()
    remembered = Remembered(encoder, budget_bytes=2**20)
    remembered(prompt=["abc"])
    remembered(**other)
    assert encoder.num_runs == 2


def test_beyond_the_budget_what_was_asked_for_least_recently_goes() -> None:
    encoder = Encoder()
    remembered = Remembered(encoder, budget_bytes=24)
    for text in ("aaa", "bbb", "aaa", "ccc"):
        remembered(prompt=[text])
    assert (encoder.num_runs, remembered.num_bytes) == (3, 24)
    remembered(prompt=["aaa"])
    assert encoder.num_runs == 3
    remembered(prompt=["bbb"])
    assert encoder.num_runs == 4


def test_one_that_is_too_large_for_the_budget_is_given_and_not_kept() -> None:
    remembered = Remembered(Encoder(), budget_bytes=24)
    assert len(remembered(prompt=["a" * 100])[0][0]) == 100
    assert remembered.num_bytes == 0


def test_of_an_error_nothing_is_kept() -> None:
    encoder = Encoder()
    remembered = Remembered(encoder, budget_bytes=2**20)
    for _ in range(2):
        with pytest.raises(ValueError, match="no such prompt"):
            remembered(prompt=["bad"])
    assert (encoder.num_runs, remembered.num_bytes) == (2, 0)


def test_a_family_encodes_a_prompt_once_with_equal_bits_but_that_of_the_warm_up_each_time(
    checkpoint: Path,
) -> None:
    adapter = load_adapter(checkpoint.name, checkpoint, Loading(device=CPU, prompt_bytes=2**20))
    encoder = adapter.pipeline.text_encoder
    runs: list[int] = []
    encoder.register_forward_hook(lambda *_: runs.append(1))
    request = make_request(checkpoint)
    states = [adapter.encode(each) for each in (request, replace(request, id="b", seed=9))]
    once = len(runs)
    assert once > 0
    names = [name for name in states[0].tensors if name != "latents"]
    assert all(torch.equal(states[0].tensors[name], states[1].tensors[name]) for name in names)
    assert not torch.equal(states[0].tensors["latents"], states[1].tensors["latents"])
    for _ in range(3):
        before = len(runs)
        adapter.encode(replace(request, prompt=WARM_UP_PROMPT, negative_prompt=""))
        assert len(runs) > before, "seen with Z-Image: from the second size on encoding cost nothing"
