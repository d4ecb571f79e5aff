"""Finds a benchmark's prompts and images in a training set, and shows a run's leaderboards without leaked prompts."""

import sys
from collections.abc import Callable, Mapping, Sequence
from itertools import islice

from rich.console import Console
from rich.markup import escape

from plumbline.jobs.command import Command, run_job
from plumbline.jobs.display.console import make_console, say, show_table, warn
from plumbline.operators.base.sentences import format_number, format_quantity, format_signed
from plumbline.operators.report.marked_words import shorten
from plumbline.pipelines.base.tables import Rejection
from plumbline.pipelines.store.store import open_store
from plumbline.plugins.benchmark_builder.leaking import FoundLeaks, LeaderboardWithoutLeaks, LeaksConfig, find_leaks
from plumbline.plugins.benchmark_builder.leaks import (
    IMAGE_MATCH_KINDS,
    MATCH_KINDS,
    TEXT_MATCH_KINDS,
    LeakCount,
    LeakMatch,
    LeakTarget,
    MatchKind,
)

COMMAND = Command(
    "leaks",
    "Find a benchmark's prompts in the captions of a training set, and its images among the training images; count\n"
    "the leaks by skill, and show a run's leaderboards without them.",
    LeaksConfig,
    first="captions",
)
MAX_SHOWN_EXAMPLES = 8
MAX_SHOWN_SKILLS = 24
MAX_SHOWN_CHARACTERS = 120
"""Maximum number of characters of a displayed text."""


def main(config: LeaksConfig) -> int:
    """Search the training set for the prompts and images; show the leaks and the folder of the results. Return 0."""
    console = make_console()
    store = open_store(config)
    found = find_leaks(store, config)
    for scan in found.scanned:
        _warn_about_rejections(
            console, scan.rejections, scan.n_rejected, "row", "of the training set could not be read"
        )
    _warn_about_rejections(console, found.unread, len(found.unread), "image", "of the benchmark cannot be compared")
    _show_leak_counts(console, found, [*config.select_kinds(TEXT_MATCH_KINDS), *config.select_kinds(IMAGE_MATCH_KINDS)])
    if found.image_shares:
        columns = ("generator", "images", "leaked", "share")
        cells = [_list_counts(share) for share in found.image_shares]
        show_table(console, "Images in the training set", columns, cells, numbers=slice(1, None))
    _show_examples(console, found)
    for board in found.boards:
        _show_leaderboard(console, board)
    if found.no_boards:
        say(console, found.no_boards)
    say(console, f"written to {store.place / found.folder}/")
    return 0


def _warn_about_rejections(
    console: Console, rejections: Sequence[Rejection], count: int, what: str, problem: str
) -> None:
    for rejection in rejections[:MAX_SHOWN_EXAMPLES]:
        warn(console, f"{rejection.file}{f', line {rejection.line}' if rejection.line else ''}: {rejection.message}")
    if count:
        warn(console, f"{format_quantity(count, what)} {problem}")


def _show_leak_counts(console: Console, found: FoundLeaks, kinds: Sequence[MatchKind]) -> None:
    whole, *_ = found.shares
    sets = [
        f"{format_quantity(scan.result.matches.scanned, scan.what)} of {format_quantity(scan.files, 'file')}"
        for scan in found.scanned
    ]
    prompts = format_quantity(whole.total, "prompt")
    say(console, f"{whole.leaked} of {prompts} ({whole.leaked / whole.total:.1%}) were found in {' and '.join(sets)}")
    cells = [
        [*_list_counts(share), *(str(share.by_kind.get(kind, 0)) for kind in kinds)]
        for share in found.shares[:MAX_SHOWN_SKILLS]
    ]
    columns = ("skill", "prompts", "leaked", "share", *kinds)
    show_table(console, "Leaked prompts by skill", columns, cells, numbers=slice(1, None))


def _list_counts(share: LeakCount) -> list[str]:
    return [share.name, str(share.total), str(share.leaked), f"{share.leaked / share.total:.1%}"]


def _show_examples(console: Console, found: FoundLeaks) -> None:
    for scan in found.scanned:
        columns, make_row = EXAMPLE_TABLES[scan.what]
        cells = [
            make_row(target, match)
            for _, target, (match, *_) in islice(scan.result.list_leaked_targets(), MAX_SHOWN_EXAMPLES)
        ]
        if cells:
            show_table(console, f"First leaks found in {scan.what}s", columns, cells)


def _make_caption_row(target: LeakTarget, match: LeakMatch) -> list[str]:
    texts = (shorten(text, MAX_SHOWN_CHARACTERS) for text in (target.prompt, match.text))
    return [
        target.prompt_id,
        MATCH_KINDS[match.kind],
        format_number(1 - match.distance, 2),
        *texts,
        f"{match.file}, {match.row}",
    ]


def _make_image_row(target: LeakTarget, match: LeakMatch) -> list[str]:
    name = MATCH_KINDS[match.kind] if target.image_id is None else f"{target.image_id} of {target.generator}"
    prompt, similarity = shorten(target.prompt, MAX_SHOWN_CHARACTERS), format_number(1 - match.distance, 2)
    return [target.prompt_id, prompt, name, similarity, match.text, f"{match.file}, {match.row}"]


EXAMPLE_TABLES: Mapping[str, tuple[Sequence[str], Callable[[LeakTarget, LeakMatch], list[str]]]] = {
    "caption": (("prompt_id", "kind", "similarity", "prompt", "caption", "where"), _make_caption_row),
    "image": (("prompt_id", "prompt", "image", "similarity", "training image", "where"), _make_image_row),
}
"""Column names of the table of examples, and the function that makes one of its rows, by `caption` or `image`."""


def _show_leaderboard(console: Console, board: LeaderboardWithoutLeaks) -> None:
    cells = [
        [name, format_number(whole), format_number(rest), format_signed(rest - whole)]
        for name, whole, rest in board.means
    ]
    columns = ("generator", "all prompts", "without the leaked", "difference")
    show_table(console, f"Mean {board.metric}", columns, cells, numbers=slice(1, None))
    for sentence in board.sentences:
        console.print(f"[bold]{escape(sentence.lead)}[/] {escape(sentence.rest)}", soft_wrap=True)


if __name__ == "__main__":
    sys.exit(run_job(COMMAND, main))
