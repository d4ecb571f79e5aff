"""Checks finished runs against a gate: reads the runs' tables and writes the results."""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.images.generation_settings import (
    COMPARE,
    SettingsPolicy,
    compare_settings,
    describe_changed_settings,
    describe_differences,
    read_all_settings,
)
from plumbline.operators.metrics.table import read_lower_is_better, read_metrics
from plumbline.operators.report.changes import list_comparable_metrics
from plumbline.operators.results.choices import READ_COLUMNS, Choices, find_outcomes, read_choices
from plumbline.operators.results.metric_recipes import list_relative_metrics
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.base.tables import NO_GENERATOR
from plumbline.pipelines.report.comparable_runs import find_compared_run, find_obstacle
from plumbline.pipelines.report.finished_run import find_originals
from plumbline.pipelines.sources.sources import Sources, collect_skills
from plumbline.pipelines.store.run_scores import read_run_scores
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import find_suite
from plumbline.plugins.gates.checks import GateResult, JudgedRun, OtherSide, SummaryRow, check_rules, judge_by_rules
from plumbline.plugins.gates.gate_config import GateConfig
from plumbline.plugins.gates.junit import to_junit
from plumbline.plugins.gates.markdown import to_markdown
from plumbline.plugins.gates.rules import Gate, Rule
from plumbline.plugins.gates.same_images import ScoredImages, find_same_images


def judge_run(
    store: Store,
    gate: Gate,
    run_id: str,
    *,
    against: str | None = None,
    why_not_compared: str = "",
    candidate: str | None = None,
    baseline: str | None = None,
    settings: SettingsPolicy = "compare",
    sources: Sources | None = None,
) -> GateResult:
    """Check a run against a gate.

    Args:
        store: The store that contains the run.
        gate: The rules; all of them must apply to the run's benchmark.
        run_id: The run's id.
        against: Id of the run to compare with.
        why_not_compared: The reason why `against` is None.
        candidate: The generator to check; None for every generator.
        baseline: Generator of the same run to compare with.
        settings: How to treat images that were generated with different settings.
        sources: The run's sources, if they have already been read.

    Raises:
        ConfigError: A generator is not in the run, or a rule needs something that the run does not have.
    """
    manifest = read_manifest(store, run_id)
    generators = [name for name in manifest.get("generators", ()) if name != NO_GENERATOR]
    for key, name in (("candidate", candidate), ("baseline", baseline)):
        if name is not None and name not in generators:
            raise ConfigError(f"{key}: {name!r} is not a generator of the run; {suggest(name, generators)}")
    sides = _RunReader(store, run_id, manifest, against, why_not_compared, baseline, settings)
    candidates = [candidate] if candidate else [name for name in generators if name != baseline]
    metrics = read_metrics(manifest)
    judged = JudgedRun(
        summary=_read_summary(store, run_id),
        scores=sides.scores,
        skills=cache(lambda: _read_skills(store, manifest, sources)),
        lower_is_better=read_lower_is_better(manifest),
        unranked=frozenset(name for name, metric in metrics.items() if not metric.ranks),
        ranges={name: metric.score_range for name, metric in metrics.items() if metric.score_range is not None},
        candidates=candidates,
        other=baseline or (f"in run {against}" if against else why_not_compared and "in an earlier run"),
        find_other=cache(sides.find),
    )
    check_rules(gate, judged)
    return judge_by_rules(gate, judged, run_id=run_id, benchmark=manifest["benchmark"], against=against or baseline)


def run_gate(store: Store, gate: Gate, config: GateConfig) -> list[GateResult]:
    """Check the configured run, or each of a suite's runs, against the rules; write and return the results.

    Runs of a suite to which no rule applies are skipped.

    Raises ConfigError if no rule applies to the run's benchmark, or if the run would be compared with itself.
    """
    files = {
        name: config.storage.locate(address, writable=True)
        for name, address in (("junit", config.junit), ("summary", config.summary))
        if address is not None
    }
    suite = find_suite(store, config.run)
    run_ids = [find_run(store, config.run)] if suite is None else [*suite.runs.values()]
    manifests = {run_id: read_manifest(store, run_id) for run_id in run_ids}
    if suite is not None:
        gate.check({manifest["benchmark"]: manifest["metrics"] for manifest in manifests.values()})
    results = list[GateResult]()
    for run_id, manifest in manifests.items():
        rules = gate.select_benchmark(manifest["benchmark"])
        if not rules.rules:
            continue
        against = None
        if config.against is not None:
            against = find_compared_run(store, run_id, manifest, config.against, key="against")
        if against == run_id and suite is None:  # two suites share the run of a benchmark that did not change
            raise ConfigError(
                f"against={config.against} is the run itself; name another run, or a generator with baseline=NAME"
            )
        result = judge_run(
            store,
            rules,
            run_id,
            against=against,
            candidate=config.candidate,
            baseline=config.baseline,
            settings=config.settings,
        )
        results.append(result)
    if not results:
        benchmark = manifests[run_ids[0]]["benchmark"]
        raise ConfigError(
            f"{gate.source}: no rule applies to the benchmark {benchmark!r}; add one, or name another run (run=ID)"
        )
    for name, place in files.items():
        place.write(FORMAT_FUNCTIONS[name](results).encode())
    return results


FORMAT_FUNCTIONS: Mapping[str, Callable[[Sequence[GateResult]], str]] = {"junit": to_junit, "summary": to_markdown}
"""Functions that format the results for a file, by configuration key."""


class _RunReader:
    """Reader of the runs that rules compare; each run is read when a rule first needs it."""

    def __init__(
        self,
        store: Store,
        run_id: str,
        manifest: Mapping[str, Any],
        against: str | None,
        why_not_compared: str,
        baseline: str | None,
        settings: SettingsPolicy,
    ) -> None:
        self.store, self.run_id = store, run_id
        self.manifest, self.against, self.why_not_compared = manifest, against, why_not_compared
        self.baseline, self.settings = baseline, settings
        self.before = None if against is None else read_manifest(store, against)
        self.scores: Callable[[], RunScores] = cache(lambda: read_run_scores(store, run_id))
        self.other: Callable[[str, str, str, str], OtherSide] = cache(self._make_other_side)
        self.read_choices: Callable[[str], Choices] = cache(self._read_choices)
        self.scores_before: Callable[[], RunScores] = cache(lambda: read_run_scores(store, str(against)))

    def find(self, rule: Rule, generator: str) -> OtherSide | str:
        """Return the scores that a rule compares a generator with, or the reason why they cannot be compared."""
        baseline = rule.baseline or self.baseline
        if baseline == generator:
            return "it is the baseline itself"
        if baseline is not None:
            settings = read_all_settings(self.manifest)
            differing = describe_differences(compare_settings(settings.get(generator, {}), settings.get(baseline, {})))
            return self._explain_difference(differing) or self.other(str(rule.metric), generator, self.run_id, baseline)
        if self.before is None:
            return f"nothing to compare with: {self.why_not_compared}"
        return (
            self._find_obstacle(rule, generator, self.before)
            or self._explain_difference(describe_changed_settings(self.before, self.manifest, generator))
            or self.other(str(rule.metric), generator, str(self.against), generator)
        )

    def _make_other_side(self, metric: str, generator: str, run_id: str, other: str) -> OtherSide:
        sides = ScoredImages(self.run_id, generator, metric), ScoredImages(run_id, other, metric)
        scores = self.scores() if run_id == self.run_id else self.scores_before()
        outcomes = None
        if metric in list_relative_metrics(self.manifest):
            outcomes = partial(find_outcomes, self.read_choices(metric), generator, other)
        return OtherSide(other, scores, cache(lambda: find_same_images(self.store, *sides)), outcomes)

    def _read_choices(self, metric: str) -> Choices:
        path = f"runs/{self.run_id}/comparisons.parquet"
        return read_choices(self.store.read_table(path, list(READ_COLUMNS)), metric)

    def _explain_difference(self, settings: str) -> str:
        if not settings or self.settings != COMPARE:
            return ""
        return f"the settings differ: {settings}; generate with the same, or set settings=ignore"

    def _find_obstacle(self, rule: Rule, generator: str, before: Mapping[str, Any]) -> str:
        """Return the reason why a generator cannot be compared with itself in the other run, or an empty string."""
        if generator not in before.get("generators", ()):
            return f"{self.against} has no {generator}; name a generator of this run by baseline: NAME"
        if rule.metric in list_relative_metrics(self.manifest):
            return (
                f"its scores by {rule.metric} depend on all generators of a run, so they are not compared between "
                "runs; name a generator of this run by baseline: NAME"
            )
        if obstacle := find_obstacle(before, self.manifest):
            return f"{self.against} cannot be compared with it ({obstacle})"
        if rule.metric not in list_comparable_metrics(before, self.manifest):
            return f"{self.against} lacks {rule.metric}, or has it with other settings or models"
        return ""


def _read_summary(store: Store, run_id: str) -> dict[tuple[str, str, str], SummaryRow]:
    table = store.read_table(f"runs/{run_id}/summary.parquet")
    return {
        (row["generator"], row["metric"], row["skill"]): SummaryRow(row["mean"], row["n"], row["n"] + row["n_null"])
        for row in table.to_pylist()
    }


def _read_skills(store: Store, manifest: Mapping[str, Any], sources: Sources | None) -> Skills:
    originals, unreadable = find_originals(manifest, store, sources)
    if originals is None:
        raise ConfigError(f"the prompts' skills can no longer be read ({unreadable}); use skill: overall")
    return collect_skills(originals.prompts)
