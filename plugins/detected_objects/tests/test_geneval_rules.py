"""GenEval's rules agree with another implementation on random boxes, and its file is read as its release reads it."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plugins.detected_objects.tests import geneval_reference
from plumbline.operators.metrics.metric import Answered, Evidence
from plumbline.operators.metrics.modules import QueryResult
from plumbline.operators.metrics.writing import WrittenQuestion
from plumbline.operators.models.calls import Box
from plumbline.plugins.detected_objects.geneval import GenevalConfig
from plumbline.plugins.detected_objects.geneval_rules import COLORS
from tests.pipelines.sources.test_question_packs import list_questions, read_pack_file
from tests.pipelines.sources.test_question_packs_fuzz import make_rows, require_others_unaffected

METADATA: Mapping[str, Mapping[str, Any]] = {
    "single_object": {"include": [{"class": "bench", "count": 1}]},
    "two_object": {"include": [{"class": "bench", "count": 1}, {"class": "cat", "count": 1}]},
    "counting": {"include": [{"class": "cat", "count": 2}], "exclude": [{"class": "cat", "count": 3}]},
    "colors": {"include": [{"class": "cat", "count": 1, "color": "red"}]},
    "position": {"include": [{"class": "bench", "count": 1}, {"class": "cat", "count": 1, "position": ["left of", 0]}]},
    "color_attr": {
        "include": [{"class": "bench", "count": 1, "color": "blue"}, {"class": "cat", "count": 1, "color": "red"}]
    },
    "several": {"include": [{"class": "bench", "count": 2}, {"class": "cat", "count": 2, "position": ["above", 0]}]},
}
"""A line of evaluation_metadata.jsonl for each tag, and one with more than the release's prompts have."""
PACK_FILES: Mapping[str, Any] = {
    "q.jsonl": make_rows(
        lambda number: {
            "tag": "position",
            "include": [{"class": "cat", "count": 1}, {"class": "dog", "count": 1, "position": ["above", 0]}],
            "exclude": [{"class": "cat", "count": 3}],
            "prompt": f"a photo of a dog above a cat {number}",
        }
    )
}


def write_metadata(path: Path) -> Path:
    lines = [json.dumps({"tag": tag, **clauses, "prompt": f"a photo, {tag}"}) for tag, clauses in METADATA.items()]
    path.write_text("\n".join(lines))
    return path


def draw_boxes(random: np.random.Generator) -> np.ndarray:
    """Return up to 20 boxes, some of which overlap, with scores rounded so that they are equal to no threshold."""
    corners = random.uniform(0, 100, (random.choice([0, 1, 2, 3, 20]), 2, 2))
    if len(corners) and random.random() < 0.5:
        corners = np.concatenate([corners, corners + random.uniform(0, 8)])
    scores = np.round(random.uniform(0.2, 1, len(corners)), 4) + 0.00003
    return np.column_stack([corners.min(axis=1), corners.max(axis=1), scores])


@pytest.mark.parametrize("tag", METADATA)
def test_the_score_is_1_if_and_only_if_the_releases_rules_hold(tag: str, tmp_path: Path) -> None:
    pack = read_pack_file("geneval", write_metadata(tmp_path / "evaluation_metadata.jsonl"))
    number = f"{list(METADATA).index(tag):05}"
    names = ("text", "kind", "answer")
    questions = [
        WrittenQuestion(row["question_id"], choices=(), **{name: row[name] for name in names})
        for row in list_questions(pack, number)
    ]
    random, scores = np.random.default_rng(7), []
    for _ in range(400):
        options: dict[str, Any] = {
            "threshold": 0.3, "counting_threshold": random.choice([0.3, 0.5, 0.9]),
            "max_overlap": random.choice([0.3, 0.8, 1.0]), "position_threshold": random.choice([0.0, 0.1]),
        }  # fmt: skip
        metric = GenevalConfig(**{name: float(value) for name, value in options.items()})
        found = {name: draw_boxes(random) for name in ("bench", "cat")}
        colors = {box[4]: str(random.choice(["red", "blue"])) for boxes in found.values() for box in boxes}
        answered = []
        for question in questions:
            (query,) = metric.list_image_queries(question.text)
            boxes = found[query.text]
            seen = boxes[np.argsort(-boxes[:, 4], kind="stable")]
            seen = seen[seen[:, 4] > query.box_threshold][:16]
            result = QueryResult(
                tuple(Box("", float(box[4]), *map(float, box[:4])) for box in seen),
                "\n".join(colors[box[4]] for box in seen) if query.choices else None,
            )
            assert query.choices in ((), COLORS)
            answered.append(Answered(question, query_results=(result,)))
        scored = metric.score(Evidence({}, answered))
        expected = geneval_reference.is_correct(
            {"tag": tag, **METADATA[tag]}, found, lambda name, boxes, colors=colors: [colors[box[4]] for box in boxes],
            **{name: float(value) for name, value in options.items()},
        )  # fmt: skip
        assert scored.score == float(expected), scored
        assert (scored.rationale == "") == expected
        scores.append(scored.score)
    assert {0.0, 1.0} == set(scores), "some of the drawn images are right, and some are wrong"


def test_the_releases_file_is_read_with_its_tags_as_skills(tmp_path: Path) -> None:
    pack = read_pack_file("geneval", write_metadata(tmp_path / "evaluation_metadata.jsonl"))
    assert pack.problems == ()
    assert [(row["prompt_id"], row["skills"]) for row in pack.prompts.to_pylist()] == [
        (f"{number:05}", [tag]) for number, tag in enumerate(METADATA)
    ]
    assert [row["text"] for row in list_questions(pack, "00002")] == [
        '{"class": "cat", "count": 2}', '{"class": "cat", "count": 3, "excluded": true}',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("clause", "reason"),
    [
        ({"class": "cat"}, "class 'cat': expected 'count' as a number from 1 to 1000"),
        ({"class": "", "count": 1}, "expected 'class' as text"),
        ({"class": "cat", "count": 1, "color": "grey"}, "class 'cat': expected 'color' as one of red, orange"),
        ({"class": "cat", "count": 1, "position": ["near", 0]}, "class 'cat': expected 'position' as [left of or"),
        ({"class": "cat", "count": 1, "position": ["above", 1]}, "the number of an earlier object]"),
        ("cat", "expected an object with 'class' and 'count', found str"),
    ],
)
def test_a_bad_clause_costs_its_prompt_and_says_what_is_expected(clause: Any, reason: str, tmp_path: Path) -> None:
    include = [{"class": "dog", "count": 1}, clause]
    (tmp_path / "q.jsonl").write_text(json.dumps({"tag": "position", "include": include, "prompt": "a photo"}))
    pack = read_pack_file("geneval", tmp_path / "q.jsonl")
    (row,) = list_questions(pack, "00000")
    assert row["error"]["kind"] == "no_questions" and reason in row["error"]["message"]


def test_a_field_of_another_type_only_costs_its_row() -> None:
    require_others_unaffected("geneval", PACK_FILES)


def test_a_question_that_is_no_requirement_gives_an_error_instead_of_a_score() -> None:
    metric, question = GenevalConfig(), WrittenQuestion("1", "is there a cat?", ())
    assert metric.list_image_queries(question.text) == ()
    scored = metric.score(Evidence({}, [Answered(question)]))
    assert scored.score is None and scored.error is not None
    assert (
        scored.error.message == "expected a JSON object, found 'is there a cat?'; use the questions of the pack geneval"
    )
