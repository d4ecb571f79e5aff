"""All formats of an annotation tool's export contain the same judgements; damaged exports never cause a traceback."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.rating.tests.annotation_files import LAYOUTS
from tests.pipelines.metaeval.releases.files import read_with
from tests.pipelines.metaeval.releases.test_damage import FEW_EXAMPLES, check_damaged
from tests.pipelines.metaeval.releases.test_releases import RATING_COLUMNS, check_tables
from tests.pipelines.metaeval.test_metaeval import check_negated, check_without_scores

ANNOTATIONS: dict[str, Any] = {
    "ratings": (RATING_COLUMNS, 0, [
        ("i1", "p1", "atlas", "ann@x.org", "likert", 4.0), ("i1", "p1", "atlas", "ann@x.org", "shown", 1.0),
        ("i1", "p1", "atlas", "ann@x.org", "wl", 2 / 3), ("i1", "p1", "atlas", "8", "likert", 2.0),
        ("i1", "p1", "atlas", "8", "shown", None), ("i1", "p1", "atlas", "8", "wl", 1.0),
    ]),
    "preferences": ("prompt_id image_a image_b generator_a generator_b rater template preferred", 0, [
        ("p1", "i1", "i2", "atlas", None, "8", "better", "b"),
    ]),
    "words": ("image_id rater word start end aligned", 0, [
        ("i1", "ann@x.org", "a", 0, 1, 1.0), ("i1", "ann@x.org", "red", 2, 5, 0.0),
        ("i1", "ann@x.org", "dog", 6, 9, 1.0), ("i1", "8", "a", 0, 1, 1.0),
    ]),
    "skills": {"p1": ["color", "animal"]},
}  # fmt: skip
IGNORED_QUESTION_NOTES = [
    "question 'comment' is not read: no answer is a number, yes, no, unsure or a side; set "
    "+protocol.columns.values={nice: NUMBER}",
    "1 of 6 ratings are empty and count as unsure",
]
EXPECTED_TABLES: dict[str, dict[str, Any]] = {
    "Label Studio": {**ANNOTATIONS, "notes": ["1 annotation (skipped) not counted", *IGNORED_QUESTION_NOTES]},
    "version 1": {**ANNOTATIONS, "notes": ["2 annotations (draft) not counted", *IGNORED_QUESTION_NOTES]},
    **{f"{kind}": {**ANNOTATIONS, "notes": IGNORED_QUESTION_NOTES} for kind in ("Argilla", "flat", "Hub")},
}  # fmt: skip


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_format_is_read_into_the_same_tables(name: str, tmp_path: Path) -> None:
    check_tables(read_with("annotations", LAYOUTS[name].write(tmp_path)), EXPECTED_TABLES[name])


@pytest.mark.parametrize("values", [True, False], ids=["values", "bytes"])
@pytest.mark.parametrize("name", LAYOUTS)
@FEW_EXAMPLES
@given(data=st.data())
def test_a_damaged_export_only_raises_source_error(
    name: str, values: bool, data: st.DataObject, tmp_path: Path
) -> None:
    check_damaged(LAYOUTS[name], values, data, tmp_path)


def test_a_metric_whose_lower_scores_are_better_is_judged_like_its_negated_scores(tmp_path: Path) -> None:
    check_negated(LAYOUTS["Hub"], tmp_path)


def test_an_export_without_scores_reports_only_people(tmp_path: Path) -> None:
    check_without_scores(LAYOUTS["Hub"], tmp_path)
