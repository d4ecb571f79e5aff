"""Another implementation of GenEval's rules, with NumPy (djghosh13/geneval, evaluation/evaluate_images.py at 16f1681).

A box is a row (x1, y1, x2, y2, score) of an array.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Boxes = NDArray[np.float64]
NameColors = Callable[[str, Boxes], Sequence[str]]
"""Function that returns the colours of a class's boxes."""


def keep_boxes(boxes: Boxes, threshold: float, max_overlap: float) -> Boxes:
    """Return the boxes above the threshold, at most 16, the best first, without those that overlap a better one."""
    left = boxes[np.argsort(-boxes[:, 4], kind="stable")]
    left = left[left[:, 4] > threshold][:16]
    kept = []
    while len(left):
        best, left = left[0], left[1:]
        kept.append(best)
        if max_overlap != 1:
            low, high = np.maximum(best[:2], left[:, :2]), np.minimum(best[2:4], left[:, 2:4])
            common = np.prod(np.clip(high - low + 1, 0, None), axis=1)
            areas = np.prod(np.clip(left[:, 2:4] - left[:, :2] + 1, 0, None), axis=1)
            union = np.prod(best[2:4] - best[:2] + 1) + areas - common
            left = left[common / union < max_overlap]
    return np.array(kept).reshape(-1, 5)


def find_positions(first: NDArray[np.float64], second: NDArray[np.float64], threshold: float) -> set[str]:
    """Return where the first box is, relative to the second."""
    corners = np.stack([first, second])[:, :4].reshape(2, 2, 2)
    centres, sizes = corners.mean(axis=1), np.ptp(corners, axis=1)
    offset = centres[0] - centres[1]
    reduced = np.sign(offset) * np.clip(np.abs(offset) - threshold * sizes.sum(axis=0), 0, None)
    if np.abs(reduced).max() < 1e-3:
        return set()
    across, down = reduced / np.sqrt((offset**2).sum())
    names = {"left of": -across, "right of": across, "above": -down, "below": down}
    return {name for name, part in names.items() if part > 0.5}


def is_correct(
    metadata: Mapping[str, Any],
    found: Mapping[str, Boxes],
    name_colors: NameColors,
    *,
    threshold: float,
    counting_threshold: float,
    max_overlap: float,
    position_threshold: float,
) -> bool:
    """Return True if an image meets a line of evaluation_metadata.jsonl; `found` has all boxes by class."""
    least = counting_threshold if metadata["tag"] == "counting" else threshold
    kept = {name: keep_boxes(boxes, least, max_overlap) for name, boxes in found.items()}
    correct, groups = True, list[Boxes | None]()
    for clause in metadata["include"]:
        boxes = kept[clause["class"]][: clause["count"]]
        holds = len(boxes) == clause["count"]
        if holds and "color" in clause:
            holds = list(name_colors(clause["class"], boxes)).count(clause["color"]) == clause["count"]
        if holds and "position" in clause:
            position, target = clause["position"]
            others = groups[target]
            holds = others is not None and all(
                position in find_positions(box, other, position_threshold) for box in boxes for other in others
            )
        groups.append(boxes if holds else None)
        correct = correct and holds
    return correct and all(len(kept[clause["class"]]) < clause["count"] for clause in metadata.get("exclude", []))
