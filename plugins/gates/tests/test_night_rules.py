"""Gate rules decide whether a nightly run succeeds, for one benchmark or several."""

import json
from xml.etree import ElementTree

from tests.commands import run
from tests.jobs import test_nightly_job, test_nightly_suite
from tests.jobs.test_nightly_job import Nights
from tests.jobs.test_nightly_suite import Suite

nights, suite = test_nightly_job.nights, test_nightly_suite.suite


def test_a_gate_decides_whether_a_nightly_run_succeeds(nights: Nights) -> None:
    """A score drop of 0.1 is significant: a gate that allows 0.2 passes it, and a gate that allows 0.05 fails it."""
    rules = nights.folder / "gate.yaml"
    rules.write_text("rules: {as good: {metric: clipscore, no_worse_by: 0.2}}")
    ended = nights.run(f"nightly.gate={rules}")
    assert ended.code == 7 and "nothing to compare with: it is the first run of this store" in ended.words
    nights.add("flint", 0.4)
    ended = nights.run(f"nightly.gate={rules}", "nightly.json=true")
    outcome = json.loads(ended.out)
    assert ended.code == 0 and outcome["regressions"] and outcome["gate"]["passed"], ended
    assert outcome["gate"]["checks"][1]["generator"] == "flint" and outcome["gate"] == nights.read_outcome()["gate"]  # type: ignore[index]
    rules.write_text("rules: {as good: {metric: clipscore, no_worse_by: 0.05}}")
    nights.add("flint", 0.3)
    ended = nights.run(f"nightly.gate={rules}")
    assert ended.code == 7 and "the gate failed by as good: 1 check of 2" in ended.words
    assert nights.run(f"nightly.gate={rules}").code == 0, "a violated rule is reported once"
    rules.write_text("rules: {as good: {metric: clipscore}}")
    assert "rule as good: expected exactly one of" in nights.run(f"nightly.gate={rules}").err


def test_a_gate_can_have_separate_rules_for_each_benchmark(suite: Suite) -> None:
    """Flint drops only on `places`, by more than its rule allows; the suite can be judged again later by its id."""
    rules = suite.folder / "gate.yaml"
    refused = {
        "{benchmark: places, metric: gecko, at_least: 0}": "rule floor: metric: places is scored by clipscore, not by",
        "{benchmark: place, metric: clipscore, at_least: 0}": "rule floor: benchmark: expected one of numbers, places",
    }
    for rule, said in refused.items():
        rules.write_text(f"rules: {{floor: {rule}}}")
        ended = suite.run(f"nightly.gate={rules}", "dry_run=true")
        assert ended.code == 1 and said in ended.line and not suite.store.list_folders("runs"), ended
    suite.score()
    assert suite.run(job="sweep").code == 0
    before, runs_before = suite.list_suites()[0], suite.read_runs()
    suite.make_worse("places")
    suite.score()
    as_good = {"metric": "clipscore", "no_worse_by": 0.05, "candidate": "flint"}
    floor = {"benchmark": "numbers", "metric": "clipscore", "at_least": 0.4}
    rules.write_text(json.dumps({"rules": {"floor": floor, "as good": {"benchmark": "places"} | as_good}}))
    night = suite.run(f"nightly.gate={rules}", "nightly.json=true")
    told = json.loads(night.out)
    assert night.code == told["exit_code"] == 7, night
    assert [(*one["gate"]["rules"], one["gate"]["passed"]) for one in told["benchmarks"]] == [
        ("floor", True),
        ("as good", False),
    ]

    words = [f"store={suite.store.place.url}", f"rules={rules}", f"against={before}"]
    (after,) = {*suite.list_suites()} - {before}
    ended = run("gate", *words, f"run={after}", f"junit={suite.folder}/gate.xml")
    assert ended.code == 7 and "the gate passed: 1 rule, 2 checks" in ended.words, ended
    assert f"run {suite.read_runs()['places']} of places against {runs_before['places']}" in ended.words
    numbers, places = ElementTree.parse(suite.folder / "gate.xml").getroot()
    assert (numbers.get("failures"), places.get("failures")) == ("0", "1")
    rules.write_text(json.dumps({"rules": {"as good": {"benchmark": "places"} | as_good}}))
    ended = run("gate", *words, f"run={suite.read_runs()['numbers']}")
    assert ended.code == 1 and "gate.yaml: no rule applies to the benchmark 'numbers'; add one" in ended.line
