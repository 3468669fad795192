"""The model that EPE brings along: where it lies, what it draws by default, and which words it knows."""

from __future__ import annotations

import json
from functools import lru_cache
from pathlib import Path

from epe.families import Defaults

# What stands for its folder in a stage file and on the command line.
DEMO = "demo"
FAMILY = "zimage"
DEFAULTS = Defaults(height=256, width=256, num_steps=20, guidance_scale=3.0, seed=7, max_sequence_length=128)
WORDS = "words.json"

# As the model's training read captions: these count as spaces.
_SPACES = str.maketrans(",.-", "   ")


def model_folder(model_path: str) -> Path:
    """The folder of a checkpoint; `demo` is the model in this package."""
    if model_path == DEMO:
        return Path(__file__).parent.parent / "models" / DEMO
    return Path(model_path).expanduser()


def demo_stage(num_gpus: int, *, num_ranks: int) -> dict[str, object]:
    """A stage file for the demo model: on each GPU a rank, or `num_ranks` on the CPU where there is none."""
    return {
        "name": DEMO,
        "factory": FAMILY,
        "gpu": list(range(num_gpus or num_ranks)),
        "device": "auto" if num_gpus else "cpu",
        "parallelism": {"scheduler": {"warmup_steps": 3}},
        "factory_args": {"model_path": DEMO},
    }


def unknown_words(model_path: str, prompt: str) -> tuple[str, ...]:
    """The words of a prompt that a model with a list of words (`words.json`) has never seen, in order."""
    known = _known_words(model_folder(model_path) / WORDS)
    if known is None:
        return ()
    words = prompt.lower().translate(_SPACES).split()
    return tuple(dict.fromkeys(word for word in words if word not in known))


def unknown_words_warning(model_path: str, prompt: str) -> str | None:
    """One sentence that names them, or None."""
    words = unknown_words(model_path, prompt)
    if not words:
        return None
    return f"this model does not know {', '.join(map(repr, words))} and draws around it; {WORDS} lists what it knows"


@lru_cache(maxsize=8)
def _known_words(file: Path) -> frozenset[str] | None:
    if not file.is_file():
        return None
    return frozenset(json.loads(file.read_text(encoding="utf-8"))["known_words"])
