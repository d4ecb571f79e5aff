"""EvalMuse-40K and RichHF-18K are read from their original layouts; anything unexpected causes a one-line error."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from plugins.third_party_benchmarks.tests.rating_files import (
    LAYOUTS,
    RICHHF_PROMPT,
    encode_example,
    encode_richhf,
    encode_tfrecord,
)
from plumbline.plugins.third_party_benchmarks.ratings.tfrecords import compute_masked_crc
from tests.pipelines.metaeval.releases.files import make_rows, read_with
from tests.pipelines.metaeval.releases.test_damage import FEW_EXAMPLES, check_damaged
from tests.pipelines.metaeval.releases.test_releases import (
    RATING_COLUMNS,
    check_complaint,
    check_missing,
    check_tables,
    select_cells,
)
from tests.pipelines.metaeval.test_metaeval import check_negated, check_without_scores

EXPECTED_TABLES: dict[str, dict[str, Any]] = {
    "evalmuse": {
        "ratings": (RATING_COLUMNS, 2, [
            ("SDXL-Turbo/00007.png", "real_7", "SDXL-Turbo", "2", "likert", 3.0),
            ("IF/00001.png", "synth_1", "IF", "0", "likert", 2.666667),
        ]),
        "words": ("rater word start end aligned", 2, [
            ("1", "red", 4, 7, 0.0), ("1", "dogs", 8, 12, 0.0), ("2", "red", 4, 7, 1.0), ("2", "dogs", 8, 12, 1.0),
            ("0", "Two", 0, 3, 0.0),
        ]),
        "skills": {"real_7": ["real"], "synth_1": ["synth"]},
        "notes": ["1 of 4 elements do not occur in their prompt and have no word ratings"],
    },
    "richhf": {
        "ratings": ("image_id template rating", 0, [
            ("0a1b", "aesthetics", 0.5), ("0a1b", "artifact", 0.75), ("0a1b", "misalignment", 0.25),
            ("0a1b", "overall", 0.5), ("2c", "aesthetics", 0.5),
        ]),
        "words": ("word", 0, []),
        "notes": ["2 images have no prompt in a prompts.csv next to the records, so no word ratings"],
    },
}  # fmt: skip
"""Expected tables by layout, each with its columns, the index of the first compared row, and the expected rows.

A layout may also have the expected skills and notes.
"""
WORD_COUNT_MESSAGE = "expected a 1 or a 0 for each of the 3 words of 'a cat asleep'"


LFS_POINTER = "version https://git-lfs.github.com/spec/v1\n"
DAMAGED_CONTENTS: dict[str, list[tuple[Any, ...]]] = {
    "evalmuse": [
        (
            make_rows("prompt_id img_path prompt", ("p", "m/1.png", "x")),
            "row 0: expected a list of ratings, found None",
        ),
        (make_rows("prompt_id total_score", ("p", [1])), "row 0: expected text in img_path"),
    ],
    "richhf": [
        (encode_tfrecord(encode_richhf())[:-40], "record 0 is truncated; it may be"),
        (b"\x00" * 40, "record 0: not a TFRecord; it may be truncated"),
        (LFS_POINTER, "is a Git LFS pointer, not the"),
        (encode_tfrecord(b"\xff\xff\xff"), "record 0: not a TensorFlow Example"),
        (
            encode_tfrecord(encode_example({"filename": "a.png"})),
            "expected aesthetics_score, found 'filename'; is this RichHF",
        ),
        ("prompts.csv", "filename,prompt\ntrain/0a1b.png,a cat asleep\n", f"record 0: {WORD_COUNT_MESSAGE}"),
    ],
}
"""Damaged content of a layout's first file, and the expected message, by layout.

If there are three values, the first names the file to damage instead.
"""


@pytest.mark.parametrize("name", LAYOUTS)
def test_published_ratings_are_read_into_our_tables(name: str, tmp_path: Path) -> None:
    check_tables(read_with(LAYOUTS[name].reader, LAYOUTS[name].write(tmp_path)), EXPECTED_TABLES[name])


def test_richhf_has_word_ratings_if_there_is_a_prompt_table(tmp_path: Path) -> None:
    LAYOUTS["richhf"].replace_file(
        "prompts.csv", make_rows("filename prompt", ("train/0a1b.png", RICHHF_PROMPT))
    ).write(tmp_path)
    words = read_with("richhf", tmp_path).words
    assert select_cells(words, "word start end aligned") == [
        ("A", 0, 1, 1), ("cat", 2, 5, 0), ("asleep", 8, 14, 1), ("in", 16, 18, 1), ("a", 19, 20, 1), ("box", 21, 24, 0)
    ]  # fmt: skip
    assert select_cells(words, "prompt_id") == [(RICHHF_PROMPT,)] * 6


def test_masked_checksums_equal_those_of_tensorflow() -> None:
    """The expected value is CRC-32C's check value (RFC 3720), masked as in TensorFlow's records."""
    crc = 0xE3069283
    assert compute_masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


@pytest.mark.parametrize(
    "name, complaint", [(name, one) for name, several in DAMAGED_CONTENTS.items() for one in several]
)
def test_invalid_content_is_an_error_that_names_the_file_and_row(
    name: str, complaint: tuple[Any, ...], tmp_path: Path
) -> None:
    check_complaint(LAYOUTS[name], complaint, tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_file_or_a_folder_is_an_error_that_names_the_path(name: str, tmp_path: Path) -> None:
    check_missing(LAYOUTS[name], tmp_path, takes_folder=name == "richhf")


@pytest.mark.parametrize("values", [True, False], ids=["values", "bytes"])
@pytest.mark.parametrize("name", LAYOUTS)
@FEW_EXAMPLES
@given(data=st.data())
def test_a_damaged_file_of_ratings_is_used_or_refused_in_one_line(
    name: str, values: bool, data: st.DataObject, tmp_path: Path
) -> None:
    check_damaged(LAYOUTS[name], values, data, tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_metric_whose_lower_scores_are_better_is_judged_like_its_negated_scores(name: str, tmp_path: Path) -> None:
    check_negated(LAYOUTS[name], tmp_path)


@pytest.mark.parametrize("name", LAYOUTS)
def test_ratings_without_metric_scores_only_compare_people_or_ask_for_scores(name: str, tmp_path: Path) -> None:
    check_without_scores(LAYOUTS[name], tmp_path)
