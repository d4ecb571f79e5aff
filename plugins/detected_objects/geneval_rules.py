"""GenEval's requirements for an image, and its rules for checking them with boxes (Ghosh et al. 2023).

Source: djghosh13/geneval, `evaluation/evaluate_images.py` at 16f1681.
"""

import json
import math
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Literal, NamedTuple, get_args

from plumbline.operators.models.calls import Box

COLORS = ("red", "orange", "yellow", "green", "blue", "purple", "pink", "brown", "black", "white")
"""Colours that objects are classified by."""
MAX_COUNT = 1000
MIN_OFFSET_PIXELS = 1e-3
MIN_DIRECTION = 0.5
"""Minimum part of the unit vector between two objects along an axis for the objects to be related along this axis."""

Position = Literal["left of", "right of", "above", "below"]
POSITIONS: tuple[Position, ...] = get_args(Position)


class UnreadableRequirement(ValueError):
    """Error about a requirement that does not have the form of the release's file; the message gives the reason."""


class Requirement(NamedTuple):
    """A requirement for the objects of one class in an image."""

    name: str
    """Name of the class, such as `dining table`."""
    number: int
    """Minimum number of objects or, if `excluded`, the number at which there are too many."""
    color: str | None = None
    """Colour that the objects must have."""
    position: Position | None = None
    """Where the objects must be, relative to the objects of the requirement `target`."""
    target: int | None = None
    """Index of an earlier requirement for the same prompt."""
    excluded: bool = False

    def write(self) -> str:
        """Return the requirement as JSON, in the form of the release's file."""
        values: dict[str, Any] = {"class": self.name, "count": self.number}
        if self.color is not None:
            values["color"] = self.color
        if self.position is not None:
            values["position"] = [self.position, self.target]
        return json.dumps({**values, "excluded": True} if self.excluded else values)


def read_requirement(values: Any, *, n_earlier: int, excluded: bool = False) -> Requirement:
    """Return a clause of the release's file as a requirement.

    Args:
        values: The clause, an object with `class`, `count` and optionally `color` and `position`.
        n_earlier: Number of earlier requirements for the prompt, to which the clause's position may refer.
        excluded: True if `count` is the number of objects at which there are too many.

    Raises:
        UnreadableRequirement: A field has an unexpected value.
    """
    if not isinstance(values, Mapping):
        raise UnreadableRequirement(f"expected an object with 'class' and 'count', found {type(values).__name__}")
    name, count, color = (values.get(field) for field in ("class", "count", "color"))
    if not isinstance(name, str) or not name.strip():
        raise UnreadableRequirement("expected 'class' as text")
    if not isinstance(count, int) or isinstance(count, bool) or not 0 < count <= MAX_COUNT:
        raise UnreadableRequirement(f"class {name[:80]!r}: expected 'count' as a number from 1 to {MAX_COUNT}")
    if color is not None and color not in COLORS:
        raise UnreadableRequirement(f"class {name[:80]!r}: expected 'color' as one of {', '.join(COLORS)}")
    position = target = None
    if values.get("position") is not None:
        position, target = _read_position(values["position"], name, n_earlier)
    return Requirement(name, count, color, position, target, excluded)


def _read_position(value: Any, name: str, n_earlier: int) -> tuple[Position, int]:
    with suppress(TypeError, ValueError):
        position, target = value
        if position in POSITIONS and isinstance(target, int) and 0 <= target < n_earlier:
            return position, int(target)
    raise UnreadableRequirement(
        f"class {name[:80]!r}: expected 'position' as [{' or '.join(POSITIONS)}, the number of an earlier object]"
    )


def parse_requirement(text: str, *, n_earlier: int) -> Requirement:
    """Return a requirement from the text that `Requirement.write` makes; raise UnreadableRequirement for other text."""
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UnreadableRequirement(f"expected a JSON object, found {text[:80]!r}") from error
    excluded = isinstance(values, Mapping) and values.get("excluded") is True
    return read_requirement(values, n_earlier=n_earlier, excluded=excluded)


class FoundObject(NamedTuple):
    box: Box
    color: str | None = None
    """The object's colour, if it was classified."""


class Thresholds(NamedTuple):
    """Options of the rules."""

    score: float
    """Minimum score of a box (exclusive)."""
    max_overlap: float
    """Overlap with a better box of the same class from which a box is dropped; 1 keeps all boxes."""
    position: float
    """Fraction of the two objects' widths and heights that does not count in the offset between their centres."""


def select_objects(found: Sequence[FoundObject], thresholds: Thresholds) -> list[FoundObject]:
    """Return the objects of a class that count; `found` is sorted by falling score."""
    selected: list[FoundObject] = []
    for candidate in found:
        if candidate.box.score > thresholds.score and (
            thresholds.max_overlap == 1
            or all(compute_iou(kept.box, candidate.box) < thresholds.max_overlap for kept in selected)
        ):
            selected.append(candidate)
    return selected


def compute_iou(first: Box, second: Box) -> float:
    """Return the intersection over union of two boxes whose last pixels belong to the boxes."""

    def compute_area(x1: float, y1: float, x2: float, y2: float) -> float:
        return max(x2 - x1 + 1, 0) * max(y2 - y1 + 1, 0)

    common = compute_area(
        max(first.x1, second.x1), max(first.y1, second.y1), min(first.x2, second.x2), min(first.y2, second.y2)
    )
    union = sum(compute_area(box.x1, box.y1, box.x2, box.y2) for box in (first, second)) - common
    return common / union if union else 0.0


def find_positions(first: Box, second: Box, threshold: float) -> list[Position]:
    """Return where the first box is, relative to the second; a list of up to two positions."""
    right = _reduce_offset(first.x1, first.x2, second.x1, second.x2, threshold)
    down = _reduce_offset(first.y1, first.y2, second.y1, second.y2, threshold)
    if abs(right) < MIN_OFFSET_PIXELS and abs(down) < MIN_OFFSET_PIXELS:
        return []
    distance = math.hypot(
        (first.x1 + first.x2 - second.x1 - second.x2) / 2, (first.y1 + first.y2 - second.y1 - second.y2) / 2
    )
    holds = {
        "left of": right < -MIN_DIRECTION * distance,
        "right of": right > MIN_DIRECTION * distance,
        "above": down < -MIN_DIRECTION * distance,
        "below": down > MIN_DIRECTION * distance,
    }
    return [position for position in POSITIONS if holds[position]]


def _reduce_offset(first: float, first_end: float, second: float, second_end: float, threshold: float) -> float:
    """Return the offset between two centres along an axis, reduced by a fraction of the two sizes."""
    offset = (first + first_end - second - second_end) / 2
    sizes = abs(first_end - first) + abs(second_end - second)
    return math.copysign(max(abs(offset) - threshold * sizes, 0.0), offset)


def check_requirements(
    requirements: Sequence[Requirement], found: Sequence[Sequence[FoundObject]], thresholds: Thresholds
) -> list[str]:
    """Return, for each requirement, the reason why an image does not meet it; an empty text if the image meets it.

    `found` has the objects of each requirement's class, sorted by falling score. Only the first `number` objects of a
    class are checked for their colour and position.
    """
    reasons: list[str] = []
    matched: list[Sequence[FoundObject]] = []
    for requirement, candidates in zip(requirements, found, strict=True):
        objects = select_objects(candidates, thresholds)
        reason = _check(requirement, objects, matched, thresholds)
        reasons.append(reason)
        matched.append([] if reason else objects[: requirement.number])
    return reasons


def _check(
    requirement: Requirement, objects: Sequence[FoundObject], matched: Sequence[Sequence[FoundObject]], rule: Thresholds
) -> str:
    name, count = requirement.name, requirement.number
    if requirement.excluded:
        return f"expected {name}<{count}, found {len(objects)}" if len(objects) >= count else ""
    if len(objects) < count:
        return f"expected {name}>={count}, found {len(objects)}"
    counted = objects[:count]
    if requirement.color is not None:
        colors = [each.color for each in counted]
        if colors.count(requirement.color) < count:
            return f"expected {requirement.color} {name}>={count}, found {_count_colors(requirement.color, colors)}"
    if requirement.position is None or requirement.target is None:
        return ""
    targets = matched[requirement.target]
    if not targets:
        return f"no target for {name} to be {requirement.position}"
    for each in counted:
        for target in targets:
            positions = find_positions(each.box, target.box, rule.position)
            if requirement.position not in positions:
                return f"expected {name} {requirement.position} target, found {' and '.join(positions) or 'neither'}"
    return ""


def _count_colors(expected: str, colors: Sequence[str | None]) -> str:
    counts = ", ".join(f"{colors.count(color)} {color}" for color in COLORS if color in colors)
    return f"{colors.count(expected)} {expected}; and {counts}"
