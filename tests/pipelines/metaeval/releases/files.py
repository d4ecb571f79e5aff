"""Small files in the layouts of released benchmarks, and functions to write and read them in tests."""

import csv
import io
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.releases.readers import read_release
from plumbline.pipelines.metaeval.releases.release import Release

ROOT = Path(__file__).parents[4]
REFERENCE_FOLDER = Path(os.environ.get("REFERENCE_DATA", ROOT.parent / "shared" / "reference"))
NEEDS_REFERENCE_DATA = pytest.mark.skipif(not REFERENCE_FOLDER.is_dir(), reason="REFERENCE_DATA is not set or empty")

Rows = Sequence[Mapping[str, Any]]


def read_with(name: str, path: Path | str) -> Release:
    """Return the release in a file or folder, read with the reader that is called `name`."""
    return read_release(name, StorageConfig().locate(str(path)))


def make_rows(names: str, *rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Return rows as dictionaries; `names` are the column names, separated by spaces."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def format_csv(rows: Rows, delimiter: str = ",") -> str:
    """Format rows as CSV with a header; None becomes an empty cell."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def format_json_lines(rows: Rows) -> str:
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def format_parquet(rows: Rows) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), sink)
    return bytes(sink.getvalue())


FORMAT_FUNCTIONS = {
    ".csv": format_csv,
    ".tsv": lambda rows: format_csv(rows, "\t"),
    ".jsonl": format_json_lines,
    ".parquet": format_parquet,
    ".json": json.dumps,
}


def encode_content(name: str, content: Any) -> bytes:
    """Encode rows or a JSON value in the format of the file extension; leave text and bytes unchanged."""
    text = content if isinstance(content, str | bytes) else FORMAT_FUNCTIONS[Path(name).suffix](content)
    return text.encode() if isinstance(text, str) else text


def write_file(file: Path, content: Any) -> Path:
    """Write a file, creating its folder; return its path."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encode_content(file.name, content))
    return file


TIFA_RATINGS = {
    f"coco_{number}_{generator}": {
        "text_id": f"coco_{number}", "image_path": f"coco_{number}_{generator}.jpg", "text": "a dog",
        "human_scores": [5, 4], "human_avg": 4.5, "meteor": 0.25 + number, "tifa_vilt": 1.0,
    }
    for number in (1, 2) for generator in ("mini_dalle", "vq_diffusion")
}  # fmt: skip
GENAI_QUESTION = "How consistent is the image with the text description?"
DSG_LIKERT_ROWS = make_rows(
    "dsg_prompt_split t2i_model item_id source_id worker_id question answer",
    *(("tifa160", generator, "tifa160_14", "coco_36", worker, GENAI_QUESTION, answer)
      for generator, answers in (("mini-dalle", (3, 5)), ("sd2dot1", (3, 4)))
      for worker, answer in zip((4375840905, 4375843592), answers, strict=True)),
)  # fmt: skip
GENAI_PROMPTS = {
    "00007": {
        "id": "7", "prompt": "Two cubes.", "prompt in Chinese": "...", "models": {"One": [1, 2, 3], "Two": [4, 4, 5]},
    },
    "00008": {"id": "00008", "prompt": "A ball.", "models": {"One": [5, 5, 4]}},
}  # fmt: skip
GENAI_SKILLS = {"counting": [7], "basic": [7, 8, 9]}
STANFORD_RATINGS = {
    "3": {"prompt": "A torn hat", "models": {"shap-e": [2, 5, 3], "mvdream": [1, 1, 2]}},
    "0": {"prompt": "A soft sofa", "models": {"mvdream": [5, 4, 5]}},
}
T2V_RATINGS = {"0": {"prompt": "a dog", "models": {"gen2": [1.3], "pika": [2.5]}}}
T2V_SCORES = [
    {"model_name": "gen2", "video_id": "0", "prompt": "a dog", "CLIP Score": 24.5, "BLIP-BLEU": "1.40E-16"},
    {"model_name": "pika", "video_id": "0", "prompt": "a dog", "CLIP Score": 32.25, "BLIP-BLEU": 0.25},
]
WINOGROUND_ROWS = make_rows(
    "id image_0 image_1 caption_0 caption_1 tag secondary_tag num_main_preds collapsed_tag",
    *((number, f"ex_{number}_img_0", f"ex_{number}_img_1", "an old person kisses a young person",
       "a young person kisses an old person", "Adjective-Age", "Morpheme-Level" if number else "", 1, "Object")
      for number in (0, 1)),
)  # fmt: skip
EQBEN_ROWS = make_rows(
    "image0 image1 caption0 caption1",
    *((f"{part}/7/0.png", f"{part}/7/1.png", "three cups on the floor", "two cups on the floor")
      for part in ("eqbensd", "eqbenkubric_cnt")),
)  # fmt: skip
EQBEN_FULL_ROWS = make_rows(
    "image caption private_info",
    *((f"eqbensd/{name[-1]}.png", f"a caption {name[1]}", {"dataset": "eqbensd", "sample_cnt": sample, "name": name})
      for name in ("c1i0", "c0i0", "c1i1", "c0i1") for sample in (3, 12)),
)  # fmt: skip
SEETRUE_ROWS = make_rows(
    "image text label original_dataset_id dataset_source",
    ("0133_sd.png", "A zebra, a hydrant.", 0, "t_1", "drawbench"),
    ("0133_sd.png", "A zebra.", 1, "t_2", "drawbench"),
    ("5.png", "A zebra.", 1, 1972.0, "editbench"),
)
PICK_A_PIC_ROWS = make_rows(
    "are_different caption has_label image_0_uid image_1_uid jpg_0 label_0 label_1 model_0 model_1 ranking_id user_id",
    *((True, "a cat", has_label, f"u{number}-0", f"u{number}-1", "not read", label, 1 - label, "sdxl", None, number, 9)
      for number, (label, has_label) in enumerate([(1.0, True), (0.0, True), (0.5, True), (0.0, False)])),
)  # fmt: skip
PICK_CAPTION_ROWS = make_rows(
    "id caption image_0 image_1 label_0 label_1",
    *((number, f"a cat {number}", f"images/{number}_0.jpg", f"images/{number}_1.jpg", label, 1 - label)
      for number, label in enumerate([1, 0, 0.5, 1])),
)  # fmt: skip
FLICKR_TEXT = "1.jpg\t2.jpg#0\t0.3333333333333333\t1\t2\n1.jpg\t3.jpg#4\t1\t3\t0\n"
PHOTO_FILE = "Flicker8k_Dataset/1.jpg"
FLICKR_JSON = {
    "1.jpg": {
        "image_path": PHOTO_FILE,
        "ground_truth": ["A dog runs ."],
        "human_judgement": make_rows(
            "image_path caption rating",
            (PHOTO_FILE, "A dog .", 1 / 3), (PHOTO_FILE, "A dog .", 0.0), (PHOTO_FILE, "A cat .", float("nan")),
        ),
    }
}  # fmt: skip
TS2_METADATA = make_rows(
    "id target_prompt file_name image_source rank",
    *((graph, "a dog", f"images/{graph:03}-{place:02}.jpg", source, rank)
      for graph, source in ((0, "SD2.1"), (111, "DALL-E2"), (136, "Natural"), (164, "SDXL"))
      for place, rank in enumerate(("0", "0b", "1a", "10"))),
)  # fmt: skip
TS2_SCORES = make_rows(
    "id image_id clipscore viescore",
    *((row["id"], 7, 0.5 + place / 100, None if place == 3 else place) for place, row in enumerate(TS2_METADATA)),
)
GRAPH_ROWS = make_rows(
    "graph_id prompt node parents errors image_id generator prompt_source subset",
    ("g", "a red dog and a cat", "0", "", "", "a.png", "sdxl", "COCO", "synth"),
    ("g", "a red dog and a cat", "1a", "0", "missing object: cat", "b.png", "flux", "COCO", "synth"),
    ("g", "a red dog and a cat", "1b", "0", "wrong attribute: blue dog", "c.png", "sdxl", "COCO", "synth"),
    ("g", "a red dog and a cat", "2", "1a; 1b", "wrong attribute: blue dog; missing object: cat", "d.png", "sdxl",
     "COCO", "synth"),
)  # fmt: skip
LONG_RATING_ROWS = make_rows(
    "image_id prompt_id generator rater template rating skills",
    ("001", "07", "atlas", "ann", "wl", 0.5, "color"),
    ("002", "08", "atlas", "ann", "wl", 1, ""),
)
GECKO_FILES: Mapping[str, Rows] = {
    "likert.csv": make_rows(
        "prompt_id generator rater answer",
        *(("07", "muse", *both) for both in (("a", "5"), ("b", "2"), ("c", "Unsure"))),
    ),
    "wl.csv": make_rows(
        "prompt_id generator rater word answer",
        *(("07", "muse", "a", word, answer) for word, answer in enumerate(("Aligned", "Not aligned", "Unsure"))),
        ("07", "muse", "b", 0, "Unsure"),
    ),
    "dsg_h.csv": make_rows(
        "prompt_id generator rater question_id answer",
        *(("07", "muse", "a", *both)
          for both in enumerate(("Yes", "yes", "No", "Invalid", "Subjective", "I do not know the answer"))),
    ),
    "sxs.csv": make_rows(
        "prompt_id generator_a generator_b rater answer",
        *(("07", "muse", "sdxl", *both) for both in (("a", "a"), ("b", "B"), ("c", "Unsure"))),
    ),
    "prompts.csv": [
        {"": place, "dataset_id": origin, "prompt": "one, two three", "prompt_type": "Gecko(S)", "prompt_id": prompt,
         "max_disagreement_less_0.45": False, "max_disagreement_less_0.5": reliable}
        for place, (origin, prompt, reliable) in enumerate(
            [("att/count:additive_2", "07", True), ("ne/art:art", "8", False)]
        )
    ],
}  # fmt: skip
SHAPES_FILES = {
    "prompts.parquet": make_rows("prompt_id text skills", ("p", "a red star", ["color"])),
    "truth.parquet": make_rows("image_id prompt_id generator broken", ("i", "p", "g", ["r1"])),
    "ratings.parquet": make_rows("image_id rater rating", ("i", "r", 3)),
    "requirements.parquet": make_rows("prompt_id requirement_id start end", ("p", "r1", 2, 5)),
}


class Layout(NamedTuple):
    """The files of a release in their original layout."""

    reader: str
    files: Mapping[str, Any]
    """Rows, a JSON value, text or bytes, by file name. The reader gets the first file, unless `reads_folder`."""
    reads_folder: bool = False

    def write(self, folder: Path) -> Path:
        """Write the files; return the path for the reader."""
        for name, content in self.files.items():
            write_file(folder / name, content)
        return folder if self.reads_folder else folder / next(iter(self.files))

    def replace_file(self, name: str, content: Any) -> "Layout":
        return self._replace(files={**self.files, name: content})


LAYOUTS: Mapping[str, Layout] = {
    "tifa160": Layout("tifa160", {"human_annotations_with_scores.json": TIFA_RATINGS}),
    "dsg_tifa160": Layout("dsg_tifa160", {"tifa160-likert-anns.csv": DSG_LIKERT_ROWS}),
    "genai_bench": Layout("genai_bench", {"genai_image.json": GENAI_PROMPTS, "genai_skills.json": GENAI_SKILLS}),
    "t2vscore": Layout(
        "t2vscore", {"t2vscore_human_ratings.json": T2V_RATINGS, "t2vscore_results.csv": T2V_SCORES}, True
    ),
    "winoground, lines": Layout("winoground", {"examples.jsonl": WINOGROUND_ROWS}),
    "winoground, Parquet": Layout("winoground", {"test.parquet": WINOGROUND_ROWS}),
    "winoground, CSV": Layout("winoground", {"metadata.csv": WINOGROUND_ROWS}),
    "eqben": Layout("eqben", {"all_select.json": EQBEN_ROWS}),
    "eqben, full": Layout("eqben", {"ann_json_finegrained_random.json": EQBEN_FULL_ROWS}),
    "seetrue": Layout("seetrue", {"SeeTRUE.csv": SEETRUE_ROWS}),
    "pick_a_pic": Layout("pick_a_pic", {"test_unique.parquet": PICK_A_PIC_ROWS}),
    "pick_a_pic, captions": Layout("pick_a_pic", {"test_captions.json": PICK_CAPTION_ROWS}),
    "stanfordt23d": Layout("stanfordt23d", {"stanfordt23d.json": STANFORD_RATINGS}),
    "flickr8k_cf": Layout("flickr8k_cf", {"CrowdFlowerAnnotations.txt": FLICKR_TEXT}),
    "flickr8k_cf, JSON": Layout("flickr8k_cf", {"crowdflower_flickr8k.json": FLICKR_JSON}),
    "gecko": Layout("gecko", GECKO_FILES, True),
    "t2iscorescore": Layout(
        "t2iscorescore", {"ts2_metadata.csv": TS2_METADATA, "ts2_scores_per_image.csv": TS2_SCORES}, True
    ),
    "shapes": Layout("shapes", SHAPES_FILES, True),
    "error_graphs": Layout("error_graphs", {"graphs.csv": GRAPH_ROWS}),
    "long": Layout("long", {"ratings.csv": LONG_RATING_ROWS}),
    "long, Parquet": Layout("long", {"ratings.parquet": LONG_RATING_ROWS}),
}
