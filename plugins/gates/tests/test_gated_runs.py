"""Gates can judge runs with edited prompts, with functions as metrics, and with metrics for which lower is better."""

from pathlib import Path

from plumbline.pipelines.base.exit_codes import GATE_FAILED
from tests.bench_of import UNJUDGED_OPTIONS, Bench, list_arguments, write_benchmark
from tests.commands import FinishedJob, run, run_for_output
from tests.jobs import test_edited_prompts, test_function_metrics
from tests.jobs.test_edited_prompts import N_EDITED, N_PROMPTS
from tests.jobs.test_function_metrics import MAX_BATCHED_VALUE
from tests.pipelines.test_directions import DENIAL_OPTIONS, GENERATORS

sweep, bench = test_edited_prompts.sweep, test_function_metrics.bench


def test_a_gate_leaves_out_prompts_whose_text_was_edited(sweep: tuple[str, FinishedJob], tmp_path: Path) -> None:
    store, _ = sweep
    (tmp_path / "gate.yaml").write_text("rules: {steady: {metric: clipscore, no_worse_by: 0.02}}")
    said = run("gate", store, f"rules={tmp_path}/gate.yaml", "run=latest", "against=previous")
    assert f"{N_PROMPTS - N_EDITED} prompts" in said.words and "failed" not in said.words
    assert f"left out: {N_EDITED} prompts with edited texts" in said.words


def test_a_rule_can_name_a_function_as_its_metric(bench: Bench, tmp_path: Path) -> None:
    (tmp_path / "rules.yaml").write_text(
        f"rules:\n  low: {{metric: batched, at_most: {MAX_BATCHED_VALUE + 3}}}\n  lit: "
        f"{{metric: brightness, at_least: 1}}\n"
    )
    store = f"store={bench.store.place.url}"
    assert "the gate passed: 2 rules, 6 checks" in run_for_output("gate", store, f"rules={tmp_path}/rules.yaml")


def test_a_rule_has_the_same_result_for_the_likelihood_of_yes_as_of_no(tmp_path: Path) -> None:
    folder, store, rules = write_benchmark(tmp_path / "bench", GENERATORS, count=24), tmp_path / "store", tmp_path / "r"
    assert run("sweep", *list_arguments(folder, store, *DENIAL_OPTIONS, *UNJUDGED_OPTIONS)).code == 0
    for metric in ("vqascore", "denied"):
        rules.write_text(f"rules:\n  no worse: {{metric: {metric}, no_worse_by: 0.25}}\n")
        asked = (f"store={store}", f"rules={rules}", "run=latest")
        assert run("gate", *asked, "candidate=drift", "baseline=atlas").code == GATE_FAILED
        assert run("gate", *asked, "candidate=atlas", "baseline=drift").code == 0
