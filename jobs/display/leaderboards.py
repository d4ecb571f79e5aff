"""A finished sweep: leaderboards, failures, and what its language models read, wrote and cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.display.console import EMPTY, say, show_table, show_tables, warn
from plumbline.operators.base.errors import REMEDIES
from plumbline.operators.base.failures import kinds_of_failure, name_row
from plumbline.operators.base.sentences import NO_INTERVAL, WHY_NO_INTERVAL, interval_text
from plumbline.operators.base.usage import Usage
from plumbline.operators.diagnosis.question_quality import QuestionQuality
from plumbline.operators.results.summary import OVERALL
from plumbline.pipelines.cells.runs import read_manifest
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.costs import Cost
from plumbline.pipelines.report.report_record import read_report_record
from plumbline.pipelines.sweeps.planning import PlannedSweep, SweepInputs
from plumbline.pipelines.sweeps.questions import WrittenQuestions
from plumbline.pipelines.sweeps.results import Results
from plumbline.pipelines.sweeps.sweep import FinishedSweep


def show_leaderboards(console: Console, finished: FinishedSweep, store: Store, *, verbose: bool = False) -> None:
    """What failed and where everything was written; before it each metric's boards, where more is wanted.

    Of a run that stands already, whose report is not made again, the leaderboard of that report.
    """
    if verbose:
        _show_boards(console, finished)
    elif finished.unchanged:
        _show_means(console, finished, store)
    show_failures(console, finished.results)
    if finished.retried is not None:
        rows, succeeded = finished.retried
        say(console, f"retry_failed: {succeeded} of {rows} failed rows have a score now")
    show_usage(console, finished.usage, finished.costs)
    say(console, f"written to {finished.folder}/")
    console.print("  scores.parquet, summary.parquet, errors.parquet, manifest.json")


def show_note_kept(console: Console, sweep: SweepInputs | PlannedSweep, finished: FinishedSweep) -> None:
    """Where nothing was computed for a sweep with another note: that the run keeps the note it was made with."""
    note = sweep.config.note
    kept = read_manifest(sweep.store, finished.run_id).get("note", "") if finished.unchanged else note
    if note not in ("", kept):
        warn(console, f"note: run {finished.run_id} stands as it is and keeps its own note, {kept!r}, not {note!r}")


def _show_means(console: Console, finished: FinishedSweep, store: Store) -> None:
    """Show the leaderboard of a run's report; if an earlier version wrote the report, the means alone."""
    record = read_report_record(store, finished.run_id)
    if record is not None:
        show_tables(console, record.title, record.leaderboard)
        return
    cells: dict[str, dict[str, str]] = {}
    for row in finished.results.summary.to_pylist():
        if row["skill"] == OVERALL:
            cells.setdefault(row["generator"], {})[row["metric"]] = _number(row["mean"])
    metrics = dict.fromkeys(metric for row in cells.values() for metric in row)
    show_tables(
        console, "means", {name: {m: row.get(m, EMPTY) for m in metrics} for name, row in sorted(cells.items())}
    )


def _show_boards(console: Console, finished: FinishedSweep) -> None:
    """Two tables per metric, overall and per skill, best overall mean first."""
    rows = finished.results.summary.to_pylist()
    for metric in dict.fromkeys(row["metric"] for row in rows):
        of_metric = [row for row in rows if row["metric"] == metric]
        overall = [row for row in of_metric if row["skill"] == OVERALL]
        names = ("#", "generator", "mean", "95% interval", "n", "coverage")
        ranked = [_format_standing(row, overall) for row in overall]
        title = f"{metric}: overall{', lower is better' if metric in finished.falling else ''}"
        show_table(console, title, names, ranked, numbers=slice(2, None))
        if any(NO_INTERVAL in cells for cells in ranked):
            say(console, WHY_NO_INTERVAL)
        if len(of_metric) > len(overall):
            _show_skills(console, metric, of_metric)


def _format_standing(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a generator's row of a board that is sorted best first.

    Equal means share a place, and a generator without a mean has no place.
    """
    place = str(1 + [other["mean"] for other in rows].index(row["mean"])) if row["n"] else EMPTY
    interval = interval_text(row["low"], row["high"])
    return [place, row["generator"], _number(row["mean"]), interval, str(row["n"]), f"{row['coverage']:.1%}"]


def _show_skills(console: Console, metric: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Generators by skills: the mean, and scored/expected where they differ; n is in the column's head."""
    expected: dict[str, int] = {}
    for row in rows:
        if row["skill"] != OVERALL:
            expected[row["skill"]] = max(row["n"] + row["n_null"], expected.get(row["skill"], 0))
    by_place = {(row["generator"], row["skill"]): row for row in rows}
    generators = [row["generator"] for row in rows if row["skill"] == OVERALL]
    names = ["generator", *(f"{skill}\n({n})" for skill, n in expected.items())]
    cells = [[name, *(_skill_cell(by_place.get((name, skill))) for skill in expected)] for name in generators]
    show_table(console, f"{metric}: mean per skill (n images per generator)", names, cells, numbers=slice(1, None))


def _skill_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    short = f" ({row['n']}/{row['n'] + row['n_null']})" if row["n_null"] else ""
    return _number(row["mean"]) + short


def show_failures(console: Console, results: Results) -> None:
    """The coverage, and for every kind of failure its rows, the remedy, and the message of one of them; nothing where
    none failed.
    """
    if not results.n_null:
        return
    kinds = sorted(kinds_of_failure(results.failures), key=lambda first: (-first["rows"], first["kind"]))
    rows = [
        (first["kind"], str(first["rows"]), f"{first['rows'] / results.rows:.1%}",
         REMEDIES.get(first["kind"], "act on its message"))
        for first in kinds
    ]  # fmt: skip
    names = ("kind", "rows", "share", "what to do")
    show_table(console, "rows without a score", names, rows, numbers=slice(1, 3))
    for first in kinds:
        say(console, f"{first['kind']}, such as {_example(first)}")
    console.print(
        f"[yellow]coverage {results.coverage:.2%}[/]: {results.n_null} of {results.rows} rows have no score; "
        "errors.parquet names each, docs/failures.md explains the kinds",
        soft_wrap=True,
    )


def _example(row: Mapping[str, Any]) -> str:
    """A row that failed: its generator and its image or else its prompt, and its message."""
    return f"{name_row(row, 'generator')}: {row['message']}"


def show_usage(console: Console, usage: Mapping[str, Usage], costs: Mapping[str, Cost]) -> None:
    """What the language models read, wrote and cost, and what GPUs with a price did; nothing where none was used."""
    for node, took in usage.items():
        cached = f" ({took.cached_tokens / took.prompt_tokens:.0%} from the prefix cache)" if took.cached_tokens else ""
        cut = f", {took.cut} replies cut at max_tokens" if took.cut else ""
        say(
            console,
            f"{node}: {took.calls} calls, {took.prompt_tokens} tokens read{cached}, {took.new_tokens} written{cut}"
            f"{f', {costs[node]}' if node in costs else ''}",
        )
    for node, cost in costs.items():
        if node not in usage:
            say(console, f"{node}: {cost}")


def show_questions(console: Console, written: WrittenQuestions, store: str) -> None:
    """For every metric its questions: of how many prompts, how many were dropped, and the words they are about."""
    names = ("metric", "prompts", "readable", "questions", "per prompt", "filtered", "doubted by NLI", "words covered")
    rows = [_quality_row(name, quality) for name, quality in written.quality.items()]
    show_table(console, "questions", names, rows, numbers=slice(1, None))
    for name, message in written.failed.items():
        console.print(f"[red]failed[/] {escape(name)}: {escape(message)}", soft_wrap=True)
    show_usage(console, written.usage, written.costs)
    for name, paths in written.cells.items():
        say(console, f"{name}: {store}/{paths[0].rpartition('/')[0]}/")


def _quality_row(name: str, quality: QuestionQuality) -> list[str]:
    asked = quality.prompts - quality.failed
    return [
        name,
        str(quality.prompts),
        _share(asked, quality.prompts),
        str(quality.questions),
        _number(quality.questions / asked if asked else None),
        str(quality.dropped),
        _share(quality.doubted, quality.questions),
        _share(quality.covered_words, quality.content_words),
    ]


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else str(part)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
