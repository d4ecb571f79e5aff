"""The model's answer about a grey image is computed once per prompt, and is used in the scores."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.stages.scores import WrittenIndex
from plumbline.pipelines.sweeps.planning import plan_sweep
from tests.bench_of import make_sweep_config, run_plan, write_benchmark

METRIC_NAME = "vqascore_normalised"


def compute_log_odds(share: float) -> float:
    return math.log(share / (1 - share))


def test_the_prior_subtracts_the_answer_about_a_grey_image_from_the_score(tmp_path: Path) -> None:
    folder = write_benchmark(tmp_path / "bench", count=6)
    config = make_sweep_config(folder, tmp_path / "store", f"metric=[{METRIC_NAME}]")
    own = config.metrics[METRIC_NAME]
    variants = {
        "own": own,
        "blank": replace(own, ablation="blank_images"),
        "less": replace(own, prior="blank_image"),
        "less_blank": replace(own, prior="blank_image", ablation="blank_images"),
    }
    alone = plan_sweep(replace(config, metrics={"own": own})).plan
    planned = plan_sweep(replace(config, metrics=variants))
    priors = [cell for cell in planned.plan.cells if cell.recipe.stage == "priors"]
    answers = [cell for cell in planned.plan.cells if cell.recipe.node == "answers:vqa"]
    assert len(priors) == len(planned.plan.prompts.of_shard) == 2
    assert len(answers) == len([cell for cell in alone.cells if cell.recipe.stage == "answers"]), "they are shared"
    done = run_plan(planned)
    assert done.exit_code == 0, done.results.read_errors().to_pylist()
    scores: dict[str, dict[str, float]] = {name: {} for name in variants}
    for row in done.results.read_scores().to_pylist():
        scores[row["metric"]][f"{row['generator']} {row['image_id']}"] = row["score"]
    assert len(scores["less"]) == 12
    for image, score in scores["less"].items():
        expected = compute_log_odds(scores["own"][image]) - compute_log_odds(scores["blank"][image])
        assert compute_log_odds(score) == pytest.approx(expected, abs=1e-3)
        assert scores["less_blank"][image] == pytest.approx(0.5, abs=1e-3), "a grey image carries no information"


def test_priors_of_other_questions_are_not_used() -> None:
    questions = rows.table([{"prompt_id": "p", "question_id": "1", "text": "?", "choices": ["yes"]}], schemas.QUESTIONS)
    index = WrittenIndex(questions, None)
    prior = {"prompt_id": "p", "answers": [{"question_id": "1", "token_logprobs": [[-0.5, 0.0]]}]}
    same, other = (rows.table([{**prior, "basis": rows.digest_inputs(name)}], schemas.PRIORS) for name in ("1", "2"))
    assert index.matches(same) and not index.matches(other)
    index.add_priors(same)
    assert index.priors == {("p", "1"): ((-0.5, 0.0),)}
    failed = rows.table(
        [{"prompt_id": "p", "error": {"kind": "not_finite", "message": "no", "retryable": False}}], schemas.PRIORS
    )
    index.add_priors(failed)
    error = index.find_error("p", {"1"})
    assert error is not None and error.kind == "not_finite", "the score has the error of its prior"
