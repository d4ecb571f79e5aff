"""The score is the rating that a judge gives after thinking; an unfinished thought gives null with a reason."""

from pathlib import Path
from typing import Any

import pytest

from plumbline.pipelines.sweeps.planning import plan_sweep
from plumbline.pipelines.sweeps.sweep import run_sweep
from tests.bench_of import make_sweep_config, write_benchmark
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Answer, Server, make_completion


def make_thought(number: int, body: dict[str, Any]) -> Answer:
    """Return a finished thought with a rating for even numbers, and an unfinished thought for odd ones."""
    if number % 2:
        return make_completion("<think>\nA star, or is it", reason="length")
    return make_completion('<think>\nI would say {"rating": 3}\n</think>\n\n{"rating": 85, "rationale": "It fits."}')


def test_a_thinking_judge_rates_and_the_error_for_a_truncated_thought_names_the_key_to_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    server = Server()
    server.script = make_thought
    bench = write_benchmark(tmp_path / "bench", ["atlas"], count=4)
    judge = ("model@models.vlm=api", "models.vlm.checkpoint=m", f"models.vlm.key_variable={KEY_VARIABLE}")
    thinks = (f"models.vlm.endpoint={server.url}", "models.vlm.thinking=allowed", "models.vlm.thinking_tokens=100")
    config = make_sweep_config(bench, tmp_path / "store", "metric=[gpt4v_eval]", *judge, *thinks)
    finished = run_sweep(plan_sweep(config), lambda progress: None)
    server.close()
    rows = finished.results.read_scores().to_pylist()
    errors = [row["error"] for row in rows if row["score"] is None]
    assert [row["score"] for row in rows if row["score"] is not None] == [85.0, 85.0]
    assert [error["kind"] for error in errors] == ["unfinished_thought"] * 2
    assert "did not finish thinking within 100 tokens; raise its thinking_tokens" in errors[0]["message"]
    assert [body["max_tokens"] for body in server.bodies] == [1, *[512 + 100] * 4]
