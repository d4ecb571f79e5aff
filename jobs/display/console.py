"""Prints lines, warnings and tables on the terminal; tables are never cut off at the terminal's width."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from rich.text import Text

from plumbline.operators.base.errors import replace_invisible
from plumbline.operators.base.sentences import Sentence

LOG_WIDTH = 140
EMPTY_CELL = "-"


class JobConsole(Console):
    """Console that raises BrokenPipeError if the reader of its output exits; Rich's console would exit silently."""

    def on_broken_pipe(self) -> None:  # the name is required by Rich
        raise  # Rich calls this while it handles the BrokenPipeError

    def render_str(self, text: str, **options: Any) -> Text:
        """Return text for printing, without characters that could hide or reorder other output."""
        return super().render_str(replace_invisible(text), **options)


def make_console(*, stderr: bool = False) -> Console:
    """Return a console for the terminal; for output to a file or a job's log, it is wide enough for all columns."""
    console = JobConsole(highlight=False, emoji=False, stderr=stderr)
    return console if console.is_terminal else JobConsole(highlight=False, emoji=False, stderr=stderr, width=LOG_WIDTH)


def say(console: Console, text: str) -> None:
    """Print a line without interpreting markup."""
    console.print(text, markup=False, soft_wrap=True)


def warn(console: Console, text: str) -> None:
    """Print a warning."""
    console.print(f"[yellow]warning[/] {escape(text)}", soft_wrap=True)


def show_sentence(console: Console, sentence: Sentence, indent: str = "") -> None:
    """Print a finding on one line, with its first words in bold."""
    console.print(f"{indent}[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}".rstrip(), soft_wrap=True)


def show_table(
    console: Console, title: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: slice = slice(0)
) -> None:
    """Print a table of strings, with the columns in `numbers` aligned to the right."""
    console.print(make_table(title, names, rows, numbers=numbers))


def make_table(title: str, names: Sequence[str], rows: Iterable[Sequence[str]], *, numbers: slice = slice(0)) -> Table:
    """Return the table that `show_table` prints."""
    table = Table(*map(escape, names), title=escape(title))
    table.columns[0].no_wrap = names[0] in ("run", "skill")  # so that a name can be copied as a whole
    for column in table.columns[numbers]:
        column.justify, column.overflow = "right", "fold"
    for row in rows:
        table.add_row(*map(escape, row))
    return table


def show_tables(
    console: Console, title: str, rows: Mapping[str, Mapping[str, str]], max_tables: int | None = None
) -> list[str]:
    """Print a table of cells by row and column name, split into at most `max_tables` tables if it is too wide.

    Return the names of the columns that are left out.
    """
    left = list(dict.fromkeys(name for row in rows.values() for name in row))
    while left and max_tables != 0:
        max_tables = None if max_tables is None else max_tables - 1
        used, count = max(map(len, rows)) + len("┃  ┃"), 0
        for column in left:  # a table has at least one column
            cells = [column, *(line for row in rows.values() for line in row[column].splitlines())]
            used += max(map(len, cells)) + len("  ┃")
            if used > console.width and count:
                break
            count += 1
        shown, left = left[:count], left[count:]
        table = Table("", *(Column(escape(name), justify="right") for name in shown), title=escape(title))
        for name, row in rows.items():
            table.add_row(escape(name), *(escape(row[column]) for column in shown))
        console.print(table)
    return left
