"""The job shows the mean score and count of each kind of question, and reports a missing metric or store."""

from pathlib import Path

import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.plugins.diagnosis.question_kinds import compute_kind_scores
from tests.commands import run_for_output, run_refused
from tests.pipelines import test_question_pack_sweeps
from tests.pipelines.test_question_pack_sweeps import SweptPack

folder, swept = test_question_pack_sweeps.folder, test_question_pack_sweeps.swept


def test_kinds_are_shown_with_their_counts(swept: SweptPack) -> None:
    said = run_for_output("kinds", f"store={swept.store}", "of=dsg_1k")
    assert "dsg_1k by kind" in said and "attribute - color" in said and "(4)" in said


def test_a_metric_that_the_run_lacks_is_refused_by_name(swept: SweptPack) -> None:
    with pytest.raises(ConfigError, match=r"of=tifa_v1: run .* does not contain this metric; it has dsg_1k"):
        compute_kind_scores(swept.plan.store, swept.finished.run_id, "tifa_v1")


def test_a_missing_store_is_reported(tmp_path: Path) -> None:
    line = run_refused("kinds", f"store={tmp_path}/sotre", "of=gecko", code=1)
    assert f"store {tmp_path}/sotre: there is no store here; correct the address" in line
