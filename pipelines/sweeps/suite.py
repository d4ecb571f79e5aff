"""A suite: several benchmarks in one store, planned and computed together, each of which becomes a run of its own."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import NamedTuple

from plumbline.operators.errors import ConfigError, PlumblineError
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.sentences import names, plural
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import with_missing
from plumbline.pipelines.plans.sweep_config import SuiteConfig, SweepConfig, unfit
from plumbline.pipelines.running.events import CallsAnswered, CellsExpected, Event, Totals, Watch, to_all
from plumbline.pipelines.running.executor import Executor, choose_executor
from plumbline.pipelines.running.workload import Workload
from plumbline.pipelines.sweeps.computing import compute_workload, registered_sweeps, with_times, workload_of
from plumbline.pipelines.sweeps.planning import (
    PlannedSweep,
    plan_sweep,
    with_ingested_sources,
    without_sources,
)


class LeftOut(NamedTuple):
    """A metric that does not score some benchmarks of a suite, as they lack what it needs."""

    metric: str
    benchmarks: tuple[str, ...]
    why: str

    def __str__(self) -> str:
        return f"{self.metric} does not score {names(self.benchmarks, len(self.benchmarks))}: {self.why}"


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedSuite:
    """The sweeps of a suite, whose cells are all known."""

    config: SuiteConfig
    sweeps: tuple[PlannedSweep, ...]
    left_out: tuple[LeftOut, ...]
    notes: tuple[str, ...]
    """What to know before benchmarks are counted as so many: which of them share prompts."""
    executor: Executor

    @property
    def store(self) -> Store:
        """Where the cells and runs of all of them are."""
        return self.sweeps[0].store

    @property
    def workload(self) -> Workload:
        """What all sweeps have to compute, together."""
        return workload_of(self.sweeps)


def plan_suite(config: SuiteConfig) -> PlannedSuite:
    """Plans every benchmark by the metrics that fit it; nothing is computed where the sources of one are not right.

    Raises ConfigError, whose message names the benchmark.
    """
    sweeps, lacking = [], dict[tuple[str, str], list[str]]()
    for key in config.benchmarks:
        try:
            fitted, why_not = _fitted(config, key)
            sweeps.append(plan_sweep(fitted))
        except PlumblineError as error:
            raise ConfigError(f"benchmarks.{key}: {error}") from error
        for metric, why in why_not.items():
            lacking.setdefault((metric, why), []).append(fitted.benchmark.name)
    left_out = [LeftOut(metric, tuple(benchmarks), why) for (metric, why), benchmarks in lacking.items()]
    scored = {name for planned in sweeps for name in planned.config.metrics}
    for metric in config.metrics:
        if metric not in scored:
            reasons = [entry.why for entry in left_out if entry.metric == metric]
            raise ConfigError(f"metrics.{metric}: it scores no benchmark; {reasons[0] if reasons else 'leave it out'}")
    nodes = workload_of(sweeps).nodes
    return PlannedSuite(
        config=config,
        sweeps=tuple(sweeps),
        left_out=tuple(left_out),
        notes=tuple(_shared_prompts(sweeps)),
        executor=choose_executor(config.cluster, nodes),
    )


def _fitted(config: SuiteConfig, key: str) -> tuple[SweepConfig, dict[str, str]]:
    """The sweep of a benchmark, and by metric that does not score it, though nobody says so, what it lacks."""
    wanted = config.metrics_of.get(key)
    asked = {name: metric for name, metric in config.metrics.items() if wanted is None or name in wanted}
    fitting, lacking = dict[str, AnyMetric](), dict[str, str]()
    benchmark = with_ingested_sources(config.benchmarks[key], asked, config.storage)
    for name, metric in asked.items():
        why = unfit(metric, benchmark) or without_sources(metric, benchmark)
        if why and wanted is not None:
            raise ConfigError(f"metrics.{name}: {why}")
        if why:
            lacking[name] = why
        else:
            fitting[name] = metric
    if not fitting:
        raise ConfigError(f"no metric of the suite scores it; {next(iter(lacking.values()), 'name one in metrics_of')}")
    return config.sweep(key, fitting), lacking


def _shared_prompts(sweeps: Sequence[PlannedSweep]) -> Iterator[str]:
    """The benchmarks of which two have prompts of the same text."""
    texts = {sweep.config.benchmark.name: set(sweep.sources.prompts.column("text").to_pylist()) for sweep in sweeps}
    for one, other in combinations(texts, 2):
        if common := len(texts[one] & texts[other]):
            yield (
                f"{one} and {other} share {plural(common, 'prompt')}: a generator that is better on both may be so by "
                "the same images."
            )


def compute_suite(planned: PlannedSuite, suite_id: str, watch: Watch) -> PlannedSuite:
    """Computes what all benchmarks lack, with each model loaded once; their runs are still to be written.

    Where nothing is missing, nothing of the executor is imported and the store is told of no sweep.
    """
    if not any(sweep.plan.missing for sweep in planned.sweeps):
        return planned
    totals = {sweep.config.benchmark.name: Totals() for sweep in planned.sweeps}
    with registered_sweeps(planned.sweeps, watch, run=suite_id) as (sweeps, watch):
        outcomes = compute_workload(workload_of(sweeps), planned.executor, to_all(_by_benchmark(totals), watch))
    done = []
    for sweep in sweeps:
        own = {cell.path: outcomes[cell.path] for cell in sweep.plan.missing if cell.path in outcomes}
        if own:
            computed = replace(sweep, plan=with_missing(sweep.plan, frozenset(), sweep.sources), outcomes=own)
            sweep = with_times(computed, totals[sweep.config.benchmark.name])
        done.append(sweep)
    return replace(planned, sweeps=tuple(done))


def _by_benchmark(totals: Mapping[str, Totals]) -> Callable[[Event], None]:
    """Counts each event for its own benchmark; what is expected, and answered calls, are told of all together."""

    def count(event: Event) -> None:
        match event:
            case CellsExpected() | CallsAnswered():
                pass
            case _:
                totals[event.benchmark].add(event)

    return count
