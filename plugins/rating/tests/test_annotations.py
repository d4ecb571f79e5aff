"""Ratings are read from exports of Label Studio and Argilla; their meanings are guessed or configured."""

import json
from pathlib import Path
from typing import Any

import pytest

from plugins.rating.tests.annotation_files import ATLAS_RECORD, LABEL_STUDIO_TASKS, RED_WORD, make_annotation
from plumbline.operators.base.errors import SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.metaeval import run_metaeval
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.metaeval.releases.release import Release
from tests.commands import load_job_config
from tests.pipelines.metaeval.releases.files import read_with, write_file


def open_export(folder: Path, records: Any, *overrides: str) -> Release:
    path = write_file(folder / "export.json", records)
    protocol = load_job_config("metaeval", "protocol=annotations", f"protocol.path={path}", *overrides).protocol
    return open_release(protocol, StorageConfig())


def make_task(
    *results: tuple[str, str, dict[str, Any]], data: Any = ATLAS_RECORD, **fields: Any
) -> list[dict[str, Any]]:
    return [{"id": 1, "data": data, "annotations": [make_annotation(7, *results, **fields)]}]


def list_ratings(release: Release) -> list[tuple[str, str, float | None]]:
    return [(row["rater"], row["template"], row["rating"]) for row in release.ratings.to_pylist()]


def test_json_min_is_read_with_the_choices_that_columns_name(tmp_path: Path) -> None:
    """The records are as label-studio-sdk writes them: a single choice is a string, and other values are in lists."""
    (first, second, _) = LABEL_STUDIO_TASKS[0]["annotations"]
    common = {"id": 1, "created_at": "2026-01-01", "updated_at": "2026-01-01", "lead_time": 3.5}
    records = [
        {**ATLAS_RECORD, **common, "annotation_id": 1, "annotator": "ann@x.org", "likert": [{"rating": 4}],
         "shown": "Yes", "wl": [RED_WORD], "comment": "nice"},
        {**ATLAS_RECORD, **common, "annotation_id": 2, "annotator": 8, "likert": [{"rating": 2}], "shown": "unsure"},
    ]  # fmt: skip
    whole = open_export(tmp_path, [{**LABEL_STUDIO_TASKS[0], "annotations": [first, second]}])
    assert open_export(tmp_path, records, "protocol.columns.rating=shown").ratings.equals(whole.ratings)
    assert {template for _, template, _ in list_ratings(open_export(tmp_path, records))} == {"likert", "wl"}


def test_only_line_feeds_and_carriage_returns_end_a_line_of_json(tmp_path: Path) -> None:
    path = write_file(tmp_path / "export.json", [])
    line = json.dumps({**LABEL_STUDIO_TASKS[0], "note": "a\u2028b\x85c"}, ensure_ascii=False)
    (tmp_path / "export.jsonl").write_text(line + "\r\n", newline="")
    words = ("protocol=annotations", f"protocol.path={path}l")
    lines = open_release(load_job_config("metaeval", *words).protocol, StorageConfig())
    assert list_ratings(lines)


def test_answers_to_several_questions_about_an_image_are_averaged(tmp_path: Path) -> None:
    asked = [
        {"id": place, "data": {"picture": "1.png", "q": f"q{place}"}, "annotations": [
            make_annotation(7, ("dsg_h", "choices", {"choices": [reply]})),
        ]}
        for place, reply in enumerate(("yes", "No", "YES", "cannot tell"))
    ]  # fmt: skip
    columns = ("protocol.columns.image_id=picture", "protocol.columns.question_id=q")
    release = open_export(tmp_path, asked, *columns)
    assert [(row["image_id"], row["rating"]) for row in release.ratings.to_pylist()] == [("1.png", 2 / 3)]
    said = [(row["part"], row["rating"]) for row in release.parts.to_pylist()]
    assert said == [("q0", 1), ("q1", 0), ("q2", 1), ("q3", None)], (
        "the parts, from which agreement is computed, are the questions"
    )


def test_columns_assign_numbers_to_custom_labels(tmp_path: Path) -> None:
    pair = {"prompt_id": "p1", "image_a": "i1", "image_b": "i2"}
    records = [
        *make_task(("quality", "choices", {"choices": ["Poor "]})),
        *make_task(("better", "choices", {"choices": ["the second"]}), data=pair),
    ]
    release = open_export(tmp_path, records, "+protocol.columns.values={poor: 1, good: 2, the second: -1}")
    assert list_ratings(release) == [("7", "quality", 1)]
    assert release.preferences.column("preferred").to_pylist() == ["b"]


def test_unknown_labels_are_refused_with_the_option_that_assigns_numbers_to_them(tmp_path: Path) -> None:
    """The suggested option works once its numbers are filled in."""
    labels = ["Good", "Poor ", "very poor", "Good"]
    records = [
        {"id": place, "data": {**ATLAS_RECORD, "image_id": f"i{place}"}, "annotations": [
            make_annotation(7, ("quality", "choices", {"choices": [label]})),
        ]}
        for place, label in enumerate(labels)
    ]  # fmt: skip
    with pytest.raises(SourceError, match=r"no usable judgements: .*question 'quality' is not read: ") as refused:
        open_export(tmp_path, records)
    option = str(refused.value).partition("set ")[2].partition(";")[0]
    assert option == "+protocol.columns.values={Good: NUMBER, Poor: NUMBER, very poor: NUMBER}"
    for number in (3, 2, 1):
        option = option.replace("NUMBER", str(number), 1)
    assert [rating for _, _, rating in list_ratings(open_export(tmp_path, records, option))] == [3, 2, 1, 3]


@pytest.mark.parametrize("place", range(3))
def test_a_task_without_annotations_does_not_affect_other_tasks(tmp_path: Path, place: int) -> None:
    """For tasks without annotations, Label Studio omits `annotations` or writes an empty list or only predictions."""
    records = [
        *make_task(("likert", "rating", {"rating": 5})),
        *make_task(("likert", "rating", {"rating": 2}), data={**ATLAS_RECORD, "image_id": "i2"}),
    ]
    waiting = [
        {"id": 9, "data": ATLAS_RECORD},
        {"id": 9, "data": ATLAS_RECORD, "annotations": []},
        {"id": 9, "data": ATLAS_RECORD, "predictions": []},
    ]
    whole = open_export(tmp_path, records)
    for one in waiting:
        assert open_export(tmp_path, [*records[:place], one, *records[place:]]).ratings.equals(whole.ratings)
        with pytest.raises(SourceError, match="no record has an annotation; export it again"):
            open_export(tmp_path, [one])


def test_the_last_annotation_of_a_task_by_a_person_counts(tmp_path: Path) -> None:
    records = make_task(("likert", "rating", {"rating": 5}), updated_at="2026-01-02T00:00:00Z")
    records[0]["annotations"].append(
        make_annotation(7, ("likert", "rating", {"rating": 1}), updated_at="2026-01-01T00:00:00Z")
    )
    release = open_export(tmp_path, records)
    assert list_ratings(release) == [("7", "likert", 5)]
    assert "1 annotation replaced by a later one by the same person" in release.notes


def test_the_worst_mark_of_a_word_counts(tmp_path: Path) -> None:
    marks = [{**RED_WORD, "labels": [label]} for label in ("shown", "unsure", "wrong")]
    for number, aligned in ((1, 1.0), (2, None), (3, 0.0)):
        records = make_task(*[("wl", "labels", mark) for mark in marks[:number]])
        release = read_with("annotations", write_file(tmp_path / "export.json", records))
        assert release.words.column("aligned").to_pylist() == [1.0, aligned, 1.0]


@pytest.mark.parametrize(
    ("records", "message"),
    [
        (
            [{"id": 1, "image": "x.png"}],
            r"record 0: expected a Label Studio task with annotations, or .* found id, im",
        ),
        ([{"id": 1, "data": ATLAS_RECORD, "annotations": []}], "no record has an annotation; export it again"),
        (
            make_task(("q", "rating", {"rating": 3}), data={"image": "x.png"}),
            "record 0: expected a field image_id, found image; set",
        ),
        (
            [*make_task(("q", "choices", {"choices": ["yes"]})), *make_task(("q", "choices", {"choices": ["maybe"]}))],
            r"record 1: 'q' is answered with 'maybe' here, but with 'yes' elsewhere; correct it",
        ),
        (
            make_task(("w", "labels", {**RED_WORD, "text": "blue"})),
            r"record 0, w: characters 2 to 5 are not 'blue' in 'a red dog'; set prot",
        ),
        (
            make_task(("w", "labels", {**RED_WORD, "start": None})),
            "record 0, w: expected whole numbers for the start and end",
        ),
        (
            [*make_task(("q", "rating", {"rating": 3})), *make_task(("q", "rating", {"rating": 4}))],
            r"record 1: rater '7' answers 'q' of image 'i1' twice \(first in .*record 0\)",
        ),
        ([{"id": 1, "data": 7, "annotations": [{}]}], "record 0, data: expected an object, found int"),
        ([{"responses": {"q": [7]}, "id": "r"}], "record 0, q: expected an object, found int"),
        ("{", "export.json: .*"),
    ],
)
def test_an_invalid_file_is_refused_with_its_record_and_the_remedy(tmp_path: Path, records: Any, message: str) -> None:
    with pytest.raises(SourceError, match=message):
        read_with("annotations", write_file(tmp_path / "export.json", records))


def test_a_file_without_ratings_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no usable judgements"):
        open_export(
            tmp_path, make_task(("comment", "textarea", {"text": ["blurred"]}), ("box", "rectanglelabels", {"x": 1}))
        )


def test_generators_missing_from_an_export_are_taken_from_the_scores(tmp_path: Path) -> None:
    """The export does not name generators, so people's ranking of generators also uses the generators in the scores."""
    records = [
        {"id": n, "data": {"prompt_id": f"p{n}", "image_a": f"p{n}/x", "image_b": f"p{n}/y"}, "annotations": [
            make_annotation(rater, ("better", "pairwise", {"selected": "left"})) for rater in ("ann", "bob")
        ]}
        for n in range(12)
    ]  # fmt: skip
    scores = write_file(tmp_path / "scores.csv", [
        {"image_id": f"p{n}/{name}", "prompt_id": f"p{n}", "generator": name, "hits": 0.1 * n + (name == "x")}
        for n in range(12) for name in "xy"
    ])  # fmt: skip
    path = write_file(tmp_path / "export.json", json.loads(json.dumps(records)))
    given = ["protocol=annotations", f"protocol.path={path}", f"scores={scores}", f"output={tmp_path}/out"]
    found = run_metaeval(load_job_config("metaeval", *given, "protocol.alpha=0.05", "sampling.resamples=20"))
    judged = {(one.metric, one.statistic): one for one in found.judgements if one.template == "better"}
    assert judged["hits", "binary_accuracy"].value == 1 and judged["hits", "model_ordering"].value == 1
    assert judged["people", "alpha_ordinal"].n == 12
    assert {(order.judge, order.better) for order in found.orders} == {("people", "x"), ("hits", "x")}
