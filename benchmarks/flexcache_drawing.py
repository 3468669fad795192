"""Draws the held-out prompts with one setting of FlexCache and says how like they are to those without it, and what is
right in them. Each process of `benchmarks.flexcache` has one, on the same device."""

from __future__ import annotations

import sys
from dataclasses import asdict
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import torch
from msgspec.structs import replace

from benchmarks.flexcache_settings import Plan, Setting
from benchmarks.likeness import psnr, ssim
from epe.config.demo import DEFAULTS, model_folder
from epe.messages import Request, Reuse, Split
from epe.models.catalog import load_adapter
from epe.models.contract import State
from epe.models.loading import Loading
from epe.models.reusing import num_computed
from epe.runtime.fitting import Drawer
from epe.transport.exchange import SoloExchange

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tools"))

from demo_model.captions import full_caption
from demo_model.evaluate import prompts, score
from demo_model.oracle import Oracle, calibrate, find_things
from demo_model.scenes import draw_scene

RIGHT = ("colour", "place", "kind", "number")
ORACLE = "oracle.pt"


class Drawing:
    """The demo model, and the held-out prompts with each seed: all of the first seed before those of the next.

    In 32 bits, for what 16 bits round away has pictures stray as far as a good strategy does.
    """

    def __init__(self, plan: Plan, device: torch.device, *, dtype: torch.dtype = torch.float32) -> None:
        self.plan, self.device = plan, device
        adapter = load_adapter("zimage", model_folder("demo"), Loading(device=device, dtype=dtype))
        assert isinstance(adapter, Drawer)
        self.adapter = adapter
        asked = prompts(plan.num_prompts)
        self.scenes = [scene for scene, _ in asked] * plan.num_seeds
        self.states = [
            adapter.encode(request_of(text, 1000 * seed + place, plan))
            for seed in range(plan.num_seeds)
            for place, (_, text) in enumerate(asked)
        ]

    def pictures(self, num_steps: int, reuse: Reuse | None) -> tuple[np.ndarray, float]:
        """(pictures, height, width, 3), and how many steps were computed, in the mean."""
        drawn, counts = [], []
        for start in range(0, len(self.states), self.plan.batch):
            begun = [again(state, num_steps, reuse) for state in self.states[start : start + self.plan.batch]]
            ended = begun
            for _ in range(num_steps):
                ended = self.adapter.step_together(ended, SoloExchange(), Split())
            counts += [num_computed(*each) for each in zip(begun, ended, strict=True)]
            drawn += [
                pixels[0].cpu().numpy()
                for state in ended
                if (pixels := self.adapter.decode(state)) is not None
            ]
        return np.stack(drawn), round(sum(counts) / len(counts), 2)

    def right(self, pictures: np.ndarray, oracle: Oracle) -> dict[str, float]:
        """The shares of things of which colour, place and kind are as the prompt says, and of pictures with as many."""
        seen = [find_things(torch.from_numpy(each).permute(2, 0, 1) / 255) for each in pictures]
        found = asdict(score(oracle, list(self.scenes), seen))
        return {name: found[name] for name in RIGHT}


def training_texts(num: int) -> list[str]:
    """Prompts that the model was trained with."""
    rng = Random("flexcache/fit")
    scenes = (draw_scene(rng, split="train", num_things=1 + (place % 5 < 2)) for place in range(num))
    return [full_caption(scene, rng) for scene in scenes]


def request_of(text: str, seed: int, plan: Plan) -> Request:
    return Request(
        id=f"{seed}",
        prompt=text,
        height=plan.side,
        width=plan.side,
        num_steps=plan.fitting_steps,
        guidance_scale=DEFAULTS.guidance_scale,
        seed=seed,
        max_sequence_length=DEFAULTS.max_sequence_length,
    )


def again(state: State, num_steps: int, reuse: Reuse | None) -> State:
    """The same first latents and prompt, to be drawn in so many steps."""
    return State(replace(state.request, num_steps=num_steps, reuse=reuse), 0, state.tensors)


def prepare(out: Path, plan: Plan) -> None:
    """What judges pictures, once for all processes."""
    torch.save(calibrate(num_scenes=plan.oracle_scenes), out / ORACLE)


@lru_cache(maxsize=1)
def _drawing(plan: Plan, device: str, out: Path) -> tuple[Drawing, Oracle]:
    """This process's, and what judges its pictures."""
    torch.set_num_threads(1)
    # What this program has written itself.
    return Drawing(plan, torch.device(device)), torch.load(out / ORACLE, weights_only=False)


def load(plan: Plan, device: str, out: Path) -> None:
    """What this process needs to draw and to judge."""
    _drawing(plan, device, out)


def draw_whole(plan: Plan, device: str, out: Path, num_steps: int) -> None:
    """Leaves the pictures of every step computed for all processes to compare with."""
    drawing, _ = _drawing(plan, device, out)
    np.save(whole_file(out, num_steps), drawing.pictures(num_steps, None)[0])


def judge_whole(plan: Plan, device: str, out: Path, num_steps: int) -> dict[str, Any]:
    """Their line."""
    drawing, oracle = _drawing(plan, device, out)
    line = {"case": "quality", "steps": num_steps, "strategy": "none", "value": num_steps}
    return {**line, **drawing.right(np.load(whole_file(out, num_steps)), oracle)}


def draw_setting(plan: Plan, device: str, out: Path, num_steps: int, setting: Setting) -> dict[str, Any]:
    """The line of a setting."""
    drawing, _ = _drawing(plan, device, out)
    line = {"case": "quality", "steps": num_steps, **named(setting)}
    return {**line, **_drawn(drawing, plan, device, out, num_steps, setting.reuse)}


def draw_short(plan: Plan, device: str, out: Path, num_steps: int) -> dict[str, Any]:
    """The line of every step computed, but in 16 bits, as GPUs do by default."""
    drawing = Drawing(plan, torch.device(device), dtype=torch.bfloat16)
    line = {"case": "quality", "steps": num_steps, "strategy": "bfloat16", "value": num_steps}
    return {**line, **_drawn(drawing, plan, device, out, num_steps, None)}


def _drawn(
    drawing: Drawing, plan: Plan, device: str, out: Path, num_steps: int, reuse: Reuse | None
) -> dict[str, Any]:
    """How many steps were computed, how like the pictures are to those of every step, and what is right in them."""
    _, oracle = _drawing(plan, device, out)
    pictures, computed = drawing.pictures(num_steps, reuse)
    likeness = _likeness(drawing, pictures, out, num_steps)
    return {"computed": computed, **likeness, **drawing.right(pictures, oracle)}


def _likeness(drawing: Drawing, pictures: np.ndarray, out: Path, num_steps: int) -> dict[str, float]:
    whole = np.load(whole_file(out, num_steps))
    return {"psnr_db": psnr(pictures, whole), "ssim": ssim(pictures, whole, drawing.device)}


def whole_file(out: Path, num_steps: int) -> Path:
    return out / f"whole-{num_steps}.npy"


def named(setting: Setting) -> dict[str, Any]:
    """What a line says of its setting."""
    return {"strategy": setting.strategy, "value": setting.value, "plan": list(setting.reuse.computed)}
