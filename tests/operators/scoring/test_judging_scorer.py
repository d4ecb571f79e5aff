"""Metrics with judges run in a notebook's own process, and return scores with ratings and reasons."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from plumbline.jobs.scorer import open_scorer
from tests.operators import tiny
from tests.operators.tiny.roles import save_tiny_models

IMAGES = [tiny.encode_image(tiny.draw_image(seed)) for seed in range(2)]


def select_rows(table: pa.Table, metric: str) -> list[dict[str, Any]]:
    return [row for row in table.to_pylist() if row["metric"] == metric]


def test_every_metric_with_a_judge_scores_images_and_prompts(tmp_path: Path) -> None:
    names = "llmscore,llmscore_error_counting,capclip,descmeteor,viescore,gpt4v_eval"
    scorer = open_scorer(f"metric=[{names}]", "models=shapes", *save_tiny_models(tmp_path))
    scored = scorer.score_table(
        [*IMAGES, IMAGES[0], b"no image", IMAGES], ["a red circle", "two stars", " ", "a", "a red circle"]
    )
    for metric in names.split(","):
        found = select_rows(scored, metric)
        kinds = [row["error"]["kind"] if row["error"] else None for row in found]
        assert kinds == [None, None, "empty_prompt", "corrupt_image", None]
    first, *_, film = select_rows(scored, "viescore")
    assert [rating["value"] for rating in first["ratings"]] == [8, 9, 6]
    assert film["score"] == pytest.approx(first["score"]) and film["rationale"].startswith("Image 1: <b>plausible")


@pytest.fixture(scope="module")
def random_judge_arguments(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the command-line arguments for GPT4V-Eval with a Qwen2-VL whose random weights produce random words."""
    folder = tiny.save_qwen2_vl(tmp_path_factory.mktemp("qwen"))
    config = json.loads((folder / "config.json").read_text())
    config["text_config"]["max_position_embeddings"] = 4096
    tiny.write_json(folder / "config.json", config)
    return ["metric=[gpt4v_eval]", "models=shapes", f"+models.vlm={{family: vlm, checkpoint: {folder}}}"]


def test_a_chat_model_with_vision_rates_within_the_enforced_scale(random_judge_arguments: list[str]) -> None:
    scorer = open_scorer(*random_judge_arguments, "metrics.gpt4v_eval.max_tokens=1700")
    found = select_rows(scorer.score_table(IMAGES, ["a star"] * 2), "gpt4v_eval")
    assert all(0 <= row["score"] <= 100 and row["rationale"] for row in found)
    assert len({row["score"] for row in found}) == 2, "the judge sees the image"


def test_an_unfinished_reply_of_a_chat_model_gives_a_null_score(random_judge_arguments: list[str]) -> None:
    (row,) = select_rows(
        open_scorer(*random_judge_arguments, "metrics.gpt4v_eval.max_tokens=30").score_table(IMAGES[:1], ["a star"]),
        "gpt4v_eval",
    )
    assert (row["score"], row["ratings"], row["error"]["kind"]) == (None, None, "unreadable_reply")


def test_random_words_without_a_schema_are_not_a_verdict(random_judge_arguments: list[str]) -> None:
    words = [*random_judge_arguments, "metrics.gpt4v_eval.replies=text", "metrics.gpt4v_eval.max_tokens=40"]
    (row,) = select_rows(open_scorer(*words).score_table(IMAGES[:1], ["a star"]), "gpt4v_eval")
    assert (row["score"], row["error"]["kind"]) == (None, "unreadable_reply")
