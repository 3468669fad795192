"""Says what is in a picture of this world: where things are, their colours and their kinds.

Places and colours are measured, not learned: a thing is what differs from its rows' background, its place is the
centroid's, its colour the nearest to its median in Lab. Kinds come from a small classifier trained on renders.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from demo_model.renderer import render
from demo_model.scenes import KINDS, PLACE_FRACTION, Scene, draw_scene

CROP = 32
CONTRAST, SHADOW_RESIDUAL, DARKEST_SHADOW = 0.09, 0.045, 0.5
MIN_WIDTH, MIN_AREA, MAX_GAP, MIN_COLUMN = 0.04, 0.003, 0.02, 0.015
"""Fractions of the picture's width, area, width and height: less is no thing, no gap, no column of a thing."""


@dataclass(frozen=True, slots=True)
class Sighting:
    """Something that stands out: its centroid (fraction of the width), median Lab colour (3,) and crop (2, 32, 32)."""

    centroid: float
    height: float
    lab: Tensor
    crop: Tensor

    @property
    def place(self) -> str:
        """The nearest of the three places."""
        return min(PLACE_FRACTION, key=lambda place: abs(PLACE_FRACTION[place] - self.centroid))


def find_things(picture: Tensor) -> list[Sighting]:
    """What stands out in a picture (3, H, W) in 0..1, from left to right."""
    mask = _foreground(picture)
    columns = mask.sum(0) >= MIN_COLUMN * mask.shape[0]
    return [
        _sighting(picture, mask, start, end)
        for start, end in _runs(columns, max_gap=round(MAX_GAP * mask.shape[1]))
        if end - start >= MIN_WIDTH * mask.shape[1] and mask[:, start:end].sum() >= MIN_AREA * mask.numel()
    ]


class Oracle:
    """Names colours and kinds; `calibrate` makes one from renders alone."""

    def __init__(self, references: list[tuple[str, Tensor]], classifier: nn.Module) -> None:
        self._names = [name for name, _ in references]
        self._labs = torch.stack([lab for _, lab in references])
        self._classifier = classifier

    def colour(self, thing: Sighting) -> str:
        """The colour whose renders come nearest."""
        return self._names[int((self._labs - thing.lab).norm(dim=1).argmin())]

    @torch.no_grad()
    def kind(self, thing: Sighting) -> str:
        """What the classifier says."""
        return KINDS[int(self._classifier(thing.crop[None]).argmax())]


def calibrate(*, num_scenes: int, side: int = 256, seed: int = 0, num_epochs: int = 20) -> Oracle:
    """An oracle from `num_scenes` renders of training scenes."""
    torch.manual_seed(seed)
    pairs = []
    for scene, sightings in seen_scenes(Random(f"oracle/{seed}"), num_scenes, side=side, split="train"):
        if len(sightings) == len(scene.things):
            pairs.extend(zip(scene.things, sightings, strict=True))
    labs: dict[tuple[str, str], list[Tensor]] = {}
    for thing, sighting in pairs:
        labs.setdefault((thing.colour, thing.kind), []).append(sighting.lab)
    references = [(colour, torch.stack(values).median(0).values) for (colour, _), values in labs.items()]
    crops = torch.stack([sighting.crop for _, sighting in pairs])
    kinds = torch.tensor([KINDS.index(thing.kind) for thing, _ in pairs])
    return Oracle(references, _train_classifier(crops, kinds, num_epochs=num_epochs))


def seen_scenes(rng: Random, num: int, *, side: int, split: str) -> list[tuple[Scene, list[Sighting]]]:
    """Random scenes, each with what is found in its render."""
    scenes = [draw_scene(rng, split=split) for _ in range(num)]
    pictures = [
        picture
        for start in range(0, num, 16)
        for picture in render(scenes[start : start + 16], height=side, width=side)
    ]
    return [(scene, find_things(picture)) for scene, picture in zip(scenes, pictures, strict=True)]


def _foreground(picture: Tensor) -> Tensor:
    """What is neither background nor its shadow, (H, W)."""
    width = picture.shape[2]
    strip, middle = max(1, round(0.03 * width)), width // 2
    strips = [picture[:, :, :strip], picture[:, :, -strip:], picture[:, :, middle - strip : middle + strip]]
    # A thing in a row spoils at most one of three estimates of its background.
    rows = torch.stack([part.median(2).values for part in strips]).median(0).values[:, :, None]
    differs = (picture - rows).abs().amax(0) > CONTRAST
    darkening = (picture * rows).sum(0) / (rows * rows).sum(0).clamp(min=1e-4)
    residual = (picture - darkening * rows).abs().amax(0)
    shadow = (residual < SHADOW_RESIDUAL) & (darkening > DARKEST_SHADOW) & (darkening < 1.0)
    shadow[: picture.shape[1] // 2] = False
    return differs & ~shadow


def _runs(columns: Tensor, *, max_gap: int) -> list[tuple[int, int]]:
    """`(start, end)` of runs of true columns, small gaps closed."""
    runs: list[tuple[int, int]] = []
    for index in columns.nonzero()[:, 0].tolist():
        if runs and index - runs[-1][1] <= max_gap:
            runs[-1] = (runs[-1][0], index + 1)
        else:
            runs.append((index, index + 1))
    return runs


def _sighting(picture: Tensor, mask: Tensor, start: int, end: int) -> Sighting:
    inside = torch.zeros_like(mask)
    inside[:, start:end] = mask[:, start:end]
    ys, xs = inside.nonzero().unbind(1)
    top, bottom = int(ys.min()), int(ys.max()) + 1
    return Sighting(
        centroid=(xs.float().mean().item() + 0.5) / picture.shape[2],
        height=(bottom - top) / picture.shape[1],
        lab=_lab(picture[:, inside].median(1).values),
        crop=_crop(picture, inside, (start + end) / 2, (top + bottom) / 2, max(end - start, bottom - top)),
    )


def _crop(picture: Tensor, inside: Tensor, x: float, y: float, extent: float) -> Tensor:
    """Mask and relative brightness around a thing, (2, CROP, CROP)."""
    brightness = picture.mean(0) * inside
    planes = torch.stack([inside.float(), brightness / brightness.max().clamp(min=1e-3)])
    height, width = inside.shape
    offsets = (torch.arange(CROP) + 0.5) / CROP - 0.5
    rows = (y + offsets * extent * 1.15) / height * 2 - 1
    columns = (x + offsets * extent * 1.15) / width * 2 - 1
    grid = torch.stack(torch.meshgrid(columns, rows, indexing="xy"), -1)
    return F.grid_sample(planes[None], grid[None], align_corners=False)[0]


def _lab(rgb: Tensor) -> Tensor:
    """CIE Lab (D65) of an sRGB colour (3,)."""
    linear = torch.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    to_xyz = torch.tensor([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    xyz = to_xyz @ linear / torch.tensor([0.9505, 1.0, 1.089])
    f = torch.where(xyz > 0.008856, xyz.clamp(min=1e-6) ** (1 / 3), 7.787 * xyz + 16 / 116)
    return torch.stack([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def _train_classifier(crops: Tensor, kinds: Tensor, *, num_epochs: int) -> nn.Module:
    classifier = nn.Sequential(
        nn.Conv2d(2, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(32 * (CROP // 4) ** 2, len(KINDS)),
    )  # fmt: skip
    optimizer = torch.optim.AdamW(classifier.parameters(), 2e-3, weight_decay=0.01)
    for _ in range(num_epochs):
        for some in torch.randperm(len(crops)).split(64):
            loss = F.cross_entropy(classifier(crops[some]), kinds[some])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return classifier.eval()
