"""What people see: plans, progress, leaderboards and runs on the terminal."""

import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from rich.console import Console
from rich.markup import escape
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Column, Table
from rich.text import Text

from plumbline.operators.errors import REMEDIES
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.calls import Usage
from plumbline.operators.models.families.vlm import ChatModel
from plumbline.operators.models.model import ModelConfig
from plumbline.operators.question_quality import QuestionQuality
from plumbline.operators.stages.table import STAGES
from plumbline.operators.summary import OVERALL, part_of
from plumbline.operators.words import plural
from plumbline.pipelines.cells.runs import Run, read_manifest
from plumbline.pipelines.plans.costs import Cost, estimates, unpriced
from plumbline.pipelines.plans.plan import NodePlan, Plan
from plumbline.pipelines.running.events import Event, NodeProgress, Totals
from plumbline.pipelines.sweeps.planning import PlannedSweep
from plumbline.pipelines.sweeps.questions import WrittenQuestions
from plumbline.pipelines.sweeps.results import Results, error_counts
from plumbline.pipelines.sweeps.sweep import FinishedSweep

WIDTH_OF_A_LOG = 140
LINE_INTERVAL = 10.0
BAR = 20
"""Characters."""
EMPTY = "-"
NO_MODEL = "none"
"""The calls of a stage that has no model: questions by a template, scores by arithmetic."""
MAX_PROBLEMS = 10
"""How many unreadable rows of a question pack are listed."""


class JobConsole(Console):
    """A console whose reader may go away, which is an error like any other and no silent exit."""

    def on_broken_pipe(self) -> None:
        raise  # Rich calls this while it handles the BrokenPipeError


def make_console(*, stderr: bool = False) -> Console:
    """The terminal, or where output goes to a file or a job's log, wide enough that no column is cut."""
    console = JobConsole(highlight=False, stderr=stderr)
    return console if console.is_terminal else JobConsole(highlight=False, stderr=stderr, width=WIDTH_OF_A_LOG)


def say(console: Console, text: str) -> None:
    """A line as it is."""
    console.print(text, markup=False, soft_wrap=True)


def warn(console: Console, text: str) -> None:
    """A line to look at before believing the rest."""
    console.print(f"[yellow]warning[/] {escape(text)}", soft_wrap=True)


def show_table(
    console: Console, title: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: slice = slice(0)
) -> None:
    """A table of text, of which the columns of `numbers` stand to the right."""
    console.print(text_table(title, names, rows, numbers=numbers))


def text_table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: slice = slice(0)) -> Table:
    """As `show_table` shows it."""
    table = Table(*map(escape, names), title=escape(title))
    table.columns[0].no_wrap = names[0] in ("run", "skill")  # a name is copied whole
    for column in table.columns[numbers]:
        column.justify, column.overflow = "right", "fold"
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def _penalty(metric: Metric, models: Mapping[str, ModelConfig]) -> str:
    """What is told where tokens of the prompt are punished in its answers."""
    chats = [model for role in metric.roles.values() if isinstance(model := models.get(role), ChatModel)]
    punished = any(model.repetition_penalty == "released" for model in chats)
    return ", with its checkpoint's repetition penalty" if punished else ""


def show_plan(console: Console, planned: PlannedSweep) -> None:
    """The cells per stage, and what computing the missing ones would ask of the models."""
    sources = planned.sources
    images = sum(shard.rows for shard in sources.image_shards)
    pairs = f" x {len(sources.generators)} generators = {images} images" if sources.generators else ""
    whole = f" of {sources.whole.prompts}" if sources.whole is not None else ""
    console.print(
        f"[bold]{escape(planned.config.benchmark.name)}[/]: {len(sources.prompts)}{whole} prompts{pairs}, "
        f"metrics {escape(', '.join(planned.config.metrics))}"
    )
    for line in sources.told:
        say(console, line)
    for name, metric in planned.config.metrics.items():
        if (description := metric.described()) is not None:
            say(console, f"{name}: {description}{_penalty(metric, planned.config.models)}")
    names = ("stage", "cells", "cached", "missing", "rows", "model calls, about")
    rows = [_plan_row(node) for node in planned.plan.nodes if node.cells]
    show_table(console, "plan", names, rows, numbers=slice(1, None))
    _show_costs(console, planned)
    for broken in sources.broken:
        warn(console, f"{broken.generator}: {broken.message}")
    if sources.strangers.images:
        strangers, example = f"{sources.strangers.images} of {images} images", repr(sources.strangers.prompt_id)
        warn(
            console,
            f"{strangers} are of prompts that benchmark.prompts does not have, such as {example}, and fail by "
            "every metric that reads it; benchmark.require_every_image=false leaves them out",
        )
    for problem in sources.pack_problems[:MAX_PROBLEMS]:
        warn(console, problem)
    if len(sources.pack_problems) > MAX_PROBLEMS:
        others = len(sources.pack_problems) - MAX_PROBLEMS
        warn(console, f"{others} other rows of benchmark.questions; log.format=text tells of all")
    if planned.config.retry_failed:
        _show_retry(console, planned.plan)
    if planned.plan.missing:
        say(console, f"runs {planned.executor.place}")
    elif not planned.config.retry_failed:
        everything = "everything is in the store" if planned.plan.cells else "there is no image that can be read"
        console.print(f"0 cells to compute: {everything}")


def _show_costs(console: Console, planned: PlannedSweep) -> None:
    """What services will cost, about, and which of them nobody has said the prices of."""
    for node, calls, read, written, cost, run_id in estimates(planned.plan, planned.store):
        basis = "as the model's prices take it" if run_id is None else f"as in run {run_id}"
        each = f"{read:.0f} tokens read and {written:.0f} written each, {basis}"
        say(console, f"{node}: about {cost} for {calls} calls of a service, {each}")
    for node, calls in unpriced(planned.plan):
        role = node.split(":")[1]
        say(console, f"{node}: {calls} calls of a service; models.{role}.prices would tell their cost (docs/models.md)")


def _show_retry(console: Console, plan: Plan) -> None:
    """The failed rows that are tried again, and what such a sweep leaves alone."""
    rows = sum(failed.retryable for failed in plan.failed.values())
    say(console, f"retry_failed: {rows} failed rows of {len(plan.failed)} cells are tried again")
    if plan.left:
        warn(console, f"{len(plan.left)} cells that were never tried are left alone; run without retry_failed for them")


def _plan_row(planned: NodePlan) -> list[str]:
    counts = (planned.cells, planned.cells - planned.missing, planned.missing, planned.images)
    calls = NO_MODEL if planned.node.model is None else str(planned.model_calls)
    return [planned.node.name, *map(str, counts), calls]


class ProgressDisplay:
    """One line per stage that is reported: cells done and total, rows per second, time left, model calls so far,
    failed rows.
    """

    def __init__(self, console: Console) -> None:
        self.console = console
        self.bars = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=BAR),
            MofNCompleteColumn(),
            TextColumn("cells  {task.fields[rate]:>16}"),
            TimeRemainingColumn(compact=True),
            TextColumn("{task.fields[calls]}{task.fields[failed]} failed rows"),
            console=console,
            disable=not console.is_terminal,
        )
        self.totals = Totals()
        self.tasks: dict[str, TaskID] = {}
        self.last_line = time.monotonic()

    def __enter__(self) -> "ProgressDisplay":
        self.bars.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bars.stop()

    def update(self, event: Event) -> None:
        """Shows what an event changes; in a log, a line every ten seconds and one when a stage is complete."""
        self.totals.add(event)
        is_done = self._advance(event.node, self.totals.nodes[event.node])
        if not self.console.is_terminal:
            self._log(event.node if is_done else None)

    def _advance(self, name: str, state: NodeProgress) -> bool:
        """Draws a stage's bar; whether that stage is complete, and was not before."""
        fields: dict[str, Any] = {"rate": _rate(name, state), "calls": _calls(state), "failed": state.failed_rows}
        if name not in self.tasks:
            self.tasks[name] = self.bars.add_task(escape(name), total=state.missing, **fields)
        before = self.bars.tasks[self.tasks[name]].completed
        self.bars.update(self.tasks[name], total=state.missing, completed=state.cells, **fields)
        return before < state.cells == state.missing

    def _log(self, done: str | None) -> None:
        due = time.monotonic() - self.last_line > LINE_INTERVAL
        for name, state in self.totals.nodes.items():
            is_working = (state.cells or state.calls) and state.cells < state.missing
            if name == done or (due and is_working):
                self.console.print(
                    f"{name}: {state.cells}/{state.missing} cells, {_rate(name, state)}, "
                    f"{_time_left(state)} left, {_calls(state)}{state.failed_rows} failed rows"
                )
        if due:
            self.last_line = time.monotonic()


def _calls(state: NodeProgress) -> str:
    """The calls of its models that have been answered, for cells at work too, beside what the plan expects."""
    return f"{state.calls} of about {state.expected_calls} calls, " if state.expected_calls and state.calls else ""


def _time_left(state: NodeProgress) -> str:
    if not state.cells:
        return "?"
    seconds = state.seconds / state.cells * (state.missing - state.cells)
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def _rate(name: str, state: NodeProgress) -> str:
    unit = f"{STAGES[name.partition(':')[0]].over}/s"
    return f"{state.rows / state.seconds:.1f} {unit}" if state.seconds > 0 and state.rows else f"- {unit}"


def show_leaderboards(console: Console, finished: FinishedSweep, *, verbose: bool = False) -> None:
    """What failed and where everything was written; before it each metric's boards, where more is wanted.

    Of a run that stands already, whose report is not made again, all means.
    """
    if verbose:
        _show_boards(console, finished)
    elif finished.unchanged:
        _show_means(console, finished)
    show_failures(console, finished.results)
    if finished.retried is not None:
        rows, succeeded = finished.retried
        say(console, f"retry_failed: {succeeded} of {rows} failed rows have a score now")
    show_usage(console, finished.usage, finished.costs)
    say(console, f"written to {finished.folder}/")
    console.print("  scores.parquet, summary.parquet, errors.parquet, manifest.json")


def show_note_kept(console: Console, planned: PlannedSweep, finished: FinishedSweep) -> None:
    """Where nothing was computed for a sweep with another note: that the run keeps the note it was made with."""
    note = planned.config.note
    kept = read_manifest(planned.store, finished.run_id).get("note", "") if finished.unchanged else note
    if note not in ("", kept):
        warn(console, f"note: run {finished.run_id} stands as it is and keeps its own note, {kept!r}, not {note!r}")


def _show_means(console: Console, finished: FinishedSweep) -> None:
    """Every generator's mean by every metric."""
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
        ranked = [_standing(row, overall) for row in overall]
        title = f"{metric}: overall{', lower is better' if metric in finished.falling else ''}"
        show_table(console, title, names, ranked, numbers=slice(2, None))
        if len(of_metric) > len(overall):
            _show_skills(console, metric, of_metric)


def show_usage(console: Console, usage: Mapping[str, Usage], costs: Mapping[str, Cost]) -> None:
    """What the language models read, wrote and cost; nothing where none was called."""
    for node, took in usage.items():
        cached = f" ({took.cached_tokens / took.prompt_tokens:.0%} from the prefix cache)" if took.cached_tokens else ""
        cut = f", {took.cut} replies cut at max_tokens" if took.cut else ""
        say(
            console,
            f"{node}: {took.calls} calls, {took.prompt_tokens} tokens read{cached}, {took.new_tokens} written{cut}"
            f"{f', {costs[node]}' if node in costs else ''}",
        )


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
    counts = list(error_counts(results.errors))
    rows = [
        (kind, str(count), f"{count / results.rows:.1%}", REMEDIES.get(kind, "act on its message"))
        for kind, count in counts
    ]
    names = ("kind", "rows", "share", "what to do")
    show_table(console, "rows without a score", names, rows, numbers=slice(1, 3))
    for kind, _ in counts:
        say(console, f"{kind}, such as {_example(results.errors, kind)}")
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


def _standing(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A generator's row of the board, whose rows are the best first: equal means share a place, and without a mean
    there is none.
    """
    place = str(1 + [other["mean"] for other in rows].index(row["mean"])) if row["n"] else EMPTY
    interval = EMPTY if row["low"] is None or math.isnan(row["low"]) else f"{row['low']:.3f} to {row['high']:.3f}"
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


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def show_runs(console: Console, runs: Sequence[Run]) -> None:
    """The runs with their coverage and their failures, newest last, and those that cannot be read with the reason.

    Each is a few lines, which a narrow terminal breaks between words.
    """
    if not runs:
        console.print("no runs yet; start one with: python -m jobs.sweep sweep=shapes")
        return
    for run in runs:
        name = f"[bold]{escape(run.run_id)}[/]{' (latest)' if run.latest else ''}"
        if run.manifest is None:
            console.print(f"{name}: damaged", soft_wrap=True)
            continue
        console.print(f"{name}: {escape(_run_outcome(run.manifest))}")
        for line in _run_lines(run.manifest):
            console.print(Padding(Text(line), (0, 0, 0, 2)))
    for run in runs:
        if run.problem:
            warn(console, run.problem)


def _run_outcome(manifest: Mapping[str, Any]) -> str:
    """Of what a run is and how it ended; what an old manifest lacks is left out."""
    part, coverage = part_of(manifest), manifest.get("counts", {}).get("coverage")
    return ", ".join(
        [
            f"{manifest.get('benchmark', EMPTY)}{f' ({part})' if part else ''}",
            *([] if coverage is None else [f"coverage {coverage:.1%}"]),
            f"exit {manifest.get('exit_code', EMPTY)}",
        ]
    )


def _run_lines(manifest: Mapping[str, Any]) -> Iterator[str]:
    """What was noted of a run, what it scored, what it computed, and what failed."""
    counts, generators = manifest.get("counts", {}), len(manifest.get("generators", ()))
    if note := manifest.get("note"):
        yield f"note: {note}"
    metrics = ", ".join(manifest.get("metrics", ())) or EMPTY
    yield f"{plural(generators, 'generator')} by {metrics}"
    states = ("computed", "cached", "failed")
    yield "cells: " + ", ".join(f"{counts.get(f'cells_{state}', EMPTY)} {state}" for state in states)
    if errors := manifest.get("errors", {}):
        yield f"errors: {', '.join(f'{count} {kind}' for kind, count in errors.items())}"
