"""Label planning and rehearsals accept runs and metrics under the same option names as other jobs."""

from pathlib import Path

import pytest

from tests.commands import run_for_output
from tests.jobs.test_command_line import SWEEP_WORDS, parse_words
from tests.operators.report.made import MadeRun
from tests.pipelines.metaeval import test_scores_source

run, rating_options = test_scores_source.run, test_scores_source.rating_options


def test_labels_and_rehearsals_accept_the_name_of_a_run(
    tmp_path: Path, run: MadeRun, rating_options: list[str]
) -> None:
    store = f"store={run.folder.parent.parent}"
    given = [*rating_options, "metrics=[gecko]", f"output={tmp_path}/labels.csv"]
    by_name = run_for_output("labels", *given, "run=latest", store, code=2)
    assert by_name == run_for_output("labels", *given, f"scores={run.folder}", code=2)
    few = ["orders=20", "metrics=[gecko]"]
    assert run_for_output("rehearse", *few, "run=latest", store) == run_for_output(
        "rehearse", *few, f"scores={run.folder}"
    )


@pytest.mark.parametrize("word", SWEEP_WORDS)
@pytest.mark.parametrize("job", ["labels long protocol.path=p", "rehearse runs/1"])
def test_metric_and_metrics_are_the_same_option(job: str, word: str) -> None:
    assert list(parse_words(*job.split(), word).metrics) == ["vqascore"]
