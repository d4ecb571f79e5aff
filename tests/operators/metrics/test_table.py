"""A run's metrics are read from its manifest, including those for which lower scores are better."""

from typing import Any

import pytest

from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.metrics.table import read_lower_is_better

OPTIONS_BY_METRIC = {
    "gecko": {"kind": "gecko"},
    "gecko_nll": {"kind": "gecko", "likelihood": "nll"},
    "foreign": {"kind": "gecko", "likelihood": "of another version"},
}


@pytest.mark.parametrize(
    ("manifest", "falling"),
    [
        ({}, set()),
        (
            {"config": {"metrics": OPTIONS_BY_METRIC}, "lower_is_better": ["foreign", "gecko_nll"]},
            {"foreign", "gecko_nll"},
        ),
        ({"config": {"metrics": OPTIONS_BY_METRIC}, "lower_is_better": []}, set()),
    ],
    ids=["nothing", "stated", "none stated"],
)
def test_a_runs_manifest_gives_the_metrics_for_which_lower_is_better(
    manifest: dict[str, Any], falling: set[str]
) -> None:
    assert read_lower_is_better(manifest) == falling
    assert [get_direction(metric, falling) for metric in OPTIONS_BY_METRIC] == [
        -1 if metric in falling else 1 for metric in OPTIONS_BY_METRIC
    ]
