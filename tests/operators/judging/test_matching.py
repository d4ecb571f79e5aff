"""Scores and judgements meet by the ids that most images have in common."""

import pandas as pd
import pyarrow as pa
import pytest

from plumbline.operators import rows, schemas
from plumbline.operators.judging.matching import IDS, best_match, complete_ids, examples, in_common


def ids(*images: tuple[str | None, str | None, str | None]) -> pd.DataFrame:
    return pd.DataFrame(images, columns=list(IDS), dtype="str")


@pytest.mark.parametrize(
    ("judged", "scored", "match", "n"),
    [
        ([("a", "p", "g"), ("b", "q", "g")], [("a", "p", "g"), ("b", "q", "g")], "image", 2),
        ([("a", None, None)], [("a", "p", "g")], "image", 1),
        ([("a", "p", None), ("a", "q", None)], [("a", "p", "g"), ("a", "q", "g")], "image_and_prompt", 2),
        ([("1", "p", "g"), ("1", "p", "h")], [("1", "p", "g"), ("1", "p", "h")], "prompt_and_generator", 2),
        ([("a", "p", "g"), ("b", "q", "g")], [("#1", "p", "g"), ("a", "q", "g")], "prompt_and_generator", 2),
        ([(None, "p", "g")], [(None, "p", "g")], "prompt_and_generator", 1),
        ([("a", "p", "g")], [("b", "q", "h")], "image", 0),
    ],
)
def test_the_ids_by_which_most_images_meet_are_taken(
    judged: list[tuple[str | None, str | None, str | None]],
    scored: list[tuple[str | None, str | None, str | None]],
    match: str,
    n: int,
) -> None:
    assert best_match(ids(*judged), ids(*scored)) == match
    assert in_common(ids(*judged), ids(*scored), best_match(ids(*judged), ids(*scored))) == n


def test_only_what_is_missing_and_certain_is_taken_from_the_other_side() -> None:
    given = [{"image_id": "a", "rating": 1}, {"image_id": "b", "prompt_id": "own", "rating": 1}, {"image_id": "c"}]
    table = rows.table(given, schemas.RATINGS)
    known = ids(("a", "p", "g"), ("a", "p", None), ("b", "q", "g"), ("c", "p", "g"), ("c", "q", "g"))
    completed: pa.Table = complete_ids(table, known)
    assert completed.schema == schemas.RATINGS
    assert completed.column("prompt_id").to_pylist() == ["p", "own", None]
    assert completed.column("generator").to_pylist() == ["g", "g", "g"]


def test_examples_say_what_is_there_and_what_is_not() -> None:
    assert (
        examples(ids(*((str(n), "p", None) for n in range(9))), IDS)
        == "image_id ('0', '1'), prompt_id ('p'), no generator"
    )
