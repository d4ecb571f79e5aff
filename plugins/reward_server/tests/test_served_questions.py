"""A real service uses questions from a benchmark, from requests, or from a language model."""

import base64
import io
import json
import os
import signal
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
import requests
from PIL import Image

from tests.bench_of import read_image_rows, write_benchmark
from tests.commands import run_for_output
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Server, make_completion
from tests.pipelines.rewards.conftest import run_benchmark
from tests.question_packs import write_geneval2
from tests.serving import Pair, RunningService, run_service, select_first_pairs
from tests.signs import draw_sign

pytest.importorskip("plumbline.plugins.third_party_benchmarks", reason="GenEval2 comes with this plugin")

N_PROMPTS = 8
METRIC_NAMES = ("geneval2", "geneval2_am")
VQA_LIST = [["How many circles are in the image?", "one"], ["Are there any circles in the image?", "Yes"]]
"""Questions about each prompt in the question pack."""
N_WRITTEN_PROMPTS = 2
"""Number of prompts whose questions a sweep has already written to the service's store."""
WRITER_REPLY = "About circle (shape):\nQ: is there a circle?\nChoices: yes, no\nA: yes"


class QuestionService(NamedTuple):
    """A reward service that has GenEval2 questions for half of the prompts, and a sweep's scores for comparison."""

    service: RunningService
    writer: Server
    pairs: list[Pair]
    swept: dict[str, list[float]]
    """Scores of the sweep by metric, in the order of the pairs."""

    def post(self, path: str, body: Any) -> Any:
        response = requests.post(f"{self.service.url}{path}", json=body, timeout=120)
        assert response.status_code == 200, response.text
        return response.json()

    def encode_images(self) -> list[str]:
        return [base64.b64encode(pair.image).decode() for pair in self.pairs]

    def post_to_score_wire(self, metrics: list[str], questions: list[Any] | None, count: int = N_PROMPTS) -> Any:
        texts = [pair.prompt for pair in self.pairs[:count]]
        form = {"images": self.encode_images()[:count], "prompts": texts, "metrics": metrics}
        return self.post("/score", form | ({} if questions is None else {"questions": questions}))


@pytest.fixture(scope="module")
def question_service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[QuestionService]:
    folder, writer = tmp_path_factory.mktemp("asked"), Server()
    writer.script = lambda number, body: make_completion(WRITER_REPLY)
    bench, half = write_benchmark(folder / "bench", ("atlas",), N_PROMPTS), folder / "half.jsonl"
    questions, pack = write_geneval2(folder / "all.jsonl", N_PROMPTS), "question_pack=geneval2"
    write_geneval2(half, N_PROMPTS // 2)
    given = [f"metric=[{','.join(METRIC_NAMES)}]", f"benchmark.questions={questions}", f"benchmark.{pack}"]
    llm = {"endpoint": writer.url, "checkpoint": "m", "key_variable": KEY_VARIABLE}
    model = ["model@models.llm=api", *(f"models.llm.{name}={value}" for name, value in llm.items())]
    metrics = f"metric=[{','.join(METRIC_NAMES)},gecko_baseline,text]"
    words = [metrics, "reward=geneval2", f"pack.questions={half}", f"pack.{pack}", f"store={folder}/store"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(KEY_VARIABLE, KEY)
        scores = run_benchmark(bench, folder / "store", *given).scores
        run_benchmark(
            bench, folder / "store", "metric=[gecko_baseline]", f"benchmark.limit={N_WRITTEN_PROMPTS}", *model
        )
        order = [row["image_id"] for row in read_image_rows("atlas", N_PROMPTS)]
        swept = {name: rows.set_index("image_id").score[order].tolist() for name, rows in scores.groupby("metric")}
        with run_service(folder / "log", *words, *model) as service:
            yield QuestionService(service, writer, select_first_pairs(N_PROMPTS), swept)
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wire", ["score", *(pytest.param(wire, marks=pytest.mark.slow) for wire in ("unirl", "flow_factory"))]
)
def test_a_reward_that_needs_questions_passes_all_checks(question_service: QuestionService, wire: str) -> None:
    words = [f"wire={wire}", "metrics=[geneval2]", "needs=[questions]", "must_use=[questions]", "repeats=1"]
    said = run_for_output("check_rewards", question_service.service.url, *words)
    assert "no check failed" in said and "used: " in said
    known_pair = requests.get(f"{question_service.service.url}/health", timeout=60).json()["known_pair"]
    assert known_pair["geneval2"]["ordered"] and known_pair["text"]["ordered"]


def test_questions_from_requests_and_from_the_pack_give_exactly_the_sweeps_scores(
    question_service: QuestionService,
) -> None:
    listed = question_service.post_to_score_wire([*METRIC_NAMES], [VQA_LIST] * N_PROMPTS)
    assert [row["geneval2"] for row in listed["scores"]] == question_service.swept["geneval2"]
    assert [row["geneval2_am"] for row in listed["scores"]] == question_service.swept["geneval2_am"]
    packed = question_service.post_to_score_wire([*METRIC_NAMES], None)
    half = N_PROMPTS // 2
    assert packed["scores"] == [*listed["scores"][:half], *[{"geneval2": None, "geneval2_am": None}] * half]
    assert {error["geneval2"]["kind"] for error in packed["errors"][half:]} == {"no_questions"}


def test_the_text_metric_uses_the_texts_in_the_request_or_quoted_in_the_prompt(
    question_service: QuestionService,
) -> None:
    image = base64.b64encode(draw_sign("OPEN")).decode()
    form = {"images": [image] * 3, "prompts": ['a sign "SALE"', 'a sign "OPEN"', "a sign"], "metrics": ["text"]}
    reply = question_service.post("/score", form | {"questions": [["OPEN"], None, None]})
    assert reply["scores"] == [{"text": 1.0}, {"text": 1.0}, {"text": None}]
    assert reply["errors"][2]["text"]["kind"] == "no_text_wanted"


def test_questions_are_read_from_flow_factorys_columns(question_service: QuestionService) -> None:
    """The client sends further columns of a data set as lists in `kwargs`; the questions are JSON strings."""
    sent = {
        "prompt": [pair.prompt for pair in question_service.pairs],
        "image": question_service.encode_images(),
        "video": None,
    }
    sent |= {"condition_images": None, "condition_videos": None}
    column = [json.dumps(VQA_LIST)] * N_PROMPTS
    for kwargs in ({"vqa_list": column}, {"metadata": [json.dumps({"vqa_list": VQA_LIST})] * N_PROMPTS}):
        assert question_service.post("/compute", sent | {"kwargs": kwargs}) == {
            "rewards": question_service.swept["geneval2"]
        }
    assert "image 4: no_questions" in question_service.post("/compute", sent | {"kwargs": None})["error"]
    assert (
        "image 0: no_questions"
        in question_service.post("/compute", sent | {"kwargs": {"vqa_list": ["[]"] * N_PROMPTS}})["error"]
    )


def make_unirl_request(pair: Pair, metadata: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a request with the fields that UniRL's RemoteRewardBackend._build_score_payload sends."""
    identity = {"request_id": f"r{place}", "sample_id": f"s{place}", "group_id": "g", "source_rank": 0}
    identity |= {"policy_version": 3, "scorer_version": None, "idempotency_key": f"k{place}"}
    turn = {"text": pair.prompt, "image_b64": base64.b64encode(pair.image).decode()}
    return {"history": [turn], "required_rewards": ["geneval2"], "metadata": metadata, **identity}


def test_unirls_metadata_contains_questions_and_its_ids_are_sent_back(question_service: QuestionService) -> None:
    record = {"prompt": "p", "atom_count": 3, "vqa_list": VQA_LIST, "skills": ["count", "object"]}
    sent = [make_unirl_request(pair, record, place) for place, pair in enumerate(question_service.pairs)]
    reply = question_service.post("/score", {"protocol_version": "1", "requests": sent})
    assert [result["geneval2"] for result in reply["results"]] == [
        {"vqascore": one} for one in question_service.swept["geneval2"]
    ]
    names = ("request_id", "sample_id", "group_id", "source_rank", "policy_version", "idempotency_key")
    recipe = question_service.post_to_score_wire(["geneval2"], None)["recipes"]["geneval2"]
    assert reply["identities"] == [{**{name: one[name] for name in names}, "scorer_version": recipe} for one in sent]
    assert reply["protocol_version"] == "1"


def test_the_service_passes_unirls_check_that_questions_are_read(question_service: QuestionService) -> None:
    """check_geneval2_metadata sends a white image and asks for a red bus; the score must be low."""
    white = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(white, "PNG")
    canary = {"vqa_list": [["Is there a red double-decker bus in the image?", "Yes"]]}
    request = make_unirl_request(Pair(white.getvalue(), "a plain white background"), canary, 0)
    sent = {name: request[name] for name in ("history", "required_rewards", "metadata")}
    result = question_service.post("/score", {"requests": [sent]})["results"][0]
    score = (result.get("geneval2") or {}).get("vqascore")
    assert score is not None and score <= 0.5


@pytest.mark.parametrize(
    ("questions", "message"),
    [
        ([], "expected 1 to 256 questions, found 0"),
        ("no JSON", "expected a list, or a list as JSON"),
        ({"questions": VQA_LIST}, "expected a list, found dict"),
        ([*VQA_LIST, ["Is it red?", ["Yes", "No"]]], "question 2: expected a pair [question, answer] of strings"),
        ([["Is it red?"]], "question 0: expected a pair"),
        ([{"text": "Is it red?", "choices": ["yes", "no"], "answer": ["yes", "no"]}], "question 0: answer"),
        (
            [{"text": "Is it red?", "choices": ["yes", "no"], "answer": "maybe"}],
            "distinct choices that include the right answer",
        ),
        ([{"text": "Is it red?", "choices": ["yes", "no"], "answer": "yes"}], "aggregate=soft_geometric sums"),
        ([{"question": "Is it red?", "answer": "yes"}], "question 0: text"),
    ],
)
def test_an_invalid_list_of_questions_makes_the_score_null_with_a_reason(
    question_service: QuestionService, questions: Any, message: str
) -> None:
    reply = question_service.post_to_score_wire(["geneval2"], [questions, VQA_LIST], 2)
    assert reply["scores"] == [{"geneval2": None}, {"geneval2": question_service.swept["geneval2"][1]}]
    error = reply["errors"][0]["geneval2"]
    assert error["kind"] == "no_questions" and message in error["message"] and not error["retryable"]


def test_questions_that_no_metric_reads_are_refused(question_service: QuestionService) -> None:
    form = {
        "images": question_service.encode_images()[:1],
        "prompts": ["a"],
        "metrics": ["gecko_baseline"],
        "questions": [VQA_LIST],
    }
    response = requests.post(f"{question_service.service.url}/score", json=form, timeout=60)
    assert response.status_code == 400 and "gecko_baseline would ignore them" in response.json()["error"]


def test_equal_images_with_different_questions_are_scored_separately(question_service: QuestionService) -> None:
    image, prompt = question_service.encode_images()[2], question_service.pairs[2].prompt
    lists = [VQA_LIST, VQA_LIST[:1], VQA_LIST[1:], VQA_LIST]
    form = {"images": [image] * 4, "prompts": [prompt] * 4, "metrics": ["geneval2_am"], "questions": lists}
    first, count, there, again = (row["geneval2_am"] for row in question_service.post("/score", form)["scores"])
    assert first == again == question_service.swept["geneval2_am"][2] == pytest.approx((count + there) / 2)
    assert count != there


def run_step(question_service: QuestionService, generator: str) -> int:
    pairs = select_first_pairs(N_PROMPTS, (generator,)) * 2
    form = {"images": [base64.b64encode(pair.image).decode() for pair in pairs]}
    form |= {"prompts": [pair.prompt for pair in pairs], "metrics": ["gecko_baseline"]}
    answers = question_service.post("/score", form)
    assert all(row["gecko_baseline"] is not None for row in answers["scores"]), answers["errors"]
    return len(question_service.writer.bodies)


def test_questions_about_a_prompt_are_written_only_once(question_service: QuestionService) -> None:
    """Questions are written once per prompt, and replicas use the questions that a sweep has written."""
    before = len(question_service.writer.bodies)
    assert (
        run_step(question_service, "atlas")
        == run_step(question_service, "flint")
        == before + N_PROMPTS - N_WRITTEN_PROMPTS
    )


@pytest.mark.slow
def test_a_new_replica_finds_the_questions_stored_by_its_predecessor(question_service: QuestionService) -> None:
    written = run_step(question_service, "atlas")
    (replica,) = question_service.service.replicas()
    os.kill(replica, signal.SIGKILL)
    assert run_step(question_service, "garnet") == written
    assert question_service.service.replicas() != [replica]
