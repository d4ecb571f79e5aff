"""A lower-is-better metric is handled correctly from the sweep to the report and the agreement with people."""

import json
from pathlib import Path

import pandas as pd
import pytest

from plumbline.jobs.command import get_command, load_values
from plumbline.operators.report.page import Page
from plumbline.pipelines.metaeval.metaeval import judge_run, run_metaeval
from plumbline.pipelines.metaeval.protocols import MetaevalConfig
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.results import FinishedSweep
from tests.bench_of import (
    UNJUDGED_OPTIONS,
    list_arguments,
    plan_bench,
    read_prompt_rows,
    run_config,
    run_plan,
    write_benchmark,
)
from tests.commands import find_newest_run_folder, run, run_for_output

METRIC_OPTIONS = ("metric=[gecko]", "+metrics.nll={kind: gecko, writer: llm, model: vqa, nli: nli, likelihood: nll}")
GENERATORS = ["atlas", "drift"]


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> PlannedSweep:
    """Plan a sweep over a good and a poor generator; one person's ratings confirm which is better."""
    folder = write_benchmark(tmp_path_factory.mktemp("falling"), GENERATORS)
    asked = [prompt["prompt_id"] for prompt in read_prompt_rows(8)]
    rated = [(prompt, generator, 5 - 4 * at) for prompt in asked for at, generator in enumerate(GENERATORS)]
    pd.DataFrame(rated, columns=["prompt_id", "generator", "rating"]).to_csv(folder / "ratings.csv", index=False)
    protocol = ["protocol=long", f"protocol.path={folder / 'ratings.csv'}", "protocol.match=prompt_and_generator"]
    return plan_bench(folder, folder / "store", *METRIC_OPTIONS, *protocol)


@pytest.fixture(scope="module")
def finished(planned: PlannedSweep) -> FinishedSweep:
    return run_plan(planned)


def test_a_sweep_states_the_direction_and_its_summary_has_the_lowest_mean_first(finished: FinishedSweep) -> None:
    manifest = json.loads((Path(finished.folder) / "manifest.json").read_text())
    assert manifest["lower_is_better"] == ["nll"] and finished.lower_is_better == {"nll"}
    summary = pd.read_parquet(Path(finished.folder) / "summary.parquet")
    overall = summary[summary["skill"] == "overall"]
    means = {
        metric: dict(zip(rows["generator"], rows["mean"], strict=True)) for metric, rows in overall.groupby("metric")
    }
    assert [list(of_metric) for of_metric in means.values()] == [GENERATORS, GENERATORS]
    assert means["gecko"]["atlas"] > means["gecko"]["drift"] and means["nll"]["atlas"] < means["nll"]["drift"]


@pytest.fixture(scope="module")
def page(planned: PlannedSweep, finished: FinishedSweep) -> Page:
    return write_report(planned.store, finished.run_id, images=8, sources=planned.sources).page


@pytest.mark.usefixtures("page")
def test_the_newest_run_is_read_in_the_same_order(planned: PlannedSweep, finished: FinishedSweep) -> None:
    again = run_config(planned.config)
    assert again.unchanged and again.lower_is_better == {"nll"}
    assert again.results.summary.equals(finished.results.summary)


def test_the_report_ranks_both_metrics_alike_and_shows_the_highest_scores_as_the_worst(page: Page) -> None:
    assert page.ranks == {"atlas": 1.0, "drift": 2.0}
    assert [column.lower_is_better for column in page.columns] == [False, True]
    shown: dict[str, list[float]] = {"best": [], "worst": [], "disagreed": []}
    for pick in (card.pick for card in page.cards):
        for reason in pick.reasons:
            if reason.metric == "nll":
                shown[reason.kind].append(pick.scores["nll"])
    assert max(shown["best"]) < min(shown["worst"])


def test_agreement_with_people_counts_low_scores_as_good(
    planned: PlannedSweep, finished: FinishedSweep, tmp_path: Path
) -> None:
    assert planned.config.protocol is not None
    found = judge_run(planned.store, finished.run_id, planned.config.protocol)
    spearman = {its.metric: its.value for its in found.judgements if its.statistic == "spearman"}
    assert spearman["nll"] > 0 and spearman["gecko"] > 0
    assert [note for note in found.notes if note.startswith("nll: a lower score is better")]
    for scores in (finished.folder, f"{finished.folder}/scores.parquet"):
        options = ["protocol=long", f"protocol.path={planned.config.protocol.path}", f"scores={scores}"]
        values = load_values(get_command("metaeval"), [*options, "sampling.resamples=20", f"output={tmp_path}"])
        later = run_metaeval(read_config(values, MetaevalConfig))
        assert {its.metric: its.value for its in later.judgements if its.statistic == "spearman"} == spearman


DENIAL_OPTIONS = ("metric=[vqascore]", "+metrics.denied={kind: vqascore, model: vqa, answer: 'No'}")
"""VQAScore, and the variant from table 14 of its paper: the likelihood that the model answers "no"."""


def test_a_likelihood_of_denial_ranks_and_rewards_like_the_likelihood_of_yes(tmp_path: Path) -> None:
    folder, store = write_benchmark(tmp_path / "bench", GENERATORS, count=24), tmp_path / "store"
    assert run("sweep", *list_arguments(folder, store, *DENIAL_OPTIONS, *UNJUDGED_OPTIONS)).code == 0
    summary = pd.read_parquet(find_newest_run_folder(store) / "summary.parquet")
    overall = summary[summary["skill"] == "overall"]
    assert {metric: list(rows["generator"]) for metric, rows in overall.groupby("metric")} == {
        "vqascore": GENERATORS,
        "denied": GENERATORS,
    }
    assert "denied (lower is better)" in " ".join(run_for_output("report", f"store={store}", "run=latest").split())
    options = ("run=latest", "format=pairs", "reward=denied", f"store={store}", f"output={tmp_path}/pairs")
    assert run("rewards", *options).code == 0
    scores = pd.read_parquet(find_newest_run_folder(store) / "scores.parquet").query("metric == 'denied'")
    score_of = dict(zip(scores["generator"] + "/" + scores["image_id"], scores["score"], strict=True))
    pairs = [row for file in (tmp_path / "pairs/data").glob("*.parquet") for row in pd.read_parquet(file).itertuples()]
    assert pairs
    for pair in pairs:
        worse = pair.image_1_uid if pair.label_0 else pair.image_0_uid
        assert score_of[pair.best_image_uid] < score_of[worse]
