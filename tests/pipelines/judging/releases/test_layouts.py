"""Every release is read from its true layout: who rated what, chose what, and what is paired with what."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from plumbline.jobs.command import load_values
from plumbline.operators import schemas
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.metaeval import open_release
from plumbline.pipelines.judging.protocols import MetaevalConfig
from plumbline.pipelines.judging.releases.readers import RELEASES
from plumbline.pipelines.judging.releases.release import Release
from plumbline.pipelines.judging.releases.word_ratings import masked_crc
from plumbline.pipelines.plans.config import read_config
from tests.pipelines.judging.releases.files import (
    DSG_LIKERT,
    EQBEN,
    EQBEN_FULL,
    EVALMUSE,
    FILES,
    FLICKR,
    FLICKR_JSON,
    GECKO,
    GENAI,
    LONG,
    PICK_A_PIC,
    RICHHF_PROMPT,
    ROOT,
    SEETRUE,
    T2V,
    TIFA,
    TS2_METADATA,
    TS2_SCORES,
    WINOGROUND,
    Rows,
    as_csv,
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

SCHEMAS = {
    "ratings": schemas.RATINGS,
    "preferences": schemas.PREFERENCES,
    "pairings": schemas.PAIRINGS,
    "graph_nodes": schemas.GRAPH_NODES,
    "words": schemas.WORDS,
    "scores": schemas.SCORES,
}
NAN = float("nan")
WRITERS: Mapping[str, Callable[[Rows], str | bytes]] = {
    "csv": as_csv,
    "tsv": lambda found: as_csv(found, "\t"),
    "parquet": as_parquet,
    "jsonl": as_lines,
}


def cells(table: pa.Table, *names: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in table.select(list(names)).to_pylist()]


def check_schemas(release: Release) -> None:
    for name, schema in SCHEMAS.items():
        assert getattr(release, name).schema == schema


@pytest.mark.parametrize("name", FILES)
def test_every_file_gives_our_tables(name: str, tmp_path: Path) -> None:
    reader, file, content = FILES[name]
    check_schemas(reading(reader, put(tmp_path / file, content())))


@pytest.mark.parametrize("name, folder", [("t2vscore", t2v), ("gecko", gecko), ("t2iscorescore", ts2)])
def test_every_folder_gives_our_tables(name: str, folder: object, tmp_path: Path) -> None:
    assert callable(folder)
    check_schemas(reading(name, folder(tmp_path)))


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_has_a_reader_and_a_protocol_of_its_name(name: str) -> None:
    assert callable(RELEASES[name])
    assert (ROOT / f"conf/protocol/{name}.yaml").is_file()


def test_tifa160_has_two_raters_and_its_metrics(tmp_path: Path) -> None:
    release = reading("tifa160", put(tmp_path / "t.json", json.dumps(TIFA)))
    assert cells(release.ratings, "image_id", "prompt_id", "generator", "rater", "rating")[:2] == [
        ("coco_1_mini_dalle", "coco_1", "mini_dalle", "0", 5.0),
        ("coco_1_mini_dalle", "coco_1", "mini_dalle", "1", 4.0),
    ]
    assert cells(release.scores, "image_id", "metric", "score")[3:5] == [
        ("coco_2_vq_diffusion", "meteor", 2.25),
        ("coco_1_mini_dalle", "tifa_vilt", 1.0),
    ]


def test_tifa160_is_read_without_metrics_too_and_a_gap_is_an_error_row(tmp_path: Path) -> None:
    bare = {name: {key: value for key, value in one.items() if key != "meteor"} for name, one in TIFA.items()}
    bare["coco_1_mini_dalle"].pop("tifa_vilt")
    release = reading("tifa160", put(tmp_path / "t.json", json.dumps(bare)))
    assert len(release.ratings) == 8 and len(release.scores) == 4
    assert [error and error["kind"] for error in release.scores.column("error").to_pylist()].count("not_scored") == 1
    assert release.notes == ["1 of 4 published scores are empty"]


def test_dsgs_likert_ratings_meet_tifas_images_by_their_names_and_dsgs_answers_by_prompt(tmp_path: Path) -> None:
    release = reading("dsg_tifa160", put(tmp_path / "d.csv", as_csv(DSG_LIKERT)))
    assert cells(release.ratings, "image_id", "prompt_id", "generator", "rater", "rating")[1:3] == [
        ("coco_36_mini_dalle", "tifa160_14", "mini-dalle", "4375843592", 5.0),
        ("coco_36_stable_diffusion_v2_1", "tifa160_14", "sd2dot1", "4375840905", 3.0),
    ]
    assert release.skills == {"tifa160_14": ["coco"]}
    names = {"dsg_prompt_split": "data_type", "t2i_model": "model_type"}
    copied = [{names.get(name, name): value for name, value in row.items()} for row in DSG_LIKERT]
    assert reading("dsg_tifa160", put(tmp_path / "t2v.csv", as_csv(copied))).ratings == release.ratings


def test_evalmuse_has_ratings_of_images_and_of_the_words_of_elements(tmp_path: Path) -> None:
    release = reading("evalmuse", put(tmp_path / "train_list.json", json.dumps(EVALMUSE)))
    assert cells(release.ratings, "image_id", "prompt_id", "generator", "rater", "rating")[2:] == [
        ("SDXL-Turbo/00007.png", "real_7", "SDXL-Turbo", "2", 3.0),
        ("IF/00001.png", "synth_1", "IF", "0", 2.666667),
    ]
    first = [row[1:] for row in cells(release.words, "rater", "word", "start", "end", "aligned") if row[0] == "1"]
    assert first == [("red", 4, 7, 0.0), ("dogs", 8, 12, 0.0), ("Two", 0, 3, 0.0)]
    assert release.skills == {"real_7": ["real"], "synth_1": ["synth"]}
    assert release.notes == ["1 of 4 elements do not stand in their prompt: no ratings of words"]


def test_richhf_is_read_from_tensorflows_records_with_the_words_of_its_prompts(tmp_path: Path) -> None:
    put(tmp_path / "dev.tfrecord", as_tfrecord(richhf(), richhf(filename="train/2c.png")))
    release = reading("richhf", tmp_path / "dev.tfrecord")
    assert cells(release.ratings, "image_id", "template", "rating")[:4] == [
        ("0a1b", "aesthetics", 0.5),
        ("0a1b", "artifact", 0.75),
        ("0a1b", "misalignment", 0.25),
        ("0a1b", "overall", 0.5),
    ]
    assert len(release.words) == 0 and "2 images have no prompt in a table prompts.csv" in release.notes[0]
    put(tmp_path / "prompts.csv", as_csv([{"filename": "train/0a1b.png", "prompt": RICHHF_PROMPT}]))
    words = reading("richhf", tmp_path).words
    assert cells(words, "word", "start", "end", "aligned") == [
        ("A", 0, 1, 1), ("cat", 2, 5, 0), ("asleep", 8, 14, 1), ("in", 16, 18, 1), ("a", 19, 20, 1), ("box", 21, 24, 0)
    ]  # fmt: skip
    assert {row[0] for row in cells(words, "prompt_id")} == {RICHHF_PROMPT}


def test_checksums_are_tensorflows() -> None:
    """The check value of CRC-32C (RFC 3720), masked as TensorFlow's records have it."""
    crc = 0xE3069283
    assert masked_crc(b"123456789") == (((crc >> 15) | (crc << 17)) + 0xA282EAD8) % 2**32


def test_gecko_rates_words_where_the_prompts_texts_are_there(tmp_path: Path) -> None:
    folder = gecko(tmp_path, wl=[{**row, "word": row["word"] % 2} for row in GECKO["wl"][:2]])
    assert cells(reading("gecko", folder).words, "image_id", "rater", "word", "start", "end", "aligned") == [
        ("07/muse", "a", "one,", 0, 4, 1.0), ("07/muse", "a", "two", 5, 8, 0.0)
    ]  # fmt: skip
    (folder / "prompts.csv").unlink()
    assert len(reading("gecko", folder).words) == 0


def test_genai_benchs_videos_are_rated_in_the_layout_of_its_images(tmp_path: Path) -> None:
    put(tmp_path / "genai_video.json", json.dumps(GENAI))
    given = ["protocol=genai_bench_video", f"protocol.path={tmp_path}/genai_video.json"]
    protocol = read_config(load_values("metaeval", given), MetaevalConfig).protocol
    release = open_release(protocol, StorageConfig())
    assert len(release.ratings) == 9 and protocol.name == "genai_bench_video"


def test_genai_bench_is_named_by_its_keys_and_has_skills_where_their_file_is_beside(tmp_path: Path) -> None:
    file = put(tmp_path / "ratings.json", json.dumps(GENAI))
    assert reading("genai_bench", file).skills == {}
    put(tmp_path / "genai_skills.json", json.dumps({"counting": [7], "basic": [7, 8, 9]}))
    release = reading("genai_bench", file)
    assert cells(release.ratings, "image_id", "prompt_id", "generator", "rater", "template", "rating")[5:7] == [
        ("00007/Two", "00007", "Two", "2", "likert", 5.0),
        ("00008/One", "00008", "One", "0", "likert", 5.0),
    ]
    assert release.skills == {"00007": ["counting", "basic"], "00008": ["basic"]}
    assert release.notes == ["1 prompts of genai_skills.json are not rated"]


def test_t2vscore_keeps_what_has_no_partner_and_says_so(tmp_path: Path) -> None:
    folder = t2v(tmp_path)
    release = reading("t2vscore", folder)
    assert cells(release.scores, "image_id", "prompt_id", "generator", "metric", "score")[1:3] == [
        ("0/pika", "0", "pika", "CLIP Score", 32.25),
        ("0/gen2", "0", "gen2", "BLIP-BLEU", 1.4e-16),
    ]
    more = {"prompt": "a cat", "models": {"pika": [3.0]}}
    (folder / "t2vscore_human_ratings.json").unlink()
    put(folder / "t2vscore_alignment_score.json", json.dumps({**T2V, "1": more}))
    release = reading("t2vscore", folder)
    assert len(release.ratings) == 3 and release.notes[1:] == ["1 rated videos have no score"]


@pytest.mark.parametrize("name", ["w.jsonl", "w.parquet", "w.csv"])
def test_winoground_pairs_both_captions_with_both_images(name: str, tmp_path: Path) -> None:
    release = reading("winoground", put(tmp_path / name, WRITERS[name.split(".")[1]](WINOGROUND)))
    assert cells(release.pairings, *schemas.PAIRINGS.names)[:4] == [
        ("0", "Object", 0, 0, "0_c0", "0_i0"),
        ("0", "Object", 0, 1, "0_c0", "0_i1"),
        ("0", "Object", 1, 0, "0_c1", "0_i0"),
        ("0", "Object", 1, 1, "0_c1", "0_i1"),
    ]
    assert release.skills["0_c1"] == ["Object", "Adjective-Age", "1 Main Pred"]
    assert release.skills["1_c0"] == ["Object", "Adjective-Age", "Morpheme-Level", "1 Main Pred"]


def test_winoground_reads_no_images(tmp_path: Path) -> None:
    """A page of images that cannot be decoded does not matter, nor that there is none."""
    images = [{**row, "image_0": {"bytes": b"\xff" * 9, "path": None}} for row in WINOGROUND]
    without = [{name: cell for name, cell in row.items() if not name.startswith("image_")} for row in WINOGROUND]
    for rows_given in (images, without):
        file = put(tmp_path / "w.parquet", as_parquet(rows_given))
        assert len(reading("winoground", file).pairings) == 8


def test_eqben_is_read_in_both_layouts(tmp_path: Path) -> None:
    mini = reading("eqben", put(tmp_path / "m.json", json.dumps(EQBEN)))
    assert cells(mini.pairings, "sample_id", "tag", "prompt_id", "image_id")[5] == (
        "1",
        "eqbenkubric_cnt",
        "1_c0",
        "1_i1",
    )
    assert mini.skills["0_c1"] == ["eqbensd"]
    full = reading("eqben", put(tmp_path / "f.json", json.dumps(EQBEN_FULL)))
    assert len(full.pairings) == 8
    assert cells(full.pairings, "sample_id", "tag", "image_id")[3] == ("eqbensd/3", "eqbensd", "eqbensd/3_i1")


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_seetrue_rates_pairs_and_its_texts_have_the_skills_of_their_sets(suffix: str, tmp_path: Path) -> None:
    as_struct = [
        {**row, "image": {"bytes": b"png", "path": row["image"]}, "original_dataset_id": "x"} for row in SEETRUE
    ]
    content = as_csv(SEETRUE) if suffix == "csv" else as_parquet(as_struct)
    release = reading("seetrue", put(tmp_path / f"SeeTRUE.{suffix}", content))
    assert cells(release.ratings, "image_id", "prompt_id", "generator", "rater", "template", "rating") == [
        ("0133_sd.png", "A zebra, a hydrant.", None, "0", "label", 0.0),
        ("0133_sd.png", "A zebra.", None, "0", "label", 1.0),
        ("5.png", "A zebra.", None, "0", "label", 1.0),
    ]
    assert release.skills == {"A zebra, a hydrant.": ["drawbench"], "A zebra.": ["drawbench", "editbench"]}


def test_seetrues_parquet_may_name_its_images_as_its_csv_does(tmp_path: Path) -> None:
    flat = [{**row, "original_dataset_id": "x"} for row in SEETRUE]
    release = reading("seetrue", put(tmp_path / "s.parquet", as_parquet(flat)))
    assert release.ratings.column("image_id").to_pylist() == ["0133_sd.png", "0133_sd.png", "5.png"]


def test_a_pair_of_seetrue_under_another_id_is_a_further_rater(tmp_path: Path) -> None:
    again = {**SEETRUE[0], "original_dataset_id": "t_9", "label": 1}
    release = reading("seetrue", put(tmp_path / "s.csv", as_csv([*SEETRUE, again])))
    assert cells(release.ratings, "rater", "rating")[3] == ("1", 1.0)
    assert release.notes == [
        "1 pairs stand there again under another original_dataset_id: they count as further raters'"
    ]


def test_pick_a_pic_has_choices_ties_and_pairs_without_a_label(tmp_path: Path) -> None:
    release = reading("pick_a_pic", put(tmp_path / "t.parquet", as_parquet(PICK_A_PIC)))
    assert release.preferences.column("preferred").to_pylist() == ["a", "b", "unsure", None]
    first = ("a cat", "u0-0", "u0-1", "sdxl", None, "9", "a")
    assert cells(release.preferences, *schemas.PREFERENCES.names)[0] == first
    assert release.notes == ["1 of 4 pairs have no label"]


def test_pick_a_pic_is_read_from_a_folder_and_says_what_is_repeated(tmp_path: Path) -> None:
    for name in ("test-00000-of-00002.parquet", "test-00001-of-00002.parquet"):
        put(tmp_path / name, as_parquet(PICK_A_PIC))
    release = reading("pick_a_pic", tmp_path)
    assert len(release.preferences) == 8
    assert release.notes[1].startswith("4 choices are of a ranking, images and rater that stand there before")


def test_flickr8k_cf_is_read_from_either_release(tmp_path: Path) -> None:
    text = reading("flickr8k_cf", put(tmp_path / "CrowdFlowerAnnotations.txt", FLICKR))
    assert cells(text.ratings, "image_id", "prompt_id", "rater", "template", "rating") == [
        ("1.jpg", "2.jpg#0", "0", "share_yes", 1 / 3),
        ("1.jpg", "3.jpg#4", "0", "share_yes", 1.0),
    ]
    made = reading("flickr8k_cf", put(tmp_path / "crowdflower_flickr8k.json", json.dumps(FLICKR_JSON)))
    assert cells(made.ratings, "prompt_id", "rater", "rating") == [
        ("A dog .", "0", 1 / 3),
        ("A dog .", "1", 0.0),
        ("A cat .", "0", None),
    ]
    assert made.notes == [
        "1 captions stand with the same image again: they count as further raters'",
        "1 of 3 ratings are empty and count as unsure",
    ]


def test_gecko_rates_by_shares_and_leaves_out_who_is_unsure(tmp_path: Path) -> None:
    release = reading("gecko", gecko(tmp_path))
    assert cells(release.ratings, "image_id", "rater", "template", "rating") == [
        ("07/muse", "a", "likert", 5.0),
        ("07/muse", "b", "likert", 2.0),
        ("07/muse", "c", "likert", None),
        ("07/muse", "a", "wl", 0.5),
        ("07/muse", "b", "wl", None),
        ("07/muse", "a", "dsg_h", 2 / 3),
    ]
    assert release.preferences.column("preferred").to_pylist() == ["a", "b", "unsure"]
    assert release.skills == {"07": ["Gecko(S)", "att/count", "reliable"], "8": ["Gecko(S)", "ne/art"]}
    assert release.notes == ["2 of 6 ratings are empty and count as unsure"]


def test_gecko_says_which_tables_are_not_there(tmp_path: Path) -> None:
    put(tmp_path / "likert.parquet", as_parquet(GECKO["likert"]))
    release = reading("gecko", tmp_path)
    assert len(release.ratings) == 3 and len(release.preferences) == 0
    assert release.notes[:4] == [
        *(f"no table of {name}" for name in ("wl", "dsg_h", "sxs")),
        "no prompts.csv: no skills and no words",
    ]


def test_t2iscorescore_gives_levels_subsets_and_scores_by_the_rows_order(tmp_path: Path) -> None:
    release = reading("t2iscorescore", ts2(tmp_path))
    nodes = cells(release.graph_nodes, *schemas.GRAPH_NODES.names)
    assert nodes[1] == ("0", "synth", "images/000-01.jpg", "0b", 0)
    assert nodes[3][3:] == ("10", 10)
    assert [node[1] for node in nodes[::4]] == ["synth", "nat", "real", "real"]
    scores = release.scores.to_pylist()
    assert (scores[4]["image_id"], scores[4]["prompt_id"], scores[4]["score"]) == ("images/111-00.jpg", "111", 0.54)
    assert scores[16 + 3]["error"]["kind"] == "not_scored"


@pytest.mark.parametrize("data, output, scored", [("", "", ""), ("data/", "src/output/", "output/scores/")])
def test_t2iscorescore_is_read_with_upstreams_names(data: str, output: str, scored: str, tmp_path: Path) -> None:
    """As files in one folder, or as upstream's repository."""
    put(tmp_path / f"{data}metadata.csv", as_csv(TS2_METADATA))
    assert reading("t2iscorescore", tmp_path).notes[0].startswith("no ts2_scores_per_image.csv or integrated")
    renamed = [{"id": row["id"], "image_id": "x.jpg", "clip_score": row["clipscore"], "rank": 0} for row in TS2_SCORES]
    put(tmp_path / f"{output}integrated_image_scores.csv", as_csv(renamed))
    one = [
        {"id": row["id"], "image_id": 0, "rank": row["rank"], "score": place} for place, row in enumerate(TS2_METADATA)
    ]
    put(tmp_path / f"{scored}siglip_scores.csv", as_csv(one))
    scores = reading("t2iscorescore", tmp_path).scores
    assert set(scores.column("metric").to_pylist()) == {"clip", "siglip"}
    assert cells(scores, "metric", "image_id", "score")[-1] == ("siglip", "images/164-03.jpg", 15.0)


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl"])
def test_a_long_table_keeps_its_ids_and_skills(suffix: str, tmp_path: Path) -> None:
    release = reading("long", put(tmp_path / f"r.{suffix}", WRITERS[suffix](LONG)))
    assert cells(release.ratings, *schemas.RATINGS.names)[0] == ("001", "07", "atlas", "ann", "wl", 0.5)
    assert release.skills == {"07": ["color"], "08": []} and release.notes == []


@pytest.mark.parametrize(
    "given, expected",
    [
        ({"image_id": "7", "rating": 3}, ("7", None, None, "0", "likert", 3.0)),
        ({"prompt_id": "p", "generator": "g", "rating": 3}, ("p/g", "p", "g", "0", "likert", 3.0)),
        ({"image_id": "7", "rating": None}, ("7", None, None, "0", "likert", None)),
        ({"image_id": "7", "rating": NAN}, ("7", None, None, "0", "likert", None)),
    ],
)
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_what_a_long_table_leaves_out_has_a_default(
    given: dict[str, object], expected: tuple[object, ...], suffix: str, tmp_path: Path
) -> None:
    both: Rows = [given]
    file = put(tmp_path / f"r.{suffix}", as_csv(both) if suffix == "csv" else as_parquet(both))
    assert cells(reading("long", file).ratings, *schemas.RATINGS.names) == [expected]


def test_a_long_table_says_which_columns_it_leaves(tmp_path: Path) -> None:
    file = put(tmp_path / "r.csv", "image_id,rating,age\n1,2,33\n")
    assert reading("long", file).notes == ["column(s) age are not read"]


@pytest.mark.parametrize("number, text", [(7.0, "7"), (7.5, "7.5"), (1e300, "1e+300")])
def test_ids_that_pandas_made_numbers_are_text(number: float, text: str, tmp_path: Path) -> None:
    """Where a cell is empty, pandas writes whole numbers as floats."""
    table: Rows = [{"image_id": number, "rater": 1, "rating": 3}, {"image_id": number, "rater": 2, "rating": 3}]
    release = reading("long", put(tmp_path / "r.parquet", as_parquet(table)))
    assert cells(release.ratings, "image_id", "rater") == [(text, "1"), (text, "2")]


def test_json_lines_end_at_line_feeds_alone(tmp_path: Path) -> None:
    """U+2028 within a text ends a line for Python's splitlines, and not for JSON lines."""
    lines = "".join(f'{{"image_id": "{name}\u2028", "rating": 1}}\r\n' for name in "ab")
    release = reading("long", put(tmp_path / "r.jsonl", lines))
    assert release.ratings.column("image_id").to_pylist() == ["a\u2028", "b\u2028"]
