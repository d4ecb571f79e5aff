"""Callers share one engine; a scripted engine replaces vLLM, so vLLM is not needed."""

import threading
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.engines.vllm_engine import Prompt, Refusal, VllmEngine, make_engine_arguments


class ScriptedEngine:
    """An engine that answers a request after as many steps as the request's prompt has tokens.

    A prompt with token 13 is refused, the first `max_aborted` attempts at prompts with token 404 are aborted, and a
    prompt with token 666 makes the engine fail.
    """

    model_config = SimpleNamespace(max_model_len=100)

    def __init__(self, gate: threading.Event | None = None, max_aborted: int = 0) -> None:
        self.gate = gate
        self.max_aborted = max_aborted
        self.left: dict[str, int] = {}
        self.aborted: set[str] = set()
        self.n_aborted = 0
        self.batches: list[int] = []
        self.engine_core = SimpleNamespace(shutdown=lambda: None)
        self.renderer = SimpleNamespace(render_cmpl=lambda prompts: prompts)

    def add_request(self, name: str, prompt: dict[str, Any], params: Any) -> None:
        if 13 in prompt["prompt_token_ids"]:
            raise ValueError("token 13 is refused")
        if 404 in prompt["prompt_token_ids"] and self.n_aborted < self.max_aborted:
            self.aborted.add(name)
            self.n_aborted += 1
        self.left[name] = 10**9 if 666 in prompt["prompt_token_ids"] else len(prompt["prompt_token_ids"])

    def step(self) -> list[Any]:
        if self.gate is not None:
            self.gate.wait()
        if any(steps > 10**6 for steps in self.left.values()):
            raise RuntimeError("the CUDA device is lost")
        self.batches.append(len(self.left))
        self.left = {name: steps - 1 for name, steps in self.left.items()}
        done = [name for name, steps in self.left.items() if steps <= 0]
        for name in done:
            del self.left[name]
        return [_make_output(name, "error" if name in self.aborted else "stop") for name in done]


def _make_output(name: str, reason: str) -> Any:
    return SimpleNamespace(request_id=name, finished=True, outputs=[SimpleNamespace(finish_reason=reason)])


def test_requests_of_several_callers_run_in_one_batch() -> None:
    gate = threading.Event()
    scripted = ScriptedEngine(gate)
    engine = VllmEngine(lambda: scripted)
    with ThreadPoolExecutor(4) as callers:
        calls = [callers.submit(engine.run, [Prompt([1] * 5)] * 2, [None] * 2) for _ in range(4)]
        while len(engine._waiting) + engine._submitted.qsize() < 8:
            pass
        gate.set()
        assert all(len(call.result()) == 2 for call in calls)
    assert max(scripted.batches) == 8
    engine.close()


def test_a_refused_request_fails_alone() -> None:
    engine = VllmEngine(ScriptedEngine)
    refused, served = engine.run([Prompt([13]), Prompt([1, 2])], [None, None])
    assert refused == Refusal("token 13 is refused")
    assert served.finished
    engine.close()


@pytest.mark.parametrize(("max_aborted", "succeeds"), [(1, True), (2, False)])
def test_an_aborted_request_is_repeated_once(max_aborted: int, succeeds: bool) -> None:
    engine = VllmEngine(lambda: ScriptedEngine(max_aborted=max_aborted))
    aborted, served = engine.run([Prompt([404]), Prompt([1, 2])], [None, None])
    assert isinstance(aborted, Refusal) is not succeeds
    assert served.finished
    engine.close()


def test_a_failure_reaches_every_caller_that_waits_and_every_later_one() -> None:
    engine = VllmEngine(ScriptedEngine)
    with ThreadPoolExecutor(3) as callers:
        prompts = [Prompt([1] * 10**5), Prompt([1] * 10**5), Prompt([666])]
        calls = [callers.submit(engine.run, [prompt], [None]) for prompt in prompts]
        for call in calls:
            with pytest.raises(ModelError, match="the CUDA device is lost"):
                call.result()
    with pytest.raises(ModelError, match="the CUDA device is lost"):
        engine.run([Prompt([1])], [None])


def test_closing_fails_waiting_callers() -> None:
    engine = VllmEngine(ScriptedEngine)
    future = engine.submit(Prompt([1] * 10**6), None)
    engine.close()
    with pytest.raises(ModelError, match="closed"):
        future.result()


def test_an_engine_that_does_not_start_gives_the_reason() -> None:
    def fail() -> Any:
        raise OSError("no weights")

    with pytest.raises(OSError, match="no weights"):
        VllmEngine(fail)


def test_a_parallel_engine_stays_on_the_gpus_of_its_actor() -> None:
    assert make_engine_arguments(True, {"tensor_parallel_size": 4})["distributed_executor_backend"] == "mp"
    assert make_engine_arguments(True, {})["distributed_executor_backend"] == "uni"


def test_options_may_not_override_the_models_own() -> None:
    with pytest.raises(ModelError, match="dtype"):
        make_engine_arguments(True, {"dtype": "float16"})
