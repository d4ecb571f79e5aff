"""The text measures have the same values as upstream's functions for the same expected and recognised texts."""

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from plugins.words_in_images.tests.text_releases import N_CASES, ReleasedMeasures, make_readings
from plumbline.plugins.words_in_images.text_measures import TextMeasure, compare_texts, count_words

STORED_CASE_LINES = Path(__file__).with_name("text_measures.jsonl").read_text().splitlines()
STORED_CASES: Sequence[tuple[list[str], list[str], Mapping[str, float]]] = [
    json.loads(line) for line in STORED_CASE_LINES
]
CHECKOUTS_FOLDER = os.environ.get("TEXT_RELEASES", "")
"""Folder of checkouts (see plugins/words_in_images/tests/text_releases.py)."""


@pytest.mark.parametrize("measure", [*TextMeasure.__args__, "oneig_edit_distance", "oneig_word_accuracy"])
def test_each_measure_has_the_same_value_as_upstreams_function(measure: str) -> None:
    ours = [compare_texts(wanted, "\n".join(lines))[measure] for wanted, lines, _ in STORED_CASES]
    assert ours == pytest.approx([released[measure] for *_, released in STORED_CASES], abs=1e-12)
    assert len(set(ours)) > (1 if measure.endswith(("_match", "sentence_accuracy")) else 10)


def test_words_are_counted_as_in_upstreams_code() -> None:
    for wanted, _, released in STORED_CASES:
        assert count_words(wanted, "longtext_bench") == released["words"]
        assert count_words(wanted, "cvtg_2k") == released["cvtg_2k_words"]


@pytest.mark.skipif(not CHECKOUTS_FOLDER, reason="TEXT_RELEASES names no folder of checkouts")
def test_the_stored_values_equal_the_output_of_upstreams_functions() -> None:
    releases = ReleasedMeasures(Path(CHECKOUTS_FOLDER))
    assert [[*reading, releases.compute_measures(reading)] for reading in make_readings()] == [
        [*case] for case in STORED_CASES
    ]
    assert len(STORED_CASES) == N_CASES
