"""The demo model's tokenizer: a real byte-level BPE of Qwen's class in which each known word is one token."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import Qwen2TokenizerFast

from demo_model.captions import known_words

PAD, START, END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n "
    "{{ message.content | lower | replace(',', ' ') | replace('.', ' ') | replace('-', ' ') | trim }}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def build_tokenizer() -> Qwen2TokenizerFast:
    """Vocabulary: 256 bytes, then the beginnings of each known word (with its leading space), then the roles'."""
    letters = _byte_letters()
    vocabulary = {letter: index for index, letter in enumerate(letters)}
    merges: list[tuple[str, str]] = []
    space = letters[ord(" ")]
    for word in [*(space + word for word in known_words()), "user", "assistant"]:
        _add_word(word, vocabulary, merges)
    tokenizer = Qwen2TokenizerFast(
        vocab=vocabulary,
        merges=merges,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=END,
        extra_special_tokens=[START],
        model_max_length=512,
        padding_side="right",
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def prompts_of(tokenizer: Qwen2TokenizerFast, captions: Sequence[str]) -> list[str]:
    """The chat prompts that ZImagePipeline makes of `captions`."""
    return [
        tokenizer.apply_chat_template(
            [{"role": "user", "content": caption}],
            tokenize=False,
            add_generation_prompt=True,
            enable_thinking=True,
        )
        for caption in captions
    ]


def token_lists(tokenizer: Qwen2TokenizerFast, captions: Sequence[str]) -> list[list[int]]:
    """Token ids of each caption, as the pipeline tokenizes it, without padding."""
    # The template is applied by hand: a template engine is a hundred times slower than the tokenizer,
    # and a test holds this line against `prompts_of`.
    prompts = [f"{START}user\n {caption.lower()}{END}\n{START}assistant\n" for caption in captions]
    backend = tokenizer.backend_tokenizer
    # What the pipeline asked for at its last call stays set there.
    backend.no_padding()
    backend.no_truncation()
    return [encoding.ids for encoding in backend.encode_batch(prompts)]


def padded(tokens: Sequence[Sequence[int]], *, length: int) -> tuple[Tensor, Tensor]:
    """Ids (B, length) and the mask of those that are words (B, length), padded on the right."""
    ids = torch.zeros(len(tokens), length, dtype=torch.long)
    for row, items in enumerate(tokens):
        ids[row, : len(items)] = torch.tensor(items)
    lengths = torch.tensor([len(items) for items in tokens])
    return ids, torch.arange(length)[None] < lengths[:, None]


def _add_word(word: str, vocabulary: dict[str, int], merges: list[tuple[str, str]]) -> None:
    """Adds the chain of merges that makes `word` one token: every link begins where the word begins, so that no
    known word can be cut elsewhere."""
    for end in range(1, len(word)):
        whole = word[: end + 1]
        if whole not in vocabulary:
            vocabulary[whole] = len(vocabulary)
            merges.append((word[:end], word[end]))


def _byte_letters() -> list[str]:
    """The printable letter that byte-level BPE writes for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters, spare = [], 256
    for byte in range(256):
        if byte in printable:
            letters.append(chr(byte))
        else:
            letters.append(chr(spare))
            spare += 1
    return letters
