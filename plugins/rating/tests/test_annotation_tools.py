"""A study's tasks can be exported to Label Studio or Argilla, and the answers imported from there."""

import base64
import io
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from plugins.rating.tests.annotation_files import make_annotation
from plugins.rating.tests.served import GENERATORS, make_run_with_questions
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.study_files import read_answers, read_study
from tests.commands import run, run_for_output, run_refused
from tests.operators.report.made import MadeRun
from tests.pipelines.metaeval.releases.files import write_file

CHOICES_BY_TEMPLATE = {
    **{name: "4" for name, template in TEMPLATES.items() if template.grades},
    "words": "marked",
    "questions": "yes",
    "side_by_side": "left",
    "vote": "cannot tell",
}
Records = Sequence[dict[str, Any]]


@pytest.fixture(scope="module")
def scored_run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run_with_questions(tmp_path_factory.mktemp("made"))


@pytest.fixture
def study(scored_run: MadeRun, tmp_path: Path) -> list[str]:
    return [f"store={scored_run.store.place.url}", f"study={tmp_path}/study", f"templates=[{','.join(TEMPLATES)}]"]


def export_records(study: Sequence[str], tool: str, folder: Path) -> dict[str, Records]:
    assert f"written: {folder}/study/exports/{tool}/words.0.json" in run_for_output("rate", *study, f"export_to={tool}")
    files = folder / "study/exports" / tool
    return {template: json.loads((files / f"{template}.0.json").read_text()) for template in TEMPLATES}


def rate_in_label_studio(tasks: Records, template: str, rater: str) -> Records:
    """Return the tasks as a Label Studio project exports them after one person has answered all of them."""
    result: list[tuple[str, str, dict[str, Any]]] = [
        (template, "choices", {"choices": [CHOICES_BY_TEMPLATE[template]]})
    ]
    result.append(("note", "textarea", {"text": ["hm"]}))
    if template == "words":
        result.append(("wrong_words", "labels", {"start": 2, "end": 5, "labels": ["wrong"]}))
    said = make_annotation({"email": rater}, *result, updated_at="2026-11-26T10:00:00Z")
    return [{"id": number, "annotations": [said], **task} for number, task in enumerate(tasks)]


def convert_to_json_min(rated: Records) -> Records:
    """Return the same export as JSON-MIN: values by tag name, with a single choice as a plain string."""
    return [
        {
            **task["data"],
            **{
                one["from_name"]: next((value[0] for name in ("choices", "text") for value in [one["value"].get(name)]
                                        if isinstance(value, list)), [one["value"]])
                for one in said["result"]
            },
            "annotation_id": 1, "annotator": said["completed_by"]["email"], "lead_time": 3.5,
            "updated_at": said["updated_at"],
        }
        for task in rated for said in task["annotations"]
    ]  # fmt: skip


def rate_in_argilla(records: Records, template: str, rater: str) -> Records:
    """Return records in the format of `records.to_json`, with one person's responses."""
    values: dict[str, Any] = {template: CHOICES_BY_TEMPLATE[template], "note": "hm"}
    if template == "words":
        values["wrong_words"] = [{"start": 2, "end": 5, "label": "wrong"}]
    responses = {name: [{"value": value, "user_id": rater}] for name, value in values.items()}
    return [{**record, "responses": responses, "status": "completed", "_server_id": None} for record in records]


RATE_FUNCTION_BY_TOOL: Mapping[str, Callable[[Records, str, str], Records]] = {
    "label_studio": rate_in_label_studio,
    "argilla": rate_in_argilla,
}


@pytest.mark.parametrize("tool", RATE_FUNCTION_BY_TOOL)
def test_answers_in_another_tool_are_imported_as_answers_of_the_study(
    tool: str, study: Sequence[str], tmp_path: Path
) -> None:
    tasks = export_records(study, tool, tmp_path)
    for template, records in tasks.items():
        answers = write_file(
            tmp_path / f"{template}.json", RATE_FUNCTION_BY_TOOL[tool](records, template, "ann@example.org")
        )
        assert "6 answers added, 0 already known" in run_for_output("rate", *study, f"import_from={answers}")
        assert "0 answers added, 6 already known" in run_for_output("rate", *study, f"import_from={answers}")
        if tool == "label_studio":
            write_file(answers, convert_to_json_min(RATE_FUNCTION_BY_TOOL[tool](records, template, "ann@example.org")))
            assert "0 answers added, 6 already known" in run_for_output("rate", *study, f"import_from={answers}")
    place = StorageConfig().locate(f"{tmp_path}/study")
    answers_kept = read_answers(place)
    assert {(one.rater, one.note, one.repeat, one.gold) for one in answers_kept if one.template != "questions"} == {
        ("ann@example.org", "hm", 0, None)
    }
    seconds = {one.seconds for one in answers_kept if one.template != "questions"}
    assert seconds == {{"label_studio": 3.5, "argilla": None}[tool]}, "Argilla exports no times"
    said: dict[str, list[Any]] = {}
    for one in answers_kept:
        said.setdefault(one.template, []).append(one.answer)
    assert (
        said["likert"] == said["genai_bench"] == said["llmscore_errors"] == [4] * 6
        and said["vote"] == ["cannot_tell"] * 6
    )
    assert said["words"] == [{"wrong": [1], "unsure": []}] * 6
    assert said["questions"] == [{"q0": "yes", "q1": "yes"}] * 6
    pairs = [one for one in answers_kept if one.template == "side_by_side"]
    assert all(one.answer == "ab"[one.shown[0]] for one in pairs) and {one.answer for one in pairs} == {"a", "b"}


@pytest.mark.parametrize("tool", RATE_FUNCTION_BY_TOOL)
def test_exported_tasks_contain_images_but_no_generators(tool: str, study: Sequence[str], tmp_path: Path) -> None:
    tasks = export_records(study, tool, tmp_path)
    assert {template: len(records) for template, records in tasks.items()} == {
        **dict.fromkeys(TEMPLATES, 6), "questions": 12
    }  # fmt: skip
    known = {task.task_id: task for task in read_study(StorageConfig().locate(f"{tmp_path}/study")).tasks}
    for record in (record for records in tasks.values() for record in records):
        fields, ids = (record["data"],) * 2 if tool == "label_studio" else (record["fields"], record["metadata"])
        task = known[ids["task_id"]]
        names = {"prompt", *(("left", "right") if len(task.places) == 2 else ("image",))}
        assert names <= fields.keys() and fields["prompt"] == task.prompt
        uri = fields[(names - {"prompt"}).pop()]
        assert uri.startswith("data:image/webp;base64,")
        assert Image.open(io.BytesIO(base64.b64decode(uri.partition(",")[2]))).size == (48, 48)
        text = json.dumps({**fields, **ids, **dict.fromkeys(("image", "left", "right"), "")})
        assert not any(name in text for name in (*GENERATORS, "p000"))


def test_each_label_studio_project_has_a_form_for_its_template(study: Sequence[str], tmp_path: Path) -> None:
    export_records(study, "label_studio", tmp_path)
    views = {
        name: ElementTree.parse(tmp_path / f"study/exports/label_studio/{name}.xml").getroot() for name in TEMPLATES
    }
    choices = {name: [choice.get("value") for choice in view.iter("Choice")] for name, view in views.items()}
    assert choices["likert"] == ["1", "2", "3", "4", "5", "unsure", "cannot tell"]
    assert choices["vote"] == ["left", "right", "tie", "unsure", "cannot tell"]
    assert [label.get("value") for label in views["words"].iter("Label")] == ["wrong", "unsure"]
    assert [text.get("value") for text in views["questions"].iter("Text")] == ["$prompt", "$question"]


def test_an_answer_changed_in_the_tool_is_the_next_revision_and_an_older_one_is_ignored(
    study: Sequence[str], tmp_path: Path
) -> None:
    (task, *_) = export_records(study, "label_studio", tmp_path)["likert"]
    for day, choice, kept in ((2, "2", 1), (3, "5", 1), (1, "1", 0)):
        said = make_annotation(7, ("likert", "choices", {"choices": [choice]}), updated_at=f"2026-11-0{day}T00:00:00Z")
        file = write_file(tmp_path / "export.json", [{**task, "annotations": [said]}])
        assert f"{kept} answer" in run_for_output("rate", *study, f"import_from={file}")
    (answer,) = read_answers(StorageConfig().locate(f"{tmp_path}/study"))
    assert (answer.rater, answer.answer, answer.seconds, answer.at) == ("7", 5, 3.5, "2026-11-03T00:00:00Z")
    assert len([*(tmp_path / "study/answers/7").iterdir()]) == 2


def test_unknown_tasks_are_noted_and_a_file_with_an_invalid_answer_adds_nothing(
    study: Sequence[str], tmp_path: Path
) -> None:
    tasks = export_records(study, "label_studio", tmp_path)

    def find_refusal(*records: Any) -> str:
        return run_refused("rate", *study, f"import_from={write_file(tmp_path / 'export.json', list(records))}")

    (good, other, *_) = rate_in_label_studio(tasks["likert"], "likert", "ann")
    other["annotations"] = [make_annotation("ann", ("likert", "choices", {"choices": ["7"]}))]
    assert "export.json, record 1: answer: expected a whole number from 1 to 5" in find_refusal(good, other)
    assert "record 0: expected the task_id of a task exported" in find_refusal({**good, "data": {"image_id": "i"}})
    named = {**good, "annotations": [make_annotation("a/b", ("likert", "choices", {"choices": ["3"]}))]}
    assert "record 0: rater: expected a name of up to 48 characters" in find_refusal(named)
    late = {**good, "annotations": [{**good["annotations"][0], "updated_at": "yesterday"}]}
    assert "record 0: at: " in find_refusal(late)
    assert read_answers(StorageConfig().locate(f"{tmp_path}/study")) == []
    gone = {**good, "data": {**good["data"], "task_id": "0" * 16}}
    half = rate_in_label_studio(tasks["questions"][:1], "questions", "ann")
    file = write_file(tmp_path / "export.json", [good, gone, *half])
    ended = run("rate", *study, f"import_from={file}")
    assert "1 answer added" in ended.out
    assert "1 answer to tasks that are not in version 1 of the study, left out" in ended.out + ended.err
    assert "1 answer not complete, left out" in ended.out + ended.err
