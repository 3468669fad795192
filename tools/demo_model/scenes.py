"""What a scene is: one or two things on a table before a wall; and which combinations training never sees."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import Literal

Rgb = tuple[float, float, float]
Split = Literal["train", "held_out"]

KINDS = ("cube", "ball", "cylinder", "cone", "star", "ring")
SIZES = ("small", "large")
PLACES = ("left", "middle", "right")
COLOURS: dict[str, Rgb] = {
    "red": (0.85, 0.13, 0.13),
    "green": (0.13, 0.60, 0.22),
    "blue": (0.13, 0.30, 0.85),
    "yellow": (0.95, 0.82, 0.12),
    "orange": (0.96, 0.52, 0.08),
    "purple": (0.50, 0.16, 0.66),
    "pink": (0.97, 0.55, 0.72),
    "black": (0.10, 0.10, 0.10),
    "white": (0.95, 0.95, 0.95),
    "brown": (0.45, 0.27, 0.13),
}
TABLES: dict[str, Rgb] = {
    "white": (0.88, 0.88, 0.86),
    "brown": (0.50, 0.33, 0.20),
    "black": (0.16, 0.16, 0.17),
    "green": (0.25, 0.50, 0.35),
    "grey": (0.55, 0.55, 0.57),
}
WALLS: dict[str, Rgb] = {
    "grey": (0.74, 0.74, 0.76),
    "beige": (0.91, 0.86, 0.75),
    "light blue": (0.72, 0.84, 0.94),
    "light green": (0.78, 0.90, 0.76),
}
PLACE_FRACTION = {"left": 0.25, "middle": 0.5, "right": 0.75}
"""Where a place is, as a fraction of the picture's width."""
PAIR_SHARE = 0.45
TWINS_SHARE = 0.12


@dataclass(frozen=True, slots=True)
class Thing:
    """One object. `shift` moves it from its place (in picture heights), `stretch` scales it, `turn` is a cube's yaw."""

    kind: str
    colour: str
    size: str
    place: str
    shift: tuple[float, float]
    stretch: float
    turn: float


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole picture. `light` is -1 for light from the left, 1 from the right; `horizon` is the table's far edge."""

    things: tuple[Thing, ...]
    table: str
    wall: str
    light: int
    horizon: float


def is_held_out(*, kind: str, colour: str, table: str) -> bool:
    """True for the combinations that training never sees: about one in eleven, every pair still seen."""
    code = 7 * list(COLOURS).index(colour) + 3 * KINDS.index(kind) + 5 * list(TABLES).index(table)
    return code % 11 == 0


def draw_scene(rng: Random, *, split: Split, num_things: int | None = None) -> Scene:
    """A random scene; each of its things is of `split`. The same state of `rng` gives the same scene."""
    if num_things is None:
        num_things = 2 if rng.random() < PAIR_SHARE else 1
    table = rng.choice(list(TABLES))
    places = ("left", "right") if num_things == 2 else (rng.choice(PLACES),)
    things = tuple(_draw_thing(rng, split=split, table=table, place=place) for place in places)
    if num_things == 2 and split == "train" and rng.random() < TWINS_SHARE:
        things = (things[0], _twin(rng, things[0]))
    return Scene(
        things=things,
        table=table,
        wall=rng.choice(list(WALLS)),
        light=rng.choice((-1, 1)),
        horizon=rng.uniform(0.50, 0.58),
    )


def are_twins(things: tuple[Thing, ...]) -> bool:
    """True if two things look the same but for place."""
    return len(things) == 2 and len({(thing.kind, thing.colour, thing.size) for thing in things}) == 1


def _draw_thing(rng: Random, *, split: Split, table: str, place: str) -> Thing:
    while True:
        kind, colour = rng.choice(KINDS), rng.choice(list(COLOURS))
        held_out = is_held_out(kind=kind, colour=colour, table=table)
        if colour != table and held_out == (split == "held_out"):
            return Thing(kind=kind, colour=colour, size=rng.choice(SIZES), place=place, **_pose(rng))


def _twin(rng: Random, thing: Thing) -> Thing:
    return Thing(kind=thing.kind, colour=thing.colour, size=thing.size, place="right", **_pose(rng))


def _pose(rng: Random) -> dict:
    return {
        "shift": (rng.uniform(-0.03, 0.03), rng.uniform(-0.03, 0.03)),
        "stretch": rng.uniform(0.95, 1.05),
        "turn": math.radians(rng.uniform(-25, 25)),
    }
