"""Tells which prompts and pictures of a benchmark stand in a training set, and a run's leaderboards without them."""

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.operators.base.sentences import number, plural, signed
from plumbline.operators.report.marked_words import cut
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.cells.store import open_store
from plumbline.plugins.benchmark_builder.leaking import Board, FoundLeaks, LeaksConfig, find_leaks
from plumbline.plugins.benchmark_builder.leaks import KINDS, PICTURES, TEXTS, Kind, Match, Share, Sought

COMMAND = Command(
    "leaks",
    "Tell which prompts of a benchmark stand in a training set's captions, which of its pictures among its images,\n"
    "how many of each skill, and what the leaderboards of a run are without them.",
    LeaksConfig,
    first="captions",
)
MOST_EXAMPLES = 8
MOST_SKILLS = 24
MOST_CHARACTERS = 120
"""Of a text that is shown."""


def main(config: LeaksConfig) -> int:
    """Looks for the prompts and their pictures and shows what was found."""
    console = make_console()
    store = open_store(config)
    found = find_leaks(store, config)
    for looked in found.looked:
        _warn_of(console, looked.rejections, looked.n_rejected, "row", "of the training set could not be read")
    _warn_of(console, found.unread, len(found.unread), "picture", "of the benchmark cannot be compared")
    _show_shares(console, found, [*config.wanted(TEXTS), *config.wanted(PICTURES)])
    if found.picture_shares:
        columns = ("generator", "pictures", "leaked", "share")
        cells = [_counts(share) for share in found.picture_shares]
        show_table(console, "Pictures in the training set", columns, cells, numbers=slice(1, None))
    _show_examples(console, found)
    for board in found.boards:
        _show_board(console, board)
    if found.no_boards:
        say(console, found.no_boards)
    say(console, f"written to {store.place / found.folder}/")
    return 0


def _warn_of(console: Console, rejections: Sequence[Rejection], count: int, what: str, problem: str) -> None:
    for rejection in rejections[:MOST_EXAMPLES]:
        warn(console, f"{rejection.file}{f', line {rejection.line}' if rejection.line else ''}: {rejection.message}")
    if count:
        warn(console, f"{plural(count, what)} {problem}")


def _show_shares(console: Console, found: FoundLeaks, kinds: Sequence[Kind]) -> None:
    whole, *_ = found.shares
    sets = [f"{plural(each.found.matches.looked, each.what)} of {plural(each.files, 'file')}" for each in found.looked]
    prompts = plural(whole.total, "prompt")
    say(console, f"{whole.leaked} of {prompts} ({whole.leaked / whole.total:.1%}) stand in {' and '.join(sets)}")
    cells = [
        [*_counts(share), *(str(share.by_kind.get(kind, 0)) for kind in kinds)] for share in found.shares[:MOST_SKILLS]
    ]
    columns = ("skill", "prompts", "leaked", "share", *kinds)
    show_table(console, "Leaked prompts by skill", columns, cells, numbers=slice(1, None))


def _counts(share: Share) -> list[str]:
    return [share.name, str(share.total), str(share.leaked), f"{share.leaked / share.total:.1%}"]


def _show_examples(console: Console, found: FoundLeaks) -> None:
    """The first leaks, with the surest training row of each."""
    for looked in found.looked:
        columns, row = EXAMPLES[looked.what]
        cells = [row(sought, match) for _, sought, (match, *_) in islice(looked.found.by_place(), MOST_EXAMPLES)]
        if cells:
            show_table(console, f"The first found in {looked.what}s", columns, cells)


def _by_caption(sought: Sought, match: Match) -> list[str]:
    texts = (cut(text, MOST_CHARACTERS) for text in (sought.prompt, match.text))
    return [sought.prompt_id, KINDS[match.kind], number(1 - match.unlike, 2), *texts, f"{match.file}, {match.row}"]


def _by_image(sought: Sought, match: Match) -> list[str]:
    name = KINDS[match.kind] if sought.image_id is None else f"{sought.image_id} of {sought.generator}"
    prompt, alike = cut(sought.prompt, MOST_CHARACTERS), number(1 - match.unlike, 2)
    return [sought.prompt_id, prompt, name, alike, match.text, f"{match.file}, {match.row}"]


EXAMPLES: Mapping[str, tuple[Sequence[str], Callable[[Sought, Match], list[str]]]] = {
    "caption": (("prompt_id", "kind", "similarity", "prompt", "caption", "where"), _by_caption),
    "image": (("prompt_id", "prompt", "picture", "similarity", "training image", "where"), _by_image),
}
"""By what was looked through, the columns of its examples and a row of theirs."""


def _show_board(console: Console, board: Board) -> None:
    cells = [[name, number(whole), number(rest), signed(rest - whole)] for name, whole, rest in board.means]
    columns = ("generator", "all prompts", "without the leaked", "difference")
    show_table(console, f"Mean {board.metric}", columns, cells, numbers=slice(1, None))
    for sentence in board.sentences:
        console.print(f"[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
