"""Tells which prompts of a benchmark stand in a training set, and a run's leaderboards without them."""

import sys

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.operators.new_benchmarks.leaks import KINDS
from plumbline.operators.report.marked_words import cut
from plumbline.operators.sentences import number, plural, signed
from plumbline.pipelines.cells.store import open_store
from plumbline.pipelines.new_benchmarks.leaking import Board, FoundLeaks, LeaksConfig, find_leaks

COMMAND = Command(
    "leaks",
    "Tell which prompts of a benchmark stand in a training set's captions, how many of each skill, and what the\n"
    "leaderboards of a run are without them.",
    LeaksConfig,
    first="captions",
)
MOST_EXAMPLES = 8
MOST_SKILLS = 24
MOST_CHARACTERS = 120
"""Of a text that is shown."""


def main(config: LeaksConfig) -> int:
    """Looks for the prompts and shows what was found."""
    console = make_console()
    store = open_store(config)
    found = find_leaks(store, config)
    for rejection in found.rejections[:MOST_EXAMPLES]:
        warn(console, f"{rejection.file}{f', line {rejection.line}' if rejection.line else ''}: {rejection.message}")
    if found.n_rejected:
        warn(console, f"{plural(found.n_rejected, 'row')} of the training set could not be read")
    _show_shares(console, found)
    _show_examples(console, found)
    for board in found.boards:
        _show_board(console, board)
    if found.no_boards:
        say(console, found.no_boards)
    say(console, f"written to {store.place / found.folder}/")
    return 0


def _show_shares(console: Console, found: FoundLeaks) -> None:
    whole, *_ = found.shares
    say(
        console,
        f"{whole.leaked} of {plural(whole.prompts, 'prompt')} ({whole.leaked / whole.prompts:.1%}) stand in "
        f"{plural(found.matches.captions, 'caption')} of {plural(found.files, 'file')}",
    )
    cells = [
        [one.skill, str(one.prompts), str(one.leaked), f"{one.leaked / one.prompts:.1%}",
         *(str(one.by_kind.get(kind, 0)) for kind in KINDS)]
        for one in found.shares[:MOST_SKILLS]
    ]  # fmt: skip
    columns = ("skill", "prompts", "leaked", "share", *KINDS)
    show_table(console, "Leaked prompts by skill", columns, cells, numbers=slice(1, None))


def _show_examples(console: Console, found: FoundLeaks) -> None:
    examples = {row["prompt_id"]: row for row in reversed(found.leaks.to_pylist())}
    cells = [
        [*(row[name] for name in ("prompt_id", "kind")), number(row["similarity"], 2),
         *(cut(row[name], MOST_CHARACTERS) for name in ("prompt", "text")), f"{row['file']}, {row['row']}"]
        for row in list(reversed(examples.values()))[:MOST_EXAMPLES]
    ]  # fmt: skip
    if cells:
        columns = ("prompt_id", "kind", "similarity", "prompt", "caption", "where")
        show_table(console, "The first of them", columns, cells)


def _show_board(console: Console, board: Board) -> None:
    cells = [[name, number(whole), number(rest), signed(rest - whole)] for name, whole, rest in board.means]
    columns = ("generator", "all prompts", "without the leaked", "difference")
    show_table(console, f"Mean {board.metric}", columns, cells, numbers=slice(1, None))
    for sentence in board.sentences:
        console.print(f"[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
