"""Captions of scenes by a small grammar: orders, synonyms, things left unsaid; and words that mean nothing."""

from __future__ import annotations

from random import Random

from demo_model.scenes import COLOURS, PLACES, Scene, Thing, are_twins

KIND_WORDS = {
    "cube": ("cube", "box"),
    "ball": ("ball", "sphere"),
    "cylinder": ("cylinder",),
    "cone": ("cone",),
    "star": ("star",),
    "ring": ("ring", "donut"),
}
SIZE_WORDS = {"small": ("small", "little", "tiny"), "large": ("large", "big")}
PLURALS = {
    "cube": "cubes",
    "ball": "balls",
    "cylinder": "cylinders",
    "cone": "cones",
    "star": "stars",
    "ring": "rings",
}
OPENINGS = ("a picture of", "a photo of", "an image of", "a drawing of", "draw", "there is")
MIDDLE_WORDS = ("in the middle", "in the center")
UNSEEN_WORDS = (
    *(
        "beautiful",
        "shiny",
        "old",
        "wooden",
        "dragon",
        "cat",
        "dog",
        "house",
        "tree",
        "flower",
        "robot",
        "very",
    ),
    *(
        "please",
        "make",
        "show",
        "me",
        "something",
        "nice",
        "metal",
        "glass",
        "bright",
        "dark",
        "sunny",
        "night",
    ),
    *("city", "river", "mountain", "person", "sitting", "flying", "standing", "under", "above", "beside"),
    *(
        "realistic",
        "cartoon",
        "style",
        "detailed",
        "high",
        "quality",
        "masterpiece",
        "4k",
        "photograph",
        "oil",
    ),
    *(
        "painting",
        "by",
        "artist",
        "for",
        "my",
        "friend",
        "without",
        "his",
        "her",
        "some",
        "any",
        "many",
        "people",
    ),
    *("car", "book", "lamp", "chair", "window", "door", "garden", "sky", "sea"),
)
UNKNOWN_SHARE = 0.10


def describe(scene: Scene, rng: Random) -> str:
    """A random true sentence about `scene`, of known words alone."""
    body = _two_things(scene, rng) if len(scene.things) == 2 else _one_thing(scene, rng)
    return f"{rng.choice(OPENINGS)} {body}" if rng.random() < 0.12 else body


def full_caption(scene: Scene, rng: Random) -> str:
    """A sentence that says every thing's size, colour, kind and place, and the table: what the evaluation asks for."""
    table = _table(scene, rng)
    first = _said(_noun(scene.things[0], rng, say_size=True))
    if len(scene.things) == 1:
        return f"{first} {_place(scene.things[0], rng)} on {table}"
    second = _said(_noun(scene.things[1], rng, say_size=True))
    return f"{first} on the left and {second} on the right on {table}"


def with_unknown_words(caption: str, rng: Random) -> str:
    """`caption` with a few words put in, and sometimes one lost: the model learns to draw around them."""
    words = caption.split()
    if rng.random() < 0.35:
        words[rng.randrange(len(words))] = unknown_word(rng)
    for _ in range(rng.choice((0, 1, 1, 2))):
        words.insert(rng.randrange(len(words) + 1), unknown_word(rng))
    return " ".join(words)


def lengthened(caption: str, rng: Random, *, num_words: int) -> str:
    """`caption` among `num_words` words that mean nothing, before and after it."""
    before = rng.randrange(num_words + 1)
    words = [unknown_word(rng) for _ in range(num_words)]
    return " ".join([*words[:before], caption, *words[before:]])


def unknown_word(rng: Random) -> str:
    """A word outside of the grammar: English, letters at random, or Chinese characters."""
    choice = rng.random()
    if choice < 0.6:
        return rng.choice(UNSEEN_WORDS)
    if choice < 0.92:
        return "".join(rng.choices("abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 8)))
    return "".join(chr(rng.randint(0x4E00, 0x9FFF)) for _ in range(rng.randint(1, 2)))


def known_words() -> tuple[str, ...]:
    """Every word that the grammar can say, sorted."""
    phrases = [
        *COLOURS,
        *(word for words in (*KIND_WORDS.values(), *SIZE_WORDS.values()) for word in words),
        *PLURALS.values(),
        *OPENINGS,
        *MIDDLE_WORDS,
        *PLACES,
        "an on to of the side left right and two next table wall grey gray light beige in front with behind is",
    ]
    return tuple(sorted({word for phrase in phrases for word in phrase.split()}))


def _one_thing(scene: Scene, rng: Random) -> str:
    thing = scene.things[0]
    noun, table, wall = _said(_noun(thing, rng)), _table(scene, rng), _wall(scene, rng)
    form = rng.random()
    if form < 0.30:
        return f"{noun} {_place(thing, rng)} on {table}{wall}"
    if form < 0.42:
        return f"{noun} on {table} {_place(thing, rng)}{wall}"
    if form < 0.54:
        return f"{noun} {_side(thing)} of {table}{wall}"
    if form < 0.64:
        return f"{_place(thing, rng)} {noun} on {table}{wall}"
    if form < 0.72:
        return f"on {table} {noun} {_place(thing, rng)}{wall}"
    if form < 0.78:
        return f"{noun} {_place(thing, rng)}{wall}"
    return f"{noun} on {table}{wall}" if form < 0.95 else f"{noun}{wall}"


def _two_things(scene: Scene, rng: Random) -> str:
    left, right = (_said(_noun(thing, rng)) for thing in scene.things)
    on_table = "" if rng.random() < 0.08 else f" on {_table(scene, rng)}"
    if are_twins(scene.things) and rng.random() < 0.7:
        return f"two {_plural(scene.things[0], rng)}{on_table}{_wall(scene, rng)}"
    forms = (
        f"{left} on the left and {right} on the right",
        f"{left} on the left and {right} on the right",
        f"{right} on the right and {left} on the left",
        f"{left} to the left of {right}",
        f"{right} to the right of {left}",
        f"on the left {left} and on the right {right}",
        f"{left} and {right}",
        " next to ".join(rng.sample((left, right), 2)),
    )
    return f"{rng.choice(forms)}{on_table}{_wall(scene, rng)}"


def _noun(thing: Thing, rng: Random, *, say_size: bool | None = None) -> str:
    said = rng.random() < 0.55 if say_size is None else say_size
    size = f"{rng.choice(SIZE_WORDS[thing.size])} " if said else ""
    words = KIND_WORDS[thing.kind]
    return f"{size}{thing.colour} {words[0] if rng.random() < 0.75 else rng.choice(words)}"


def _plural(thing: Thing, rng: Random) -> str:
    size = f"{rng.choice(SIZE_WORDS[thing.size])} " if rng.random() < 0.5 else ""
    return f"{size}{thing.colour} {PLURALS[thing.kind]}"


def _said(noun: str) -> str:
    return f"{'an' if noun[0] in 'aeiou' else 'a'} {noun}"


def _place(thing: Thing, rng: Random) -> str:
    return rng.choice(MIDDLE_WORDS) if thing.place == "middle" else f"on the {thing.place}"


def _side(thing: Thing) -> str:
    return "in the middle" if thing.place == "middle" else f"on the {thing.place} side"


def _table(scene: Scene, rng: Random) -> str:
    return f"a {_grey(scene.table, rng)} table"


def _wall(scene: Scene, rng: Random) -> str:
    if rng.random() < 0.6:
        return ""
    form = rng.choice(("in front of a {} wall", "with a {} wall", "with a {} wall behind"))
    return " " + form.format(_grey(scene.wall, rng))


def _grey(name: str, rng: Random) -> str:
    return "gray" if name == "grey" and rng.random() < 0.3 else name
