"""A similarity metric returns the model's similarity unchanged, and every named metric is described for newcomers."""

from pathlib import Path

import pytest
import yaml

from plumbline.operators.metrics.metric import Evidence
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig

METRIC_FILES = sorted((Path(__file__).parents[4] / "conf/metric").glob("*.yaml"))
OPTIONS_BY_METRIC = {file.stem: yaml.safe_load(file.read_text()) for file in METRIC_FILES}
SIMILARITY_OPTIONS = {
    name: options for name, options in OPTIONS_BY_METRIC.items() if options.get("kind") == "similarity"
}


def test_the_score_is_the_models_number_and_a_truncated_text_is_recorded() -> None:
    scored = SimilarityConfig(model="itm").score(Evidence({"similarity": -1.25, "truncated": True}))
    assert (scored.score, scored.truncated, scored.elements) == (-1.25, True, None)


def test_the_description_in_the_report_does_not_affect_comparisons() -> None:
    plain, told = SimilarityConfig(model="itm"), SimilarityConfig(model="itm", about="compares")
    assert (
        plain.list_similarity_options()
        == told.list_similarity_options()
        != SimilarityConfig(model="itm", measure="match").list_similarity_options()
    )
    assert plain.list_similarity_options() != SimilarityConfig(model="itm", pixels="padded").list_similarity_options()
    assert (plain.list_score_options(), plain.text("a {} cat")) == (told.list_score_options(), "a {} cat")


@pytest.mark.parametrize("name", SIMILARITY_OPTIONS)
def test_a_named_metric_is_described_in_a_sentence_that_starts_with_its_name(name: str) -> None:
    about = SimilarityConfig(**SIMILARITY_OPTIONS[name]).about
    assert about[0].islower() and about[-1] not in ". " and len(about.split()) > 8
