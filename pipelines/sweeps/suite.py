"""A suite: several benchmarks that are planned and computed together in one store. Each becomes a separate run."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import combinations

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.base.sentences import format_names, format_quantity
from plumbline.operators.metrics.table import AnyMetric
from plumbline.pipelines.plans.plan import replace_missing_cells
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig, explain_missing_settings
from plumbline.pipelines.running.events import (
    CallsAnswered,
    Event,
    ProgressTotals,
    ShardFinished,
    ShardStarted,
    Watch,
    combine_displays,
)
from plumbline.pipelines.running.executor import Executor, choose_executor
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.computing import add_node_times, compute_workload, make_workload, register_sweeps
from plumbline.pipelines.sweeps.planning import (
    PlannedSweep,
    SweepInputs,
    add_ingested_sources,
    explain_missing_sources,
    list_inputs,
    open_inputs,
    plan_sweep_from_inputs,
)
from plumbline.pipelines.sweeps.results import FinishedSweep
from plumbline.pipelines.sweeps.unchanged_run import find_unchanged_run_by_listing


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSuite:
    """The planned sweeps of a suite, and the newest runs of its unchanged benchmarks."""

    config: SuiteConfig
    inputs: Mapping[str, SweepInputs]
    """Inputs by benchmark."""
    unchanged: Mapping[str, FinishedSweep]
    """Newest runs of the unchanged benchmarks, by benchmark. These benchmarks are not planned."""
    sweeps: Mapping[str, PlannedSweep]
    """Planned sweeps of all other benchmarks, by benchmark."""
    left_out: tuple[str, ...]
    """Sentences about metrics that cannot score some of the benchmarks, because a benchmark lacks something that the
    metric needs.
    """
    executor: Executor

    @property
    def store(self) -> Store:
        return next(iter(self.inputs.values())).store

    @property
    def workload(self) -> Workload:
        return make_workload([*self.sweeps.values()])

    def describe_shared_prompts(self) -> Iterator[str]:
        """Yield a sentence for each pair of benchmarks that share prompts: their results are not independent."""
        texts: dict[str, set[str]] = {}
        for name, inputs in self.inputs.items():
            if name in self.sweeps:
                sources = self.sweeps[name].sources
            else:
                sources = open_inputs(inputs, ImageFileCache(inputs.store, inputs.config.benchmark))
            texts[name] = set(sources.prompts.column("text").to_pylist())
        for one, other in combinations(texts, 2):
            if common := len(texts[one] & texts[other]):
                yield (
                    f"{one} and {other} share {format_quantity(common, 'prompt')}: a generator may be better on "
                    f"both because "
                    "of the same images."
                )


def plan_suite(config: SuiteConfig) -> PlannedSuite:
    """Plan every benchmark that has changed, with the metrics that fit it; compute nothing.

    Raises ConfigError naming a benchmark if its sources are invalid.
    """
    inputs, lacking = dict[str, SweepInputs](), dict[tuple[str, str], list[str]]()
    unchanged, sweeps = dict[str, FinishedSweep](), dict[str, PlannedSweep]()
    for key in config.benchmarks:
        with _add_benchmark_to_errors(key):
            fitted, why_not = _select_fitting_metrics(config, key)
            inputs[fitted.benchmark.name] = list_inputs(fitted)
        for metric, why in why_not.items():
            lacking.setdefault((metric, why), []).append(fitted.benchmark.name)
    used = {name for listed in inputs.values() for name in listed.config.metrics}
    for metric in config.metrics:
        if metric not in used:
            reasons = dict(lacking.keys())
            raise ConfigError(f"metrics.{metric}: it scores no benchmark; {reasons.get(metric, 'leave it out')}")
    for key, (name, listed) in zip(config.benchmarks, inputs.items(), strict=True):
        finished = None if config.dry_run else find_unchanged_run_by_listing(listed)
        if finished is not None:
            unchanged[name] = finished
        else:
            with _add_benchmark_to_errors(key):
                sweeps[name] = plan_sweep_from_inputs(listed)
    return PlannedSuite(
        config=config,
        inputs=inputs,
        unchanged=unchanged,
        sweeps=sweeps,
        left_out=tuple(
            f"{metric} does not score {format_names(benchmarks, len(benchmarks))}: {why}"
            for (metric, why), benchmarks in lacking.items()
        ),
        executor=choose_executor(config.cluster, make_workload([*sweeps.values()]).nodes),
    )


@contextmanager
def _add_benchmark_to_errors(key: str) -> Iterator[None]:
    try:
        yield
    except PlumblineError as error:
        raise ConfigError(f"benchmarks.{key}: {error}") from error


def _select_fitting_metrics(config: SuiteConfig, key: str) -> tuple[SweepConfig, dict[str, str]]:
    """Return a benchmark's sweep with the metrics that fit it, and the reason why each other metric does not fit.

    Raises ConfigError if no metric fits, or if `metrics_of` names a metric that does not fit.
    """
    wanted = config.metrics_of.get(key)
    asked = {name: metric for name, metric in config.metrics.items() if wanted is None or name in wanted}
    fitting, lacking = dict[str, AnyMetric](), dict[str, str]()
    benchmark = add_ingested_sources(config.benchmarks[key], asked, config.storage)
    for name, metric in asked.items():
        why = explain_missing_settings(metric, benchmark) or explain_missing_sources(metric, benchmark)
        if why and wanted is not None:
            raise ConfigError(f"metrics.{name}: {why}")
        if why:
            lacking[name] = why
        else:
            fitting[name] = metric
    if not fitting:
        why = next(iter(lacking.values()), "name one in metrics_of")
        raise ConfigError(f"no metric in the suite scores this benchmark; {why}")
    return config.make_sweep(key, fitting), lacking


def compute_suite(planned: PlannedSuite, suite_id: str, watch: Watch) -> PlannedSuite:
    """Compute the missing cells of all benchmarks, loading each model once; do not write any runs.

    If nothing is missing, no executor module is imported and no sweep is registered in the store.
    """
    if not any(sweep.plan.missing for sweep in planned.sweeps.values()):
        return planned
    totals = {name: ProgressTotals() for name in planned.sweeps}

    def add_event(event: Event) -> None:
        if isinstance(event, ShardStarted):
            totals[event.benchmark].add(event)
        elif isinstance(event, ShardFinished):
            # calls are only known to belong to a benchmark when their shard is finished
            totals[event.benchmark].add(CallsAnswered(event.node, event.calls))
            totals[event.benchmark].add(event)

    with register_sweeps([*planned.sweeps.values()], watch, run=suite_id) as (sweeps, watch):
        outcomes = compute_workload(make_workload(sweeps), planned.executor, combine_displays(add_event, watch))
    done = dict[str, PlannedSweep]()
    for name, sweep in zip(planned.sweeps, sweeps, strict=True):
        own = {cell.path: outcomes[cell.path] for cell in sweep.plan.missing if cell.path in outcomes}
        if own:
            computed = replace(sweep, plan=replace_missing_cells(sweep.plan, frozenset(), sweep.sources), outcomes=own)
            sweep = add_node_times(computed, totals[name])
        done[name] = sweep
    return replace(planned, sweeps=done)
