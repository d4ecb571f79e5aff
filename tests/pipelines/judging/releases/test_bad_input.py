"""What does not fit is one line that names the file, the row and what to do; nothing fails in another way."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.operators.errors import PlumblineError, SourceError
from plumbline.pipelines.judging.releases.release import Release
from tests.pipelines.judging.releases.files import (
    EQBEN,
    EQBEN_FULL,
    FILES,
    FLICKR,
    GECKO,
    GENAI,
    LONG,
    PICK_A_PIC,
    SEETRUE,
    T2V_SCORES,
    TIFA,
    TS2_METADATA,
    TS2_SCORES,
    WINOGROUND,
    as_csv,
    as_example,
    as_lines,
    as_parquet,
    as_tfrecord,
    gecko,
    put,
    reading,
    richhf,
    t2v,
    ts2,
)

NAME = "coco_1_mini_dalle"
INFINITE = float("inf")
Json = dict[str, Any]


def tifa(**fields: Any) -> str:
    return json.dumps({NAME: {**TIFA[NAME], **fields}})


def genai(models: Any) -> str:
    return json.dumps({"00007": {"id": "7", "prompt": "x", "models": models}})


COMPLAINTS = [
    (
        "tifa160",
        "t.json",
        tifa(human_scores=["five", 4]),
        r"row 0 \('coco_1_m.*expected a rating as a number, found 'five'; c",
    ),
    ("tifa160", "t.json", tifa(human_scores=[True, 4]), "expected a rating as a finite number, found True"),
    ("tifa160", "t.json", tifa(human_scores=[INFINITE, 4]), "expected a rating as a finite number, found inf"),
    ("tifa160", "t.json", tifa(human_scores=[]), "expected a list of ratings, found an empty list"),
    ("tifa160", "t.json", tifa(human_scores=None), "expected a list of ratings, found NoneType"),
    ("tifa160", "t.json", tifa(text_id=""), "row 0: expected a text_id, found none; fill it in"),
    ("tifa160", "t.json", tifa(text_id="x_1"), r"expected an image named x_1_<generator>"),
    ("tifa160", "t.json", tifa(meteor="high"), "expected a number as meteor, found 'high'"),
    ("tifa160", "t.json", tifa(human_scores=[10**400]), "expected a rating as a number, found 1000"),
    (
        "evalmuse",
        "e.json",
        json.dumps([{"prompt_id": "p", "img_path": "m/1.png", "prompt": "x"}]),
        r"row 0: expected a list of ratings, found NoneType",
    ),
    ("evalmuse", "e.json", json.dumps([{"prompt_id": "p", "total_score": [1]}]), "row 0: expected img_path as text"),
    ("richhf", "d.tfrecord", as_tfrecord(richhf())[:-40], r"d\.tfrecord, record 0: ends before its end; it may be"),
    ("richhf", "d.tfrecord", b"\x00" * 40, r"record 0: no TFRecord; it may be truncated"),
    (
        "richhf",
        "d.tfrecord",
        "version https://git-lfs.github.com/spec/v1\n",
        "is a pointer of Git LFS and not the",
    ),
    ("richhf", "d.tfrecord", as_tfrecord(b"\xff\xff\xff"), "record 0: not a TensorFlow Example"),
    (
        "richhf",
        "d.tfrecord",
        as_tfrecord(as_example({"filename": "a.png"})),
        "record 0: expected aesthetics_score, found 'filename'; is this RichHF-18K's file",
    ),
    ("tifa160", "t.json", "{}", r"t\.json: holds no rows; it may be truncated"),
    ("tifa160", "t.json", "[]", "expected an object of records by id, found list"),
    ("tifa160", "t.json", "", r"t\.json: the file is empty; it may be truncated: download or write it again"),
    ("tifa160", "t.json", json.dumps(TIFA)[:-9], r"t\.json: not JSON .*; it may be truncated"),
    ("tifa160", "t.json", b"\xff\xfe{}", "line 1: expected UTF-8 text, found the byte 0xff, as UTF-16 has; save the"),
    (
        "long",
        "r.csv",
        "image_id,rating\na,1\nb\u00e9,2\n".encode("latin-1"),
        r"r\.csv, row 1 \(line 3\): not UTF-8 after 'b'; save the file as UTF-8",
    ),
    (
        "long",
        "r.csv",
        "image_id;rating\na;1,5\n",
        r"r\.csv, line 1: fields are separated by semicolons, expected commas; save it with commas and decimal points",
    ),
    ("long", "r.csv", "image_id\trating\na\t1\n", "separated by tabs, expected commas; save it .* with tabs as .tsv"),
    ("long", "r.tsv", "image_id,rating\na,1\n", "fields are separated by commas, expected tabs"),
    ("long", "r.csv", "\nimage_id,rating\n", "line 1: expected a header of column names, found nothing"),
    ("tifa160", "t.json", f'{{"{NAME}": {{}}, "{NAME}": {{}}}}', f"the field '{NAME}' twice; leave one of them out"),
    (
        "genai_bench",
        "g.json",
        json.dumps({"00007": {"prompt": "x"}}),
        r"row 0 \('00007'\): expected models, found prompt",
    ),
    ("genai_bench", "g.json", genai({"One": 3}), "One: expected a list of ratings, found int"),
    ("genai_bench", "g.json", genai([1]), "expected an object, found list"),
    (
        "winoground",
        "w.jsonl",
        as_lines([WINOGROUND[0]] * 2),
        r"row 1: sample '0' stands twice \(the first stands in .*row 0\)",
    ),
    ("winoground", "w.jsonl", as_lines(WINOGROUND)[:-5], r"w\.jsonl, row 1 \(line 2\): not JSON"),
    (
        "winoground",
        "w.jsonl",
        as_lines([{"id": 1}]),
        "expected column.s. caption_0, caption_1, found id; is",
    ),
    ("winoground", "w.jsonl", as_lines([{**WINOGROUND[0], "id": None}]), r"row 0: expected a id, found none"),
    ("winoground", "w.txt", "x", r"w\.txt: expected a \.parquet, \.csv, .* file; rename it"),
    (
        "winoground",
        "w.parquet",
        as_parquet(WINOGROUND)[:-20],
        r"w\.parquet: not readable as Parquet .*; it may be truncated",
    ),
    ("winoground", "w.parquet", b"", r"w\.parquet: not readable as Parquet"),
    (
        "flickr8k_cf",
        "c.json",
        '{"1.jpg": {"human_judgement": [{"caption": "\\ud800", "rating": 1}]}}',
        r"c\.json: not UTF-8 after .*\"caption\": \"'; save",
    ),
    (
        "long",
        "r.parquet",
        as_parquet([{"image_id": "word", "rating": 1}]).replace(b"word", b"w\xffrd"),
        r"r\.parquet: not readable as Parquet .*; it may be truncated",
    ),
    ("eqben", "e.json", "[]", "expected a list of samples, found an empty list"),
    ("eqben", "e.json", json.dumps([{**EQBEN[0], "caption1": ""}]), r"row 0: expected caption1, found image0"),
    ("eqben", "e.json", json.dumps(EQBEN_FULL[:-1]), r"sample 'eqbensd/12' lacks the pairing\(s\) c0i1"),
    ("eqben", "e.json", json.dumps([*EQBEN_FULL, EQBEN_FULL[0]]), r"row 8: pairing c1i0 of this sample stands twice"),
    ("seetrue", "s.csv", as_csv([{**SEETRUE[0], "label": 2}]), "row 0: expected a label of 0 or 1, found 2.0"),
    ("seetrue", "s.csv", as_csv([{**SEETRUE[0], "label": ""}]), "row 0: expected a label of 0 or 1, found None"),
    ("seetrue", "s.csv", as_csv([{**SEETRUE[0], "label": "yes"}]), "row 0: expected a number as label, found 'yes'"),
    (
        "seetrue",
        "s.csv",
        as_csv([SEETRUE[0]] * 2),
        r"row 1: rater '0' rates image '0133_sd.png' twice as 'label' .*row 0",
    ),
    (
        "seetrue",
        "s.csv",
        as_csv(SEETRUE)[:-15],
        r"s\.csv, row 2 \(line 4\): expected 5 fields, found 4; .*download it again",
    ),
    ("seetrue", "s.csv", "image,text,label,dataset_source\n", r"s\.csv: holds no rows"),
    ("seetrue", "s.csv", "image,image,text\na,b,c\n", r"s\.csv: 2 columns are called 'image'"),
    (
        "seetrue",
        "s.parquet",
        as_parquet([{**SEETRUE[0], "image": {"bytes": b"png"}}]),
        r"s\.parquet: expected the name of each image as image\.path, found none",
    ),
    (
        "pick_a_pic",
        "p.parquet",
        as_parquet([{**PICK_A_PIC[0], "label_1": 1.0}]),
        "row 0: expected label_0 and label_1 of 1 and",
    ),
    ("pick_a_pic", "p.parquet", as_parquet(WINOGROUND), "expected column.s. caption, image_0_uid.*found id, image_0"),
    (
        "flickr8k_cf",
        "c.txt",
        FLICKR[:-9],
        r"c\.txt, line 2: expected the image, .* found [234] fields; it may be truncated",
    ),
    ("flickr8k_cf", "c.txt", "1.jpg\t2.jpg#0\t0.5\t3\t1\n", r"line 1: 3 yeses and 1 noes are not a share of 0\.5"),
    ("flickr8k_cf", "c.txt", "1.jpg\t2.jpg#0\t1\t3\t0\n" * 2, "line 2: rater '0' rates image '1.jpg' twice"),
    (
        "flickr8k_cf",
        "c.json",
        json.dumps({"1.jpg": {"human_judgement": [{"caption": "a", "rating": 4.0}]}}),
        r"row 0 \('1\.jpg'\), judgement 0: expected a share of yeses from 0 to 1, found 4; is this the experts'",
    ),
    ("long", "r.csv", "image_id\n1\n", r"expected column\(s\) rating, found image_id; set protocol.columns.rating"),
    (
        "long",
        "r.csv",
        "prompt_id,rating\n1,2\n",
        r"expected column\(s\) generator, found prompt_id, rating; name the image",
    ),
    ("long", "r.csv", "image_id,rating\n1,good\n", r"row 0: expected a number as rating, found 'good'"),
    ("long", "r.csv", "image_id,rating\n1,inf\n", "row 0: expected a rating as a finite number, found inf"),
    ("long", "r.csv", "image_id,rating\n,3\n", "row 0: no image_id, and not both a prompt_id and a generator"),
    ("long", "r.csv", as_csv([*LONG, LONG[0]]), "row 2: rater 'ann' rates image '001' twice as 'wl'"),
    ("long", "r.csv", "image_id,rater,rating\n1,,3\n", "row 0: expected a rater, found none"),
    ("long", "r.csv", 'image_id,rating\n1,"3\n', r"r\.csv, row 0 \(line 2\): not CSV"),
    (
        "long",
        "r.parquet",
        as_parquet([{"image_id": "1", "rating": [3]}]),
        "column 'rating', which should hold numbers, holds",
    ),
]


@pytest.mark.parametrize("name, file, content, complaint", COMPLAINTS)
def test_what_does_not_fit_is_named(name: str, file: str, content: str | bytes, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=complaint) as caught:
        reading(name, put(tmp_path / file, content))
    assert "\n" not in str(caught.value)
    assert str(tmp_path / file) in str(caught.value)


def test_skills_of_another_layout_are_named(tmp_path: Path) -> None:
    put(tmp_path / "genai_skills.json", '["counting"]')
    with pytest.raises(SourceError, match=r"genai_skills\.json: expected an object of prompts by skill, found list"):
        reading("genai_bench", put(tmp_path / "g.json", json.dumps(GENAI)))


@pytest.mark.parametrize(
    "name, rows, complaint",
    [
        (
            "likert",
            [{**GECKO["likert"][0], "answer": "6"}],
            r"likert\.csv, row 0: expected 1 to 5 or Unsure, found '6'",
        ),
        ("likert", [{**GECKO["likert"][0], "answer": "nice"}], "expected a rating as a number, found 'nice'"),
        ("likert", [GECKO["likert"][0]] * 2, "row 1: rater 'a' rates image '07/muse' twice as 'likert'"),
        (
            "wl",
            [{**GECKO["wl"][0], "answer": "Yes"}],
            r"wl\.csv, row 0: expected aligned, not aligned or Unsure, found 'yes'",
        ),
        ("dsg_h", [GECKO["dsg_h"][0]] * 2, "row 1: question_id '0' answered twice"),
        ("sxs", [{**GECKO["sxs"][0], "answer": "muse"}], "row 0: expected a, b or Unsure, found 'muse'"),
        ("sxs", [GECKO["sxs"][0]] * 2, "row 1: rater 'a' compares this pair for the second time"),
        ("sxs", [{"prompt_id": "7"}], r"sxs\.csv: expected column\(s\) generator_a.*see the layout"),
    ],
)
def test_what_does_not_fit_gecko_is_named(name: str, rows: list[Json], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=complaint):
        reading("gecko", gecko(tmp_path, **{name: rows}))


@pytest.mark.parametrize(
    "file, rows, complaint",
    [
        (
            "ts2_scores_per_image.csv",
            TS2_SCORES[:-1],
            "expected 16 rows, as .*ts2_metadata.csv has, found 15; the rows are jo",
        ),
        (
            "ts2_scores_per_image.csv",
            TS2_SCORES[::-1],
            "row 0: expected id 0, as in .*, found 164; put the rows in that",
        ),
        (
            "ts2_metadata.csv",
            [{**row, "rank": "a"} for row in TS2_METADATA],
            "row 0: expected a rank such as 0, 1 or 2b",
        ),
        ("ts2_metadata.csv", [{**row, "id": "x"} for row in TS2_METADATA], "row 0: expected "),
        (
            "ts2_metadata.csv",
            [{**row, "rank": "9007199254740993"} for row in TS2_METADATA],
            "row 0: expected a rank such",
        ),
        ("ts2_metadata.csv", [TS2_METADATA[0]] * 16, "row 1: image 'images/000-00.jpg' stands twice .*row 0"),
    ],
)
def test_what_does_not_fit_t2iscorescore_is_named(file: str, rows: list[Json], complaint: str, tmp_path: Path) -> None:
    put(ts2(tmp_path) / file, as_csv(rows))
    with pytest.raises(SourceError, match=complaint):
        reading("t2iscorescore", tmp_path)


def test_a_label_of_other_words_than_the_prompts_is_named(tmp_path: Path) -> None:
    put(tmp_path / "dev.tfrecord", as_tfrecord(richhf(label="1 0")))
    put(tmp_path / "prompts.csv", "filename,prompt\ntrain/0a1b.png,a cat asleep\n")
    with pytest.raises(SourceError, match=r"record 0: expected a 1 or a 0 for each of the 3 words of 'a cat asleep'"):
        reading("richhf", tmp_path / "dev.tfrecord")


def test_a_word_that_the_prompt_does_not_have_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"wl\.csv, row 0: expected a word from 0 to 2 of prompt '07', found '3'"):
        reading("gecko", gecko(tmp_path, wl=[{**GECKO["wl"][0], "word": 3}]))


def test_a_video_scored_twice_is_named(tmp_path: Path) -> None:
    put(t2v(tmp_path) / "t2vscore_results.csv", as_csv([*T2V_SCORES, T2V_SCORES[0]]))
    with pytest.raises(SourceError, match=r"row 2: scored for the second time \(image_id '0/gen2', .*remove one"):
        reading("t2vscore", tmp_path)


def test_a_rating_of_an_image_that_shapes_does_not_know_is_named(tmp_path: Path) -> None:
    put(tmp_path / "prompts.parquet", as_parquet([{"prompt_id": "p", "skills": ["color"]}]))
    put(
        tmp_path / "truth.parquet",
        as_parquet([{"image_id": "i", "prompt_id": "p", "generator": "g", "broken": ["r1"]}]),
    )
    put(tmp_path / "ratings.parquet", as_parquet([{"image_id": "j", "rater": "r", "rating": 3}]))
    with pytest.raises(SourceError, match=r"ratings\.parquet, row 0: image 'j' is not in truth\.parquet"):
        reading("shapes", tmp_path)


@pytest.mark.parametrize("name", ["tifa160", "winoground", "seetrue", "long", "eqben", "flickr8k_cf"])
def test_a_folder_in_place_of_a_file_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected a file, found a folder; give the file's own path"):
        reading(name, tmp_path)


@pytest.mark.parametrize("name", ["gecko", "t2iscorescore", "t2vscore", "pick_a_pic", "shapes"])
def test_an_empty_folder_is_named(name: str, tmp_path: Path) -> None:
    with pytest.raises(PlumblineError, match=str(tmp_path)):
        reading(name, tmp_path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_not_there_is_named(name: str, tmp_path: Path) -> None:
    reader, file, _ = FILES[name]
    with pytest.raises(PlumblineError, match=r"^file .*not found; check the path"):
        reading(reader, tmp_path / file)


@pytest.mark.parametrize("name", FILES)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(share=st.floats(0, 1), flipped=st.integers(0, 255))
def test_no_damage_fails_in_another_way(name: str, share: float, flipped: int, tmp_path: Path) -> None:
    """A file cut anywhere, or with any byte changed, is read or is an error that names the file."""
    reader, file, content = FILES[name]
    given = content()
    whole = given.encode() if isinstance(given, str) else given
    at = min(int(share * len(whole)), len(whole) - 1)
    for damaged in (whole[:at], whole[:at] + bytes([flipped]) + whole[at + 1 :]):
        try:
            assert isinstance(reading(reader, put(tmp_path / file, damaged)), Release)
        except PlumblineError as error:
            assert file in str(error) and "\n" not in str(error)
