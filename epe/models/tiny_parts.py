"""What tiny checkpoints of several families share: tokenizers made of a few words, and a small picture VAE."""

from __future__ import annotations

import string
from pathlib import Path

from diffusers import AutoencoderKL, DiffusionPipeline
from tokenizers.pre_tokenizers import ByteLevel
from transformers import Qwen2Tokenizer, T5TokenizerFast

from epe.models.checkpoint import quiet_progress

_SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
# What their tokenizers know as words.
WORDS = "a an the of on in at and with cat dog red green blue chair table city rain light"
# Roles, a generation prompt and the thinking switch: what the pipelines ask of a chat template.
_CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking is false %}{{ '<think>\\n\\n</think>\\n\\n' }}"
    "{% endif %}"
    "{% endif %}"
)


def save(pipeline: DiffusionPipeline, directory: Path) -> None:
    """Write a checkpoint in the folder format."""
    with quiet_progress():
        pipeline.save_pretrained(directory, safe_serialization=True)


def chat_tokenizer() -> Qwen2Tokenizer:
    """Bytes, and merges for some words, with a chat template."""
    symbols = [*_SPECIAL, *sorted(ByteLevel.alphabet())]
    merges: list[tuple[str, str]] = []
    for word in f"system user assistant {WORDS}".split():
        for piece in (word, f"Ġ{word}"):
            merges += [(piece[:end], piece[end]) for end in range(1, len(piece))]
    merges = list(dict.fromkeys(merges))
    symbols += dict.fromkeys(left + right for left, right in merges)
    tokenizer = Qwen2Tokenizer(
        vocab={symbol: index for index, symbol in enumerate(symbols)},
        merges=merges,
        unk_token=None,
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        additional_special_tokens=list(_SPECIAL[1:]),
        model_max_length=4096,
    )
    tokenizer.chat_template = _CHAT_TEMPLATE
    return tokenizer


def word_tokenizer(words: str = WORDS) -> T5TokenizerFast:
    """Whole words where it knows them, letters elsewhere."""
    pieces = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), ("▁", -2.0)]
    pieces += [(f"▁{word}", -3.0) for word in words.split()]
    pieces += [(letter, -6.0) for letter in string.ascii_letters + string.digits + string.punctuation]
    # Without sentinels: the model has a row for each symbol and no more.
    return T5TokenizerFast(vocab=pieces, extra_ids=0, additional_special_tokens=[], model_max_length=512)


def picture_vae() -> AutoencoderKL:
    """The VAE of FLUX.1 and Z-Image, with few channels."""
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 4,
        up_block_types=("UpDecoderBlock2D",) * 4,
        block_out_channels=(16, 16, 32, 32),
        layers_per_block=1,
        latent_channels=16,
        norm_num_groups=8,
        sample_size=1024,
        use_quant_conv=False,
        use_post_quant_conv=False,
        scaling_factor=0.3611,
        shift_factor=0.1159,
    ).eval()
