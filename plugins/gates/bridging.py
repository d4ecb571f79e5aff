"""Scores a held-out set of images with two versions of a metric, in order to map old scores to the new scale."""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from plumbline.operators.base.bounds import BoundsChecked, Positive, Share
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.metrics.table import AnyMetric, read_lower_is_better
from plumbline.operators.results.bridge import MetricVersion
from plumbline.operators.results.metric_recipes import read_recipe
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.results.summary import Skills
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.report.comparable_runs import BRIDGES_FOLDER
from plumbline.pipelines.report.finished_run import find_originals
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.sources.sources import collect_skills
from plumbline.pipelines.store.run_scores import read_run_scores
from plumbline.pipelines.store.runs import find_run, name_by_time, read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.computing import CellTables, compute_and_repair, inspect_cells, register_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.writing import describe_metrics
from plumbline.plugins.gates.bridge_building import MIN_EXPLAINED_VARIANCE, BuiltBridge, build_from_pairs, pair_images


@dataclass(frozen=True, kw_only=True, slots=True)
class BridgeConfig(BoundsChecked):
    """The two versions of a metric to compare, and the number of images."""

    old: str
    """Metric whose scores are mapped: a metric of the sweep, or of `old_run`."""
    new: str | None = None
    """Metric that defines the target scale; null means the metric of the same name in another run."""
    old_run: str | None = None
    """Run with the old scores; null scores the sweep's images instead. If both runs are set, nothing is computed."""
    new_run: str | None = None
    """Run with the new scores; null scores the sweep's images instead."""
    prompts: Positive | None = 500
    """Number of prompts to draw, each with the images of all generators; null uses all prompts."""
    seed: int = 0
    """Seed for drawing prompts; with the same seed, a larger draw includes all prompts of a smaller draw."""
    explains: Share = MIN_EXPLAINED_VARIANCE
    """Fraction of the variance, over images or over generators' means, that a map must explain to join the two
    versions.
    """

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        (_, *old), (_, *new) = self.list_sides()
        if old == new:
            raise ConfigError(
                f"bridge.new: expected a version other than bridge.old={self.old}; set bridge.new to another metric of "
                "the sweep, or set bridge.old_run and bridge.new_run"
            )

    def list_sides(self) -> Iterator[tuple[str, str, str | None]]:
        """Yield the configuration key, the metric and the run of each version."""
        yield "old", self.old, self.old_run
        yield "new", self.new or self.old, self.new_run


@dataclass(frozen=True, kw_only=True, slots=True)
class BridgeSweepConfig(SweepConfig):
    """A sweep that scores a held-out set of images with two versions of a metric."""

    bridge: BridgeConfig

    def make_sweep(self) -> SweepConfig | None:
        """Return a sweep of the versions for which no run is configured, or None if both have one.

        Raises:
            ConfigError: A version is not a metric of the sweep.
        """
        wanted: dict[str, AnyMetric] = {}
        for side, metric, run in self.bridge.list_sides():
            if run is None and metric not in self.metrics:
                raise ConfigError(
                    f"bridge.{side}: the sweep has no metric {metric}; {suggest(metric, list(self.metrics))}"
                )
            wanted |= {metric: self.metrics[metric]} if run is None else {}
        if not wanted:
            return None
        values = {each.name: getattr(self, each.name) for each in fields(SweepConfig)}
        benchmark = replace(self.benchmark, limit=self.bridge.prompts, limit_seed=self.bridge.seed)
        return SweepConfig(**{**values, "metrics": wanted, "benchmark": benchmark})


class ScoredVersion(NamedTuple):
    """One of the two versions of a metric that a bridge compares, with its scores."""

    version: MetricVersion
    scores: RunScores
    lower_is_better: bool
    """True if lower scores are better."""
    benchmark: str
    skills: Skills


def read_run_version(store: Store, run: str, metric: str, key: str) -> ScoredVersion:
    """Return a finished run's version of a metric; raise ConfigError if the run does not exist or lacks the metric."""
    run_id = find_run(store, run, key=key)
    manifest = read_manifest(store, run_id)
    scores = read_run_scores(store, run_id)
    if metric not in scores.metrics:
        raise ConfigError(
            f"{key}={run}: the run has no scores by the metric {metric!r}; {suggest(metric, scores.metrics)}"
        )
    originals, _ = find_originals(manifest, store)
    skills = Skills(()) if originals is None else collect_skills(originals.prompts)
    version = MetricVersion(metric=metric, run_id=run_id, recipe=read_recipe(manifest, metric))
    return ScoredVersion(
        version, scores, metric in read_lower_is_better(manifest), str(manifest.get("benchmark")), skills
    )


def score_held_out_set(planned: PlannedSweep, watch: Watch) -> RunScores:
    """Compute a sweep's missing cells and return its scores, without writing a run."""
    with register_sweep(planned, watch) as (working, both):
        _, _, scores = compute_and_repair(
            working, both, lambda now, outcomes: inspect_cells(now, outcomes, CellTables.read_scores)
        )
    if scores is None:
        raise ConfigError(
            f"{planned.store.place.url}: cells were damaged again after they were recomputed; check the disk and run "
            "again"
        )
    return scores


def make_sweep_version(planned: PlannedSweep, scores: RunScores, metric: str) -> ScoredVersion:
    """Return the version of a metric whose scores are from a sweep that did not write a run."""
    manifest: dict[str, Any] = describe_metrics(planned)
    version = MetricVersion(metric=metric, run_id=None, recipe=read_recipe(manifest, metric))
    return ScoredVersion(
        version, scores, metric in planned.config.lower_is_better, planned.config.benchmark.name, planned.sources.skills
    )


def build_bridge(store: Store, config: BridgeConfig, old: ScoredVersion, new: ScoredVersion) -> BuiltBridge:
    """Build a bridge, which converts scores from the old version of a metric to the scale of the new version.

    Raises ConfigError if the two versions scored different benchmarks, share too few prompts, or have too few prompts
    whose scores differ from the most frequent score.
    """
    if old.benchmark != new.benchmark:
        raise ConfigError(
            f"bridge: expected two runs of one benchmark, got {old.benchmark!r} and {new.benchmark!r}; name other runs"
        )
    pairs = pair_images((old.scores, old.version.metric), (new.scores, new.version.metric), config.prompts, config.seed)
    return build_from_pairs(
        pairs,
        new.skills if len(new.skills) else old.skills,
        bridge_id=name_by_time(store, datetime.now(UTC)),
        benchmark=new.benchmark,
        versions=(old.version, new.version),
        lower_is_better=(old.lower_is_better, new.lower_is_better),
        min_explained=config.explains,
    )


def write_bridge(store: Store, built: BuiltBridge) -> str:
    """Write a bridge and return its path; raise ConfigError if its id is already in use."""
    folder = f"{BRIDGES_FOLDER}/{built.bridge.bridge_id}"
    if store.exists(f"{folder}/bridge.json"):
        raise ConfigError(f"{store.place / folder}: a bridge with this name already exists; run again")
    store.write_table(f"{folder}/groups.parquet", built.groups)
    store.create_json(f"{folder}/bridge.json", asdict(built.bridge))
    return str(store.place / folder)
