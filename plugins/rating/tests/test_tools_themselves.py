"""The Label Studio and Argilla packages can read our exports, and we can read their exports."""

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import httpx
import pytest

from plugins.rating.tests.annotation_files import ARGILLA_RECORDS, LABEL_STUDIO_TASKS
from plugins.rating.tests.served import make_run_with_questions
from plugins.rating.tests.test_annotation_tools import export_records, rate_in_label_studio
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.releases.readers import RatingColumns, read_release
from plumbline.plugins.rating.question_templates import TEMPLATES
from tests.commands import run_for_output
from tests.pipelines.metaeval.releases.files import read_with, write_file

pytestmark = pytest.mark.elsewhere
ANN_ID = UUID(int=7)
OWN_CONFIG = """<View><Text name="x" value="$prompt"/><Rating name="likert" toName="x"/>
<Choices name="shown" toName="x"><Choice value="Yes"/><Choice value="unsure"/></Choices>
<Labels name="wl" toName="x"><Label value="missing"/></Labels><TextArea name="comment" toName="x"/></View>"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("tools")


@pytest.fixture(scope="module")
def study(folder: Path) -> list[str]:
    run = make_run_with_questions(folder / "made")
    return [f"store={run.store.place.url}", f"study={folder}/study", f"templates=[{','.join(TEMPLATES)}]"]


@pytest.fixture(scope="module")
def argilla() -> Any:
    """Return Argilla's package, connected to a fake server that answers every request with the same user."""
    rg = pytest.importorskip("argilla")
    user = {"id": str(ANN_ID), "username": "ann", "role": "owner", "first_name": "Ann"}
    server = httpx.MockTransport(lambda request: httpx.Response(200, json=user))
    rg.Argilla("http://127.0.0.1", "key", mounts={"http://": server})
    return rg


@pytest.mark.parametrize("template", TEMPLATES)
def test_label_studio_accepts_configurations_tasks_and_annotations(
    template: str, study: list[str], folder: Path, tmp_path: Path
) -> None:
    from label_studio_sdk.converter.converter import Converter
    from label_studio_sdk.label_interface import LabelInterface

    tasks = export_records(study, "label_studio", folder)[template]
    view = (folder / f"study/exports/label_studio/{template}.xml").read_text()
    interface = LabelInterface(view)
    interface.validate()
    rated = rate_in_label_studio(tasks, template, f"ann of {template}")
    write_file(tmp_path / "rated.json", rated)
    for task in rated:
        assert interface.validate_task({"data": task["data"]})
        (annotation,) = task["annotations"]
        to = {tag.name: tag.to_name for tag in interface.controls}
        result = [{**one, "to_name": to[one["from_name"]][0]} for one in annotation["result"]]
        assert interface._validate_object({"result": result}, return_errors=True) == []
    rated_file = str(tmp_path / "rated.json")
    Converter(view, project_dir=str(tmp_path)).convert_to_json_min(rated_file, str(tmp_path), is_dir=False)
    minimal = [f"import_from={tmp_path}/result.json"]
    assert "6 answers added, 0 already known" in run_for_output("rate", *study, f"import_from={tmp_path}/rated.json")
    assert "0 answers added, 6 already known" in run_for_output("rate", *study, *minimal), (
        "the JSON-MIN export contains the same answers"
    )


def test_label_studios_json_min_and_json_exports_give_the_same_ratings(tmp_path: Path) -> None:
    from label_studio_sdk.converter.converter import Converter

    path = write_file(tmp_path / "export.json", LABEL_STUDIO_TASKS[:1])
    Converter(OWN_CONFIG, project_dir=str(tmp_path)).convert_to_json_min(str(path), str(tmp_path), is_dir=False)
    columns = RatingColumns(rating="shown")
    minimal = read_release("annotations", StorageConfig().locate(f"{tmp_path}/result.json"), columns)
    whole = read_with("annotations", path)
    assert minimal.ratings.equals(whole.ratings) and minimal.words.equals(whole.words)


@pytest.mark.parametrize("template", TEMPLATES)
def test_argilla_accepts_settings_and_records_and_its_answers_come_back(
    template: str, argilla: Any, study: list[str], folder: Path, tmp_path: Path
) -> None:
    from argilla.records._io import JsonIO

    export_records(study, "argilla", folder)
    files = folder / "study/exports/argilla"
    settings = argilla.Settings.from_json(files / f"{template}.settings.json")
    settings.validate()
    records = JsonIO._records_from_json(files / f"{template}.0.json")
    shown = {field.name for field in settings.fields}
    chosen = settings.questions[0].labels[-1]
    for record in records:
        assert set(record.fields) == shown
        record.responses.add(argilla.Response(template, chosen, user_id=ANN_ID, status="submitted"))
    JsonIO.to_json(records, tmp_path / "rated.json")
    assert "6 answers added" in run_for_output("rate", *study, f"import_from={tmp_path}/rated.json")


def test_argillas_own_records_are_read_nested_and_flattened(argilla: Any, tmp_path: Path) -> None:
    from argilla.records._io import GenericIO

    of_users = {"ann@x.org": str(UUID(int=1)), "8": str(UUID(int=2))}
    text = json.dumps(ARGILLA_RECORDS)
    for user, known in of_users.items():
        text = text.replace(f'"user_id": "{user}"', f'"user_id": "{known}"')
    records = [argilla.Record.from_dict(record) for record in json.loads(text)]
    forms = [GenericIO.to_list(records, flatten=flatten) for flatten in (False, True)]
    nested, flat = (read_with("annotations", write_file(tmp_path / f"{n}.json", form)) for n, form in enumerate(forms))
    assert nested.ratings.equals(flat.ratings) and len(nested.ratings) == 6
    assert nested.words.equals(flat.words) and nested.preferences.equals(flat.preferences)
