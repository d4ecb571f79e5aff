"""A gate compares two generators of one run by a pairwise judge's choices, not by win rates from other runs."""

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml

from plumbline.pipelines.base.exit_codes import GATE_FAILED
from tests.commands import FinishedJob, find_newest_run_folder, run, run_for_output

N_PROMPTS = 12


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Store with two runs of the embedded judge, which differ in one generator."""
    store = tmp_path_factory.mktemp("pairwise") / "store"
    for generators in ("[atlas,flint,cobalt]", "[atlas,garnet,cobalt]"):
        run_for_output(
            *("sweep", "sweep=shapes", "metric=[pairwise,clipscore]", "cluster=here", f"store={store}"),
            *(f"limit={N_PROMPTS}", f"benchmark.generators={generators}"),
        )
    return store


def gate(store: Path, rule: dict[str, Any], *words: str) -> FinishedJob:
    path = store.parent / "gate.yaml"
    path.write_text(yaml.safe_dump({"rules": {"asked": {"metric": "pairwise", **rule}}}))
    return run("gate", f"store={store}", f"rules={path}", "run=latest", *words)


def compute_win_rate(store: Path, generator: str, other: str) -> float:
    """Return the mean share of prompts won, from the table of comparisons; every prompt has one pair of images."""
    rows = pd.read_parquet(find_newest_run_folder(store) / "comparisons.parquet")
    forward = rows[(rows["first_generator"] == generator) & (rows["second_generator"] == other)]["p_first"]
    backward = rows[(rows["first_generator"] == other) & (rows["second_generator"] == generator)]["p_first"]
    assert len(forward) == len(backward) == N_PROMPTS
    return float((forward.mean() + 1 - backward.mean()) / 2)


@pytest.mark.parametrize("candidate", ["atlas", "garnet"])
def test_the_margin_is_the_distance_of_the_win_rate_from_one_half(store: Path, candidate: str) -> None:
    other = {"atlas": "garnet", "garnet": "atlas"}[candidate]
    lead = compute_win_rate(store, candidate, other) - 0.5
    ended = gate(store, {"better_by": 0.01, "baseline": other, "candidate": candidate})
    shown = f"{lead:+.3f}".replace("-", "−")
    assert f"{shown} (90% interval" in ended.words and f"on {N_PROMPTS} prompts" in ended.words, ended
    assert ended.code == (0 if candidate == "atlas" else GATE_FAILED)


def test_a_rule_without_a_baseline_in_the_run_is_undecided(store: Path) -> None:
    ended = gate(store, {"no_worse_by": 0.1, "candidate": "atlas"}, "against=previous")
    assert ended.code == GATE_FAILED and "cannot tell, fails" in ended.words
    assert "its scores by pairwise depend on all generators of a run" in ended.words, ended


def test_a_report_does_not_compare_win_rates_between_runs(store: Path) -> None:
    """The two shared generators have the same images in both runs, but a weaker opponent in the second run."""
    said = " ".join(run_for_output("report", f"store={store}", "compare=previous").split())
    assert "Nothing changed in the scores that both runs have." in said
    assert "pairwise compares generators within a run. Its scores depend on all generators of the run" in said, said


def test_trends_warn_that_win_rates_depend_on_the_other_generators(store: Path) -> None:
    said = " ".join(run_for_output("trends", f"store={store}").split())
    assert "pairwise compares generators within a run, so a line also moves if another generator changes." in said
