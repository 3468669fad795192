"""Draws prompts whose combinations training never saw, and counts what came out right.

python tools/demo_model/evaluate.py epe/models/demo --num 500 --steps 20 --guidance 3
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from demo_model.captions import full_caption
from demo_model.oracle import Oracle, Sighting, calibrate, find_things, seen_scenes
from demo_model.scenes import Scene, draw_scene

PAIR_FRACTION = 0.4
ORACLE_SCENES = 2400


@dataclass(frozen=True, slots=True)
class Score:
    """Shares, 0 to 1. The first three count things (a thing not found is wrong in all), the others prompts."""

    colour: float
    place: float
    kind: float
    number: float
    one_thing_all_right: float
    two_things_all_right: float
    num_prompts: int
    num_things: int


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is right of one thing."""

    colour: bool
    place: bool
    kind: bool

    @property
    def all_right(self) -> bool:
        """True if nothing is wrong."""
        return self.colour and self.place and self.kind


def prompts(num: int, *, seed: int = 99) -> list[tuple[Scene, str]]:
    """Scenes of held-out combinations with captions that say everything."""
    rng = Random(f"evaluation/{seed}")
    num_pairs = round(num * PAIR_FRACTION)
    scenes = [draw_scene(rng, split="held_out", num_things=1 + (i < num_pairs)) for i in range(num)]
    return [(scene, full_caption(scene, rng)) for scene in scenes]


def score(oracle: Oracle, scenes: Sequence[Scene], sightings: Sequence[list[Sighting]]) -> Score:
    """Counts over all prompts."""
    verdicts = [_judge(oracle, scene, seen) for scene, seen in zip(scenes, sightings, strict=True)]
    things = [verdict for row in verdicts for verdict in row]
    numbers = [len(seen) == len(scene.things) for scene, seen in zip(scenes, sightings, strict=True)]
    return Score(
        colour=_share([verdict.colour for verdict in things]),
        place=_share([verdict.place for verdict in things]),
        kind=_share([verdict.kind for verdict in things]),
        number=_share(numbers),
        one_thing_all_right=_share([row[0].all_right for row in verdicts if len(row) == 1]),
        two_things_all_right=_share([all(v.all_right for v in row) for row in verdicts if len(row) == 2]),
        num_prompts=len(scenes),
        num_things=len(things),
    )


def own_accuracy(oracle: Oracle, *, num: int = 600, side: int = 256) -> Score:
    """The oracle's score on perfect renders of held-out scenes: what it can be trusted with."""
    seen = seen_scenes(Random("accuracy"), num, side=side, split="held_out")
    return score(oracle, [scene for scene, _ in seen], [sightings for _, sightings in seen])


def drawn(
    pipeline, captions: Sequence[str], *, side: int, steps: int, guidance: float, batch: int
) -> Iterator[Tensor]:
    """A picture (3, side, side) in 0..1 for each caption; the n-th has seed n."""
    for start in range(0, len(captions), batch):
        some = list(captions[start : start + batch])
        generators = [torch.Generator("cpu").manual_seed(start + i) for i in range(len(some))]
        pictures = pipeline(
            some,
            height=side,
            width=side,
            num_inference_steps=steps,
            guidance_scale=guidance,
            generator=generators,
            output_type="pt",
            max_sequence_length=128,
        ).images
        yield from pictures.float().cpu()


def load_pipeline(folder: Path, device: str, *, dtype: str = "bfloat16"):
    """ZImagePipeline as diffusers loads it."""
    from diffusers import ZImagePipeline

    pipeline = ZImagePipeline.from_pretrained(folder, torch_dtype=getattr(torch, dtype)).to(device)
    pipeline.set_progress_bar_config(disable=True)
    return pipeline


def evaluate(
    pipeline, oracle: Oracle, *, num: int, side: int, steps: int, guidance: float, batch: int
) -> Score:
    """The score of `num` held-out prompts."""
    asked = prompts(num)
    pictures = drawn(
        pipeline, [text for _, text in asked], side=side, steps=steps, guidance=guidance, batch=batch
    )
    return score(oracle, [scene for scene, _ in asked], [find_things(picture) for picture in pictures])


def main() -> None:
    """Prints one JSON line for each setting asked for, after one for the oracle and one for the autoencoder."""
    from demo_model.train_vae import measure_psnr

    args = _parser().parse_args()
    device = args.device
    pipeline = load_pipeline(args.folder, device, dtype=args.dtype)
    print(json.dumps({"vae_psnr_db": measure_psnr(pipeline.vae.float(), device=device)}), flush=True)
    pipeline.vae.to(pipeline.transformer.dtype)
    oracle = calibrate(num_scenes=ORACLE_SCENES, side=args.side)
    print(json.dumps({"oracle_on_renders": asdict(own_accuracy(oracle, side=args.side))}), flush=True)
    for guidance in args.guidance:
        for steps in args.steps:
            result = evaluate(
                pipeline,
                oracle,
                num=args.num,
                side=args.side,
                steps=steps,
                guidance=guidance,
                batch=args.batch,
            )
            setting = {"side": args.side, "steps": steps, "guidance": guidance}
            print(json.dumps({**setting, **asdict(result)}), flush=True)


def _judge(oracle: Oracle, scene: Scene, seen: list[Sighting]) -> list[Verdict]:
    if len(seen) != len(scene.things):
        return [Verdict(colour=False, place=False, kind=False) for _ in scene.things]
    return [
        Verdict(
            colour=oracle.colour(sighting) == thing.colour,
            place=sighting.place == thing.place,
            kind=oracle.kind(sighting) == thing.kind,
        )
        for thing, sighting in zip(scene.things, seen, strict=True)
    ]


def _share(values: Sequence[bool]) -> float:
    return round(sum(values) / max(1, len(values)), 4)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--num", type=int, default=500)
    parser.add_argument("--side", type=int, default=256)
    parser.add_argument("--steps", type=int, nargs="+", default=[20])
    parser.add_argument("--guidance", type=float, nargs="+", default=[3.0])
    parser.add_argument("--batch", type=int, default=50)
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    return parser


if __name__ == "__main__":
    main()
