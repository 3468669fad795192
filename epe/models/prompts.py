"""Prompts that are too long are refused: the pipelines would cut them without a word."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from epe.errors import BadRequest


def check_tokens(num_tokens: int, *, param: str, allowed: int, counted: str = "tokens") -> None:
    """Raises `BadRequest` for a prompt of more tokens than are allowed."""
    if num_tokens > allowed:
        message = f"{param} has {num_tokens} {counted}; at most {allowed} are allowed"
        raise BadRequest(message, param=param)


def check_chat(
    text: str, tokenizer: PreTrainedTokenizerBase, *, thinking: bool, param: str, allowed: int
) -> None:
    """`check_tokens` for a prompt that is encoded as a user's turn of a chat."""
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": text}],
        tokenize=False,
        add_generation_prompt=True,
        enable_thinking=thinking,
    )
    num_tokens = len(tokenizer(chat).input_ids)
    check_tokens(num_tokens, param=param, allowed=allowed, counted="tokens with its chat template")
