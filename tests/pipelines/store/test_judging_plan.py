"""Cells that several metrics share are planned once: captions, regions, descriptions and encoded images."""

from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.plans.plan import Plan
from tests.bench_of import make_sweep_config, plan_bench, write_benchmark
from tests.operators.tiny import captioners, judges


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_benchmark(tmp_path_factory.mktemp("bench"), ["atlas"], count=4)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Save a tiny model for each role; return the command-line arguments that select these models."""
    folder = tmp_path_factory.mktemp("models")
    saved = {
        "captioner": ("captioner", captioners.save_blip),
        "grounder": ("florence2", captioners.save_florence2),
        "judge": ("causal_lm", judges.save_judge),
        "vlm": ("captioner", judges.save_seeing_judge),
    }
    return [
        f"+models.{role}={{family: {family}, checkpoint: {save(folder / role)}}}"
        for role, (family, save) in saved.items()
    ]


def make_plan(bench: Path, folder: Path, *words: str) -> Plan:
    return plan_bench(bench, folder / "store", *words).plan


def count_cells(plan: Plan) -> dict[str, int]:
    """Return the number of planned cells of each node, such as captions or scores."""
    return {item.node.name: item.cells for item in plan.nodes}


def test_overall_and_error_counting_share_captions_regions_and_descriptions(
    bench: Path, models: list[str], tmp_path: Path
) -> None:
    metrics = "metric=[llmscore,llmscore_error_counting,llmscore_rule_enhanced]"
    assert count_cells(make_plan(bench, tmp_path, metrics, *models)) == {
        "captions:captioner": 1, "regions:grounder": 1, "descriptions:judge": 1, "verdicts:judge": 3, "scores": 3,
    }  # fmt: skip


def test_the_ablations_share_llmscores_inputs(bench: Path, models: list[str], tmp_path: Path) -> None:
    metrics = "metric=[llmscore,capclip,capmeteor,descclip,descmeteor]"
    assert count_cells(make_plan(bench, tmp_path, metrics, *models)) == {
        "captions:captioner": 1, "regions:grounder": 1, "descriptions:judge": 1, "text_similarities:clip": 2,
        "text_similarities": 2, "verdicts:judge": 1, "scores": 5,
    }  # fmt: skip


def test_judges_with_vision_share_a_pass_and_not_their_verdicts(bench: Path, models: list[str], tmp_path: Path) -> None:
    plan = make_plan(bench, tmp_path, "metric=[viescore,gpt4v_eval]", *models)
    assert count_cells(plan) == {"inspections:vlm": 2, "scores": 2}
    assert plan.nodes[0].model_calls == 4 * (2 + 1) and plan.nodes[0].steps == 4 * (1 + 2 + 1), "each is encoded once"


def test_only_options_that_change_a_verdict_change_its_cells(bench: Path, models: list[str], tmp_path: Path) -> None:
    def list_paths(*words: str) -> dict[str, set[str]]:
        cells = make_plan(bench, tmp_path, "metric=[llmscore]", *models, *words).cells
        return {cell.recipe.stage: {cell.path} for cell in cells}

    def list_changed_stages(*words: str) -> set[str]:
        return {stage for stage, path in list_paths(*words).items() if path != before[stage]}

    before = list_paths()
    assert list_changed_stages("metrics.llmscore.max_tokens=9") == {"verdicts", "scores"}
    assert list_changed_stages("metrics.llmscore.replies=text") == {"verdicts", "scores"}
    assert list_changed_stages("metrics.llmscore.description_tokens=9") == {"descriptions", "verdicts", "scores"}
    assert list_changed_stages("metrics.llmscore.caption_tokens=9") == {
        "captions",
        "descriptions",
        "verdicts",
        "scores",
    }
    assert list_changed_stages("+models.grounder.image_batch=3") == set()


@pytest.mark.parametrize(
    ("metric", "role"),
    [("llmscore", "captioner"), ("capmeteor", "captioner"), ("vpeval", "detector")],
)
def test_a_role_without_a_model_is_refused_in_one_line(metric: str, role: str, bench: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"^metrics\.{metric}\.\w+: no model has the role '{role}'; .*$"):
        make_sweep_config(bench, tmp_path / "store", f"metric=[{metric}]")


def test_a_model_without_vision_is_refused_as_a_judge_of_images(bench: Path, tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"viescore needs a captioner .*, but the model for role 'llm' is a causal_lm"
    ):
        make_sweep_config(bench, tmp_path / "store", "metric=[viescore]", "metrics.viescore.judge=llm")
