"""T2I-CompBench's rules about boxes: relations between two objects, and numbers of objects (Huang et al. 2023).

Source: Karine-Huang/T2I-CompBench (MIT), `UniDet_eval/2D_spatial_eval.py` at 6d58bed, `numeracy_eval.py` at 01835fe and
`examples/dataset/new_objects.txt` at fc2c9b9.
"""

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from plumbline.operators.models.calls import Box

RELATIONS = ("on side of", "next to", "near", "on the left of", "on the right of", "on the bottom of", "on the top of")
"""Relations that the rules know, in the order in which they are looked for in a prompt."""
NEAR_RELATIONS = RELATIONS[:3]
MAX_IOU = 0.1
"""Intersection over union above which two objects beside or above each other lose a part of the score."""
MAX_DISTANCE_PIXELS = 150
"""Distance of two centres, along an axis, below which objects are near, in an image resized as UniDet reads it."""
UNIDET_SIDES = (479, 480)
"""Length of the shorter side of the images that UniDet reads, and maximum length of the longer side."""
MIN_SCORE = 0.5
"""Score below which an image with two related objects has the score 0."""
MAX_CONTAINED = 0.9
"""Fraction of a box, or of the union, above which a box within a better one of its class is the same object."""
DETECTED_NAMES = {
    **dict.fromkeys(("boy", "girl", "man", "woman"), "person"),
    "ship": "boat",
    "goldfish": "fish",
    "painting": "picture",
}
"""Names under which UniDet knows some of the objects that are counted. For relations, only people are renamed."""
COUNTED_NAMES = (
    "airplane", "apple", "backpack", "bag", "balloon", "banana", "bear", "bee", "bicycle", "bird", "boat", "book",
    "bottle", "bowl", "boy", "bread", "butterfly", "cake", "camel", "camera", "candle", "car", "cat", "chair",
    "chicken", "clock", "computer", "couch", "cow", "cup", "deer", "desk", "dog", "drum", "duck", "egg", "fish",
    "flag", "frog", "giraffe", "girl", "goldfish", "guitar", "hamburger", "helicopter", "helmet", "horse", "key",
    "kite", "knife", "lamp", "lemon", "man", "microphone", "microwave", "mouse", "paddle", "painting", "peach",
    "pear", "pen", "person", "phone", "pig", "pillow", "plate", "printer", "rabbit", "refrigerator", "sheep", "ship",
    "shrimp", "sink", "sofa", "stool", "strawberry", "suitcase", "swan", "table", "television", "tent", "tomato",
    "toy", "train", "truck", "turtle", "vase", "woman",
)  # fmt: skip
"""Objects that are counted."""
IRREGULAR_PLURALS = {
    "knife": "knives", "man": "men", "mouse": "mice", "person": "people", "woman": "women",
    **{name: name for name in ("deer", "fish", "goldfish", "sheep", "shrimp")},
}  # fmt: skip
NUMBERS = {"a": 1, "an": 1, "one": 1, "two": 2, "three": 3, "four": 4, "five": 5, "six": 6, "seven": 7, "eight": 8}


class SpatialPrompt(NamedTuple):
    first: str
    relation: str
    second: str

    def write(self) -> str:
        """Return the objects and their relation as a text that `parse_spatial_prompt` can read."""
        return ", ".join(self)


def parse_spatial_prompt(text: str) -> SpatialPrompt:
    return SpatialPrompt(*text.split(", "))


_SPATIAL_PATTERN = re.compile(rf"(?:an?|the) (\w+) ({'|'.join(RELATIONS)}) (?:an?|the) (\w+)", re.IGNORECASE)


def read_spatial_prompt(prompt: str) -> SpatialPrompt | None:
    """Return the relation in a prompt such as `a horse on the right of a car`, or None if there is none."""
    match = _SPATIAL_PATTERN.search(prompt)
    return SpatialPrompt(*(text.lower() for text in match.groups())) if match else None


def find_relation(prompt: str, *, fixed: bool) -> str | None:
    """Return the relation in a complex prompt, such as `on top of`, or None if there is none.

    The release has no rule for `on top of`, so the relation never holds; if `fixed`, it means `on the top of`.
    """
    relation = next((relation for relation in (*RELATIONS, "on top of") if relation in prompt), None)
    return "on the top of" if fixed and relation == "on top of" else relation


def name_detected(name: str, *, counted: bool) -> str:
    """Return the name under which an object is looked for: that of UniDet's class, such as person for girl."""
    renamed = DETECTED_NAMES.get(name, name)
    return renamed if counted or renamed == "person" else name


def score_relation(relation: str, first: Sequence[Box], second: Sequence[Box]) -> float:
    """Return the score of an image with these boxes of the two objects, in the pixels of `resize_box`.

    Each object found adds a quarter of its best box's score, and the relation of the two best boxes up to a half. A sum
    below MIN_SCORE counts as 0.
    """
    best = [max(boxes, key=lambda box: box.score) for boxes in (first, second) if boxes]
    score = sum(box.score for box in best) / 4
    if len(best) == 2:
        score += compute_position_score(relation, *best) / 2
    return score if score >= MIN_SCORE else 0.0


def compute_position_score(relation: str, first: Box, second: Box) -> float:
    """Return how well the relation holds, 0 to 1: 1 if it holds and the boxes overlap little."""
    right = (first.x1 + first.x2 - second.x1 - second.x2) / 2
    down = (first.y1 + first.y2 - second.y1 - second.y2) / 2
    if relation in NEAR_RELATIONS:
        is_near = min(abs(right), abs(down)) < MAX_DISTANCE_PIXELS
        return 1.0 if is_near else MAX_DISTANCE_PIXELS / max(abs(right), abs(down))
    if relation not in RELATIONS:
        return 0.0
    along, across = (right, down) if relation in ("on the left of", "on the right of") else (down, right)
    is_positive = relation in ("on the right of", "on the bottom of")
    if abs(along) <= abs(across) or (along > 0) != is_positive:
        return 0.0
    width = max(0.0, min(first.x2, second.x2) - max(first.x1, second.x1))
    height = max(0.0, min(first.y2, second.y2) - max(first.y1, second.y1))
    areas = [(box.x2 - box.x1) * (box.y2 - box.y1) for box in (first, second)]
    union = sum(areas) - width * height
    return min(1.0, MAX_IOU * union / (width * height)) if width * height else 1.0


def resize_box(box: Box, width: int, height: int) -> Box:
    """Return a box of an image with this size in the pixels of the image as UniDet reads it."""
    shorter, longest = UNIDET_SIDES
    scale = min(shorter / min(width, height), longest / max(width, height))
    return box._replace(x1=box.x1 * scale, y1=box.y1 * scale, x2=box.x2 * scale, y2=box.y2 * scale)


class CountedObject(NamedTuple):
    name: str
    number: int


def make_plural(name: str) -> str:
    if name in IRREGULAR_PLURALS:
        return IRREGULAR_PLURALS[name]
    if name.endswith(("ch", "to")):
        return f"{name}es"
    return f"{name[:-1]}ies" if name.endswith(("ry", "ly")) else f"{name}s"


NAMES_BY_PLURAL: Mapping[str, str] = {make_plural(name): name for name in COUNTED_NAMES}


def read_counted_objects(prompt: str) -> list[CountedObject]:
    """Return the objects that follow a number in the prompt, such as 3 x cat for `three cats`, in their order."""
    words = re.findall(r"\w+", prompt.lower())
    found = []
    for number, name in pairwise(words):
        if number in NUMBERS and name in COUNTED_NAMES and NUMBERS[number] == 1:
            found.append(CountedObject(name, 1))
        elif number in NUMBERS and name in NAMES_BY_PLURAL:
            found.append(CountedObject(NAMES_BY_PLURAL[name], NUMBERS[number]))
    return found


def count_objects(boxes: Sequence[Box]) -> int:
    """Return the number of boxes of a class, without those that are the same object as a better box."""
    kept: list[Box] = []
    for box in sorted(boxes, key=lambda box: box.score, reverse=True):
        if not any(_is_same_object(box, other) for other in kept):
            kept.append(box)
    return len(kept)


def _is_same_object(first: Box, second: Box) -> bool:
    width = min(first.x2, second.x2) - max(first.x1, second.x1) + 1
    height = min(first.y2, second.y2) - max(first.y1, second.y1) + 1
    common = max(0.0, width) * max(0.0, height)
    areas = [(box.x2 - box.x1 + 1) * (box.y2 - box.y1 + 1) for box in (first, second)]
    return any(common / area > MAX_CONTAINED for area in (*areas, sum(areas) - common))


def score_count(expected: int, found: int) -> float:
    """Return 1 if the number is right, 0.5 if there are other numbers of the object, and 0 if there is none."""
    return (float(found > 0) + float(found == expected)) / 2
