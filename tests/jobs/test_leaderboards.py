"""The terminal shows why rows failed, with full messages, and ranks only generators that have a score."""

import io
import re
from collections.abc import Collection
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from plumbline.jobs.display.leaderboards import show_failures, show_leaderboards
from plumbline.operators.base import rows, schemas
from plumbline.operators.base.failures import count_failures
from plumbline.operators.results.summary import sort_best_first
from tests.commands import run
from tests.operators.tallied import summarise


def make_results(*failed: dict[str, Any]) -> Any:
    """Return a stand-in for a run's results: two generators with equal scores for one prompt, and the failed rows."""
    scored = [{"generator": name, "metric": "m", "prompt_id": "p", "score": 0.5} for name in ("atlas", "cobalt")]
    lost = [{"generator": row["generator"], "metric": "m", "prompt_id": "p", "score": None} for row in failed]
    scores = rows.table([*scored, *lost], schemas.SCORES)
    return SimpleNamespace(
        summary=summarise(scores, {}),
        failures=count_failures(rows.table(list(failed), schemas.ERRORS)),
        rows=len(scores),
        n_null=len(failed),
        coverage=1 - len(failed) / len(scores),
    )


def make_failure(kind: str, message: str) -> dict[str, Any]:
    return {"generator": "drift", "image_id": "7", "metric": "m", "kind": kind, "message": message}


def render(show: Any, *arguments: Any) -> str:
    stream = io.StringIO()
    show(Console(file=stream, width=140, highlight=False), *arguments)
    return stream.getvalue()


NO_STORE: Any = None
"""Value in place of a store, which the leaderboards of a newly computed run do not need."""


def print_boards(console: Console, finished: Any) -> None:
    show_leaderboards(console, finished, NO_STORE, verbose=True)


def make_finished_sweep(results: Any, lower_is_better: Collection[str] = ()) -> Any:
    return SimpleNamespace(
        results=results, lower_is_better=lower_is_better, retried=None, usage={}, costs={}, folder="runs/r"
    )


def parse_ranks(output: str) -> list[tuple[str, str]]:
    """Return (rank, generator) for each row of a printed leaderboard."""
    return re.findall(r"│ (\S) │ (\w+) +│", output)


def test_a_kind_of_failure_is_shown_with_a_message_that_says_what_to_do() -> None:
    said = render(
        show_failures, make_results(make_failure("shard_failed", "disk [full]"), make_failure("new_kind", "what to do"))
    )
    assert re.search(r"new_kind +│ +1 │ 25\.0% │ act on its message", said)
    assert "shard_failed, such as drift, image 7: disk [full]\n" in said
    assert "new_kind, such as drift, image 7: what to do\n" in said


def test_a_generator_without_a_score_has_no_rank_and_equal_means_share_a_rank() -> None:
    said = render(print_boards, make_finished_sweep(make_results(make_failure("corrupt_image", "no"))))
    assert parse_ranks(said) == [("1", "atlas"), ("1", "cobalt"), ("-", "drift")]
    assert "lower is better" not in said


def test_if_lower_is_better_the_lowest_mean_ranks_first_and_the_leaderboard_says_so() -> None:
    scored = [("atlas", 0.5), ("cobalt", 0.25), ("drift", 0.5), ("ember", None)]
    records = [{"generator": name, "metric": "m", "prompt_id": "p", "score": score} for name, score in scored]
    summary = sort_best_first(summarise(rows.table(records, schemas.SCORES), {}), {"m"})
    said = render(print_boards, make_finished_sweep(SimpleNamespace(summary=summary, n_null=0), lower_is_better={"m"}))
    assert parse_ranks(said) == [("1", "cobalt"), ("2", "atlas"), ("2", "drift"), ("-", "ember")]
    assert "m: overall, lower is better" in said and re.search(r"cobalt +│ 0\.250", said)


def test_a_sweep_prints_a_screen_with_the_leaderboard_before_its_findings_and_files(tmp_path: Path) -> None:
    words = ["sweep=shapes", "metric=[edge_density]", "limit=8", "cluster=here", f"store={tmp_path}/store"]
    said = run("sweep", *words).out
    assert len(said.splitlines()) <= 40
    parts = ["cells to compute", "│ atlas", "more findings in the report", "report: ", "written to ", "computed "]
    assert [said.index(part) for part in parts] == sorted(said.index(part) for part in parts)
    full = run("sweep", *words, f"store={tmp_path}/other", "verbose=true").out
    assert "│ scores" in full and "edge_density: overall" in full and "more findings" not in full
