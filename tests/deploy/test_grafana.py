"""The dashboard shows exactly the numbers that a run exports, with their labels."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import promql_parser
import pytest
from ray.util.metrics import Counter

from plumbline.pipelines.running.progress import COUNTER_SPECS

DASHBOARD = json.loads((Path(__file__).parents[2] / "jobs" / "deploy" / "grafana.json").read_text())
EXPORTED_COUNTERS = {
    f"ray_plumbline_{name}{'_total' if spec.kind is Counter else ''}": {"stage", "node", *spec.labels}
    for name, spec in COUNTER_SPECS.items()
}
RAY_LABELS = {"SessionName"}
"""Labels that Ray adds to every metric."""
PANEL_TARGETS = [target for panel in DASHBOARD["panels"] for target in panel["targets"]]


def list_selectors(node: Any) -> Iterator[promql_parser.VectorSelector]:
    """Yield the selectors of all series that a parsed PromQL expression, or a part of one, reads."""
    if isinstance(node, promql_parser.VectorSelector):
        yield node
    for name in ("expr", "lhs", "rhs", "vector_selector", "vs"):
        if (inner := getattr(node, name, None)) is not None:
            yield from list_selectors(inner)
    for argument in getattr(node, "args", ()):
        yield from list_selectors(argument)


def parse_expression(expression: str) -> Any:
    """Parse a PromQL expression after filling in Grafana's own variables."""
    return promql_parser.parse(expression.replace("$__rate_interval", "1m").replace("$session", ".*"))


@pytest.mark.parametrize("target", PANEL_TARGETS, ids=lambda target: target["expr"])
def test_a_panel_shows_existing_counters(target: dict[str, str]) -> None:
    expression = parse_expression(target["expr"])
    (selector,) = list_selectors(expression)
    labels = EXPORTED_COUNTERS[selector.name]
    assert {matcher.name for matcher in selector.matchers.matchers} <= labels | RAY_LABELS
    grouped = set(expression.modifier.labels)
    assert grouped <= labels
    assert {label for label in labels if f"{{{{{label}}}}}" in target["legendFormat"]} == grouped


def test_every_number_has_a_panel() -> None:
    assert {
        selector.name for target in PANEL_TARGETS for selector in list_selectors(parse_expression(target["expr"]))
    } == set(EXPORTED_COUNTERS)


def test_the_dashboard_has_the_form_that_grafana_imports() -> None:
    assert DASHBOARD["schemaVersion"] >= 36 and DASHBOARD["uid"] and DASHBOARD["title"]
    variables = {variable["name"]: variable for variable in DASHBOARD["templating"]["list"]}
    assert (variables["datasource"]["type"], variables["datasource"]["query"]) == ("datasource", "prometheus")
    chosen = {"type": "prometheus", "uid": "${datasource}"}
    panels = DASHBOARD["panels"]
    assert len({panel["id"] for panel in panels}) == len({str(panel["gridPos"]) for panel in panels}) == len(panels)
    assert all(panel["gridPos"]["x"] + panel["gridPos"]["w"] <= 24 for panel in panels)
    assert all(one["datasource"] == chosen for one in (*panels, *PANEL_TARGETS, variables["session"]))
