"""The terminal: a line, a warning, a table that no width cuts."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from plumbline.operators.base.errors import printable
from plumbline.operators.base.sentences import Sentence

WIDTH_OF_A_LOG = 140
EMPTY = "-"


class JobConsole(Console):
    """A console whose reader may go away, which is an error like any other and no silent exit."""

    def on_broken_pipe(self) -> None:
        raise  # Rich calls this while it handles the BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a text as it is printed, without characters that could hide or turn round what else is printed."""
        return super().render_str(printable(text), **options)


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


def show_sentence(console: Console, sentence: Sentence, indent: str = "") -> None:
    """Print a finding on a line, its first words bold."""
    console.print(f"{indent}[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}".rstrip(), soft_wrap=True)


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


def show_tables(
    console: Console, title: str, rows: Mapping[str, Mapping[str, str]], most: int | None = None
) -> list[str]:
    """Print rows of cells by column, as one table, or as several if the columns do not fit side by side.

    Return the columns that are left out because there are `most` tables already.
    """
    left = list(dict.fromkeys(name for row in rows.values() for name in row))
    while left and most != 0:
        most = None if most is None else most - 1
        shown = left[: _that_fit(left, rows, console.width)]
        left = left[len(shown) :]
        table = Table("", *(Column(escape(name), justify="right") for name in shown), title=escape(title))
        for name, row in rows.items():
            table.add_row(escape(name), *(escape(row[column]) for column in shown))
        console.print(table)
    return left


def _that_fit(columns: Sequence[str], rows: Mapping[str, Mapping[str, str]], width: int) -> int:
    """How many of the first columns a table of this width holds beside the rows' names; one at least."""
    used = max(map(len, rows)) + len("┃  ┃")
    for number, column in enumerate(columns):
        lines = [column, *(line for row in rows.values() for line in row[column].splitlines())]
        used += max(map(len, lines)) + len("  ┃")
        if used > width and number:
            return number
    return len(columns)
