"""What people see: plans, progress, leaderboards and runs on the terminal."""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from operators.errors import REMEDIES
from operators.models.calls import Usage
from operators.stages.table import STAGES
from operators.summary import OVERALL
from pipelines.cells.plan import NodePlan, Plan
from pipelines.cells.results import Results, error_counts
from pipelines.cells.runs import Run
from pipelines.questions import WrittenQuestions
from pipelines.running.progress import NodeProgress
from pipelines.sweep import FinishedSweep, PlannedSweep

WIDTH_OF_A_LOG = 140
SECONDS_BETWEEN_LINES = 10.0
EMPTY = "-"


class JobConsole(Console):
    """A console whose reader may go away, which is an error like any other and no silent exit."""

    def on_broken_pipe(self) -> None:
        raise  # Rich calls this while it handles the BrokenPipeError


def make_console() -> Console:
    """The terminal, or where output goes to a file or a job's log, wide enough that no column is cut."""
    console = JobConsole(highlight=False)
    return console if console.is_terminal else JobConsole(highlight=False, width=WIDTH_OF_A_LOG)


def show_plan(console: Console, planned: PlannedSweep) -> None:
    """The cells per stage, and what computing the missing ones would ask of the models."""
    sources = planned.sources
    images = sum(shard.rows for shard in sources.image_shards)
    pairs = f" x {len(sources.generators)} generators = {images} images" if sources.generators else ""
    console.print(
        f"[bold]{escape(planned.config.benchmark.name)}[/]: {len(sources.prompts)} prompts{pairs}, "
        f"metrics {escape(', '.join(planned.config.metrics))}"
    )
    for name, metric in planned.config.metrics.items():
        if (description := metric.described()) is not None:
            console.print(f"{escape(name)}: {escape(description)}", soft_wrap=True)
    table = Table("stage", "cells", "cached", "missing", "rows", "model calls, about", title="plan")
    for column in table.columns[1:]:
        column.justify = "right"
    for item in planned.plan.nodes:
        if item.cells:
            table.add_row(escape(item.node.name), *_counts(item))
    console.print(table)
    for broken in sources.broken:
        console.print(f"[yellow]warning[/] {escape(broken.generator)}: {escape(broken.message)}", soft_wrap=True)
    if not planned.plan.missing:
        everything = "everything is in the store" if planned.plan.cells else "there is no image that can be read"
        console.print(f"0 cells to compute: {everything}")


def _counts(item: NodePlan) -> list[str]:
    calls = str(item.model_calls) if item.node.model is not None else "-"
    return [str(item.cells), str(item.cells - item.missing), str(item.missing), str(item.images), calls]


class ProgressDisplay:
    """One line per stage: cells done and total, images per second, time left, failed rows."""

    def __init__(self, console: Console, plan: Plan) -> None:
        self.console = console
        self.totals = {item.node.name: item.missing for item in plan.nodes if item.missing}
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("cells  {task.fields[rate]:>16}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[failed]} failed rows"),
            console=console,
            disable=not console.is_terminal,
        )
        self.tasks = {
            name: self.bars.add_task(escape(name), total=total, rate="-", failed=0)
            for name, total in self.totals.items()
        }
        self.last_line = time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def update(self, progress: Mapping[str, NodeProgress]) -> None:
        """Shows a snapshot; in a log, one line every ten seconds and one whenever a stage is complete.

        Where nothing can be shown any more the computing goes on, and the job's end says so.
        """
        with suppress(OSError):
            self._show(progress)

    def _show(self, progress: Mapping[str, NodeProgress]) -> None:
        done = []
        for name, state in progress.items():
            cells = min(state.cells, self.totals[name])
            if cells == self.totals[name] and self.bars.tasks[self.tasks[name]].completed < cells:
                done.append(name)
            self.bars.update(self.tasks[name], completed=cells, rate=_rate(name, state), failed=state.failed_rows)
        if not self.console.is_terminal:
            self._log(progress, done)

    def _log(self, progress: Mapping[str, NodeProgress], done: Sequence[str]) -> None:
        due = time.monotonic() - self.last_line > SECONDS_BETWEEN_LINES
        for name, state in progress.items():
            if name in done or (due and state.cells < self.totals[name]):
                self.console.print(
                    f"{name}: {state.cells}/{self.totals[name]} cells, {_rate(name, state)}, "
                    f"{self._time_left(name, state)} left, {state.failed_rows} failed rows"
                )
        if due:
            self.last_line = time.monotonic()

    def _time_left(self, name: str, state: NodeProgress) -> str:
        if not state.cells:
            return "?"
        seconds = state.seconds / state.cells * max(self.totals[name] - state.cells, 0)
        return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _rate(name: str, state: NodeProgress) -> str:
    unit = f"{STAGES[name.partition(':')[0]].over}/s"
    return f"{state.rows / state.seconds:.1f} {unit}" if state.seconds > 0 and state.rows else f"- {unit}"


def show_leaderboards(console: Console, finished: FinishedSweep) -> None:
    """Two tables per metric, overall and per skill, highest overall mean first, and where everything was written."""
    rows = finished.results.summary.to_pylist()
    for metric in dict.fromkeys(row["metric"] for row in rows):
        of_metric = [row for row in rows if row["metric"] == metric]
        console.print(_overall_board(metric, [row for row in of_metric if row["skill"] == OVERALL]))
        if any(row["skill"] != OVERALL for row in of_metric):
            console.print(_skill_board(metric, of_metric))
    show_failures(console, finished.results)
    show_usage(console, finished.usage)
    console.print(f"written to {escape(finished.folder)}/", soft_wrap=True)
    console.print("  scores.parquet, summary.parquet, errors.parquet, manifest.json")


def show_usage(console: Console, usage: Mapping[str, Usage]) -> None:
    """What the language models read and wrote; nothing where none was called."""
    for node, took in usage.items():
        cached = f" ({took.cached_tokens / took.prompt_tokens:.0%} from the prefix cache)" if took.cached_tokens else ""
        cut = f", {took.cut} replies cut at max_tokens" if took.cut else ""
        written = f"{took.new_tokens} written{cut}"
        console.print(f"{escape(node)}: {took.calls} calls, {took.prompt_tokens} tokens read{cached}, {written}")


def show_questions(console: Console, written: WrittenQuestions, store: str) -> None:
    """For every metric its questions: of how many prompts, how many were dropped, and the words they are about."""
    columns = (
        "metric",
        "prompts",
        "readable",
        "questions",
        "per prompt",
        "filtered",
        "doubted by NLI",
        "words covered",
    )
    table = Table(*columns, title="questions")
    _align_right(table, 1)
    for name, quality in written.quality.items():
        asked = quality.prompts - quality.failed
        table.add_row(
            escape(name),
            str(quality.prompts),
            _share(asked, quality.prompts),
            str(quality.questions),
            _number(quality.questions / asked if asked else None),
            str(quality.dropped),
            _share(quality.doubted, quality.questions),
            _share(quality.covered_words, quality.content_words),
        )
    console.print(table)
    for name, message in written.failed.items():
        console.print(f"[red]failed[/] {escape(name)}: {escape(message)}", soft_wrap=True)
    show_usage(console, written.usage)
    for name, paths in written.cells.items():
        console.print(f"{escape(name)}: {escape(store)}/{escape(paths[0].rpartition('/')[0])}/", soft_wrap=True)


def _share(part: int, whole: int) -> str:
    return f"{part} ({part / whole:.1%})" if whole else str(part)


def show_tables(console: Console, title: str, rows: Mapping[str, Mapping[str, str]]) -> None:
    """Rows of cells by column, as one table, or as several where the columns do not fit side by side."""
    left = list(dict.fromkeys(name for row in rows.values() for name in row))
    while left:
        shown = left[: _that_fit(left, rows, console.width)]
        left = left[len(shown) :]
        table = Table("", *(Column(escape(name), justify="right") for name in shown), title=escape(title))
        for name, row in rows.items():
            table.add_row(escape(name), *(escape(row[column]) for column in shown))
        console.print(table)


def _that_fit(columns: Sequence[str], rows: Mapping[str, Mapping[str, str]], width: int) -> int:
    """How many of the first columns a table of this width holds beside the rows' names; one at least."""
    used = max(map(len, rows)) + len("┃  ┃")
    for number, column in enumerate(columns):
        lines = [column, *(line for row in rows.values() for line in row[column].splitlines())]
        used += max(map(len, lines)) + len("  ┃")
        if used > width and number:
            return number
    return len(columns)


def show_failures(console: Console, results: Results) -> None:
    """The coverage, and for every kind of failure its rows, the remedy, and the message of one of them; nothing where
    none failed.
    """
    if not results.n_null:
        return
    table = Table("kind", "rows", "share", "what to do", title="rows without a score")
    _align_right(table, 1, 3)
    counts = list(error_counts(results.errors))
    for kind, count in counts:
        table.add_row(escape(kind), str(count), f"{count / results.rows:.1%}", REMEDIES.get(kind, "act on its message"))
    console.print(table)
    for kind, _ in counts:
        console.print(f"{escape(kind)}, such as {escape(_example(results.errors, kind))}", soft_wrap=True)
    console.print(
        f"[yellow]coverage {results.coverage:.2%}[/]: {results.n_null} of {results.rows} rows have no score; "
        "errors.parquet names each, docs/failures.md explains the kinds",
        soft_wrap=True,
    )


def _example(errors: pa.Table, kind: str) -> str:
    """The first row that failed so, its generator and its image or else its prompt, and its message."""
    index = pc.index(errors.column("kind"), kind).as_py()
    row = errors.slice(index, 1).to_pylist()[0]
    name = f"image {row['image_id']}" if row["image_id"] is not None else f"prompt {row['prompt_id']}"
    return f"{row['generator']}, {name}: {row['message']}"


def _overall_board(metric: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table("#", "generator", "mean", "95% interval", "n", "coverage", title=f"{escape(metric)}: overall")
    _align_right(table, 2)
    for row in rows:
        table.add_row(
            _rank(row, rows),
            escape(row["generator"]),
            _number(row["mean"]),
            _interval(row["low"], row["high"]),
            str(row["n"]),
            f"{row['coverage']:.1%}",
        )
    return table


def _rank(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> str:
    """The place of a mean, shared by equal ones; none without a mean."""
    if row["mean"] is None:
        return "-"
    return str(1 + sum(other["mean"] is not None and other["mean"] > row["mean"] for other in rows))


def _skill_board(metric: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """Generators by skills: the mean, and scored/expected where they differ; n is in the column's head."""
    skills = [skill for skill in dict.fromkeys(row["skill"] for row in rows) if skill != OVERALL]
    table = Table("generator", title=f"{escape(metric)}: mean per skill (n images per generator)")
    for skill in skills:
        expected = max(row["n"] + row["n_null"] for row in rows if row["skill"] == skill)
        table.add_column(f"{escape(skill)}\n({expected})")
    _align_right(table, 1)
    by_skill = {(row["generator"], row["skill"]): row for row in rows}
    for generator in [row["generator"] for row in rows if row["skill"] == OVERALL]:
        table.add_row(escape(generator), *(_skill_cell(by_skill.get((generator, skill))) for skill in skills))
    return table


def _align_right(table: Table, first: int, end: int | None = None) -> None:
    for column in table.columns[first:end]:
        column.justify = "right"
        column.overflow = "fold"


def _skill_cell(row: Mapping[str, Any] | None) -> str:
    if row is None:
        return "-"
    short = f" ({row['n']}/{row['n'] + row['n_null']})" if row["n_null"] else ""
    return _number(row["mean"]) + short


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _interval(low: float | None, high: float | None) -> str:
    return "-" if low is None or math.isnan(low) else f"{low:.3f} to {high:.3f}"


def show_runs(console: Console, runs: Sequence[Run]) -> None:
    """The runs with their coverage and their failures, newest last, and those that cannot be read with the reason."""
    if not runs:
        console.print("no runs yet; start one with: python -m jobs.sweep sweep=shapes")
        return
    table = Table(
        "run", "benchmark", "generators", "metrics", "computed", "cached", "failed", "coverage", "errors", "exit"
    )
    table.columns[0].no_wrap = True
    for run in runs:
        name = f"{escape(run.run_id)}{' (latest)' if run.latest else ''}"
        table.add_row(name, *(_run_cells(run.manifest) if run.manifest is not None else ["damaged"]))
    console.print(table)
    for run in runs:
        if run.problem:
            console.print(f"[yellow]warning[/] {escape(run.problem)}", soft_wrap=True)


def _run_cells(manifest: Mapping[str, Any]) -> list[str]:
    """A run's row but for its id; what an old manifest lacks is left out."""
    counts, coverage = manifest.get("counts", {}), manifest.get("counts", {}).get("coverage")
    return [
        escape(manifest.get("benchmark", EMPTY)),
        str(len(manifest.get("generators", ()))),
        escape(", ".join(manifest.get("metrics", ()))) or EMPTY,
        *(str(counts.get(f"cells_{state}", EMPTY)) for state in ("computed", "cached", "failed")),
        EMPTY if coverage is None else f"{coverage:.1%}",
        escape(", ".join(f"{count} {kind}" for kind, count in manifest.get("errors", {}).items())) or EMPTY,
        str(manifest.get("exit_code", EMPTY)),
    ]
