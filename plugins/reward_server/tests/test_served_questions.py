"""A real service scores by a benchmark's own questions, by questions in requests and by written questions."""

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

from tests.bench_of import images, write_benchmark
from tests.commands import printed
from tests.operators.models.endpoint import KEY, VARIABLE, Server, said
from tests.pipelines.rewards.conftest import run_benchmark
from tests.question_packs import write_geneval2
from tests.serving import Pair, Running, pack_pairs, run_service
from tests.signs import sign

pytest.importorskip("plumbline.plugins.third_party_benchmarks", reason="GenEval2 comes with this plugin")

COUNT = 8
METRICS = ("geneval2", "geneval2_am")
VQA_LIST = [["How many circles are in the image?", "one"], ["Are there any circles in the image?", "Yes"]]
"""Questions that the pack has for each of its prompts."""
WRITTEN = 2
"""Number of prompts whose questions a sweep has already written to the service's store."""
REPLY = "About circle (shape):\nQ: is there a circle?\nChoices: yes, no\nA: yes"


class Asked(NamedTuple):
    """A service whose pack has GenEval2 questions for half of the prompts, and a sweep's scores for all prompts."""

    service: Running
    writer: Server
    pairs: list[Pair]
    swept: dict[str, list[float]]
    """Scores by metric, in pair order."""

    def post(self, path: str, body: Any) -> Any:
        response = requests.post(f"{self.service.url}{path}", json=body, timeout=120)
        assert response.status_code == 200, response.text
        return response.json()

    def encoded(self) -> list[str]:
        return [base64.b64encode(pair.image).decode() for pair in self.pairs]

    def ours(self, metrics: list[str], questions: list[Any] | None, count: int = COUNT) -> Any:
        texts = [pair.prompt for pair in self.pairs[:count]]
        form = {"images": self.encoded()[:count], "prompts": texts, "metrics": metrics}
        return self.post("/score", form | ({} if questions is None else {"questions": questions}))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder, writer = tmp_path_factory.mktemp("asked"), Server()
    writer.script = lambda number, body: said(REPLY)
    bench, half = write_benchmark(folder / "bench", ("atlas",), COUNT), folder / "half.jsonl"
    questions, pack = write_geneval2(folder / "all.jsonl", COUNT), "question_pack=geneval2"
    write_geneval2(half, COUNT // 2)
    given = [f"metric=[{','.join(METRICS)}]", f"benchmark.questions={questions}", f"benchmark.{pack}"]
    llm = {"endpoint": writer.url, "checkpoint": "m", "key_variable": VARIABLE}
    model = ["model@models.llm=api", *(f"models.llm.{name}={value}" for name, value in llm.items())]
    metrics = f"metric=[{','.join(METRICS)},gecko_baseline,text]"
    words = [metrics, "reward=geneval2", f"pack.questions={half}", f"pack.{pack}", f"store={folder}/store"]
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv(VARIABLE, KEY)
        scores = run_benchmark(bench, folder / "store", *given).scores
        run_benchmark(bench, folder / "store", "metric=[gecko_baseline]", f"benchmark.limit={WRITTEN}", *model)
        order = [row["image_id"] for row in images("atlas", COUNT)]
        swept = {name: rows.set_index("image_id").score[order].tolist() for name, rows in scores.groupby("metric")}
        with run_service(folder / "log", *words, *model) as service:
            yield Asked(service, writer, pack_pairs(COUNT), swept)
    writer.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    "wire", ["score", *(pytest.param(wire, marks=pytest.mark.slow) for wire in ("unirl", "flow_factory"))]
)
def test_a_reward_by_questions_passes_the_checks_with_a_question_and_does_not_ignore_it(
    asked: Asked, wire: str
) -> None:
    words = [f"wire={wire}", "metrics=[geneval2]", "needs=[questions]", "must_use=[questions]", "repeats=1"]
    said = printed("check_rewards", asked.service.url, *words)
    assert "no check failed" in said and "used: " in said
    known_pair = requests.get(f"{asked.service.url}/health", timeout=60).json()["known_pair"]
    assert known_pair["geneval2"]["ordered"] and known_pair["text"]["ordered"]


def test_questions_of_a_request_or_of_the_pack_give_the_sweeps_scores_to_the_last_digit(asked: Asked) -> None:
    listed = asked.ours([*METRICS], [VQA_LIST] * COUNT)
    assert [row["geneval2"] for row in listed["scores"]] == asked.swept["geneval2"]
    assert [row["geneval2_am"] for row in listed["scores"]] == asked.swept["geneval2_am"]
    packed = asked.ours([*METRICS], None)
    half = COUNT // 2
    assert packed["scores"] == [*listed["scores"][:half], *[{"geneval2": None, "geneval2_am": None}] * half]
    assert {error["geneval2"]["kind"] for error in packed["errors"][half:]} == {"no_questions"}


def test_a_sign_is_read_for_the_texts_of_its_request_or_for_its_prompts_quotes(asked: Asked) -> None:
    image = base64.b64encode(sign("OPEN")).decode()
    form = {"images": [image] * 3, "prompts": ['a sign "SALE"', 'a sign "OPEN"', "a sign"], "metrics": ["text"]}
    reply = asked.post("/score", form | {"questions": [["OPEN"], None, None]})
    assert reply["scores"] == [{"text": 1.0}, {"text": 1.0}, {"text": None}]
    assert reply["errors"][2]["text"]["kind"] == "no_text_wanted"


def test_flow_factorys_columns_bring_questions(asked: Asked) -> None:
    """The client sends further columns of a data set as lists in `kwargs`; the questions are JSON strings."""
    sent = {"prompt": [pair.prompt for pair in asked.pairs], "image": asked.encoded(), "video": None}
    sent |= {"condition_images": None, "condition_videos": None}
    column = [json.dumps(VQA_LIST)] * COUNT
    for kwargs in ({"vqa_list": column}, {"metadata": [json.dumps({"vqa_list": VQA_LIST})] * COUNT}):
        assert asked.post("/compute", sent | {"kwargs": kwargs}) == {"rewards": asked.swept["geneval2"]}
    assert "image 4: no_questions" in asked.post("/compute", sent | {"kwargs": None})["error"]
    assert "image 0: no_questions" in asked.post("/compute", sent | {"kwargs": {"vqa_list": ["[]"] * COUNT}})["error"]


def unirl_request(pair: Pair, metadata: dict[str, Any], place: int) -> dict[str, Any]:
    """Return a request like those of RemoteRewardBackend._build_score_payload."""
    identity = {"request_id": f"r{place}", "sample_id": f"s{place}", "group_id": "g", "source_rank": 0}
    identity |= {"policy_version": 3, "scorer_version": None, "idempotency_key": f"k{place}"}
    turn = {"text": pair.prompt, "image_b64": base64.b64encode(pair.image).decode()}
    return {"history": [turn], "required_rewards": ["geneval2"], "metadata": metadata, **identity}


def test_unirls_metadata_brings_questions_and_its_identities_come_back(asked: Asked) -> None:
    record = {"prompt": "p", "atom_count": 3, "vqa_list": VQA_LIST, "skills": ["count", "object"]}
    sent = [unirl_request(pair, record, place) for place, pair in enumerate(asked.pairs)]
    reply = asked.post("/score", {"protocol_version": "1", "requests": sent})
    assert [result["geneval2"] for result in reply["results"]] == [{"vqascore": one} for one in asked.swept["geneval2"]]
    names = ("request_id", "sample_id", "group_id", "source_rank", "policy_version", "idempotency_key")
    recipe = asked.ours(["geneval2"], None)["recipes"]["geneval2"]
    assert reply["identities"] == [{**{name: one[name] for name in names}, "scorer_version": recipe} for one in sent]
    assert reply["protocol_version"] == "1"


def test_unirls_runner_finds_a_server_that_reads_its_questions(asked: Asked) -> None:
    """check_geneval2_metadata sends a white image with a matching prompt, and a question whose answer is no."""
    white = io.BytesIO()
    Image.new("RGB", (64, 64), "white").save(white, "PNG")
    canary = {"vqa_list": [["Is there a red double-decker bus in the image?", "Yes"]]}
    request = unirl_request(Pair(white.getvalue(), "a plain white background"), canary, 0)
    sent = {name: request[name] for name in ("history", "required_rewards", "metadata")}
    result = asked.post("/score", {"requests": [sent]})["results"][0]
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
def test_a_list_that_cannot_be_asked_is_a_null_with_its_reason(asked: Asked, questions: Any, message: str) -> None:
    reply = asked.ours(["geneval2"], [questions, VQA_LIST], 2)
    assert reply["scores"] == [{"geneval2": None}, {"geneval2": asked.swept["geneval2"][1]}]
    error = reply["errors"][0]["geneval2"]
    assert error["kind"] == "no_questions" and message in error["message"] and not error["retryable"]


def test_questions_that_no_metric_would_ask_are_refused(asked: Asked) -> None:
    form = {
        "images": asked.encoded()[:1],
        "prompts": ["a"],
        "metrics": ["gecko_baseline"],
        "questions": [VQA_LIST],
    }
    response = requests.post(f"{asked.service.url}/score", json=form, timeout=60)
    assert response.status_code == 400 and "gecko_baseline would ignore them" in response.json()["error"]


def test_equal_images_with_other_questions_are_scored_apart(asked: Asked) -> None:
    image, prompt = asked.encoded()[2], asked.pairs[2].prompt
    lists = [VQA_LIST, VQA_LIST[:1], VQA_LIST[1:], VQA_LIST]
    form = {"images": [image] * 4, "prompts": [prompt] * 4, "metrics": ["geneval2_am"], "questions": lists}
    first, count, there, again = (row["geneval2_am"] for row in asked.post("/score", form)["scores"])
    assert first == again == asked.swept["geneval2_am"][2] == pytest.approx((count + there) / 2)
    assert count != there


def step(asked: Asked, generator: str) -> int:
    """Send each prompt twice in one step; return how many requests the question writer has received so far."""
    pairs = pack_pairs(COUNT, (generator,)) * 2
    form = {"images": [base64.b64encode(pair.image).decode() for pair in pairs]}
    form |= {"prompts": [pair.prompt for pair in pairs], "metrics": ["gecko_baseline"]}
    answers = asked.post("/score", form)
    assert all(row["gecko_baseline"] is not None for row in answers["scores"]), answers["errors"]
    return len(asked.writer.bodies)


def test_a_step_with_prompts_of_an_earlier_one_pays_for_answers_alone(asked: Asked) -> None:
    """Questions are written once per prompt, and replicas find those that a sweep has written."""
    before = len(asked.writer.bodies)
    assert step(asked, "atlas") == step(asked, "flint") == before + COUNT - WRITTEN


@pytest.mark.slow
def test_a_replica_that_starts_anew_finds_the_questions_of_the_one_that_died(asked: Asked) -> None:
    written = step(asked, "atlas")
    (replica,) = asked.service.replicas()
    os.kill(replica, signal.SIGKILL)
    assert step(asked, "garnet") == written
    assert asked.service.replicas() != [replica]
