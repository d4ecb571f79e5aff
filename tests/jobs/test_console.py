"""What the terminal shows stands there in full: reasons with their messages, and no rank without a score."""

import io
import re
from types import SimpleNamespace
from typing import Any

from rich.console import Console

from jobs.console import show_failures, show_leaderboards
from operators import rows
from operators.summary import summarise


def results(*failed: dict[str, Any]) -> Any:
    """Two generators' scores of a prompt, equal, and the rows that failed."""
    scored = [{"generator": name, "metric": "m", "prompt_id": "p", "score": 0.5} for name in ("atlas", "cobalt")]
    lost = [{"generator": row["generator"], "metric": "m", "prompt_id": "p", "score": None} for row in failed]
    scores = rows.table([*scored, *lost], rows.SCORES)
    return SimpleNamespace(
        summary=summarise(scores, {}),
        errors=rows.table(list(failed), rows.ERRORS),
        rows=len(scores),
        n_null=len(failed),
        coverage=1 - len(failed) / len(scores),
    )


def failure(kind: str, message: str) -> dict[str, Any]:
    return {"generator": "drift", "image_id": "7", "metric": "m", "kind": kind, "message": message}


def printed(show: Any, *arguments: Any) -> str:
    stream = io.StringIO()
    show(Console(file=stream, width=140, highlight=False), *arguments)
    return stream.getvalue()


def test_a_kind_of_failure_is_shown_with_the_message_to_act_on() -> None:
    said = printed(show_failures, results(failure("shard_failed", "disk [full]"), failure("new_kind", "what to do")))
    assert re.search(r"new_kind +│ +1 │ 25\.0% │ act on its message", said)
    assert "shard_failed, such as drift, image 7: disk [full]\n" in said
    assert "new_kind, such as drift, image 7: what to do\n" in said


def test_a_generator_without_a_score_has_no_place_and_equal_means_share_one() -> None:
    finished = SimpleNamespace(results=results(failure("corrupt_image", "no")), usage={}, folder="runs/r")
    said = printed(show_leaderboards, finished)
    places = re.findall(r"│ (\S) │ (\w+) +│", said)
    assert places == [("1", "atlas"), ("1", "cobalt"), ("-", "drift")]
