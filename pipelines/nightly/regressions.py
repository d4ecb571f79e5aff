"""Compares a nightly run with an earlier run: regressions, the gate, the outcome and its publication."""

import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial, reduce
from typing import Any, NamedTuple

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.images.generation_settings import COMPARE, SettingsPolicy
from plumbline.operators.report.changes import Change, Changes, correct_p_values_together
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.exit_codes import GATE_FAILED, REGRESSION, choose_worse_code
from plumbline.pipelines.nightly.gates import GateVerdict, open_gate
from plumbline.pipelines.nightly.nightly_config import NightConfig
from plumbline.pipelines.nightly.outcome import (
    ClearChange,
    NightOutcome,
    Outcome,
    SuiteOutcome,
    post_json,
    read_outcome,
)
from plumbline.pipelines.report.comparable_runs import CHECKPOINT_PATTERN, find_obstacle, read_bridges
from plumbline.pipelines.report.report import LOCAL_CLUSTER, NO_COMPARISON, WrittenReport, write_report
from plumbline.pipelines.report.trends import write_trends
from plumbline.pipelines.running.errors import format_error
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.runs import read_earlier_runs, read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.store.suites import Suite, find_named_run

LOG = logging.getLogger(__name__)


class Baseline(NamedTuple):
    """The earlier run that a nightly run is compared with, or the reason why there is none."""

    run_id: str | None
    reason: str = ""
    """Reason why there is nothing to compare with; empty if a run was found."""


class TrendsPage(NamedTuple):
    """URL of the trends page, or the reason why it could not be written."""

    url: str | None
    problem: str = ""


class ComparedRun(NamedTuple):
    """A run that has not been reported yet, with its comparison, report, trends and gate verdict."""

    run_id: str
    manifest: Mapping[str, Any]
    baseline: Baseline
    written: WrittenReport
    trends: TrendsPage
    gate: GateVerdict | None = None
    """Verdict of the gate; None without a gate, or if its rules do not cover the benchmark."""


def compare_run(
    store: Store,
    run_id: str,
    config: NightConfig,
    *,
    sources: Sources | None,
    assert_lease: Callable[[], None],
    cluster: ClusterConfig = LOCAL_CLUSTER,
    settings: SettingsPolicy = COMPARE,
) -> ComparedRun:
    """Compare a run with an earlier one, write its report and the trends page, and apply the gate.

    `assert_lease` is called before anything is published; it raises LeaseLost if another process has taken the lease.
    """
    manifest = read_manifest(store, run_id)
    baseline = find_baseline(store, run_id, manifest, config.compare)
    assert_lease()
    write = partial(
        write_report, store, run_id, settings=settings, sources=sources, cluster=cluster, assert_lease=assert_lease
    )
    try:
        written = write(compare=baseline.run_id or NO_COMPARISON)
    except PlumblineError as error:
        if baseline.run_id is None:
            raise
        baseline = Baseline(None, f"{baseline.run_id} cannot be read ({error})")
        written = write(compare=NO_COMPARISON)
    assert_lease()
    try:
        checkpoints = config.checkpoints or CHECKPOINT_PATTERN
        _, url = write_trends(store, benchmark=manifest["benchmark"], checkpoints=checkpoints, settings=settings)
        trends = TrendsPage(url)
    except Exception as error:  # a damaged old run, for instance, must not fail the nightly run
        LOG.warning("the trends page could not be written", exc_info=error)
        trends = TrendsPage(None, format_error(error))
    gate = None
    if config.gate is not None:
        gate = open_gate(store.place.storage.locate(config.gate)).judge(
            store, run_id, against=baseline.run_id, why_not_compared=baseline.reason, settings=settings, sources=sources
        )
    return ComparedRun(run_id, manifest, baseline, written, trends, gate)


def find_baseline(store: Store, run_id: str, manifest: Mapping[str, Any], compare: str) -> Baseline:
    """Return the configured run or, for `previous`, the newest earlier run that this run can be compared with.

    Reported runs are preferred, so that the changes of an unreported run are included in the next comparison. If no
    comparable run was reported, return the newest comparable run.
    """
    bridges = read_bridges(store, manifest.get("benchmark"))
    if compare != "previous":
        other = find_named_run(store, compare, manifest["benchmark"], key="nightly.compare")
        if other is None:
            return Baseline(None, f"nightly.compare={compare}: that suite has no run of {manifest['benchmark']}")
        reason = find_obstacle(read_manifest(store, other), manifest, bridges)
        return Baseline(None, f"nightly.compare={compare}: {reason}") if reason else Baseline(other)
    newest, obstacles = "", list[str]()
    for earlier in read_earlier_runs(store, run_id):
        if obstacle := find_obstacle(earlier.manifest, manifest, bridges):
            obstacles.append(f"{earlier.run_id} cannot be compared with it ({obstacle})")
        elif read_outcome(store, earlier.run_id) is not None:
            return Baseline(earlier.run_id)
        else:
            newest = newest or earlier.run_id
    if newest:
        return Baseline(newest)
    if not obstacles:
        return Baseline(None, "it is the first run of this store")
    more = f", nor can {format_quantity(len(obstacles) - 1, 'earlier run')}" if len(obstacles) > 1 else ""
    return Baseline(None, f"{obstacles[0]}{more}")


def make_outcomes(runs: Sequence[ComparedRun], config: NightConfig) -> list[NightOutcome]:
    """Return the outcome of each run, with p-values corrected jointly over the comparisons of all runs."""
    compared = {run.run_id: changes for run in runs if (changes := run.written.page.changes) is not None}
    together = dict(zip(compared, correct_p_values_together([*compared.values()]), strict=True))
    return [_make_outcome(run, together.get(run.run_id), config) for run in runs]


def _make_outcome(run: ComparedRun, changes: Changes | None, config: NightConfig) -> NightOutcome:
    manifest = run.manifest
    clear = changes.clear if changes is not None else []
    regressions = [
        _make_clear_change(change)
        for change in clear
        if change.verdict == "worse" and abs(change.duel.difference) >= config.smallest_change
    ]
    code = manifest["exit_code"]
    if run.gate is not None:  # the gate decides instead of regressions
        code = code if run.gate.passed else choose_worse_code(code, GATE_FAILED)
    elif regressions:
        code = choose_worse_code(code, REGRESSION)
    return NightOutcome(
        run_id=run.run_id,
        exit_code=code,
        benchmark=manifest["benchmark"],
        began=manifest["began"],
        ended=manifest["ended"],
        report=run.written.url,
        counts=manifest["counts"],
        compared_with=run.baseline.run_id,
        not_compared=run.baseline.reason or None,
        regressions=regressions,
        improvements=[_make_clear_change(change) for change in clear if change.verdict == "better"],
        can_tell=changes is None or changes.can_tell,
        sentences=[str(sentence) for sentence in changes.sentences] if changes is not None else [],
        unlike=changes.generators_with_changed_settings if changes is not None else [],
        edited=changes.edited if changes is not None else 0,
        trends=run.trends.url,
        gate=None if run.gate is None else run.gate.record,
    )


def make_suite_outcome(suite: Suite, page: str, benchmarks: Sequence[NightOutcome]) -> SuiteOutcome:
    """Return the outcome of a suite; `benchmarks` are the outcomes of its new runs."""
    code = reduce(choose_worse_code, (outcome.exit_code for outcome in benchmarks), suite.exit_code)
    return SuiteOutcome(
        suite_id=suite.suite_id, exit_code=code, report=page, runs=dict(suite.runs), benchmarks=benchmarks
    )


def publish_outcome(store: Store, outcome: Outcome, config: NightConfig, assert_lease: Callable[[], None]) -> Outcome:
    """Send the outcome to the webhook, write it to its file, and return it as written.

    If the process ends before the file is written, the next nightly run reports the run again.
    """
    assert_lease()
    if config.webhook is not None:
        problem = post_json(config.webhook, outcome.to_json())
        outcome = replace(outcome, webhook="delivered" if problem is None else problem)
        assert_lease()
    store.write_json(outcome.path, outcome.to_json())
    return outcome


def _make_clear_change(change: Change) -> ClearChange:
    duel = change.duel
    return ClearChange(
        generator=change.generator,
        metric=duel.metric,
        skill=duel.skill,
        before=change.before,
        after=change.after,
        difference=duel.difference,
        low=duel.low if math.isfinite(duel.low) else None,
        high=duel.high if math.isfinite(duel.high) else None,
        effect=duel.effect,
        p_value=duel.p_value,
        p_holm=duel.p_holm,
        prompts=duel.n,
    )
