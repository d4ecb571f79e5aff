"""The engine stays full across batches of images and across shards; a scripted engine replaces vLLM's."""

import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import EngineError
from plumbline.operators.models.engines.vllm_calls import VllmLikelihood
from plumbline.operators.models.engines.vllm_engine import VllmEngine
from plumbline.operators.models.processing import load_tokenizer
from plumbline.operators.stages.answers import AnswersStage, QuestionIndex
from tests.operators import tiny
from tests.operators.stages.given import decode, make_options
from tests.operators.tiny import draw_image, encode_image, make_image_table

N_IMAGE_TOKENS = 3
REQUESTS_PER_STEP = 5
"""Number of requests that the engine finishes in one step."""
N_IMAGES = 10
QUESTIONS = ("Is it red?", "Is it round?")
N_REQUESTS = N_IMAGES * len(QUESTIONS) * 2
"""Number of requests for a shard.

Each question has two single-token choices: one request covers the first choice and the end of the turn after it, the
other covers the end of the turn after the second choice.
"""
REFUSED_QUESTION = "Is it to be refused?"
TIMEOUT_SECONDS = 60


class CountingEngine:
    """An engine that works only while `may_step` is set; a step finishes the oldest requests and counts them."""

    model_config = SimpleNamespace(max_model_len=10_000)
    server: VllmEngine
    """Server that passes requests to the engine."""

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self.image_id = tokenizer.convert_tokens_to_ids("<|image_pad|>")
        self.may_step = threading.Event()
        self.processed: list[str] = []
        self.most_waiting = 0
        self.requests: dict[str, Any] = {}
        self.batches: list[int] = []
        self.engine_core = SimpleNamespace(shutdown=lambda: None)

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> None:
        if REFUSED_QUESTION in self.tokenizer.decode(prompt["prompt_token_ids"]):
            raise ValueError("the engine refuses this question")
        assert prompt["prompt_token_ids"].count(self.image_id) == N_IMAGE_TOKENS
        self.requests[name] = (prompt, params)

    def step(self) -> list[Any]:
        assert self.may_step.wait(TIMEOUT_SECONDS)
        self.most_waiting = max(self.most_waiting, self.count_waiting())
        names = list(self.requests)[:REQUESTS_PER_STEP]
        self.batches.append(len(names))
        return [make_output(name, *self.requests.pop(name)) for name in names]

    def count_waiting(self) -> int:
        """Return the number of requests that have been received but not finished."""
        return len(self.server._waiting) + self.server._submitted.qsize()

    def wait_for(self, count: int) -> None:
        """Wait until this number of requests is pending."""
        ends = time.monotonic() + TIMEOUT_SECONDS
        while self.count_waiting() < count:
            assert time.monotonic() < ends, f"{self.count_waiting()} of {count}"
            self.may_step.wait(0.01)


class ScriptedProcessor:
    """Replacement for vLLM's image processor, which does not support two threads."""

    info = SimpleNamespace(parse_mm_data=lambda images: images)

    def __init__(self, engine: CountingEngine) -> None:
        self.engine = engine
        self.used = threading.Lock()

    def __call__(self, ids: list[int], images: Any, names: dict[str, list[str]]) -> dict[str, Any]:
        assert self.used.acquire(blocking=False), "two threads use it at the same time"
        self.engine.processed += names["image"]
        place = ids.index(self.engine.image_id)
        self.used.release()
        return {"prompt_token_ids": [*ids[:place], *[ids[place]] * N_IMAGE_TOKENS, *ids[place + 1 :]], "images": names}


def make_output(name: str, prompt: dict[str, Any], params: Any) -> Any:
    ids = prompt["prompt_token_ids"]
    logprobs = {token: SimpleNamespace(logprob=-float(token)) for token in params.logprob_token_ids}
    completion = SimpleNamespace(finish_reason="length", logprobs=[logprobs] * params.max_tokens, token_ids=[0])
    return SimpleNamespace(
        request_id=name, finished=True, outputs=[completion], prompt_token_ids=ids, num_cached_tokens=0
    )


@pytest.fixture
def scripted_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CountingEngine:
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(SamplingParams=SimpleNamespace))  # type: ignore[arg-type]
    tiny.save_byte_tokenizer(tmp_path, template=tiny.QWEN_TEMPLATE)
    return CountingEngine(load_tokenizer(tmp_path))


@pytest.fixture
def stage(scripted_engine: CountingEngine) -> Iterator[AnswersStage]:
    """Yield a stage whose image_batch is much smaller than a shard."""
    engine = scripted_engine.server = VllmEngine(lambda: scripted_engine, processor=ScriptedProcessor)
    model = VllmLikelihood(
        engine, scripted_engine.tokenizer, system=None, padding=None, end=scripted_engine.tokenizer.eos_token_id
    )
    yield AnswersStage({}, {"model": model}, make_options(image_batch=2))
    scripted_engine.may_step.set()
    engine.close()


def make_questions(texts: Sequence[str], choices: Sequence[str]) -> QuestionIndex:
    questions = [{"prompt_id": "p", "question_id": text, "text": text, "choices": choices} for text in texts]
    return QuestionIndex(rows.table(questions, schemas.QUESTIONS), tiny.make_vqascore())


def compute_answers(
    stage: AnswersStage, texts: Sequence[str] = QUESTIONS, choices: Sequence[str] = ("A", "B")
) -> pa.Table:
    """Return the answers for a shard, computed as an actor does."""
    shard = make_image_table([encode_image(draw_image(number)) for number in range(N_IMAGES)], ["p"] * N_IMAGES)
    return stage.measure(decode(stage, shard), {"metric": make_questions(texts, choices)})["metric"]


def test_the_engine_gets_all_requests_of_two_shards_before_it_finishes_one(
    stage: AnswersStage, scripted_engine: CountingEngine
) -> None:
    assert stage.side_by_side
    with ThreadPoolExecutor(2) as calls:
        shards = [calls.submit(compute_answers, stage) for _ in range(2)]
        scripted_engine.wait_for(2 * N_REQUESTS)
        scripted_engine.may_step.set()
        tables = [shard.result(TIMEOUT_SECONDS) for shard in shards]
    assert sum(scripted_engine.batches) == 2 * N_REQUESTS
    assert set(scripted_engine.batches[1:-1]) == {REQUESTS_PER_STEP}, (
        "every step between the first and the last is full"
    )
    assert tables[0] == tables[1] and tables[0]["error"].null_count == N_IMAGES
    assert [rows.read_usage(table).calls for table in tables] == [N_REQUESTS] * 2, (
        "each shard counts only its own calls"
    )
    assert len(set(scripted_engine.processed)) == len(scripted_engine.processed) == 2 * N_IMAGES, (
        "once for all of an image's questions"
    )


def test_an_answer_of_one_token_and_the_end_of_its_turn_are_one_request(
    stage: AnswersStage, scripted_engine: CountingEngine
) -> None:
    scripted_engine.may_step.set()
    rows_answered = compute_answers(stage, choices=("A",))["answers"].to_pylist()
    assert {len(answer["token_logprobs"][0]) for row in rows_answered for answer in row} == {2}
    assert sum(scripted_engine.batches) == N_IMAGES * len(QUESTIONS)


def test_the_number_of_waiting_images_is_limited_and_the_rest_follows(
    stage: AnswersStage, scripted_engine: CountingEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.model.engine._images_waiting = threading.Semaphore(7)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as calls:
        shards = [calls.submit(compute_answers, stage) for _ in range(2)]
        scripted_engine.wait_for(7)
        scripted_engine.may_step.set()
        assert all(shard.result(TIMEOUT_SECONDS)["error"].null_count == N_IMAGES for shard in shards)
    assert scripted_engine.most_waiting <= 7


def test_a_refused_question_only_costs_its_row_and_nothing_is_asked_again(
    stage: AnswersStage, scripted_engine: CountingEngine
) -> None:
    scripted_engine.may_step.set()
    errors = compute_answers(stage, [*QUESTIONS, REFUSED_QUESTION])["error"].to_pylist()
    assert [(error["kind"], error["retryable"]) for error in errors] == [("request_refused", False)] * N_IMAGES
    assert sum(scripted_engine.batches) == N_REQUESTS


def test_a_failed_engine_releases_all_waiting_callers(stage: AnswersStage, scripted_engine: CountingEngine) -> None:
    stage.model.engine._images_waiting = threading.Semaphore(1)  # type: ignore[attr-defined]
    with ThreadPoolExecutor(2) as calls:
        shards = [calls.submit(compute_answers, stage) for _ in range(2)]
        scripted_engine.wait_for(1)
        scripted_engine.requests.clear()
        scripted_engine.step = fail  # type: ignore[method-assign]
        scripted_engine.may_step.set()
        for shard in shards:
            with pytest.raises(EngineError):
                shard.result(TIMEOUT_SECONDS)


def fail() -> list[Any]:
    raise RuntimeError("the CUDA device is lost")
