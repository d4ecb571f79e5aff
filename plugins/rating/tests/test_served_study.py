"""Over HTTP, a study sends tasks, stores answers, and rejects hostile requests."""

import io
import json
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from plugins.rating.tests.served import GENERATORS, ServedStudy, make_run_with_questions
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.pipelines.store.checksums import decode_json, encode_json
from plumbline.plugins.rating.question_templates import TEMPLATES
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.study import open_study
from plumbline.plugins.rating.study_files import list_versions, make_version_path, read_answers, read_study
from tests.histories.damage import ROT_WAYS, damage_file
from tests.operators.report.made import MadeRun, encode_png

VALID_ANSWERS: dict[str, Any] = {
    **{name: 4 for name, template in TEMPLATES.items() if template.grades},
    "words": {"wrong": [1], "unsure": []},
    "questions": {"q0": "yes", "q1": "cannot_tell"},
    "side_by_side": "a",
    "vote": "tie",
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    return make_run_with_questions(tmp_path_factory.mktemp("made"))


@pytest.fixture
def study(run: MadeRun, tmp_path: Path) -> Iterator[ServedStudy]:
    yield ServedStudy(store=run.store.place.url, study=str(tmp_path / "study"), templates=tuple(TEMPLATES), repeats=0.0)


def answer_everything(study: ServedStudy, rater: str = "ann") -> list[dict[str, Any]]:
    asked = []
    while tasks := study.get_tasks(rater):
        for task in tasks:
            assert study.post(task, VALID_ANSWERS[task["template"]], rater).status_code == 201
        asked += tasks
    return asked


def test_each_template_has_one_task_per_image_or_per_pair_of_generators(study: ServedStudy) -> None:
    asked = answer_everything(study)
    assert Counter(task["template"] for task in asked) == dict.fromkeys(TEMPLATES, 6)
    assert len({task["task_id"] for task in asked}) == 6 * len(TEMPLATES)
    answers = read_answers(study.study.place)
    assert Counter(answer.template for answer in answers) == dict.fromkeys(TEMPLATES, 6)
    likert = {(answer.prompt_id, answer.generators) for answer in answers if answer.template == "likert"}
    assert likert == {(prompt, (generator,)) for prompt in ("p0000", "p0001") for generator in GENERATORS}
    pairs = Counter(frozenset(answer.generators) for answer in answers if answer.template == "vote")
    assert pairs == {frozenset(pair): 2 for pair in (GENERATORS[:2], GENERATORS[1:], GENERATORS[::2])}


def test_a_task_contains_everything_for_its_page_but_no_generator(study: ServedStudy) -> None:
    first = {task["template"]: task for rater in range(8) for task in study.get_tasks(f"r{rater}", 20)}
    assert first.keys() == TEMPLATES.keys()
    assert first["llmscore_overall"]["grades"] == [[grade, ""] for grade in range(1, 11)]
    assert first["genai_bench"]["grades"][0] == [1, "Does not match at all."] and first["words"]["grades"] == []
    assert first["words"]["words"] in (["a", "red", "star"], ["a", "blue", "cup"])
    assert [question["text"] for question in first["questions"]["questions"]] == ["Is it one?", "Is it big?"]
    assert "left out 2 questions of gecko whose answers are not yes and no" in study.warnings
    assert len(first["vote"]["pictures"]) == 2 and len(first["likert"]["pictures"]) == 1
    assert not any(name in json.dumps([*first.values()]) for name in (*GENERATORS, "gold", "p000", ".parquet"))


def test_images_are_encoded_again_and_responses_contain_no_generator(study: ServedStudy) -> None:
    task = study.get_tasks()[0]
    picture = study(task["pictures"][0])
    assert picture.headers["content-type"] == "image/webp" and "no-store" not in picture.headers["cache-control"]
    assert Image.open(io.BytesIO(picture.content)).size == (48, 48)
    missing = study(task["pictures"][0].rpartition("/")[0] + "/7")
    assert missing.status_code == 404 and missing.json() == {
        "error": "expected an image number below 1, got 7; reload the page"
    }


def test_an_answer_is_stored_once_and_a_different_answer_is_refused(study: ServedStudy) -> None:
    task = study.get_tasks()[0]
    right, other = VALID_ANSWERS[task["template"]], "unsure"
    assert study.post(task, right).status_code == 201
    again = study.post(task, right, seconds=9.0)
    assert again.status_code == 200 and again.json()["seconds"] == 2.5
    refused = study.post(task, other)
    assert refused.status_code == 409
    assert refused.json()["error"] == "another answer is already stored as revision 0; to change it, send revision 1"
    assert refused.json()["kept"]["answer"] == right
    corrected = study.post(task, other, revision=1, note="I looked again")
    assert corrected.status_code == 201 and corrected.json()["revision"] == 1
    assert [answer.answer for answer in read_answers(study.study.place)] == [other]
    shown = study(f"/tasks/{task['task_id']}", params={"rater": "ann"}).json()
    assert (shown["answer"], shown["revision"], shown["note"]) == (other, 1, "I looked again")
    assert study.post(task, right, revision=3).json() == {
        "error": "revision: expected at most 2, got 3; reload the page"
    }


def test_a_rater_sees_the_progress_and_is_not_asked_an_answered_task_again(study: ServedStudy) -> None:
    for task in study.get_tasks(count=6):
        study.post(task, VALID_ANSWERS[task["template"]])
    next_one = study.get_tasks(count=1)[0]
    total = 6 * len(TEMPLATES)
    assert (next_one["done"], next_one["total"]) == (6, total)
    assert next_one["remaining_minutes"] == pytest.approx((total - 6) * 2.5 / 60, abs=0.06)
    assert study.get_tasks("bob", 1)[0]["done"] == 0


def test_a_task_with_enough_answers_is_not_asked_again(run: MadeRun, tmp_path: Path) -> None:
    study = ServedStudy(store=run.store.place.url, study=str(tmp_path / "one"), pictures=1, raters=2, repeats=0.0)
    assert [len(answer_everything(study, rater)) for rater in ("ann", "bob", "cyd")] == [3, 3, 0]


@pytest.mark.parametrize(
    ("changes", "status", "message"),
    [
        ({"answer": 6}, 400, "answer: expected"),
        ({"answer": None}, 400, "answer: expected"),
        ({"task_id": "0" * 16}, 404, "version 1 of the study does not contain task 0000"),
        ({"task_id": "../../etc"}, 400, "task_id"),
        (
            {"version": 7, "task_id": "0" * 16},
            409,
            "the task is from version 7 of the study, which now has version 1",
        ),
        ({"rater": "../ann"}, 400, "rater: expected a name"),
        ({"rater": " ann"}, 400, "rater: expected 'ann'"),
        ({"repeat": -1}, 400, "repeat"),
        ({"revision": 10**9}, 400, "revision"),
        ({"seconds": -1}, 400, "seconds"),
        ({"note": "x" * 2001}, 400, "note"),
        ({"note": "x" * 70_000}, 413, "at most 65536 bytes"),
        ({"gold": 5}, 400, "gold"),
    ],
)
def test_an_invalid_answer_is_refused_in_one_line_and_not_stored(
    study: ServedStudy, changes: dict[str, Any], status: int, message: str
) -> None:
    refused = study.post(study.get_tasks()[0], **{"answer": "unsure"} | changes)
    assert refused.status_code == status and message in refused.json()["error"]
    assert read_answers(study.study.place) == []


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/tasks?rater=..", 400),
        ("/tasks?rater=ann&count=1000", 400),
        ("/tasks?rater=ann&count=-1", 400),
        ("/tasks/../../etc/passwd", 404),
        ("/tasks/0123?rater=ann", 404),
        ("/pictures/0123/0", 404),
        ("/nothing", 404),
    ],
)
def test_an_invalid_url_is_refused_in_one_line(study: ServedStudy, path: str, status: int) -> None:
    refused = study(path)
    assert refused.status_code == status and len(refused.json()["error"].splitlines()) == 1


def test_forms_of_other_sites_and_foreign_host_names_are_refused(study: ServedStudy) -> None:
    body = {"method": "POST", "content": "{}"}
    assert study("/answers", **body, headers={"content-type": "text/plain"}).status_code == 415
    assert study("/tasks?rater=ann", headers={"origin": "http://elsewhere.example"}).status_code == 403
    assert study("/tasks?rater=ann", headers={"host": "elsewhere.example"}).status_code == 400


def test_a_study_with_a_token_refuses_requests_without_it(run: MadeRun, tmp_path: Path) -> None:
    study = ServedStudy("sesame", store=run.store.place.url, study=str(tmp_path / "study"))
    for path in ("/", "/rate?rater=ann", "/tasks?rater=ann", "/progress", "/pictures/0/0"):
        assert study(path).status_code == 401
    assert study("/answers", method="POST", json={}).status_code == 401
    assert study("/tasks?rater=ann", auth=("ann", "sesame")).status_code == 200


def test_the_pages_ask_for_a_name_and_escape_it(study: ServedStudy) -> None:
    assert "Your name" in study("/").text
    assert study("/?rater=Zo%C3%AB").headers["location"] == "/rate?rater=Zo%C3%AB"
    page = study("/rate", params={"rater": "x' onload='y"})
    assert page.status_code == 200 and "x' onload" not in page.text
    refused = study("/rate", params={"rater": "<script>"})
    assert refused.status_code == 400 and "<script>alert" not in refused.text and "expected a name" in refused.text
    assert "connect-src 'self'" in page.headers["content-security-policy"]


def test_an_unchanged_study_continues_with_the_same_version(run: MadeRun, study: ServedStudy) -> None:
    task = study.get_tasks()[0]
    study.post(task, VALID_ANSWERS[task["template"]])
    again = ServedStudy(store=run.store.place.url, study=study.study.place.url)
    assert again.study.served.version == 1 and again.get_tasks(count=1)[0]["done"] == 1 and not again.warnings
    same = ServedStudy(store=run.store.place.url, study=study.study.place.url, templates=tuple(TEMPLATES), run="latest")
    assert same.study.served.version == 1


def test_a_design_file_without_a_newer_option_creates_no_new_version(run: MadeRun, study: ServedStudy) -> None:
    file = study.study.place / make_version_path(1)
    content = decode_json(file.read().decode())
    del content["design"]["gold"]
    file.write(encode_json(content).encode())
    again = ServedStudy(store=run.store.place.url, study=study.study.place.url, templates=tuple(TEMPLATES))
    assert again.study.served.version == 1 and not any("edited" in line for line in again.warnings)


def test_an_edited_study_gets_a_new_version_and_keeps_the_answers_to_unchanged_tasks(
    run: MadeRun, tmp_path: Path
) -> None:
    place = str(tmp_path / "study")
    before = ServedStudy(store=run.store.place.url, study=place, repeats=0.0)
    likert = before.get_tasks()
    assert before.post(likert[0], 2).status_code == 201
    after = ServedStudy(store=run.store.place.url, study=place, templates=("likert", "vote"), repeats=0.0)
    assert after.warnings == ["the study was edited: version 2 is served from now on, and new answers record it"]
    assert after.get_tasks(count=1)[0]["version"] == 2
    assert len(answer_everything(after)) == 5 + 6
    assert Counter(answer.version for answer in read_answers(after.study.place)) == {1: 1, 2: 11}
    only = ServedStudy(store=run.store.place.url, study=place, templates=("vote",))
    refused = only.post(likert[1], 3)
    assert (
        refused.status_code == 409
        and "the task is from version 1 of the study, which now has version 3" in refused.json()["error"]
    )
    assert read_study(only.study.place).version == 3


def test_a_rater_can_continue_on_another_server_immediately(run: MadeRun, study: ServedStudy) -> None:
    other = ServedStudy(store=run.store.place.url, study=study.study.place.url, repeats=0.0)
    for place in range(5):
        here, there = (study, other) if place % 2 else (other, study)
        task = here.get_tasks(count=1)[0]
        assert task["done"] == place
        assert here.post(task, VALID_ANSWERS[task["template"]]).status_code == 201
        assert there(f"/tasks/{task['task_id']}", params={"rater": "ann"}).json()["revision"] == 0


def test_servers_that_create_a_study_at_the_same_time_write_one_version(run: MadeRun, tmp_path: Path) -> None:
    config = RateConfig(store=run.store.place.url, study=str(tmp_path / "study"))
    with ThreadPoolExecutor(4) as pool:
        studies = list(pool.map(lambda _: open_study(config, print), range(4)))
    assert list_versions(studies[0].place) == [1]
    edits = [replace(config, templates=(name,)) for name in ("words", "vote")]
    with ThreadPoolExecutor(2) as pool:
        edited = list(pool.map(lambda edit: open_study(edit, print), edits))
    assert list_versions(edited[0].place) == [1, 2, 3]


def test_a_larger_number_of_prompts_keeps_the_prompts_drawn_before(run: MadeRun, tmp_path: Path) -> None:
    place = str(tmp_path / "study")
    one, two = (ServedStudy(store=run.store.place.url, study=place, pictures=many) for many in (1, 2))
    assert one.study.served.tasks.keys() < two.study.served.tasks.keys()


def test_a_missing_image_is_reported_and_its_tasks_are_left_out(tmp_path: Path) -> None:
    run = make_run_with_questions(tmp_path / "made", image=lambda seed: b"broken" if seed == 100 else encode_png(seed))
    study = ServedStudy(store=run.store.place.url, study=str(tmp_path / "study"), repeats=0.0)
    asked = answer_everything(study)
    assert len(asked) == 5 and asked[-1]["total"] == 5
    (message,) = study.warnings
    assert message.startswith("task ") and "is left out because an image is missing: " in message
    (gone,) = study.study.omitted
    assert gone in study("/progress").text
    refused = study.post({"task_id": gone, "repeat": 0, "version": 1}, 3)
    assert refused.status_code == 410
    picture = study(f"/pictures/{gone}/0")
    assert picture.status_code == 410 and "borealis" not in picture.text and "parquet" not in picture.text


def test_tasks_with_a_restored_image_are_asked_when_no_other_task_is_left(tmp_path: Path) -> None:
    run = make_run_with_questions(tmp_path / "made")
    file, away = tmp_path / "made/bench/images/atlas/00000.parquet", tmp_path / "away"
    study = ServedStudy(store=run.store.place.url, study=str(tmp_path / "study"), repeats=0.0)
    file.rename(away)
    assert len(answer_everything(study)) == 4 and len(study.study.omitted) == len(study.warnings) == 2
    away.rename(file)
    assert len(answer_everything(study)) == 2 and not study.study.omitted and len(study.warnings) == 2


def test_edits_are_shown_with_their_sources(tmp_path: Path) -> None:
    run = make_run_with_questions(tmp_path / "made", sources=lambda at: [encode_png(at + 7), encode_png(at + 8)])
    study = ServedStudy(store=run.store.place.url, study=str(tmp_path / "study"), templates=("vote",))
    task = study.get_tasks()[0]
    assert len(task["sources"]) == 2
    assert [study(source).headers["content-type"] for source in task["sources"]] == ["image/webp"] * 2


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"templates": ("gut",)}, "templates: expected one of likert, genai_bench"),
        ({"templates": ()}, "templates: expected at least one of"),
        ({"run": "20200101-000000-000000"}, "no such run"),
        ({"generators": ("atlsa",)}, "has no 'atlsa'; did you mean atlas"),
        ({"generators": ("atlas",), "templates": ("vote",)}, "vote has no task for .* images of two generators"),
        ({"questions": "clipscore", "templates": ("questions",)}, "has no metric with questions"),
        ({"questions": "gut", "templates": ("questions",)}, "does not contain this metric; it has gecko, clipscore"),
        ({"run": "latest", "images": "somewhere"}, "expected a run or images"),
        ({"images": "/nowhere/at/all"}, "/nowhere/at/all: not found"),
        ({"store": "/nowhere"}, "there is no store here"),
    ],
)
def test_an_impossible_study_is_refused_in_one_line(
    run: MadeRun, tmp_path: Path, config: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        ServedStudy(**{"store": run.store.place.url, "study": str(tmp_path / "study")} | config)


def test_a_run_with_unreachable_images_is_refused(tmp_path: Path) -> None:
    run = make_run_with_questions(tmp_path / "made")
    for file in (tmp_path / "made/bench/images").rglob("*.parquet"):
        file.unlink()
    with pytest.raises(ConfigError, match="its images cannot be read"):
        ServedStudy(store=run.store.place.url, study=str(tmp_path / "study"))


def test_a_damaged_answer_is_reported_and_affects_no_other_answer(study: ServedStudy) -> None:
    task = study.get_tasks()[0]
    (study.study.place / f"answers/ann/{task['task_id']}.0.0.json").write(b"{")
    refused = study.post(task, "unsure")
    assert refused.status_code == 409 and "send revision 1" in refused.json()["error"]
    assert study.post(task, "unsure", revision=1).status_code == 201


@pytest.mark.parametrize("way", [*ROT_WAYS, "truncate"])
@pytest.mark.parametrize("file", ["study.1.json", "tasks.1.parquet"])
def test_a_damaged_study_file_is_reported_with_its_remedy(
    file: str, way: str, study: ServedStudy, run: MadeRun
) -> None:
    path = Path((study.study.place / file).path)
    assert damage_file(path, way, Random(way + file))
    with pytest.raises(SourceError, match=rf"{file}: the study's \w+ (is|are) damaged \(.*\); restore the file$"):
        ServedStudy(store=run.store.place.url, study=study.study.place.url)


def test_a_bare_study_name_is_a_folder_in_the_store(run: MadeRun) -> None:
    assert ServedStudy(store=run.store.place.url).study.place.url == f"{run.store.place.url}/studies/{run.run_id}"
    assert RateConfig().port == 8009


def test_the_order_of_a_pairs_images_does_not_depend_on_generator_names(tmp_path: Path) -> None:
    """An image's URL contains its index, which must not reveal the generator."""
    run = make_run_with_questions(tmp_path / "made", prompts=[f"a cup beside {number} stars" for number in range(24)])
    for file in (tmp_path / "made/bench/images").rglob("*.parquet"):
        table = pq.read_table(file)
        ids = pa.array([f"{number:05}" for number in range(len(table))])  # the same for all generators
        pq.write_table(table.set_column(table.schema.get_field_index("image_id"), "image_id", ids), file)
    study = ServedStudy(store=run.store.place.url, study=str(tmp_path / "study"), templates=("vote",))
    first = [task.generators == tuple(sorted(task.generators)) for task in study.study.served.tasks.values()]
    assert len(first) == 72 and 20 < sum(first) < 52
