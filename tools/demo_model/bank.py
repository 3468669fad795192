"""A bank of captioned latents on the training device, filled before training and renewed during it."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from random import Random

import numpy as np
import torch
from torch import Tensor
from transformers import Qwen2TokenizerFast

from demo_model.captions import UNKNOWN_SHARE, describe, lengthened, with_unknown_words
from demo_model.renderer import render
from demo_model.scenes import Scene, draw_scene
from demo_model.tokens import build_tokenizer, token_lists

CAPTION_LENGTHS = (32, 64, 128)
"""Padded caption lengths that training sees."""
SHORT_CAPTIONS = 3
"""Captions of the first length that each scene has; it has one of each other length."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """One picture size: its share of the steps, its batch and how many scenes of it the bank holds."""

    height: int
    width: int
    share: float
    batch: int
    capacity: int


@dataclass(frozen=True, slots=True)
class Examples:
    """Scenes and their captions: ids (N, captions, longest) and the number of tokens (N, captions)."""

    scenes: list[Scene]
    ids: np.ndarray
    lengths: np.ndarray


def make_examples(seed: int, num: int) -> Examples:
    """`num` training scenes with captions of each length. Runs in a worker process."""
    rng = Random(seed)
    scenes = [draw_scene(rng, split="train") for _ in range(num)]
    num_captions = SHORT_CAPTIONS + len(CAPTION_LENGTHS) - 1
    ids = np.zeros((num, num_captions, CAPTION_LENGTHS[-1]), dtype=np.int16)
    lengths = np.zeros((num, num_captions), dtype=np.int16)
    for row, scene in enumerate(scenes):
        for slot, tokens in enumerate(_captions(scene, rng)):
            ids[row, slot, : len(tokens)] = tokens
            lengths[row, slot] = len(tokens)
    return Examples(scenes, ids, lengths)


def encode_pictures(
    encode: Callable[[Tensor], Tensor], scenes: list[Scene], bucket: Bucket, device: str
) -> Tensor:
    """Latents of `scenes` at the size of `bucket`, in pieces of at most 8 million pixels."""
    piece = max(1, 2**23 // (bucket.height * bucket.width))
    parts = []
    for start in range(0, len(scenes), piece):
        some = scenes[start : start + piece]
        pictures = render(some, height=bucket.height, width=bucket.width, device=device)
        parts.append(encode(pictures * 2 - 1))
    return torch.cat(parts)


class Bank:
    """Latents and captions of one bucket. `renew` replaces the oldest entries."""

    def __init__(self, bucket: Bucket, encode: Callable[[Tensor], Tensor], device: str) -> None:
        self.bucket = bucket
        self._encode = encode
        self._device = device
        self._next = 0
        self._latents: Tensor | None = None
        self._ids = torch.empty(0)
        self._lengths = torch.empty(0)

    def renew(self, examples: Examples) -> None:
        """Puts `examples` in the place of the oldest entries."""
        latents = encode_pictures(self._encode, examples.scenes, self.bucket, self._device)
        ids = torch.from_numpy(examples.ids).to(self._device)
        lengths = torch.from_numpy(examples.lengths).to(self._device)
        if self._latents is None:
            self._latents = latents.new_empty(self.bucket.capacity, *latents.shape[1:])
            self._ids = ids.new_empty(self.bucket.capacity, *ids.shape[1:])
            self._lengths = lengths.new_empty(self.bucket.capacity, *lengths.shape[1:])
        rows = torch.arange(self._next, self._next + len(latents), device=self._device) % self.bucket.capacity
        self._latents[rows], self._ids[rows], self._lengths[rows] = latents, ids, lengths
        self._next = (self._next + len(latents)) % self.bucket.capacity

    def draw(self, generator: torch.Generator, *, caption_length: int) -> tuple[Tensor, Tensor, Tensor]:
        """A batch: latents (B, C, H, W), ids (B, L) and the number of words (B,)."""
        assert self._latents is not None, "the bank is empty"
        size = (self.bucket.batch,)
        rows = torch.randint(self.bucket.capacity, size, generator=generator, device=self._device)
        if caption_length == CAPTION_LENGTHS[0]:
            slots = torch.randint(SHORT_CAPTIONS, size, generator=generator, device=self._device)
        else:
            slots = torch.full_like(rows, SHORT_CAPTIONS - 1 + CAPTION_LENGTHS.index(caption_length))
        ids = self._ids[rows, slots, :caption_length].long()
        return self._latents[rows].float(), ids, self._lengths[rows, slots].long()


class ExampleSource:
    """Examples made ahead in worker processes; the n-th chunk depends on the seed and n alone."""

    def __init__(self, pool: ProcessPoolExecutor, *, seed: int, chunk: int, ahead: int) -> None:
        self._pool, self._seed, self._chunk = pool, seed, chunk
        self._made = 0
        self._waiting: list[Future[Examples]] = []
        for _ in range(ahead):
            self._order()

    def take(self) -> Examples:
        """The next chunk."""
        self._order()
        return self._waiting.pop(0).result()

    def _order(self) -> None:
        self._waiting.append(
            self._pool.submit(make_examples, self._seed * 1_000_003 + self._made, self._chunk)
        )
        self._made += 1


def _captions(scene: Scene, rng: Random) -> list[list[int]]:
    captions = [_fitting(lambda: _short(scene, rng), 0, CAPTION_LENGTHS[0]) for _ in range(SHORT_CAPTIONS)]
    for low, high in pairwise(CAPTION_LENGTHS):
        captions.append(_fitting(lambda high=high: _long(scene, rng, high), low, high))
    return captions


def _short(scene: Scene, rng: Random) -> str:
    caption = describe(scene, rng)
    return with_unknown_words(caption, rng) if rng.random() < UNKNOWN_SHARE else caption


def _long(scene: Scene, rng: Random, limit: int) -> str:
    return lengthened(describe(scene, rng), rng, num_words=rng.randint(0, limit // 6))


def _fitting(make: Callable[[], str], low: int, high: int) -> list[int]:
    """Tokens of the first caption from `make` that has more than `low` and at most `high` of them."""
    while True:
        tokens = token_lists(_tokenizer(), [make()])[0]
        if low < len(tokens) <= high:
            return tokens


@lru_cache(maxsize=1)
def _tokenizer() -> Qwen2TokenizerFast:
    return build_tokenizer()
