"""T2I-CompBench's rules agree with another implementation on random boxes, and prompts are read as in its release."""

import math

import numpy as np
import pytest
from numpy.typing import NDArray

from plumbline.operators.base.errors import RowError
from plumbline.operators.models.calls import Box
from plumbline.plugins.detected_objects.compbench import CompbenchNumeracyConfig, CompbenchSpatialConfig
from plumbline.plugins.detected_objects.compbench_rules import (
    RELATIONS,
    count_objects,
    find_relation,
    read_counted_objects,
    read_spatial_prompt,
    resize_box,
    score_count,
    score_relation,
)
from plumbline.plugins.detected_objects.parsed_prompts import find_related_nouns

Boxes = NDArray[np.float64]
DIRECTIONS = {
    "on the left of": (-1, 0), "on the right of": (1, 0), "on the top of": (0, -1), "on the bottom of": (0, 1),
}  # fmt: skip
"""Where the first object must be, relative to the second: right and down."""


def draw_boxes(random: np.random.Generator, counts: tuple[int, ...]) -> Boxes:
    """Return boxes in an image of 480 x 480 pixels, (x1, y1, x2, y2, score), the best first; some overlap much."""
    corners = random.uniform(0, 480, (random.choice(counts), 2, 2))
    if len(corners) and random.random() < 0.5:
        corners = np.concatenate([corners, corners + random.uniform(-6, 6, corners.shape)])
    scores = -np.sort(-random.uniform(0.5, 1, len(corners)))
    return np.column_stack([corners.min(axis=1), corners.max(axis=1), scores])


def convert_boxes(boxes: Boxes) -> list[Box]:
    return [Box("", float(box[4]), *map(float, box[:4])) for box in boxes]


def compute_released_relation(relation: str, first: Boxes, second: Boxes) -> float:
    """Return the score by the release's rule (2D_spatial_eval.py, determine_position and main)."""
    scores = [boxes[0, 4] for boxes in (first, second) if len(boxes)]
    total = 0.25 * sum(scores)
    if len(scores) == 2:
        one, other = first[0, :4].reshape(2, 2), second[0, :4].reshape(2, 2)
        offset = one.mean(axis=0) - other.mean(axis=0)
        common = np.prod(np.clip(np.minimum(one[1], other[1]) - np.maximum(one[0], other[0]), 0, None))
        iou = common / (np.prod(one[1] - one[0]) + np.prod(other[1] - other[0]) - common)
        if relation in DIRECTIONS:
            direction = np.array(DIRECTIONS[relation])
            axis = int(np.flatnonzero(direction)[0])
            holds = offset @ direction > 0 and abs(offset[axis]) > abs(offset[1 - axis])
            position = 0.0 if not holds else 1.0 if iou < 0.1 else 0.1 / iou
        else:
            position = 1.0 if np.abs(offset).min() < 150 else 150 / np.abs(offset).max()
        total += position / 2
    return 0.0 if total < 0.5 else float(total)


def compute_released_count(boxes: Boxes) -> int:
    """Return the number of objects by the release's rule (numeracy_eval.py, calculate_iou and main)."""
    kept: list[NDArray[np.float64]] = []
    for box in boxes[:, :4]:
        for other in kept:
            sides = np.minimum(box[2:], other[2:]) - np.maximum(box[:2], other[:2]) + 1
            common = np.prod(np.clip(sides, 0, None))
            areas = [np.prod(each[2:] - each[:2] + 1) for each in (box, other)]
            if max(common / (sum(areas) - common), common / areas[0], common / areas[1]) > 0.9:
                break
        else:
            kept.append(box)
    return len(kept)


@pytest.mark.parametrize("relation", RELATIONS)
def test_relations_are_scored_as_in_the_release(relation: str) -> None:
    random, scores = np.random.default_rng(5), []
    for _ in range(500):
        first, second = draw_boxes(random, (0, 1, 3)), draw_boxes(random, (0, 1, 3))
        scores.append(score_relation(relation, convert_boxes(first), convert_boxes(second)))
        assert scores[-1] == pytest.approx(compute_released_relation(relation, first, second), abs=1e-12)
    assert 0 in scores and max(scores) > 0.75 and len(set(scores)) > 30


def test_objects_are_counted_as_in_the_release() -> None:
    random, counts = np.random.default_rng(6), []
    for _ in range(500):
        boxes = draw_boxes(random, (0, 1, 2, 5))
        counts.append(count_objects(convert_boxes(random.permutation(boxes))))
        assert counts[-1] == compute_released_count(boxes)
    assert {0, 1, 2, 5} <= set(counts) and any(count % 2 for count in counts if count > 5)
    assert [score_count(2, found) for found in (0, 1, 2, 3)] == [0.0, 0.5, 1.0, 0.5]


@pytest.mark.parametrize(("width", "height"), [(512, 512), (1024, 768), (300, 900)])
def test_boxes_are_resized_with_the_image_that_unidet_reads(width: int, height: int) -> None:
    """Torchvision's Resize(479, max_size=480) makes the shorter side 479 pixels, or the longer side 480."""
    short, long = 479, math.floor(479 * max(width, height) / min(width, height))
    if long > 480:
        short, long = math.floor(480 * short / long), 480
    size = (short, long) if width < height else (long, short)
    resized = resize_box(Box("", 1.0, 0, 0, width, height), width, height)
    assert (resized.x2, resized.y2) == pytest.approx(size, abs=1.5)


def test_a_prompts_two_objects_and_their_relation_are_read() -> None:
    metric = CompbenchSpatialConfig()
    assert read_spatial_prompt("a photo of A girl on side of the fish.") == ("girl", "on side of", "fish")
    (question,) = metric.read_prompt("a ship on the top of a boy")
    assert question.text == "ship, on the top of, boy" and question.kind == "on the top of"
    assert [query.text for query in metric.list_image_queries(question.text)] == ["ship", "person"]
    refused = metric.read_prompt("two cats")
    assert isinstance(refused, RowError) and refused.kind == "no_relation"


@pytest.mark.parametrize(
    ("words", "tags", "nouns"),
    [
        ("The red hat was on top of the brown rack", "DET ADJ NOUN AUX ADP NOUN ADP DET ADJ NOUN", ["hat", "rack"]),
        ("Rex sat next to the bowl", "PROPN VERB ADV ADP DET NOUN", ["Rex", "bowl"]),
        ("a cat near Big Ben at dusk", "DET NOUN ADP PROPN PROPN ADP PROPN", ["cat", "Ben"]),
        ("near a tree", "ADP DET NOUN", ["tree"]),
        ("a cat near Rex", "DET NOUN ADP PROPN", ["cat"]),
        ("a cat near a dog on the left of a cow", "DET NOUN ADP DET NOUN ADP DET NOUN ADP DET NOUN",
         ["cat", "dog", "dog", "cow"]),
    ],
)  # fmt: skip
def test_the_nouns_around_a_preposition_are_those_of_the_release(words: str, tags: str, nouns: list[str]) -> None:
    """The words and parts of speech are given, as spaCy would find them."""
    assert find_related_nouns(words.split(), tags.split()) == nouns


def test_on_top_of_has_no_position_in_the_release() -> None:
    above, below = [Box("", 0.9, 0, 0, 10, 10)], [Box("", 0.8, 0, 50, 10, 60)]
    released, fixed = (str(find_relation("The hat is on top of the rack.", fixed=fixed)) for fixed in (False, True))
    assert (score_relation(released, above, below), score_relation(fixed, above, below)) == (0, pytest.approx(0.925))
    assert find_relation("The hat hangs.", fixed=True) is None


def test_a_prompts_numbers_of_objects_are_read() -> None:
    metric = CompbenchNumeracyConfig()
    prompt = "Three mice, a fish, one knife, two fish and four unicorns near five butterflies, two dog and a cats"
    assert read_counted_objects(prompt) == [
        ("mouse", 3), ("fish", 1), ("knife", 1), ("fish", 2), ("butterfly", 5), ("cat", 1),
    ]  # fmt: skip
    questions = metric.read_prompt("two goldfish and eight women")
    assert [(one.text, one.answer) for one in questions] == [("2 x goldfish", "2"), ("8 x woman", "8")]
    assert [metric.list_image_queries(one.text)[0].text for one in questions] == ["fish", "person"]
    refused = metric.read_prompt("a unicorn")
    assert isinstance(refused, RowError) and refused.kind == "no_count"
