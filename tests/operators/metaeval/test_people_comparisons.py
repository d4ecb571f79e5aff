"""People's choices become comparisons of the images that have scores, whichever ids the choices have."""

from collections.abc import Mapping
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest

from plumbline.operators.base import rows, schemas
from plumbline.operators.metaeval.preferences import convert_choices_to_comparisons
from plumbline.operators.statistics.options import Match

GENERATORS = ("atlas", "garnet")
SCORES = rows.table(
    [
        {"image_id": f"{name}-{number}", "prompt_id": f"p{number}", "generator": name, "metric": metric, "score": 0.5}
        for number in range(2)
        for name in GENERATORS
        for metric in ("pairwise", "vqascore")
    ],
    schemas.SCORES,
)
IDS_BY_MATCH: Mapping[Match, Mapping[str, Any]] = {
    "image": {"image_a": "garnet-1", "image_b": "atlas-1", "prompt_id": "a caption"},
    "image_and_prompt": {"image_a": "garnet-1", "image_b": "atlas-1", "prompt_id": "p1"},
    "prompt_and_generator": {"generator_a": "garnet", "generator_b": "atlas", "prompt_id": "p1"},
}


def convert(match: Match, *choices: Mapping[str, Any]) -> pd.DataFrame:
    table = rows.table([{"template": "side_by_side", **choice} for choice in choices], schemas.PREFERENCES)
    found = convert_choices_to_comparisons(table, SCORES, match)
    return pa.Table.from_pandas(found, schemas.COMPARED_PAIRS, preserve_index=False).to_pandas()


@pytest.mark.parametrize("match", IDS_BY_MATCH)
def test_comparisons_have_the_ids_of_the_scores(match: Match) -> None:
    ids = IDS_BY_MATCH[match]
    choices = [{**ids, "preferred": preferred} for preferred in ("a", "b", "unsure", None)]
    found = convert(match, *choices)
    assert list(found["p_first"]) == [1.0, 0.0, 0.5] and list(found["choice"]) == ["first", "second", "tie"]
    assert found[["reason", "error"]].isna().all(axis=None)
    (row,) = found.drop(columns=["p_first", "choice", "reason", "error"]).drop_duplicates().to_dict("records")
    expected = {
        "prompt_id": "p1", "metric": "side_by_side", "first_generator": "garnet", "second_generator": "atlas",
        "first_image_id": "garnet-1", "second_image_id": "atlas-1",
    }  # fmt: skip
    assert row == expected


def test_images_without_scores_and_images_of_one_generator_are_left_out() -> None:
    unknown = {"image_a": "garnet-7", "image_b": "atlas-1", "preferred": "a"}
    same = {"image_a": "garnet-0", "image_b": "garnet-1", "preferred": "a"}
    assert not len(convert("image", unknown)) and not len(convert("image", unknown, same))
