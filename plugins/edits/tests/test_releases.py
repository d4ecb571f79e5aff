"""Human ratings of edits, and votes for the better edit, are read together with the judges' published scores."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from plumbline.operators.metaeval.ratings import VIESCORE_STATISTIC
from plumbline.pipelines.metaeval.metaeval import run_metaeval
from tests.pipelines.metaeval.releases.files import Layout, make_rows, read_with, write_file
from tests.pipelines.metaeval.releases.test_releases import RATING_COLUMNS, check_complaint, check_tables
from tests.pipelines.metaeval.test_metaeval import make_metaeval_config

RATINGS_FOLDER = "paper_implementation/_human_annotations/ImagenHub_human_eval_results"


ANSWERS_FOLDER = "paper_implementation/_answers"


IMAGENHUB_FILES: dict[str, Any] = {
    f"{RATINGS_FOLDER}/ImagenHub_Text-Guided_IE/Text-Guided_IE_rater1.tsv": (
        "uid\tOne\tTwo\r\nb.jpg\t[0.5, 1]\t[0,0]\r\na.jpg\t[1,1]\t[0, 0.5]\r\n"
    ),
    f"{RATINGS_FOLDER}/ImagenHub_Text-Guided_IE/Text-Guided_IE_rater2.tsv": (
        "uid\tOne\na.jpg\t[0.5,0.5]\nb.jpg\t[0,1]\n"
    ),
    f"{RATINGS_FOLDER}/ImagenHub_Text-Guided_IG/Text-To-Image_rater1.tsv": "uid\tSDXL\na.jpg\t[1,1]\n",
    f"{ANSWERS_FOLDER}/results_gpt4o_0shot/ImagenHub_Text-Guided_IE/One/SC.json": {
        "b.jpg": {"score": [4, 8.5], "reasoning": "..."}, "a.jpg": {"score": 80}, "c.jpg": {"score": [1]},
    },
    f"{ANSWERS_FOLDER}/results_gpt4o_0shot/ImagenHub_Text-Guided_IE/One/PQ.json": {
        "a.jpg": {"score": [8.5, 9]}, "b.jpg": {"score": [9]},
    },
    f"{ANSWERS_FOLDER}/results_autometrics/ImagenHub_Text-Guided_IE/One.json": {"a.jpg": {"LPIPS": 0.486559}},
}  # fmt: skip


VOTES = make_rows(
    "idx instruct_prompt response model_vote human_vote correct",
    (0, "add a lizard", "[[A>B]]", "[[A>B]]", "leftvote", True),
    (2, "add a hat", "None of them", None, "bothbad_vote", False),
    (1, "remove it", "[[A=B=Good]]", "[[A=B=Good]]", "tievote", True),
    (3, "remove it", "[[A>B]]", "[[A>B]]", "rightvote", False),
)  # fmt: skip


GENAI_ARENA_FILES: dict[str, Any] = {
    "gpt4o/pairwise.json": VOTES,
    "random/pairwise.json": [{**VOTES[0], "model_vote": "[[B>A]]"}],
    "emu2/pairwise.jsonl": "{}\n",
}


LAYOUTS: Mapping[str, Layout] = {
    "imagenhub": Layout("imagenhub", IMAGENHUB_FILES, True),
    "genai_arena": Layout("genai_arena", GENAI_ARENA_FILES, True),
}
RATER_1_FILE, _, _, SC_OF_ONE, _, LPIPS_OF_ONE = IMAGENHUB_FILES
EXPECTED_TABLES: Mapping[str, Mapping[str, Any]] = {
    "imagenhub": {  # lowest integer / 10, at most 1; O is the square root of SC x PQ
        "ratings": (RATING_COLUMNS, 3, [
            ("Text-Guided_IE/One/a.jpg", "Text-Guided_IE/a.jpg", "One", "1", "SC", 1.0),
            ("Text-Guided_IE/One/a.jpg", "Text-Guided_IE/a.jpg", "One", "1", "PQ", 1.0),
            ("Text-Guided_IE/One/a.jpg", "Text-Guided_IE/a.jpg", "One", "1", "O", 1.0),
            ("Text-Guided_IE/Two/b.jpg", "Text-Guided_IE/b.jpg", "Two", "1", "SC", 0.0),
        ]),
        "scores": ("image_id metric score", 0, [
            ("Text-Guided_IE/One/b.jpg", "gpt4o_0shot_SC", 0.4), ("Text-Guided_IE/One/b.jpg", "gpt4o_0shot_PQ", 0.9),
            ("Text-Guided_IE/One/b.jpg", "gpt4o_0shot_O", math.sqrt(0.4 * 0.9)),
            ("Text-Guided_IE/One/a.jpg", "gpt4o_0shot_SC", 1.0),
            ("Text-Guided_IE/One/a.jpg", "gpt4o_0shot_PQ", 0.8),
            ("Text-Guided_IE/One/a.jpg", "gpt4o_0shot_O", math.sqrt(0.8)),
            ("Text-Guided_IE/One/a.jpg", "LPIPS", 0.486559),
        ]),
        "skills": {"Text-Guided_IE/a.jpg": ["Text-Guided_IE"], "Text-Guided_IE/b.jpg": ["Text-Guided_IE"]},
    },
    "genai_arena": {
        "preferences": ("prompt_id image_a image_b preferred", 0, [
            ("0", "0/left", "0/right", "a"), ("2", "2/left", "2/right", "unsure"), ("1", "1/left", "1/right", "unsure"),
            ("3", "3/left", "3/right", "b"),
        ]),
        "scores": ("image_id metric score", 0, [
            ("0/left", "gpt4o", 1.0), ("0/right", "gpt4o", 0.0), ("2/left", "gpt4o", None), ("2/right", "gpt4o", None),
            ("1/left", "gpt4o", 0.5), ("1/right", "gpt4o", 0.5), ("3/left", "gpt4o", 1.0), ("3/right", "gpt4o", 0.0),
            ("0/left", "random", 0.0),
        ]),
        "notes": ["2 of 10 published scores are empty"],
    },
}  # fmt: skip
"""Expected tables by layout, each with its columns, the index of the first compared row, and the expected rows.

A layout may also have the expected skills and notes.
"""
REFUSED_CONTENTS: Mapping[str, list[tuple[Any, ...]]] = {
    "imagenhub": [
        (
            RATER_1_FILE,
            "uid\tOne\na.jpg\t[1, 2]\n",
            r"row 0: expected two ratings of One, each from 0 to 1, .* found '\[1, 2\]'",
        ),
        (RATER_1_FILE, "uid\tOne\na.jpg\t\n", "row 0: expected two ratings of One, each from 0 to 1, .* found None"),
        (RATER_1_FILE, "uid\tOne\na.jpg\t[1, x]\n", "row 0: expected a number as the rating, found 'x'"),
        (
            RATER_1_FILE,
            "image\tOne\na.jpg\t[1,1]\n",
            r"expected column\(s\) uid, found image, One; check that this is one of VIEScore's",
        ),
        (RATER_1_FILE, "uid\tOne\na\t[1,1]\na\t[1,1]\n", "row 1: rater '1' rates image 'Text-Guided_IE/One/a' twice"),
        (SC_OF_ONE, {"a.jpg": {"score": []}}, r"row 0 \('a.jpg'\): expected a list of scores, found an empty list"),
        (SC_OF_ONE, {"a.jpg": {"score": ["good"]}}, "expected a number as the rating, found 'good'"),
        (LPIPS_OF_ONE, {"a.jpg": {"LPIPS": "low"}}, r"row 0 \('a.jpg'\): expected a number as the rating, found 'low'"),
    ],
    "genai_arena": [
        ([{**VOTES[0], "human_vote": "left"}], "row 0: expected the human_vote leftvote or .*, found 'left'"),
        ([{**VOTES[0], "idx": None}], "row 0: expected text in idx, found None"),
        ([VOTES[0]] * 2, r"row 1: pair 0 occurs twice \(first in .*row 0\)"),
        ("random/pairwise.json", [{**VOTES[0], "human_vote": "tievote"}], "the human_vote leftvote, found 'tievote'"),
    ],
}
"""For each layout, files whose content is replaced, the new content, and the expected error message."""


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_read_into_the_expected_tables(name: str, tmp_path: Path) -> None:
    check_tables(read_with(LAYOUTS[name].reader, LAYOUTS[name].write(tmp_path)), EXPECTED_TABLES[name])


@pytest.mark.parametrize(
    "name, complaint", [(name, one) for name, several in REFUSED_CONTENTS.items() for one in several]
)
def test_invalid_ratings_are_refused_with_their_file_and_row(
    name: str, complaint: tuple[Any, ...], tmp_path: Path
) -> None:
    check_complaint(LAYOUTS[name], complaint, tmp_path)


RATING_PAIRS = [[0, 0], [0, 1], [0.5, 0.5], [1, 1], [1, 0], [0.5, 0], [0, 0.5]]


EDITORS = ("SDEdit", "Glide")


def write_imagenhub(folder: Path) -> tuple[dict[str, list[list[list[float]]]], dict[str, list[dict[str, list[int]]]]]:
    """Write a release with 12 edits by each of two editors.

    Return the SC and PQ ratings by three people and a judge's replies, each as a list over edits for each editor.
    """
    draws = np.random.default_rng(7)
    people = {name: [[RATING_PAIRS[draw] for draw in draws.integers(7, size=3)] for _ in range(12)] for name in EDITORS}
    replies = {
        name: [{aspect: draws.integers(11, size=2).tolist() for aspect in ("SC", "PQ")} for _ in range(12)]
        for name in EDITORS
    }
    for rater in range(3):
        rows = [
            {"uid": f"{n}.jpg", **{name: str(people[name][n][rater]) for name in EDITORS}, "Imagic": "[0, 0]"}
            for n in range(12)
        ]
        write_file(folder / f"{RATINGS_FOLDER}/ImagenHub_Text-Guided_IE/x_rater{rater}.tsv", rows)
    for name in EDITORS:
        for aspect in ("SC", "PQ"):
            records = {f"{n}.jpg": {"score": replies[name][n][aspect]} for n in range(12)}
            write_file(
                folder / f"{ANSWERS_FOLDER}/results_gpt4o_0shot/ImagenHub_Text-Guided_IE/{name}/{aspect}.json", records
            )
    return people, replies


def test_correlations_with_ratings_equal_those_of_viescores_notebook(tmp_path: Path) -> None:
    """Reimplement the notebook, which averages the editors' correlations and takes the hyperbolic tangent."""
    people, replies = write_imagenhub(tmp_path)
    found = run_metaeval(
        make_metaeval_config(tmp_path, "protocol=imagenhub", f"protocol.path={tmp_path}", "sampling.resamples=2")
    )
    judged = {
        (one.metric, one.template, one.subset): one for one in found.judgements if one.statistic == VIESCORE_STATISTIC
    }

    def average(values: list[float]) -> float:
        grown = math.exp(2 * sum(values) / len(values))
        return (grown - 1) / (grown + 1)

    both = {"SC": lambda pair: pair[0], "PQ": lambda pair: pair[1], "O": lambda pair: math.sqrt(pair[0] * pair[1])}
    for aspect, read in both.items():
        metric, raters = [], []
        for name in EDITORS:
            rated = np.array([[read(pair) for pair in edit] for edit in people[name]])
            scored = [read([min(reply["SC"]) / 10, min(reply["PQ"]) / 10]) for reply in replies[name]]
            # rounded, because the notebook treats rounding differences between equal numbers as an order
            metric.append(float(stats.spearmanr(np.round(scored, 9), rated.mean(axis=1).round(9)).statistic))
            others = [np.delete(rated, rater, axis=1).mean(axis=1).round(9) for rater in range(3)]
            raters.append(average([float(stats.spearmanr(rated[:, n], others[n]).statistic) for n in range(3)]))
        for subset in ("overall", "Text-Guided_IE"):
            assert judged[f"gpt4o_0shot_{aspect}", aspect, subset].value == pytest.approx(average(metric))
            assert judged["people", aspect, subset].value == pytest.approx(average(raters))
    assert judged["people", "SC", "overall"].n == 24  # there are no ratings by people for Imagic's 12 edits


def test_the_accuracy_of_models_equals_that_of_genai_benchs_code(tmp_path: Path) -> None:
    path = LAYOUTS["genai_arena"].write(tmp_path)
    found = run_metaeval(make_metaeval_config(tmp_path, "protocol=genai_arena", f"protocol.path={path}"))
    judged = {one.metric: one for one in found.judgements if one.statistic == "binary_accuracy"}
    assert judged["gpt4o"].value == pytest.approx(2 / 3)
    assert (judged["gpt4o"].n, judged["gpt4o"].n_unscored) == (3, 1)  # one reply has no verdict
    assert (judged["random"].value, judged["random"].n) == (0, 1)
