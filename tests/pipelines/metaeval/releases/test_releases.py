"""Every release is read from its original layout, with its ratings, choices, pairings and error graphs.

A problem is reported in one line that names the file, the row and what to do.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from plumbline.jobs.help import list_choice_names
from plumbline.operators.base import schemas
from plumbline.operators.base.errors import PlumblineError, SourceError
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.metaeval.releases.readers import RELEASES
from plumbline.pipelines.metaeval.releases.release import Release
from tests.commands import load_job_config, run_for_output
from tests.pipelines.metaeval.releases.files import (
    DSG_LIKERT_ROWS,
    EQBEN_FULL_ROWS,
    EQBEN_ROWS,
    FLICKR_JSON,
    FLICKR_TEXT,
    GECKO_FILES,
    GENAI_PROMPTS,
    GRAPH_ROWS,
    LAYOUTS,
    LONG_RATING_ROWS,
    PICK_A_PIC_ROWS,
    PICK_CAPTION_ROWS,
    SEETRUE_ROWS,
    SHAPES_FILES,
    T2V_RATINGS,
    T2V_SCORES,
    TIFA_RATINGS,
    TS2_METADATA,
    TS2_SCORES,
    WINOGROUND_ROWS,
    Layout,
    Rows,
    format_csv,
    format_parquet,
    make_rows,
    read_with,
    write_file,
)

SCHEMAS = {
    "ratings": schemas.RATINGS,
    "preferences": schemas.PREFERENCES,
    "pairings": schemas.PAIRINGS,
    "graph_nodes": schemas.GRAPH_NODES,
    "words": schemas.WORDS,
    "scores": schemas.SCORES,
}
NAN, INFINITY = float("nan"), float("inf")


def select_cells(found: pa.Table, names: str) -> list[tuple[object, ...]]:
    return [tuple(row.values()) for row in found.select(names.split()).to_pylist()]


RATING_COLUMNS = "image_id prompt_id generator rater template rating"
PAIRING_COLUMNS = "sample_id tags caption image prompt_id image_id"
SHORT_TAGS, MORE_TAGS = (
    ["Object", "Adjective-Age", "1 Main Pred"],
    ["Object", "Adjective-Age", "Morpheme-Level", "1 Main Pred"],
)
EXPECTED_PAIRINGS = {
    "pairings": (PAIRING_COLUMNS, 0, [
        ("0", SHORT_TAGS, 0, 0, "0_c0", "0_i0"), ("0", SHORT_TAGS, 0, 1, "0_c0", "0_i1"),
        ("0", SHORT_TAGS, 1, 0, "0_c1", "0_i0"), ("0", SHORT_TAGS, 1, 1, "0_c1", "0_i1"),
    ]),
    "skills": {"0_c0": SHORT_TAGS, "0_c1": SHORT_TAGS, "1_c0": MORE_TAGS, "1_c1": MORE_TAGS},
}  # fmt: skip
EXPECTED_LONG_RATINGS = {
    "ratings": (
        RATING_COLUMNS,
        0,
        [("001", "07", "atlas", "ann", "wl", 0.5), ("002", "08", "atlas", "ann", "wl", 1.0)],
    ),
    "skills": {"07": ["color"], "08": []},
    "notes": [],
}
EXPECTED_TABLES: dict[str, dict[str, Any]] = {
    "tifa160": {
        "ratings": (RATING_COLUMNS, 0, [
            ("coco_1_mini_dalle", "coco_1", "mini_dalle", "0", "likert", 5.0),
            ("coco_1_mini_dalle", "coco_1", "mini_dalle", "1", "likert", 4.0),
        ]),
        "scores": ("image_id metric score", 3, [
            ("coco_2_vq_diffusion", "meteor", 2.25), ("coco_1_mini_dalle", "tifa_vilt", 1.0),
        ]),
    },
    "dsg_tifa160": {  # images named as in TIFA, so that its scores match; prompts named as in DSG's answers
        "ratings": (RATING_COLUMNS, 1, [
            ("coco_36_mini_dalle", "tifa160_14", "mini-dalle", "4375843592", "likert", 5.0),
            ("coco_36_stable_diffusion_v2_1", "tifa160_14", "sd2dot1", "4375840905", "likert", 3.0),
        ]),
        "skills": {"tifa160_14": ["coco"]},
    },
    "genai_bench": {
        "ratings": (RATING_COLUMNS, 5, [
            ("00007/Two", "00007", "Two", "2", "likert", 5.0), ("00008/One", "00008", "One", "0", "likert", 5.0),
        ]),
        "skills": {"00007": ["counting", "basic"], "00008": ["basic"]},
        "notes": ["1 prompts of genai_skills.json are not rated"],
    },
    "t2vscore": {
        "scores": ("image_id prompt_id generator metric score", 1, [
            ("0/pika", "0", "pika", "CLIP Score", 32.25), ("0/gen2", "0", "gen2", "BLIP-BLEU", 1.4e-16),
        ]),
        "notes": ["a video has one rating, a mean over its raters"],
    },
    "winoground, lines": EXPECTED_PAIRINGS, "winoground, Parquet": EXPECTED_PAIRINGS,
    "winoground, CSV": EXPECTED_PAIRINGS,
    "eqben": {
        "pairings": ("sample_id tags prompt_id image_id", 5, [("1", ["eqbenkubric_cnt"], "1_c0", "1_i1")]),
        "skills": {
            "0_c0": ["eqbensd"], "0_c1": ["eqbensd"], "1_c0": ["eqbenkubric_cnt"], "1_c1": ["eqbenkubric_cnt"],
        },
    },
    "eqben, full": {"pairings": ("sample_id tags image_id", 3, [("eqbensd/3", ["eqbensd"], "eqbensd/3_i1")])},
    "seetrue": {
        "ratings": (RATING_COLUMNS, 0, [
            ("0133_sd.png", "A zebra, a hydrant.", None, "0", "label", 0.0),
            ("0133_sd.png", "A zebra.", None, "0", "label", 1.0), ("5.png", "A zebra.", None, "0", "label", 1.0),
        ]),
        "skills": {"A zebra, a hydrant.": ["drawbench"], "A zebra.": ["drawbench", "editbench"]},
    },
    "pick_a_pic": {
        "preferences": ("prompt_id image_a image_b generator_a generator_b rater template preferred", 0, [
            ("a cat", "u0-0", "u0-1", "sdxl", None, "9", "side_by_side", "a"),
            ("a cat", "u1-0", "u1-1", "sdxl", None, "9", "side_by_side", "b"),
            ("a cat", "u2-0", "u2-1", "sdxl", None, "9", "side_by_side", "unsure"),
            ("a cat", "u3-0", "u3-1", "sdxl", None, "9", "side_by_side", None),
        ]),
        "notes": ["1 of 4 pairs have no label"],
    },
    "pick_a_pic, captions": {
        "preferences": ("prompt_id image_a image_b generator_a rater preferred", 1, [
            ("a cat 1", "images/1_0.jpg", "images/1_1.jpg", None, None, "b"),
            ("a cat 2", "images/2_0.jpg", "images/2_1.jpg", None, None, "unsure"),
        ]),
        "notes": [],
    },
    "stanfordt23d": {
        "ratings": (RATING_COLUMNS, 2, [
            ("3/shap-e", "3", "shap-e", "2", "likert", 3.0), ("3/mvdream", "3", "mvdream", "0", "likert", 1.0),
        ]),
        "notes": [],
    },
    "flickr8k_cf": {
        "ratings": (RATING_COLUMNS, 0, [
            ("1.jpg", "2.jpg#0", None, "0", "share_yes", 1 / 3), ("1.jpg", "3.jpg#4", None, "0", "share_yes", 1.0),
        ]),
    },
    "flickr8k_cf, JSON": {
        "ratings": ("prompt_id rater rating", 0, [
            ("A dog .", "0", 1 / 3), ("A dog .", "1", 0.0), ("A cat .", "0", None),
        ]),
        "notes": [
            "1 captions occur again with the same image; their ratings count as those of other raters",
            "1 of 3 ratings are empty and count as unsure",
        ],
    },
    "gecko": {  # unsure raters count neither in the numerator nor in the denominator
        "ratings": ("image_id rater template rating", 0, [
            ("07/muse", "a", "likert", 5.0), ("07/muse", "b", "likert", 2.0), ("07/muse", "c", "likert", None),
            ("07/muse", "a", "wl", 0.5), ("07/muse", "b", "wl", None), ("07/muse", "a", "dsg_h", 2 / 3),
        ]),
        "preferences": ("preferred", 0, [("a",), ("b",), ("unsure",)]),
        "words": ("image_id rater word start end aligned", 0, [
            ("07/muse", "a", "one,", 0, 4, 1.0), ("07/muse", "a", "two", 5, 8, 0.0),
            ("07/muse", "a", "three", 9, 14, None), ("07/muse", "b", "one,", 0, 4, None),
        ]),
        "skills": {"07": ["Gecko(S)", "att/count", "reliable"], "8": ["Gecko(S)", "ne/art"]},
        "notes": ["2 of 6 ratings are empty and count as unsure"],
    },
    "t2iscorescore": {
        "graph_nodes": ("graph_id subset image_id node level", 1, [
            ("0", "synth", "images/000-01.jpg", "0b", 0), ("0", "synth", "images/000-02.jpg", "1a", 1),
            ("0", "synth", "images/000-03.jpg", "10", 10), ("111", "nat", "images/111-00.jpg", "0", 0),
        ]),
        "scores": ("image_id prompt_id score", 4, [("images/111-00.jpg", "111", 0.54)]),
        "notes": ["1 of 32 published scores are empty"],
    },
    "shapes": {
        "ratings": (RATING_COLUMNS, 0, [("i", "p", "g", "r", "likert", 3.0)]),
        "graph_nodes": ("graph_id subset image_id node level", 0, [("p", "color", "i", "r1", 1)]),
        "words": ("rater word start end aligned", 0, [("truth", "red", 2, 5, 0.0)]),
        "skills": {"p": ["color"]},
    },
    "error_graphs": {
        "graph_nodes": ("graph_id subset image_id node level generator prompt_source parents errors", 2, [
            ("g", "synth", "c.png", "1b", 1, "sdxl", "COCO", ["0"], ["wrong attribute: blue dog"]),
            ("g", "synth", "d.png", "2", 2, "sdxl", "COCO", ["1a", "1b"],
             ["missing object: cat", "wrong attribute: blue dog"]),
        ]),
    },
    "long": EXPECTED_LONG_RATINGS, "long, Parquet": EXPECTED_LONG_RATINGS,
}  # fmt: skip
"""Expected tables and fields of the release that is read from each layout.

The value of a table consists of the compared columns, the index of the first compared row, and the expected rows.
"""


@pytest.mark.parametrize("name", LAYOUTS)
def test_every_layout_is_converted_to_our_tables(name: str, tmp_path: Path) -> None:
    check_tables(read_with(LAYOUTS[name].reader, LAYOUTS[name].write(tmp_path)), EXPECTED_TABLES[name])


def check_tables(release: Release, parts: Mapping[str, Any]) -> None:
    """Check that a release's tables match their schemas, and that tables and fields have the content given in `parts`.

    For a table, the content consists of column names, the index of the first row to compare, and the expected rows
    from there on. A score must be missing if, and only if, its error is `not_scored`.
    """
    for table_name, schema in SCHEMAS.items():
        assert getattr(release, table_name).schema == schema
    for part, content in parts.items():
        found = getattr(release, part)
        if part in SCHEMAS:
            names, first, wanted = content
            assert select_cells(found, names)[first : first + max(len(wanted), 1)] == wanted
        else:
            assert found == content
    for row in release.scores.to_pylist():
        assert (row["score"] is None) == (row["error"] is not None and row["error"]["kind"] == "not_scored")


FULL_AGREEMENT = {
    "dsg_tifa160": ("pairwise_accuracy",),
    "genai_bench": ("spearman", "pairwise_accuracy"),
    "t2vscore": ("spearman", "pairwise_accuracy"),
    "flickr8k_cf": ("kendall_b", "pairwise_accuracy"),
    "seetrue": ("auroc",),
    "winoground, lines": ("text", "image", "group"),
    "winoground, Parquet": ("text", "image", "group"),
    "eqben": ("text", "image", "group"),
    "eqben, full": ("text", "image", "group"),
    "pick_a_pic": ("binary_accuracy",),
    "pick_a_pic, captions": ("binary_accuracy",),
    "stanfordt23d": ("spearman", "pairwise_accuracy"),
    "t2iscorescore": ("ordering_published", "ordering_paper"),
    "error_graphs": ("ordering_paper",),
}
"""Statistics that equal 1 if a metric scores a layout's images as people do, keyed by the layout's name."""


def make_agreeing_scores(release: Release) -> pd.DataFrame:
    ids = ["image_id", "prompt_id", "generator"]
    rated = release.ratings.to_pandas().groupby(ids, dropna=False)["rating"].mean().rename("score").reset_index()
    paired = release.pairings.to_pandas()
    nodes = release.graph_nodes.to_pandas()
    chosen = release.preferences.to_pandas()
    sides = [
        chosen.rename(columns={f"image_{side}": "image_id", f"generator_{side}": "generator"}).assign(
            score=chosen["preferred"].eq(side).astype(float)
        )
        for side in "ab"
    ]
    tables = [
        paired.assign(score=paired["caption"].eq(paired["image"]).astype(float)),
        nodes.assign(score=-nodes["level"].astype(float)),
        *(sides if len(chosen) else [rated]),
    ]
    scores = pd.concat([table.reindex(columns=[*ids, "score"]) for table in tables if len(table)])
    return scores.groupby(ids, dropna=False)["score"].max().reset_index().dropna(axis=1, how="all")


@pytest.mark.parametrize("name", FULL_AGREEMENT)
def test_a_metric_with_peoples_own_scores_agrees_fully(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    path = layout.write(tmp_path / "release")
    scores = make_agreeing_scores(read_with(layout.reader, path)).sample(frac=1, random_state=0)
    scores.assign(metric="oracle").to_csv(tmp_path / "scores.csv", index=False)
    asked = [f"protocol={layout.reader}", f"protocol.path={path}", f"scores={tmp_path / 'scores.csv'}"]
    run_for_output(
        "metaeval", *asked, f"output={tmp_path / 'out'}", "sampling.resamples=20", "sampling.permutations=20"
    )
    found = pd.read_parquet(tmp_path / "out/judgements.parquet")
    overall = found[(found["metric"] == "oracle") & (found["subset"] == "overall")].set_index("statistic")["value"]
    assert overall[[*FULL_AGREEMENT[name]]].to_list() == pytest.approx([1.0] * len(FULL_AGREEMENT[name]))


@pytest.mark.parametrize("name", RELEASES)
def test_a_release_has_a_reader_and_a_protocol_with_its_name(name: str) -> None:
    assert callable(RELEASES[name])
    assert name in list_choice_names("protocol", None)


# What releases may lack or have in another form


def read_changed(name: str, file: str, content: Any, folder: Path) -> Release:
    """Write the layout called `name` with `content` in the file `file`, and read it as a release."""
    return read_with(LAYOUTS[name].reader, LAYOUTS[name].replace_file(file, content).write(folder))


def test_tifa160_can_lack_metrics_and_missing_scores_are_noted(tmp_path: Path) -> None:
    bare = {name: {key: value for key, value in one.items() if key != "meteor"} for name, one in TIFA_RATINGS.items()}
    bare["coco_1_mini_dalle"].pop("tifa_vilt")
    release = read_changed("tifa160", "human_annotations_with_scores.json", bare, tmp_path)
    assert len(release.ratings) == 8 and len(release.scores) == 4
    assert release.notes == ["1 of 4 published scores are empty"]


def test_a_copy_of_dsgs_table_with_other_column_names_reads_the_same(tmp_path: Path) -> None:
    names = {"dsg_prompt_split": "data_type", "t2i_model": "model_type"}
    copied = [{names.get(name, name): value for name, value in row.items()} for row in DSG_LIKERT_ROWS]
    own = read_with("dsg_tifa160", LAYOUTS["dsg_tifa160"].write(tmp_path))
    assert read_with("dsg_tifa160", write_file(tmp_path / "t2v.csv", copied)).ratings == own.ratings


def test_genai_bench_videos_are_read_without_a_file_of_skills(tmp_path: Path) -> None:
    write_file(tmp_path / "genai_video.json", GENAI_PROMPTS)
    given = ["protocol=genai_bench_video", f"protocol.path={tmp_path}/genai_video.json"]
    protocol = load_job_config("metaeval", *given).protocol
    release = open_release(protocol, StorageConfig())
    assert len(release.ratings) == 9 and protocol.name == "genai_bench_video" and release.skills == {}


def test_t2vscore_keeps_unmatched_ratings_and_notes_them(tmp_path: Path) -> None:
    rated = {**T2V_RATINGS, "1": {"prompt": "a cat", "models": {"pika": [3.0]}}}
    write_file(tmp_path / "t2vscore_results.csv", T2V_SCORES)
    write_file(tmp_path / "t2vscore_alignment_score.json", rated)
    release = read_with("t2vscore", tmp_path)
    assert len(release.ratings) == 3 and release.notes[1:] == ["1 rated videos have no score"]


@pytest.mark.parametrize("name", ["why_winoground_hard.json", "new_tag_assignments.json"])
def test_winoground_adds_tags_from_a_file_in_the_same_folder(name: str, tmp_path: Path) -> None:
    write_file(tmp_path / name, {"7": [], "1": ["Unusual Text", "Complex Reasoning"], "0": []})
    release = read_changed("winoground, lines", "examples.jsonl", WINOGROUND_ROWS, tmp_path)
    assert release.skills["0_c1"] == [*SHORT_TAGS, "No Tag"]
    assert release.skills["1_c0"] == [*MORE_TAGS, "Unusual Text", "Complex Reasoning"]
    assert set(map(tuple, release.pairings.column("tags").to_pylist())) == {
        tuple(release.skills[f"{n}_c0"]) for n in "01"
    }
    assert release.notes == [f"1 samples of {name} are not in examples.jsonl"]


def test_winoground_reads_no_images(tmp_path: Path) -> None:
    """Pairings are read even if the images cannot be decoded or are missing."""
    images = [{**row, "image_0": {"bytes": b"\xff" * 9, "path": None}} for row in WINOGROUND_ROWS]
    without = [{name: cell for name, cell in row.items() if not name.startswith("image_")} for row in WINOGROUND_ROWS]
    for rows_given in (images, without):
        assert len(read_changed("winoground, Parquet", "test.parquet", rows_given, tmp_path).pairings) == 8


@pytest.mark.parametrize("as_struct", [True, False])
def test_image_names_in_seetrues_parquet_are_read_from_structs_or_strings(as_struct: bool, tmp_path: Path) -> None:
    flat = [{**row, "original_dataset_id": "x"} for row in SEETRUE_ROWS]
    nested = [{**row, "image": {"bytes": b"png", "path": row["image"]}} for row in flat]
    release = read_with("seetrue", write_file(tmp_path / "s.parquet", nested if as_struct else flat))
    assert release.ratings.column("image_id").to_pylist() == ["0133_sd.png", "0133_sd.png", "5.png"]


def test_a_seetrue_pair_with_another_id_counts_as_another_rater(tmp_path: Path) -> None:
    again = {**SEETRUE_ROWS[0], "original_dataset_id": "t_9", "label": 1}
    release = read_changed("seetrue", "SeeTRUE.csv", [*SEETRUE_ROWS, again], tmp_path)
    assert select_cells(release.ratings, "rater rating")[3] == ("1", 1.0)
    assert release.notes[0].startswith("1 pairs occur again with another original_dataset_id")


def test_pick_a_pic_is_read_from_a_folder_and_repeated_choices_are_noted(tmp_path: Path) -> None:
    for name in ("test-00000-of-00002.parquet", "test-00001-of-00002.parquet"):
        write_file(tmp_path / name, PICK_A_PIC_ROWS)
    release = read_with("pick_a_pic", tmp_path)
    assert len(release.preferences) == 8
    assert release.notes[1].startswith("4 choices repeat an earlier ranking, images and rater")


def test_only_the_clean_choices_of_pick_a_pic_can_be_judged(tmp_path: Path) -> None:
    """The metric agrees with people on all clean choices, and disagrees on all others."""
    rng = np.random.default_rng(7)
    protocol = load_job_config(
        "metaeval", "protocol=pick_a_pic_clean", f"protocol.path={tmp_path}/test_captions.json"
    ).protocol
    clean, first = set(protocol.choices), rng.integers(2, size=500)
    names = "id caption image_0 image_1 label_0 label_1"
    sides = [(f"images/{number}_0.jpg", f"images/{number}_1.jpg") for number in range(500)]
    rows = [(n, f"cat {n % 90}", *sides[n], int(first[n]), int(1 - first[n])) for n in range(500)]
    path = write_file(tmp_path / "test_captions.json", make_rows(names, *rows))
    scores = pd.DataFrame([
        {"image_id": sides[n][side], "prompt_id": f"cat {n % 90}", "score": float((first[n] != side) == (n in clean))}
        for n in range(500) for side in (0, 1)
    ])  # fmt: skip
    scores.assign(metric="oracle").sample(frac=1, random_state=0).to_csv(tmp_path / "scores.csv", index=False)
    asked = [f"protocol.path={path}", f"scores={tmp_path}/scores.csv", f"output={tmp_path}/out"]
    quick = ["sampling.resamples=20", "sampling.permutations=20"]
    accuracies = {}
    for name in ("pick_a_pic_clean", "pick_a_pic"):
        run_for_output("metaeval", f"protocol={name}", *asked, *quick)
        found = pd.read_parquet(tmp_path / "out/judgements.parquet")
        row = found[(found["metric"] == "oracle") & (found["statistic"] == "binary_accuracy")].iloc[0]
        accuracies[name] = (row["n"], row["value"])
    assert accuracies == {"pick_a_pic_clean": (100, 1.0), "pick_a_pic": (500, pytest.approx(0.2))}


def test_missing_clean_choices_are_an_error_with_a_remedy(tmp_path: Path) -> None:
    path = write_file(tmp_path / "test_captions.json", PICK_CAPTION_ROWS)

    def open_clean_choices(*asked: str) -> Release:
        return open_release(load_job_config("metaeval", "protocol=pick_a_pic_clean", *asked).protocol, StorageConfig())

    with pytest.raises(SourceError, match=r"captions.json: expected a choice with the id 5, found ids from 0 to 3"):
        open_clean_choices(f"protocol.path={path}")
    with pytest.raises(PlumblineError, match=r"expected none for .*parquet, because only .* has choice ids"):
        open_clean_choices("protocol.path=test_unique.parquet")
    with pytest.raises(PlumblineError, match=r"protocol.choices: expected each id once, got 1 more than once"):
        open_clean_choices(f"protocol.path={path}", "protocol.choices=[1,0,1]")
    preferences = open_clean_choices(f"protocol.path={path}", "protocol.choices=[3,1]").preferences
    assert preferences.column("prompt_id").to_pylist() == ["a cat 1", "a cat 3"]


def test_gecko_notes_missing_tables(tmp_path: Path) -> None:
    write_file(tmp_path / "likert.parquet", GECKO_FILES["likert.csv"])
    release = read_with("gecko", tmp_path)
    assert (len(release.ratings), len(release.preferences), len(release.words)) == (3, 0, 0)
    lacking = [f"no table of {name}" for name in ("wl", "dsg_h", "sxs")]
    assert release.notes[:4] == [*lacking, "prompts.csv is missing, so there are no skills and no ratings of words"]


@pytest.mark.parametrize("data, output, scored", [("", "", ""), ("data/", "src/output/", "output/scores/")])
def test_t2iscorescore_is_read_under_upstreams_file_names(data: str, output: str, scored: str, tmp_path: Path) -> None:
    """The files can be in one folder, or arranged as in upstream's repository."""
    write_file(tmp_path / f"{data}metadata.csv", TS2_METADATA)
    assert (
        read_with("t2iscorescore", tmp_path)
        .notes[0]
        .startswith("there are no scores: found no ts2_scores_per_image.csv, integrated")
    )
    renamed = [{"id": row["id"], "image_id": "x.jpg", "clip_score": row["clipscore"], "rank": 0} for row in TS2_SCORES]
    write_file(tmp_path / f"{output}integrated_image_scores.csv", renamed)
    one = [{"id": row["id"], "image_id": 0, "rank": row["rank"], "score": n} for n, row in enumerate(TS2_METADATA)]
    write_file(tmp_path / f"{scored}siglip_scores.csv", one)
    scores = read_with("t2iscorescore", tmp_path).scores
    assert set(scores.column("metric").to_pylist()) == {"clip", "siglip"}
    assert select_cells(scores, "metric image_id score")[-1] == ("siglip", "images/164-03.jpg", 15.0)


def test_a_checkout_of_t2iscorescore_has_every_metric_and_warns_about_unread_scores(
    tmp_path: Path,
) -> None:
    """The release at 93ebf89 has files with 19 metrics, a second CLIPScore, and an unknown metric."""
    random = np.random.default_rng(4)
    names = [f"m{number}" for number in range(17)] + ["clipscore", "viescore"]
    columns = {name: random.random(len(TS2_METADATA)) for name in names}
    scored = [
        {"id": row["id"], "image_id": 0, **{name: column[n] for name, column in columns.items()}}
        for n, row in enumerate(TS2_METADATA)
    ]
    again = [{"id": row["id"], "image_id": n, "rank": row["rank"], "score": n} for n, row in enumerate(TS2_METADATA)]
    write_file(tmp_path / "data/metadata.csv", TS2_METADATA)
    write_file(tmp_path / "output/scores_final_all_3.csv", scored)
    write_file(tmp_path / "output/scores/clipscore_scores.csv", again)
    for name in (
        "scores_final_all_2.csv",
        "VIEScore.csv",
        "scores_per_image/clipscore_score.csv",
        "Scores of mine.csv",
    ):
        write_file(tmp_path / "output" / name, "fname,score\nx,1\n")
    release = read_with("t2iscorescore", tmp_path)
    found = release.scores.to_pandas().groupby("metric", sort=False)["score"].apply(list).to_dict()
    assert list(found) == [*names, "clipscore_scores"]
    assert found["clipscore"] == list(columns["clipscore"]) and found["clipscore_scores"] == list(range(len(again)))
    assert "output/scores_final_all_2.csv is not read, because output/scores_final_all_3.csv is" in release.notes
    protocol = load_job_config("metaeval", "protocol=t2iscorescore", f"protocol.path={tmp_path}").protocol
    (warning,) = open_release(protocol, StorageConfig()).warnings
    assert "output/Scores of mine.csv may contain scores and is not read; to judge them, write output/sc" in warning


@pytest.mark.parametrize("suffix", ["csv", "tsv", "parquet", "jsonl"])
def test_a_long_table_reads_the_same_in_every_format(suffix: str, tmp_path: Path) -> None:
    release = read_with("long", write_file(tmp_path / f"r.{suffix}", [{**row, "age": 33} for row in LONG_RATING_ROWS]))
    assert select_cells(release.ratings, RATING_COLUMNS)[0] == ("001", "07", "atlas", "ann", "wl", 0.5)
    assert release.skills == {"07": ["color"], "08": []} and release.notes == ["column(s) age are not read"]


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
def test_missing_columns_of_a_long_table_have_defaults(
    given: dict[str, object], expected: tuple[object, ...], suffix: str, tmp_path: Path
) -> None:
    both: Rows = [given]
    assert select_cells(read_with("long", write_file(tmp_path / f"r.{suffix}", both)).ratings, RATING_COLUMNS) == [
        expected
    ]


@pytest.mark.parametrize("number, text", [(7.0, "7"), (7.5, "7.5"), (1e300, "1e+300")])
def test_ids_that_pandas_converted_to_floats_become_text(number: float, text: str, tmp_path: Path) -> None:
    """If a cell is empty, pandas writes the integers in its column as floats."""
    given = make_rows("image_id rater rating", (number, 1, 3), (number, 2, 3))
    release = read_with("long", write_file(tmp_path / "r.parquet", given))
    assert select_cells(release.ratings, "image_id rater") == [(text, "1"), (text, "2")]


def test_json_lines_end_only_at_line_feeds(tmp_path: Path) -> None:
    """U+2028 inside a string ends a line for Python's splitlines, but not in JSON lines."""
    lines = "".join(f'{{"image_id": "{name}\u2028", "rating": 1}}\r\n' for name in "ab")
    release = read_with("long", write_file(tmp_path / "r.jsonl", lines))
    assert release.ratings.column("image_id").to_pylist() == ["a\u2028", "b\u2028"]


# Invalid files


def make_tifa(**fields: Any) -> dict[str, Any]:
    return {"coco_1_mini_dalle": {**TIFA_RATINGS["coco_1_mini_dalle"], **fields}}


def make_genai(models: Any) -> dict[str, Any]:
    return {"00007": {"id": "7", "prompt": "x", "models": models}}


def change_row(index: int, **cells: str) -> list[dict[str, Any]]:
    """Return the rows of the error graph, with these cells changed in one row."""
    return [{**row, **cells} if number == index else row for number, row in enumerate(GRAPH_ROWS)]


def make_wide_graph(levels: int, nodes: int) -> list[dict[str, Any]]:
    """Return an error graph with `levels` levels below the root, each with `nodes` nodes."""
    root = {**GRAPH_ROWS[0], "image_id": "root.png"}
    names = [(level, node) for level in range(1, levels + 1) for node in range(nodes)]
    return [root, *(
        {**root, "node": f"{level}-{node}", "image_id": f"{level}-{node}.png",
         "parents": f"{level - 1}-0" if level > 1 else "0", "errors": ";".join(f"{node}.{n}" for n in range(level))}
        for level, node in names
    )]  # fmt: skip


INVALID_CONTENTS: dict[str, list[tuple[Any, ...]]] = {
    "tifa160": [
        (make_tifa(human_scores=["five", 4]), r"row 0 \('coco_1_m.*expected a number as the rating, found 'five'; c"),
        (make_tifa(human_scores=[True, 4]), "expected a finite number as the rating, found True"),
        (make_tifa(human_scores=[INFINITY, 4]), "expected a finite number as the rating, found inf"),
        (make_tifa(human_scores=[10**400]), "expected a number as the rating, found 1000"),
        (make_tifa(human_scores=[]), "expected a list of ratings, found an empty list"),
        (make_tifa(human_scores=None), "expected a list of ratings, found NoneType"),
        (make_tifa(text_id=""), "row 0: expected a text_id, found none; fill it in"),
        (make_tifa(text_id="x_1"), "expected an image named x_1_<generator>"),
        (make_tifa(meteor="high"), "expected a number for meteor, found 'high'"),
        ({}, "expected rows, found none; it may be truncated"),
        ([], "expected an object that maps ids to records, found list"),
        (b"\xff\xfe{}", "line 1: expected UTF-8 text, found the byte 0xff, which marks UTF-16; save the"),
    ],
    "genai_bench": [
        ({"00007": {"prompt": "x"}}, r"row 0 \('00007'\): expected models, found prompt"),
        (make_genai({"One": 3}), "One: expected a list of ratings, found int"),
        (make_genai([1]), "expected an object, found list"),
        ("genai_skills.json", ["counting"], "expected an object that maps skills to prompts, found list"),
    ],
    "t2vscore": [
        ("t2vscore_results.csv", [*T2V_SCORES, T2V_SCORES[0]], "row 2: an earlier row also has image_id '0/gen"),
    ],
    "winoground, lines": [
        ([WINOGROUND_ROWS[0]] * 2, r"row 1: sample '0' occurs twice \(first in .*row 0\)"),
        ([{"id": 1}], "expected column.s. caption_0, caption_1, found id; check"),
        ([{**WINOGROUND_ROWS[0], "id": None}], "row 0: expected a id, found none"),
        ("why_winoground_hard.json", [["Unusual Text"]], "expected an object that maps samples to their tags"),
        ("why_winoground_hard.json", {"0": [], "1": "Unusual"}, r"row 1 \('1'\): expected a list of non-empty strings"),
        ("why_winoground_hard.json", {"0": [None]}, r"row 0 \('0'\): expected a list of non-empty strings, found"),
    ],
    "winoground, Parquet": [(format_parquet(WINOGROUND_ROWS)[:-20], "not readable as Parquet .*; it may be truncated")],
    "eqben": [
        ([], "expected a list of samples, found an empty list"),
        ([{**EQBEN_ROWS[0], "caption1": ""}], "row 0: expected the fields caption1, found image0"),
        (EQBEN_FULL_ROWS[:-1], r"sample 'eqbensd/12' lacks the pairing\(s\) c0i1"),
        ([*EQBEN_FULL_ROWS, EQBEN_FULL_ROWS[0]], "row 8: pairing c1i0 of this sample occurs twice"),
    ],
    "seetrue": [
        ([{**SEETRUE_ROWS[0], "label": 2}], "row 0: expected a label of 0 or 1, found 2.0"),
        ([{**SEETRUE_ROWS[0], "label": ""}], "row 0: expected a label of 0 or 1, found None"),
        ([{**SEETRUE_ROWS[0], "label": "yes"}], "row 0: expected a number for label, found 'yes'"),
        ([SEETRUE_ROWS[0]] * 2, "row 1: rater '0' rates image '0133_sd.png' twice as 'label' .*row 0"),
        ("image,text,label,dataset_source\n", "expected rows, found none"),
    ],
    "pick_a_pic": [
        ([{**PICK_A_PIC_ROWS[0], "label_1": 1.0}], "row 0: expected label_0 and label_1 to be 1 and"),
        (WINOGROUND_ROWS, "expected column.s. caption, image_0_uid.*found id, image_0"),
    ],
    "pick_a_pic, captions": [
        ([{**PICK_CAPTION_ROWS[0], "label_0": 3}], "row 0: expected label_0 and label_1 to be 1 and 0"),
        (PICK_CAPTION_ROWS[1:], "row 0: expected the id 0, found '1'; use the complete file"),
        ([{"id": 0, "caption": "a cat"}], "expected column.s. image_0, image_1, label_0, label_1, found id, caption"),
        ([{**PICK_CAPTION_ROWS[0], "id": None}], "row 0: expected the id 0, found None"),
    ],
    "stanfordt23d": [
        ({"0": {"prompt": "x"}}, r"row 0 \('0'\): expected models, found prompt"),
        ({"0": {"models": {"mvdream": [1, "good"]}}}, r"row 0 \('0'\), mvdream: expected a number as the rating"),
        ({"0": {"models": {"mvdream": []}}}, "mvdream: expected a list of ratings, found an empty list"),
    ],
    "flickr8k_cf": [
        (FLICKR_TEXT[:-9], "line 2: expected the image, .* found [234] fields; it may be truncated"),
        ("1.jpg\t2.jpg#0\t0.5\t3\t1\n", r"line 1: 3 yes and 1 no answers do not give the fraction 0\.5"),
        ("1.jpg\t2.jpg#0\t1\t3\t0\n" * 2, "line 2: rater '0' rates image '1.jpg' twice"),
    ],
    "flickr8k_cf, JSON": [
        ({"1.jpg": {"human_judgement": [{"caption": "a", "rating": 4.0}]}},
         r"row 0 \('1\.jpg'\), judgement 0: expected the fraction of yes answers \(0 to 1\), found 4; if"),
    ],
    "gecko": [
        ("likert.csv", [{**GECKO_FILES["likert.csv"][0], "answer": "6"}],
         "row 0: expected 1 to 5 or Unsure, found '6'"),
        ("likert.csv", [{**GECKO_FILES["likert.csv"][0], "answer": "nice"}],
         "expected a number as the rating, found 'nice'"),
        ("likert.csv", [GECKO_FILES["likert.csv"][0]] * 2, "row 1: rater 'a' rates image '07/muse' twice as 'likert'"),
        ("wl.csv", [{**GECKO_FILES["wl.csv"][0], "answer": "Yes"}],
         "expected aligned, not aligned or Unsure, found 'yes'"),
        ("wl.csv", [{**GECKO_FILES["wl.csv"][0], "word": 3}],
         "row 0: expected the index of a word in prompt '07', 0 to 2, found '3'"),
        ("dsg_h.csv", [GECKO_FILES["dsg_h.csv"][0]] * 2,
         "row 1: rater 'a' answers 'dsg_h' about '0' of image '07/muse'"),
        ("sxs.csv", [{**GECKO_FILES["sxs.csv"][0], "answer": "muse"}], "row 0: expected a, b or Unsure, found 'muse'"),
        ("sxs.csv", [GECKO_FILES["sxs.csv"][0]] * 2, "row 1: rater 'a' compares this pair for the second time"),
        ("sxs.csv", [{"prompt_id": "7"}], r"expected column\(s\) generator_a.*see the layout"),
    ],
    "t2iscorescore": [
        ("ts2_scores_per_image.csv", TS2_SCORES[:-1], "expected 16 rows, as .*_metadata.csv has, found 15; the"),
        ("ts2_scores_per_image.csv", TS2_SCORES[::-1], "row 0: expected id 0, as in .*, found 164; put the rows"),
        ("ts2_metadata.csv", [{**row, "rank": "a"} for row in TS2_METADATA], "row 0: expected a rank such as 0, 1"),
        ("ts2_metadata.csv", [{**row, "rank": str(2**53 + 1)} for row in TS2_METADATA], "row 0: expected a rank such"),
        ("ts2_metadata.csv", [{**row, "id": "x"} for row in TS2_METADATA], "row 0: expected a whole number as id"),
        ("ts2_metadata.csv", [TS2_METADATA[0]] * 16, "row 1: image 'images/000-00.jpg' occurs twice .*row 0"),
    ],
    "shapes": [
        ("ratings.parquet", [{**SHAPES_FILES["ratings.parquet"][0], "image_id": "j"}],
         "row 0: image 'j' is not in truth"),
    ],
    "error_graphs": [
        (change_row(0, parents="2"), r"row 0: graph 'g' has a cycle, (\w+ -> ){3}\w+; remove one of these nodes"),
        (change_row(1, parents="1a"), "row 1: graph 'g' has a cycle, 1a -> 1a; remove one of these"),
        (change_row(1, parents=""), r"row 1: graph 'g' has two roots, '1a' and '0' \(.*row 0\); fill in the parents"),
        (change_row(3, parents="1a;1c"), "row 3: graph 'g': node '1c', a parent of '2', has no image; add a row with"),
        (change_row(3, image_id=""), "row 3: expected a image_id, found none; fill it in"),
        (change_row(3, image_id="a.png"), r"row 3: image 'a.png' occurs twice \(first in .*row 0\)"),
        (change_row(0, errors="blur"), "row 0: graph 'g': expected no errors in the root '0', found blur; fill in its"),
        (change_row(3, errors="x: y"), "row 3: graph 'g': expected more errors in node '2' than in its parent '1a'"),
        (change_row(2, node="1a"), "row 2: graph 'g', node '1a', errors: expected .'missing.*row 1, found .'wrong"),
        (change_row(2, prompt="a dog"), "row 2: graph 'g', prompt: expected 'a red .*row 0, found 'a dog'; use"),
        (change_row(2, prompt=""), "row 2: expected a prompt, found none"),
        ("graph_id,node\ng,0\n", r"expected column\(s\) prompt, parents, errors, image_id, found graph_id, node; docs"),
        (make_wide_graph(4, 11), r"graph 'g': expected at most 10,000 walks, .*, found 14,641; split the graph"),
    ],
    "long": [
        ("image_id\n1\n", r"expected column\(s\) rating, found image_id; set protocol.columns.rating"),
        ("prompt_id,rating\n1,2\n", r"expected column\(s\) generator, found prompt_id, rating; name the image"),
        ("image_id,rating\n1,good\n", "row 0: expected a number for rating, found 'good'"),
        ("image_id,rating\n1,inf\n", "row 0: expected a finite number as the rating, found inf"),
        ("image_id,rating\n,3\n", "row 0: expected image_id, or both prompt_id and generator"),
        ("image_id,rater,rating\n1,,3\n", "row 0: expected a rater, found none"),
        ([*LONG_RATING_ROWS, LONG_RATING_ROWS[0]], "row 2: rater 'ann' rates image '001' twice as 'wl'"),
        (format_csv(LONG_RATING_ROWS)[:-9], r"row 1 \(line 3\): expected 7 fields, found"),
    ],
    "long, Parquet": [
        (b"", "not readable as Parquet"),
        ([{"image_id": "1", "rating": [3]}], "column 'rating': expected text or numbers, found"),
        (format_parquet([{"image_id": "word", "rating": 1}]).replace(b"word", b"w\xffrd"), "not readable as Parquet"),
    ],
}  # fmt: skip
"""Invalid contents by layout, each with the expected message.

An entry is (content, message) for the layout's first file, or (file name, content, message) for another file.
"""


@pytest.mark.parametrize(
    "name, complaint", [(name, one) for name, several in INVALID_CONTENTS.items() for one in several]
)
def test_invalid_content_is_reported_with_its_file_and_row(
    name: str, complaint: tuple[Any, ...], tmp_path: Path
) -> None:
    check_complaint(LAYOUTS[name], complaint, tmp_path)


def check_complaint(layout: Layout, complaint: tuple[Any, ...], folder: Path) -> None:
    """Check the error message for one entry of INVALID_CONTENTS; it must be one line that names the file."""
    *file, content, said = complaint
    changed = file[0] if file else next(iter(layout.files))
    with pytest.raises(SourceError, match=said) as caught:
        read_with(layout.reader, layout.replace_file(changed, content).write(folder))
    assert "\n" not in str(caught.value) and str(folder) in str(caught.value)
    assert changed in str(caught.value) or changed == "prompts.csv"


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_missing_file_or_a_folder_in_its_path_is_reported(name: str, tmp_path: Path) -> None:
    layout = LAYOUTS[name]
    check_missing(layout, tmp_path, takes_folder=layout.reads_folder or layout.reader == "pick_a_pic")
    if layout.reader == "winoground":
        with pytest.raises(SourceError, match=r"w\.txt: expected a \.parquet, \.csv, .* file; correct its ending"):
            read_with("winoground", write_file(tmp_path / "w.txt", json.dumps(FLICKR_JSON)))


def check_missing(layout: Layout, folder: Path, *, takes_folder: bool) -> None:
    """Check the errors for a missing file, and for a folder in place of a file."""
    place = folder if layout.reads_folder else folder / next(iter(layout.files))
    with pytest.raises(PlumblineError, match=str(folder)):
        read_with(layout.reader, place)
    if not takes_folder:
        with pytest.raises(SourceError, match="expected a file, found a folder; give the file's own path"):
            read_with(layout.reader, folder)
