"""Draws scenes: analytic shapes, two samples a pixel in each direction. A pure function, batched on any device."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from demo_model.scenes import COLOURS, KINDS, PLACE_FRACTION, TABLES, WALLS, Scene, Thing

OVERSAMPLING = 2
HALF_EXTENT = {"small": 0.12, "large": 0.19}
PAIR_SCALE = 0.85
BASE_HEIGHT = 0.79
TILT = 0.33
"""How much a circle on the table is flattened by the view from above."""
AMBIENT, DIFFUSE = 0.50, 0.62

Layer = tuple[Tensor, Tensor]
"""Coverage (B, H, W) and colour (B, 3, H, W)."""


@dataclass(frozen=True, slots=True)
class View:
    """Things in their own coordinates: `u` right and `v` up (B, H, W), base at v = 0, about two units wide.

    `pixel` is a sample's width in those units, `colour` is (B, 3, 1, 1); the rest is (B, 1, 1).
    """

    u: Tensor
    v: Tensor
    pixel: Tensor
    colour: Tensor
    light: Tensor
    turn: Tensor


def render(scenes: Sequence[Scene], *, height: int, width: int, device: torch.device | str = "cpu") -> Tensor:
    """Pictures of `scenes`, (B, 3, height, width) in 0..1."""
    rows, columns = _grid(height * OVERSAMPLING, width * OVERSAMPLING, device)
    picture = _background(scenes, rows, columns)
    _draw_shadows(picture, scenes, rows, columns)
    for slot in range(2):
        for kind in KINDS:
            chosen = [i for i, s in enumerate(scenes) if len(s.things) > slot and s.things[slot].kind == kind]
            if chosen:
                _draw_things(picture, chosen, [scenes[i] for i in chosen], slot, rows, columns)
    return F.avg_pool2d(picture.clamp(0, 1), OVERSAMPLING)


def _grid(height: int, width: int, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Sample positions in units of the shorter side."""
    unit = min(height, width)
    rows = (torch.arange(height, device=device) + 0.5) / unit
    columns = (torch.arange(width, device=device) + 0.5) / unit
    return rows[:, None].expand(height, width), columns[None].expand(height, width)


def _background(scenes: Sequence[Scene], rows: Tensor, columns: Tensor) -> Tensor:
    height = rows[-1, 0] + rows[0, 0]
    y = (rows / height)[None, None]
    horizon = _column([s.horizon for s in scenes], rows)[:, None]
    wall = _palette([WALLS[s.wall] for s in scenes], rows) * (1.0 - 0.16 * (horizon - y).clamp(min=0))
    table = _palette([TABLES[s.table] for s in scenes], rows)
    top = table * (0.92 + 0.16 * (y - horizon))
    lip = table * 0.62
    sample = rows[0, 0] * 2 / height
    picture = torch.lerp(wall, top, ((y - horizon) / sample + 0.5).clamp(0, 1))
    return (
        torch.lerp(picture, lip, ((y - 0.95) / sample + 0.5).clamp(0, 1)).expand(-1, -1, *rows.shape).clone()
    )


def _draw_shadows(picture: Tensor, scenes: Sequence[Scene], rows: Tensor, columns: Tensor) -> None:
    for slot in range(2):
        chosen = [i for i, s in enumerate(scenes) if len(s.things) > slot]
        if not chosen:
            continue
        view = _view([scenes[i] for i in chosen], slot, rows, columns)
        across, along = (view.u + 0.35 * view.light) / 1.15, (view.v - 0.18) / 0.36
        depth = (1.0 - across**2 - along**2).clamp(0, 1)
        picture[chosen] *= (1.0 - 0.45 * depth)[:, None]


def _draw_things(
    picture: Tensor, chosen: list[int], scenes: list[Scene], slot: int, rows: Tensor, columns: Tensor
) -> None:
    view = _view(scenes, slot, rows, columns)
    below = picture[chosen]
    for coverage, colour in _LAYERS[scenes[0].things[slot].kind](view):
        below = torch.lerp(below, colour, coverage[:, None])
    picture[chosen] = below


def _view(scenes: Sequence[Scene], slot: int, rows: Tensor, columns: Tensor) -> View:
    things = [scene.things[slot] for scene in scenes]
    height, width = (rows[-1, 0] + rows[0, 0]).item(), (columns[0, -1] + columns[0, 0]).item()
    extent = _column([_extent(thing, scene) for thing, scene in zip(things, scenes, strict=True)], rows)
    x = _column([PLACE_FRACTION[thing.place] * width + thing.shift[0] for thing in things], rows)
    base = _column([BASE_HEIGHT * height + thing.shift[1] for thing in things], rows)
    return View(
        u=(columns[None] - x) / extent,
        v=(base - rows[None]) / extent,
        pixel=2 * rows[0, 0] / extent,
        colour=_palette([COLOURS[thing.colour] for thing in things], rows),
        light=_column([float(scene.light) for scene in scenes], rows),
        turn=_column([thing.turn for thing in things], rows),
    )


def _extent(thing: Thing, scene: Scene) -> float:
    return HALF_EXTENT[thing.size] * thing.stretch * (PAIR_SCALE if len(scene.things) == 2 else 1.0)


def _column(values: Sequence[float], like: Tensor) -> Tensor:
    return torch.tensor(values, device=like.device, dtype=torch.float32)[:, None, None]


def _palette(colours: Sequence[Sequence[float]], like: Tensor) -> Tensor:
    return torch.tensor(colours, device=like.device, dtype=torch.float32)[:, :, None, None]


def _cover(distance: Tensor, view: View) -> Tensor:
    """Share of a sample inside an outline, from the signed distance to it (negative inside)."""
    return (0.5 - distance / view.pixel).clamp(0, 1)


def _ellipse(u: Tensor, v: Tensor, *, across: float, along: float) -> Tensor:
    """Signed distance to an ellipse around the origin, to first order."""
    level = (u / across) ** 2 + (v / along) ** 2 - 1.0
    slope = 2.0 * torch.sqrt((u / across**2) ** 2 + (v / along**2) ** 2)
    return level / slope.clamp(min=1e-3)


def _polygon(view: View, corners: Sequence[tuple[Tensor | float, Tensor | float]]) -> Tensor:
    """Signed distance to a convex polygon whose corners run counterclockwise."""
    edges = []
    for (u0, v0), (u1, v1) in zip(corners, [*corners[1:], corners[0]], strict=True):
        du, dv = torch.as_tensor(u1 - u0), torch.as_tensor(v1 - v0)
        edges.append(((view.u - u0) * dv - (view.v - v0) * du) / torch.sqrt(du**2 + dv**2))
    return torch.stack(edges).amax(0)


def _lit(view: View, nx: Tensor, ny: Tensor | float, nz: Tensor | float) -> Tensor:
    """The thing's colour under the light, for surface normals (B, H, W) or constants."""
    towards = (nx * 0.55 * view.light + ny * 0.60 + nz * 0.58).clamp(min=0)
    return view.colour * (AMBIENT + DIFFUSE * towards)[:, None]


def _glossy(view: View, nx: Tensor, ny: Tensor, nz: Tensor) -> Tensor:
    """As `_lit`, with a highlight: it gives black things their shape."""
    halfway = (nx * 0.31 * view.light + ny * 0.34 + nz * 0.89).clamp(0, 1)
    return _lit(view, nx, ny, nz) + 0.35 * (halfway**40)[:, None]


def _ball(view: View) -> Iterator[Layer]:
    radius = 0.92
    nx, ny = view.u / radius, (view.v - radius) / radius
    nz = torch.sqrt((1.0 - nx**2 - ny**2).clamp(min=0))
    distance = torch.sqrt(view.u**2 + (view.v - radius) ** 2) - radius
    yield _cover(distance, view), _glossy(view, nx, ny, nz)


def _ring(view: View) -> Iterator[Layer]:
    middle, tube = 0.66, 0.27
    up = view.v - (middle + tube)
    radius = torch.sqrt(view.u**2 + up**2).clamp(min=1e-3)
    slope = ((radius - middle) / tube).clamp(-1, 1)
    nz = torch.sqrt(1.0 - slope**2)
    colour = _glossy(view, slope * view.u / radius, slope * up / radius, nz)
    yield _cover((radius - middle).abs() - tube, view), colour


def _cylinder(view: View) -> Iterator[Layer]:
    radius, tall = 0.72, 1.45
    flat = TILT * radius
    nx = (view.u / radius).clamp(-1, 1)
    bow = torch.sqrt(1.0 - nx**2)
    side = torch.maximum(view.u.abs() - radius, view.v - (flat + tall))
    distance = torch.maximum(side, (flat - flat * bow - view.v) * bow.clamp(min=0.3))
    yield _cover(distance, view), _lit(view, nx, 0.15, bow)
    cap = _ellipse(view.u, view.v - (flat + tall), across=radius, along=flat)
    yield _cover(cap, view), _lit(view, torch.zeros_like(nx), 1.0, 0.15)


def _cone(view: View) -> Iterator[Layer]:
    radius, apex = 0.88, 1.95
    flat = TILT * radius
    rise = flat**2 / (apex - flat)
    reach = radius * math.sqrt(1.0 - (flat / (apex - flat)) ** 2)
    sides = _polygon(view, [(reach, flat + rise), (0.0, apex), (-reach, flat + rise)])
    distance = torch.minimum(sides, _ellipse(view.u, view.v - flat, across=radius, along=flat))
    girth = reach * (apex - view.v).clamp(min=0.02) / (apex - flat - rise)
    nx = (view.u / girth).clamp(-1, 1)
    yield _cover(distance, view), _lit(view, nx, 0.25, torch.sqrt(1.0 - nx**2))


def _cube(view: View) -> Iterator[Layer]:
    half, tall = 0.86, 1.15
    angles = [view.turn - math.pi / 2 + k * math.pi / 2 for k in range(4)]
    base = [(half * torch.cos(a), TILT * half * (torch.sin(a) + 1.0)) for a in angles]
    near, right, _, left = base
    top = [(u, v + tall) for u, v in base]
    for one, other, angle in ((near, right, angles[0]), (left, near, angles[3])):
        face = [one, other, (other[0], other[1] + tall), (one[0], one[1] + tall)]
        normal = angle + math.pi / 4
        colour = _lit(view, torch.cos(normal), 0.0, -torch.sin(normal))
        yield _cover(_polygon(view, face), view), colour.expand(-1, -1, *view.u.shape[1:])
    upward = _lit(view, torch.zeros_like(view.turn), 1.0, 0.25)
    yield _cover(_polygon(view, top), view), upward.expand(-1, -1, *view.u.shape[1:])


def _star(view: View) -> Iterator[Layer]:
    back = view.colour * 0.45
    for step in (4, 3, 2, 1):
        distance, _ = _five_points(view.u + 0.045 * step * view.light, view.v - 0.03 * step)
        yield _cover(distance, view), back.expand(-1, -1, *view.u.shape[1:])
    distance, half = _five_points(view.u, view.v)
    bright = torch.where(half * view.light > 0, 1.08, 0.86)
    yield _cover(distance, view), view.colour * bright[:, None]


def _five_points(u: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
    """Signed distance to a star that stands on two of its points, and which half of an arm a sample is in."""
    tip, notch, sector = 1.05, 0.50, math.pi / 5
    up = v - tip * math.cos(sector)
    angle = (torch.atan2(u, up) + sector).remainder(2 * sector) - sector
    radius = torch.sqrt(u**2 + up**2)
    x, y = radius * torch.cos(angle), radius * torch.sin(angle).abs()
    du, dv = notch * math.cos(sector) - tip, notch * math.sin(sector)
    return ((x - tip) * dv - y * du) / math.hypot(du, dv), angle


_LAYERS: dict[str, Callable[[View], Iterator[Layer]]] = {
    "cube": _cube,
    "ball": _ball,
    "cylinder": _cylinder,
    "cone": _cone,
    "star": _star,
    "ring": _ring,
}
