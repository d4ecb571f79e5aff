"""Builds the trends page of a store from the manifests and summaries of its runs."""

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import NamedTuple

import pandas as pd
import pyarrow as pa

from plumbline.operators.base.bounds import BoundsChecked, Positive
from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.images.generation_settings import COMPARE, SettingsPolicy
from plumbline.operators.report.rendering import render_trends
from plumbline.operators.report.trends import TrendRun, Trends, build_trends, to_frame
from plumbline.operators.results.summary import describe_part
from plumbline.pipelines.base.exit_codes import OVER_BUDGET
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.report.comparable_runs import CHECKPOINT_PATTERN, check_checkpoints, read_bridges
from plumbline.pipelines.store.runs import N_READERS, Run, list_runs
from plumbline.pipelines.store.store import Store

MAX_RUNS = 120
MAX_LISTED_PROBLEMS = 8
UNSAFE_CHARACTER_PATTERN = re.compile(r"[^A-Za-z0-9_.-]")


@dataclass(frozen=True, kw_only=True, slots=True)
class TrendsConfig(BoundsChecked):
    store: str = "store"
    """Folder or cloud prefix of the store."""
    benchmark: str | None = None
    """Benchmark whose runs are shown; null means the benchmark of the newest run."""
    checkpoints: str = CHECKPOINT_PATTERN
    """Regular expression that matches the whole name of a generator that is a training checkpoint, such as
    sdxl-step-2000 or flux_ckpt500. It has the groups `family` and `step` (an integer).
    """
    runs: Positive = MAX_RUNS
    """Number of runs to draw, newest first; trends.parquet contains all runs."""
    settings: SettingsPolicy = COMPARE
    """`compare` interrupts a generator's line if its images were generated with different settings (docs/decide.md);
    `ignore` does not.
    """
    storage: StorageConfig = field(default_factory=StorageConfig)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_checkpoints("checkpoints", self.checkpoints)


class TrendsData(NamedTuple):
    """Trends over the runs of a benchmark."""

    page: Trends
    means: pd.DataFrame
    """Means of all runs that could be read."""
    runs: int


def write_trends(
    store: Store,
    *,
    benchmark: str | None = None,
    checkpoints: str = CHECKPOINT_PATTERN,
    runs: int = MAX_RUNS,
    settings: SettingsPolicy = COMPARE,
) -> tuple[TrendsData, str]:
    """Write trends.html and trends.parquet for a benchmark's runs; return the trends and the URL of the page.

    Raises ConfigError if no run of the benchmark can be read.
    """
    made = make_trends(store, benchmark=benchmark, checkpoints=checkpoints, runs=runs, settings=settings)
    folder = f"trends/{UNSAFE_CHARACTER_PATTERN.sub('_', made.page.benchmark)}"
    store.write_table(f"{folder}/trends.parquet", pa.Table.from_pandas(made.means, preserve_index=False))
    store.write_text(f"{folder}/trends.html", render_trends(made.page))
    return made, f"{store.place.url}/{folder}/trends.html"


def make_trends(
    store: Store,
    *,
    benchmark: str | None = None,
    checkpoints: str = CHECKPOINT_PATTERN,
    runs: int = MAX_RUNS,
    settings: SettingsPolicy = COMPARE,
) -> TrendsData:
    """Return the trends over a benchmark's runs; raise ConfigError if none of them can be read."""
    listed = list_runs(store)
    problems = [run.problem for run in listed if run.manifest is None]
    if problems and len(problems) == len(listed):
        raise ConfigError(problems[-1])
    chosen, warnings = _choose_runs(listed, benchmark)
    with ThreadPoolExecutor(N_READERS) as pool:
        read = list(pool.map(lambda run: _read_run(store, run), chosen))
    whole = [run for run in read if isinstance(run, TrendRun)]
    problems += [run for run in read if isinstance(run, str)]
    if not whole:
        raise ConfigError(problems[-1])
    warnings += [f"A run cannot be read: {problem}." for problem in problems[:MAX_LISTED_PROBLEMS]]
    if len(problems) > MAX_LISTED_PROBLEMS:
        warnings.append(f"{format_quantity(len(problems), 'run')} cannot be read (plumbline status).")
    means = to_frame(whole, settings)
    page = build_trends(
        whole[-runs:],
        means,
        re.compile(checkpoints),
        warnings,
        settings,
        read_bridges(store, whole[-1].manifest.get("benchmark")),
    )
    return TrendsData(page, means, len(whole))


RUN_EXCLUSIONS = (
    (lambda manifest: manifest.get("exit_code") == OVER_BUDGET, "more rows failed than the budget of failures allows"),
    (lambda manifest: bool(describe_part(manifest)), "only some of the prompts were scored (limit or adaptive sweep)"),
)
"""Conditions under which a run is excluded if there are other runs, each with the reason in words."""


def _choose_runs(listed: Sequence[Run], benchmark: str | None) -> tuple[list[Run], list[str]]:
    manifests = {run.run_id: run.manifest for run in listed if run.manifest is not None}
    if benchmark is None and manifests:
        benchmark = str([*manifests.values()][-1].get("benchmark"))
    chosen = [run for run in listed if manifests.get(run.run_id, {}).get("benchmark") == benchmark]
    if not chosen:
        known = sorted({str(manifest.get("benchmark")) for manifest in manifests.values()})
        raise ConfigError(
            f"benchmark={benchmark}: the store has no run of this benchmark; it has {', '.join(known) or 'no runs'}"
        )
    notes = []
    for is_excluded, reason in RUN_EXCLUSIONS:
        others = [run for run in chosen if not is_excluded(manifests[run.run_id])]
        if left := len(chosen) - len(others):
            notes.append(
                f"{format_quantity(left, 'run')} {'left out' if others else 'shown, as there is no other'}: {reason}."
            )
        chosen = others or chosen
    return chosen, notes


def _read_run(store: Store, run: Run) -> TrendRun | str:
    path = f"runs/{run.run_id}/summary.parquet"
    try:
        read = TrendRun(run.run_id, run.manifest or {}, store.read_table(path))
        return read if read.time and len(read.summary) else f"{store.place / path}: has no rows"
    except PlumblineError as error:
        return str(error)
    except (KeyError, ValueError, TypeError) as error:
        return f"run {run.run_id}: its manifest has no valid start time ({error})"
