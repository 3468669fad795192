"""When shapes that had no memory for a capture are tried again."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

# After so many of its passes a shape is tried again, then after twice as many, and so on.
TRIED_AGAIN_AFTER = 64


@dataclass(slots=True)
class _Shape:
    """It gives latents of `size`, and is tried again when it has come `num_left` times."""

    size: Hashable
    num_left: int
    after: int


class Retries:
    """Shapes, by their keys, that run as they are until there may be memory for them."""

    def __init__(self) -> None:
        self._shapes: dict[Hashable, _Shape] = {}

    def __contains__(self, key: Hashable) -> bool:
        return key in self._shapes

    def put_off(self, key: Hashable, size: Hashable) -> None:
        """There was no memory for a shape, perhaps again."""
        before = self._shapes.get(key)
        after = TRIED_AGAIN_AFTER if before is None else 2 * before.after
        self._shapes[key] = _Shape(size, num_left=after, after=after)

    def due(self, key: Hashable) -> Hashable | None:
        """The size of a shape that comes once more, if it is to be tried now."""
        if (shape := self._shapes.get(key)) is None:
            return None
        shape.num_left -= 1
        return shape.size if shape.num_left == 0 else None

    def forget(self, key: Hashable) -> None:
        """A shape was captured, or has no other chance."""
        self._shapes.pop(key, None)
