"""The embedded sweep, run on 96 prompts as a new user would run it, gives leaderboards that match the ground truth."""

import itertools
import math
import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import pytest

from tests.commands import find_newest_run_folder, open_store_at, run_for_output
from tests.environment import ROOT

SHAPES_FOLDER = ROOT / "assets" / "shapes"
MIN_SEPARATION = 3.0
"""Minimum paired difference, in standard errors, for which a generator counts as truly better than another."""

N_PROMPTS = 96
SWEEP_OPTIONS = ("sweep=shapes", f"benchmark.limit={N_PROMPTS}")
METRICS = ("vqascore", "clipscore", "gecko", "tifa", "dsg")
ValuesByGenerator = Mapping[str, np.ndarray]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run the whole embedded sweep once, and return its store."""
    folder = tmp_path_factory.mktemp("sweep") / "store"
    command = [sys.executable, "-m", "jobs.sweep", *SWEEP_OPTIONS, f"store={folder}", "verbose=true", "cluster=here"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stdout + done.stderr
    (folder.parent / "printed").write_text(done.stdout)
    return folder


@pytest.fixture(scope="module")
def run(store: Path) -> Path:
    return find_newest_run_folder(store)


def read_ground_truth() -> pd.DataFrame:
    """Return the rows of truth.parquet for the images of the sweep's prompts, sorted by prompt."""
    table = pq.read_table(SHAPES_FOLDER / "truth.parquet").to_pandas().sort_values("prompt_id")
    asked = pq.read_table(SHAPES_FOLDER / "prompts.parquet").column("prompt_id").to_pylist()[:N_PROMPTS]
    return table[table["prompt_id"].isin(asked)]


@pytest.fixture(scope="module")
def truth() -> ValuesByGenerator:
    """Return an array by generator, in prompt order: 1 for an image that matches its prompt, and 0 otherwise."""
    table = read_ground_truth()
    return {generator: rows["correct"].to_numpy(float) for generator, rows in table.groupby("generator")}


@pytest.fixture(scope="module")
def fraction_met() -> ValuesByGenerator:
    """Return an array by generator, in prompt order: the fraction of the prompt's requirements that the image meets.

    The mean score of an image's questions estimates this fraction.
    """
    table = read_ground_truth()
    required = pq.read_table(SHAPES_FOLDER / "requirements.parquet").to_pandas().groupby("prompt_id").size()
    table = table.assign(fraction_met=1 - table["broken"].map(len) / table["prompt_id"].map(required))
    return {generator: rows["fraction_met"].to_numpy(float) for generator, rows in table.groupby("generator")}


def read_scores(run: Path, metric: str) -> ValuesByGenerator:
    table = pq.read_table(run / "scores.parquet").to_pandas().sort_values("prompt_id")
    table = table[table["metric"] == metric]
    return {generator: rows["score"].to_numpy() for generator, rows in table.groupby("generator")}


def measure_separation(values: ValuesByGenerator, one: str, other: str) -> float:
    """Return the difference between two generators' means, in standard errors of their paired difference."""
    difference = values[one] - values[other]
    error = difference.std(ddof=1) / math.sqrt(len(difference))
    return float(difference.mean() / error) if error else 0.0


def find_clear_pairs(truth: ValuesByGenerator) -> list[tuple[str, str]]:
    """Return (better, worse) for every pair of generators whose true means differ by more than MIN_SEPARATION."""
    pairs = itertools.permutations(truth, 2)
    return [(one, other) for one, other in pairs if measure_separation(truth, one, other) > MIN_SEPARATION]


def test_every_image_has_a_score_by_every_metric(run: Path) -> None:
    table = pq.read_table(run / "scores.parquet").to_pandas()
    assert len(table) == len(METRICS) * 7 * N_PROMPTS and table["score"].notna().all()
    assert len(pq.read_table(run / "errors.parquet")) == 0


def test_vqascore_ranks_every_truly_different_pair_like_the_truth(run: Path, truth: ValuesByGenerator) -> None:
    pairs = find_clear_pairs(truth)
    assert len(pairs) >= 12, "the embedded benchmark is meant to make most differences clear"
    means = {generator: values.mean() for generator, values in read_scores(run, "vqascore").items()}
    assert [pair for pair in pairs if means[pair[0]] <= means[pair[1]]] == []


def test_the_designed_tie_is_a_tie_in_truth_and_by_vqascore(run: Path, truth: ValuesByGenerator) -> None:
    assert abs(measure_separation(truth, "borealis", "cobalt")) < 2
    assert abs(measure_separation(read_scores(run, "vqascore"), "borealis", "cobalt")) < 2


@pytest.mark.parametrize("metric", METRICS)
def test_every_metric_ranks_pairs_that_truly_differ_in_the_fraction_of_requirements_met(
    metric: str, run: Path, fraction_met: ValuesByGenerator
) -> None:
    """Ember and flint have the same fraction of requirements met, but a different number of fully correct images."""
    pairs = find_clear_pairs(fraction_met)
    assert len(pairs) >= 13 and ("ember", "flint") not in pairs
    means = {generator: values.mean() for generator, values in read_scores(run, metric).items()}
    assert [pair for pair in pairs if means[pair[0]] <= means[pair[1]]] == []


def test_metrics_that_ask_separate_right_from_wrong_images_better_than_similarity(
    run: Path, truth: ValuesByGenerator
) -> None:
    levels = {metric: _correlate_images(run, metric, truth) for metric in METRICS}
    assert min(levels, key=lambda metric: levels[metric]) == "clipscore", levels


def _correlate_images(run: Path, metric: str, truth: ValuesByGenerator) -> float:
    """Return the Pearson correlation between a metric's scores and the ground truth over all images of a run."""
    values = read_scores(run, metric)
    return float(np.corrcoef(np.concatenate([values[g] for g in truth]), np.concatenate(list(truth.values())))[0, 1])


def test_the_summary_agrees_with_the_scores(run: Path) -> None:
    summary = pq.read_table(run / "summary.parquet").to_pandas().set_index(["generator", "metric", "skill"])
    for metric in METRICS:
        for generator, values in read_scores(run, metric).items():
            row = summary.loc[(generator, metric, "overall")]
            assert row["mean"] == pytest.approx(values.mean())
            assert (row["n"], row["n_null"], row["coverage"]) == (N_PROMPTS, 0, 1.0)
    assert set(summary.index.get_level_values("skill")) == {
        "overall", "object", "attribute", "counting", "spatial", "comparison", "negation", "universality", "part",
    }  # fmt: skip


def test_the_printed_leaderboards_name_the_best_generator_first_and_the_run_folder(store: Path, run: Path) -> None:
    said = (store.parent / "printed").read_text()
    for metric in METRICS:
        board = said.split(f"{metric}: overall")[1]
        ranked = re.findall(r"│ \d+ │ (\w+)", board)[:7]
        means = {generator: values.mean() for generator, values in read_scores(run, metric).items()}
        assert ranked == sorted(means, key=lambda generator: -means[generator])
    assert f"written to {run}/" in said.replace("\n", "")
    assert re.search(r"with likert by pearson \(0\.\d{3}, 95% interval 0\.\d{3} to", said)
    assert (run / "metaeval/judgements.md").exists()
    assert f"report: {run}/report.html" in said
    line = r"answers:vqa: 28/28 cells, [\d.]+ images/s, 0:00 left, \d+ of about \d+ steps, 0 failed rows"
    assert re.search(line, said)
    phases = [
        "loading the models of answers:vqa",
        "answers:vqa: 28/28",
        "writing the run's tables",
        "writing the report",
    ]
    assert [said.index(phase) for phase in phases] == sorted(said.index(phase) for phase in phases)


def test_a_second_run_computes_nothing_and_never_imports_ray(store: Path) -> None:
    code = (
        "import sys; from plumbline.jobs.command import run_job; from plumbline.jobs.sweep import COMMAND, main\n"
        f"code = run_job(COMMAND, main, {[*SWEEP_OPTIONS, f'store={store}']!r})\n"
        "print('imported', [name for name in ('ray', 'torch') if name in sys.modules]); sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0
    assert "0 cells to compute" in done.stdout and "computed 0 cells" in done.stdout
    assert "imported []" in done.stdout


def test_unreadable_judgements_prevent_neither_the_run_nor_its_report(store: Path) -> None:
    said = run_for_output("sweep", *SWEEP_OPTIONS, f"store={store}", "protocol.path=nowhere")
    assert re.search(r"warning no agreement with people: .*nowhere.*plumbline report run=", said)
    assert re.search(r"atlas .*(leads|the lead) by", said) and re.search(r"report: .*/report\.html", said)


def test_a_dry_run_shows_what_a_change_would_cost_and_writes_nothing(store: Path) -> None:
    before = sorted(store.rglob("*"))
    said = run_for_output("sweep", *SWEEP_OPTIONS, f"store={store}", "models.vqa.revision=v2", "dry_run=true")
    assert re.search(r"answers:vqa\s+│\s+28 │\s+0 │\s+28 │\s+672 │\s+1?\d{4}", said)
    assert re.search(r"similarities:clip\s+│\s+7 │\s+7 │\s+0 │\s+0 │\s+0", said)
    assert sorted(store.rglob("*")) == before


def test_status_shows_the_runs_and_accepts_an_empty_store(store: Path, tmp_path: Path) -> None:
    said = run_for_output("status", f"store={store}")
    assert "(latest): shapes" in said and "coverage 100.0%" in said and "7 generators by vqascore, " in said
    open_store_at(tmp_path / "empty").check()
    assert "no runs yet; start one with" in run_for_output("status", f"store={tmp_path}/empty")
