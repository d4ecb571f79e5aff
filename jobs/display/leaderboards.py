"""Prints the results of a sweep: leaderboards, failures, and the usage and cost of its language models."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console

from plumbline.jobs.display.console import EMPTY_CELL, say, show_table, show_tables, warn
from plumbline.operators.base.errors import REMEDIES_BY_KIND
from plumbline.operators.base.failures import describe_row_ids, iterate_failure_kinds
from plumbline.operators.base.sentences import NO_INTERVAL, NO_INTERVAL_NOTE, format_interval
from plumbline.operators.base.usage import Usage
from plumbline.operators.results.pair_comparisons import describe_comparisons
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.plans.costs import Cost
from plumbline.pipelines.report.report_record import read_report_record
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs
from plumbline.pipelines.sweeps.results import FinishedSweep, Results


def show_leaderboards(console: Console, finished: FinishedSweep, store: Store, *, verbose: bool = False) -> None:
    """Print every metric's leaderboards if `verbose`; otherwise, print the main leaderboard of an unchanged run.

    Without `verbose`, print nothing for a new run: the job prints its main leaderboard when it writes the report. If an
    unchanged run has no report, print every metric's leaderboards.
    """
    record = None if verbose or not finished.unchanged else read_report_record(store, finished.run_id)
    if record is not None:
        show_tables(console, record.title, record.leaderboard)
    elif verbose or finished.unchanged:
        _show_boards(console, finished)


def show_outcome(console: Console, finished: FinishedSweep) -> None:
    """Print the failures of a sweep, its usage of language models, and the folder with its results."""
    show_failures(console, finished.results)
    if finished.retried is not None:
        rows, succeeded = finished.retried
        say(console, f"retry_failed: {succeeded} of {rows} failed rows have a score now")
    show_usage(console, finished.usage, finished.costs)
    _show_comparisons(console, finished)
    say(console, f"written to {finished.folder}/: scores.parquet, summary.parquet, errors.parquet, manifest.json")


def _show_comparisons(console: Console, finished: FinishedSweep) -> None:
    path = f"runs/{finished.run_id}/comparisons.parquet"
    if not finished.results.store.exists(path):
        return
    compared = finished.results.store.read_table(path)
    for metric in compared.column("metric").unique().to_pylist():
        say(console, f"{describe_comparisons(compared, metric)} (comparisons.parquet)")


def warn_about_kept_note(console: Console, sweep: SweepInputs | PlannedSweep, finished: FinishedSweep) -> None:
    """Warn that an unchanged run keeps its old note, if the sweep has a different note."""
    note = sweep.config.note
    kept = read_manifest(sweep.store, finished.run_id).get("note", "") if finished.unchanged else note
    if note not in ("", kept):
        warn(console, f"note: run {finished.run_id} exists already and keeps its own note {kept!r}, not {note!r}")


def _show_boards(console: Console, finished: FinishedSweep) -> None:
    """Print two tables per metric, overall and by skill, with the best overall mean first."""
    rows = finished.results.summary.to_pylist()
    for metric in dict.fromkeys(row["metric"] for row in rows):
        of_metric = [row for row in rows if row["metric"] == metric]
        overall = [row for row in of_metric if row["skill"] == OVERALL]
        names = ("#", "generator", "mean", "95% interval", "n", "coverage")
        means, ranked = [row["mean"] for row in overall], list[list[str]]()
        for row in overall:  # equal means share a rank, and a generator without a mean has no rank
            rank = str(1 + means.index(row["mean"])) if row["n"] else EMPTY_CELL
            interval, coverage = format_interval(row["low"], row["high"]), f"{row['coverage']:.1%}"
            ranked.append([rank, row["generator"], _format_number(row["mean"]), interval, str(row["n"]), coverage])
        title = f"{metric}: overall{', lower is better' if metric in finished.lower_is_better else ''}"
        show_table(console, title, names, ranked, numbers=slice(2, None))
        if any(NO_INTERVAL in cells for cells in ranked):
            say(console, NO_INTERVAL_NOTE)
        if len(of_metric) > len(overall):
            _show_skills(console, metric, of_metric)


def _show_skills(console: Console, metric: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the means by generator and skill, with the counts of scored and expected images if the counts differ."""
    expected: dict[str, int] = {}
    for row in rows:
        if row["skill"] != OVERALL:
            expected[row["skill"]] = max(row["n"] + row["n_null"], expected.get(row["skill"], 0))
    by_key = {(row["generator"], row["skill"]): row for row in rows}
    generators = [row["generator"] for row in rows if row["skill"] == OVERALL]
    names = ["generator", *(f"{skill}\n({n})" for skill, n in expected.items())]
    cells = [[name, *(_format_skill_cell(by_key.get((name, skill))) for skill in expected)] for name in generators]
    show_table(console, f"{metric}: mean per skill (n images per generator)", names, cells, numbers=slice(1, None))


def _format_skill_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return EMPTY_CELL
    short = f" ({row['n']}/{row['n'] + row['n_null']})" if row["n_null"] else ""
    return _format_number(row["mean"]) + short


def show_failures(console: Console, results: Results) -> None:
    """Print the coverage and, for every kind of failure, the number of rows, the remedy and an example.

    Print nothing if no row failed.
    """
    if not results.n_null:
        return
    kinds = sorted(iterate_failure_kinds(results.failures), key=lambda first: (-first["rows"], first["kind"]))
    rows = [
        (first["kind"], str(first["rows"]), f"{first['rows'] / results.rows:.1%}",
         REMEDIES_BY_KIND.get(first["kind"], "act on its message"))
        for first in kinds
    ]  # fmt: skip
    names = ("kind", "rows", "share", "what to do")
    show_table(console, "rows without a score", names, rows, numbers=slice(1, 3))
    for first in kinds:
        say(console, f"{first['kind']}, such as {describe_row_ids(first, 'generator')}: {first['message']}")
    console.print(
        f"[yellow]coverage {results.coverage:.2%}[/]: {results.n_null} of {results.rows} rows have no score; "
        "errors.parquet lists them, docs/failures.md explains the kinds",
        soft_wrap=True,
    )


def show_usage(console: Console, usage: Mapping[str, Usage], costs: Mapping[str, Cost]) -> None:
    """Print the usage and cost of language models, and the cost of GPUs if a price per GPU hour is configured."""
    for node, used in usage.items():
        cached = f" ({used.cached_tokens / used.prompt_tokens:.0%} from the prefix cache)" if used.cached_tokens else ""
        cut = f", {used.cut} replies cut at max_tokens" if used.cut else ""
        say(
            console,
            f"{node}: {used.calls} calls, {used.prompt_tokens} tokens read{cached}, {used.new_tokens} written{cut}"
            f"{f', {costs[node]}' if node in costs else ''}",
        )
    for node, cost in costs.items():
        if node not in usage:
            say(console, f"{node}: {cost}")


def _format_number(value: float | None) -> str:
    return EMPTY_CELL if value is None else f"{value:.3f}"
