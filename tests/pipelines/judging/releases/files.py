"""Small files in the layouts that the benchmarks release, and how the tests write and read them."""

import csv
import io
import json
import os
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.releases.readers import read_release
from plumbline.pipelines.judging.releases.release import Release
from plumbline.pipelines.judging.releases.word_ratings import masked_crc

ROOT = Path(__file__).parents[4]
REFERENCE = Path(os.environ.get("REFERENCE_DATA", ROOT.parent / "shared" / "reference"))
needs_reference = pytest.mark.skipif(not REFERENCE.is_dir(), reason="REFERENCE_DATA is not set, or holds nothing")

Rows = Sequence[Mapping[str, Any]]


def reading(name: str, path: Path | str) -> Release:
    """What the named reader makes of a file or folder."""
    return read_release(name, StorageConfig().locate(str(path)))


def table(names: str, *rows: Sequence[Any]) -> list[dict[str, Any]]:
    """Rows under the names, which spaces part."""
    return [dict(zip(names.split(), row, strict=True)) for row in rows]


def as_csv(rows: Rows, delimiter: str = ",") -> str:
    """The rows with a header, empty where they hold None."""
    out = io.StringIO()
    writer = csv.DictWriter(out, list(rows[0]), delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue()


def as_lines(rows: Rows) -> str:
    """The rows as JSON lines."""
    return "".join(f"{json.dumps(row)}\n" for row in rows)


def as_parquet(rows: Rows) -> bytes:
    """The rows as a Parquet file."""
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), sink)
    return bytes(sink.getvalue())


WRITERS = {
    ".csv": as_csv,
    ".tsv": lambda rows: as_csv(rows, "\t"),
    ".jsonl": as_lines,
    ".parquet": as_parquet,
    ".json": json.dumps,
}


def encoded(name: str, content: Any) -> bytes:
    """A file's content: text and bytes as they are, rows and trees as the name's ending says."""
    text = content if isinstance(content, str | bytes) else WRITERS[Path(name).suffix](content)
    return text.encode() if isinstance(text, str) else text


def put(file: Path, content: Any) -> Path:
    """A file with this content, in a folder that is made for it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(encoded(file.name, content))
    return file


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in protobuf's encoding."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + _varint(number // 128)


def as_example(features: Mapping[str, str | bytes | float]) -> bytes:
    """A tensorflow.Example, laid out by hand after example.proto: text and bytes as bytes_list, numbers as
    float_list."""
    entries = b""
    for name, value in features.items():
        if isinstance(value, float):
            kind = _field(2, _field(1, struct.pack("<f", value)))
        else:
            kind = _field(1, _field(1, value.encode() if isinstance(value, str) else value))
        entries += _field(1, _field(1, name.encode()) + _field(2, kind))
    return _field(1, entries)


def as_tfrecord(*records: bytes) -> bytes:
    """A file of records as TensorFlow writes it."""
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += length + struct.pack("<I", masked_crc(length)) + record + struct.pack("<I", masked_crc(record))
    return out


def richhf(label: str = "1 0 1 1 1 0", **features: str | bytes | float) -> bytes:
    """An example of RichHF-18K."""
    scores = {"aesthetics_score": 0.5, "artifact_score": 0.75, "misalignment_score": 0.25, "overall_score": 0.5}
    maps = {"artifact_map": b"\xff\xd8jpeg", "misalignment_map": b"\xff\xd8jpeg"}
    return as_example({"filename": "train/0a1b.png", **scores, **maps, "prompt_misalignment_label": label, **features})


TIFA = {
    f"coco_{number}_{generator}": {
        "text_id": f"coco_{number}", "image_path": f"coco_{number}_{generator}.jpg", "text": "a dog",
        "human_scores": [5, 4], "human_avg": 4.5, "meteor": 0.25 + number, "tifa_vilt": 1.0,
    }
    for number in (1, 2) for generator in ("mini_dalle", "vq_diffusion")
}  # fmt: skip
EVALMUSE: Rows = [
    {"prompt_id": "real_7", "prompt": "Two red dogs, near a lake", "type": "real", "img_path": "SDXL-Turbo/00007.png",
     "total_score": [4, 2, 3], "promt_meaningless": [0, 0, 0], "split_confidence": [0, 1, 0],
     "element_score": {"Red dogs (animal)": [1, 0, 1], "two (counting)": [0, 0, 0], "a pond (object)": [1, 1, 1]},
     "attribute_confidence": [1, 1, 1], "fidelity_label": ["none"]},
    {"prompt_id": "synth_1", "prompt": "a cat", "type": "synth", "img_path": "IF/00001.png", "total_score": 2.666667,
     "element_score": {"cat (animal)": 0.333333}, "var": 0.2},
]  # fmt: skip
RICHHF_PROMPT = 'A cat, "asleep" in a box.'
ASKED = "How consistent is the image with the text description?"
DSG_LIKERT = table(
    "dsg_prompt_split t2i_model item_id source_id worker_id question answer",
    *(("tifa160", generator, "tifa160_14", "coco_36", worker, ASKED, answer)
      for generator, answers in (("mini-dalle", (3, 5)), ("sd2dot1", (3, 4)))
      for worker, answer in zip((4375840905, 4375843592), answers, strict=True)),
)  # fmt: skip
GENAI = {
    "00007": {
        "id": "7", "prompt": "Two cubes.", "prompt in Chinese": "...", "models": {"One": [1, 2, 3], "Two": [4, 4, 5]},
    },
    "00008": {"id": "00008", "prompt": "A ball.", "models": {"One": [5, 5, 4]}},
}  # fmt: skip
GENAI_SKILLS = {"counting": [7], "basic": [7, 8, 9]}
STANFORD = {
    "3": {"prompt": "A torn hat", "models": {"shap-e": [2, 5, 3], "mvdream": [1, 1, 2]}},
    "0": {"prompt": "A soft sofa", "models": {"mvdream": [5, 4, 5]}},
}
T2V = {"0": {"prompt": "a dog", "models": {"gen2": [1.3], "pika": [2.5]}}}
T2V_SCORES = [
    {"model_name": "gen2", "video_id": "0", "prompt": "a dog", "CLIP Score": 24.5, "BLIP-BLEU": "1.40E-16"},
    {"model_name": "pika", "video_id": "0", "prompt": "a dog", "CLIP Score": 32.25, "BLIP-BLEU": 0.25},
]
WINOGROUND = table(
    "id image_0 image_1 caption_0 caption_1 tag secondary_tag num_main_preds collapsed_tag",
    *((number, f"ex_{number}_img_0", f"ex_{number}_img_1", "an old person kisses a young person",
       "a young person kisses an old person", "Adjective-Age", "Morpheme-Level" if number else "", 1, "Object")
      for number in (0, 1)),
)  # fmt: skip
EQBEN = table(
    "image0 image1 caption0 caption1",
    *((f"{part}/7/0.png", f"{part}/7/1.png", "three cups on the floor", "two cups on the floor")
      for part in ("eqbensd", "eqbenkubric_cnt")),
)  # fmt: skip
EQBEN_FULL = table(
    "image caption private_info",
    *((f"eqbensd/{name[-1]}.png", f"a caption {name[1]}", {"dataset": "eqbensd", "sample_cnt": sample, "name": name})
      for name in ("c1i0", "c0i0", "c1i1", "c0i1") for sample in (3, 12)),
)  # fmt: skip
SEETRUE = table(
    "image text label original_dataset_id dataset_source",
    ("0133_sd.png", "A zebra, a hydrant.", 0, "t_1", "drawbench"),
    ("0133_sd.png", "A zebra.", 1, "t_2", "drawbench"),
    ("5.png", "A zebra.", 1, 1972.0, "editbench"),
)
PICK_A_PIC = table(
    "are_different caption has_label image_0_uid image_1_uid jpg_0 label_0 label_1 model_0 model_1 ranking_id user_id",
    *((True, "a cat", has_label, f"u{number}-0", f"u{number}-1", "not read", label, 1 - label, "sdxl", None, number, 9)
      for number, (label, has_label) in enumerate([(1.0, True), (0.0, True), (0.5, True), (0.0, False)])),
)  # fmt: skip
PICK_CAPTIONS = table(
    "id caption image_0 image_1 label_0 label_1",
    *((number, f"a cat {number}", f"images/{number}_0.jpg", f"images/{number}_1.jpg", label, 1 - label)
      for number, label in enumerate([1, 0, 0.5, 1])),
)  # fmt: skip
FLICKR = "1.jpg\t2.jpg#0\t0.3333333333333333\t1\t2\n1.jpg\t3.jpg#4\t1\t3\t0\n"
PHOTO = "Flicker8k_Dataset/1.jpg"
FLICKR_JSON = {
    "1.jpg": {
        "image_path": PHOTO,
        "ground_truth": ["A dog runs ."],
        "human_judgement": table(
            "image_path caption rating",
            (PHOTO, "A dog .", 1 / 3), (PHOTO, "A dog .", 0.0), (PHOTO, "A cat .", float("nan")),
        ),
    }
}  # fmt: skip
TS2_METADATA = table(
    "id target_prompt file_name image_source rank",
    *((graph, "a dog", f"images/{graph:03}-{place:02}.jpg", source, rank)
      for graph, source in ((0, "SD2.1"), (111, "DALL-E2"), (136, "Natural"), (164, "SDXL"))
      for place, rank in enumerate(("0", "0b", "1a", "10"))),
)  # fmt: skip
TS2_SCORES = table(
    "id image_id clipscore viescore",
    *((row["id"], 7, 0.5 + place / 100, None if place == 3 else place) for place, row in enumerate(TS2_METADATA)),
)
GRAPH = table(
    "graph_id prompt node parents errors image_id generator prompt_source subset",
    ("g", "a red dog and a cat", "0", "", "", "a.png", "sdxl", "COCO", "synth"),
    ("g", "a red dog and a cat", "1a", "0", "missing object: cat", "b.png", "flux", "COCO", "synth"),
    ("g", "a red dog and a cat", "1b", "0", "wrong attribute: blue dog", "c.png", "sdxl", "COCO", "synth"),
    ("g", "a red dog and a cat", "2", "1a; 1b", "wrong attribute: blue dog; missing object: cat", "d.png", "sdxl",
     "COCO", "synth"),
)  # fmt: skip
LONG = table(
    "image_id prompt_id generator rater template rating skills",
    ("001", "07", "atlas", "ann", "wl", 0.5, "color"),
    ("002", "08", "atlas", "ann", "wl", 1, ""),
)
GECKO: Mapping[str, Rows] = {
    "likert.csv": table(
        "prompt_id generator rater answer",
        *(("07", "muse", *both) for both in (("a", "5"), ("b", "2"), ("c", "Unsure"))),
    ),
    "wl.csv": table(
        "prompt_id generator rater word answer",
        *(("07", "muse", "a", word, answer) for word, answer in enumerate(("Aligned", "Not aligned", "Unsure"))),
        ("07", "muse", "b", 0, "Unsure"),
    ),
    "dsg_h.csv": table(
        "prompt_id generator rater question_id answer",
        *(("07", "muse", "a", *both)
          for both in enumerate(("Yes", "yes", "No", "Invalid", "Subjective", "I do not know the answer"))),
    ),
    "sxs.csv": table(
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
SHAPES = {
    "prompts.parquet": table("prompt_id text skills", ("p", "a red star", ["color"])),
    "truth.parquet": table("image_id prompt_id generator broken", ("i", "p", "g", ["r1"])),
    "ratings.parquet": table("image_id rater rating", ("i", "r", 3)),
    "requirements.parquet": table("prompt_id requirement_id start end", ("p", "r1", 2, 5)),
}

RATERS = "paper_implementation/_human_annotations/ImagenHub_human_eval_results"
ANSWERS = "paper_implementation/_answers"
IMAGENHUB: dict[str, Any] = {
    f"{RATERS}/ImagenHub_Text-Guided_IE/Text-Guided_IE_rater1.tsv": (
        "uid\tOne\tTwo\r\nb.jpg\t[0.5, 1]\t[0,0]\r\na.jpg\t[1,1]\t[0, 0.5]\r\n"
    ),
    f"{RATERS}/ImagenHub_Text-Guided_IE/Text-Guided_IE_rater2.tsv": "uid\tOne\na.jpg\t[0.5,0.5]\nb.jpg\t[0,1]\n",
    f"{RATERS}/ImagenHub_Text-Guided_IG/Text-To-Image_rater1.tsv": "uid\tSDXL\na.jpg\t[1,1]\n",
    f"{ANSWERS}/results_gpt4o_0shot/ImagenHub_Text-Guided_IE/One/SC.json": {
        "b.jpg": {"score": [4, 8.5], "reasoning": "..."}, "a.jpg": {"score": 80}, "c.jpg": {"score": [1]},
    },
    f"{ANSWERS}/results_gpt4o_0shot/ImagenHub_Text-Guided_IE/One/PQ.json": {
        "a.jpg": {"score": [8.5, 9]}, "b.jpg": {"score": [9]},
    },
    f"{ANSWERS}/results_autometrics/ImagenHub_Text-Guided_IE/One.json": {"a.jpg": {"LPIPS": 0.486559}},
}  # fmt: skip
VOTES = table(
    "idx instruct_prompt response model_vote human_vote correct",
    (0, "add a lizard", "[[A>B]]", "[[A>B]]", "leftvote", True),
    (2, "add a hat", "None of them", None, "bothbad_vote", False),
    (1, "remove it", "[[A=B=Good]]", "[[A=B=Good]]", "tievote", True),
    (3, "remove it", "[[A>B]]", "[[A>B]]", "rightvote", False),
)  # fmt: skip
GENAI_ARENA: dict[str, Any] = {
    "gpt4o/pairwise.json": VOTES,
    "random/pairwise.json": [{**VOTES[0], "model_vote": "[[B>A]]"}],
    "emu2/pairwise.jsonl": "{}\n",
}


def annotated(rater: Any, *results: tuple[str, str, Mapping[str, Any]], **said: Any) -> dict[str, Any]:
    """An annotation of Label Studio: of each result the name and kind of its tag, and the value."""
    result = [{"from_name": name, "to_name": "x", "type": kind, "value": value} for name, kind, value in results]
    return {"id": 1, "completed_by": rater, "was_cancelled": False, "result": result, "lead_time": 3.5, **said}


RED_DOG = {"prompt_id": "p1", "prompt": "a red dog"}
ATLAS = {**RED_DOG, "image_id": "i1", "generator": "atlas", "skills": "color; animal", "image": "https://x.org/1.png"}
RED = {"start": 2, "end": 5, "text": "red", "labels": ["missing"]}
LABEL_STUDIO: Rows = [
    {"id": 1, "data": ATLAS, "predictions": [], "annotations": [
        annotated(
            {"id": 7, "email": "ann@x.org"},
            ("likert", "rating", {"rating": 4}), ("shown", "choices", {"choices": ["Yes"]}), ("wl", "labels", RED),
            ("comment", "textarea", {"text": ["nice"]}),
        ),
        annotated(8, ("likert", "rating", {"rating": 2}), ("shown", "choices", {"choices": ["unsure"]})),
        annotated(9, was_cancelled=True),
    ]},
    {"id": 2, "data": {**RED_DOG, "image_a": "i1", "image_b": "i2", "generator_a": "atlas"}, "annotations": [
        annotated(8, ("better", "pairwise", {"selected": "right"})),
    ]},
    {"id": 3, "data": ATLAS, "annotations": []},
]  # fmt: skip
MARKED = {"start": 2, "end": 5, "label": "missing"}
ARGILLA_DATA = {name: ATLAS[name] for name in ("image_id", "prompt_id", "generator")}
ARGILLA_RECORDS: Rows = [
    {"id": "r1", "fields": {"prompt": "a red dog"}, "metadata": {**ARGILLA_DATA, "skills": ["color", "animal"]},
     "suggestions": {}, "vectors": {}, "status": "completed", "_server_id": None,
     "responses": {
         "likert": [{"value": 4, "user_id": "ann@x.org"}, {"value": 2, "user_id": "8"}],
         "shown": [{"value": "Yes", "user_id": "ann@x.org"}, {"value": "unsure", "user_id": "8"}],
         "wl": [{"value": [MARKED], "user_id": "ann@x.org"}],
         "comment": [{"value": "nice", "user_id": "ann@x.org"}],
     }},
    {"id": "r2", "fields": {"prompt": "a red dog"}, "suggestions": {}, "responses": {
        "better": [{"value": "b", "user_id": "8"}],
    }, "metadata": {"prompt_id": "p1", "image_a": "i1", "image_b": "i2", "generator_a": "atlas"}},
]  # fmt: skip


def of_version_1(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as Argilla's version 1 has it, with a draft more."""
    by_user: dict[str, Any] = {}
    for question, responses in record["responses"].items():
        for response in responses:
            by_user.setdefault(response["user_id"], {})[question] = {"value": response["value"]}
    said = [{"user_id": user, "values": values, "status": "submitted"} for user, values in by_user.items()]
    draft = {"user_id": "9", "values": {"likert": {"value": 1}}, "status": "draft"}
    return {**{name: record[name] for name in ("fields", "metadata")}, "responses": [*said, draft], "external_id": "r"}


def flattened(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as Argilla's `to_list(flatten=True)` has it."""
    flat = {"id": record["id"], **record["fields"], **record["metadata"]}
    for question, responses in record["responses"].items():
        flat[f"{question}.responses"] = [response["value"] for response in responses]
        flat[f"{question}.responses.users"] = [response["user_id"] for response in responses]
        flat[f"{question}.responses.status"] = ["submitted"] * len(responses)
    return flat


def of_the_hub(record: Mapping[str, Any]) -> dict[str, Any]:
    """A record as Argilla's version 1 has it in its table for the Hub."""
    said = {
        name: [{**one, "status": "submitted"} for one in responses] for name, responses in record["responses"].items()
    }
    return {**record["fields"], **said, "metadata": json.dumps(record["metadata"]), "external_id": record["id"]}


class Layout(NamedTuple):
    """A release as it comes."""

    reader: str
    files: Mapping[str, Any]
    """By name their rows, trees or content; the first is the one that the reader is given, unless it wants the
    folder."""
    of_folder: bool = False

    def write(self, folder: Path) -> Path:
        """Lays the files out; gives what the reader reads."""
        for name, content in self.files.items():
            put(folder / name, content)
        return folder if self.of_folder else folder / next(iter(self.files))

    def but(self, name: str, content: Any) -> "Layout":
        """With another content of one file."""
        return self._replace(files={**self.files, name: content})


LAYOUTS: Mapping[str, Layout] = {
    "tifa160": Layout("tifa160", {"human_annotations_with_scores.json": TIFA}),
    "dsg_tifa160": Layout("dsg_tifa160", {"tifa160-likert-anns.csv": DSG_LIKERT}),
    "evalmuse": Layout("evalmuse", {"train_list.json": EVALMUSE}),
    "richhf": Layout("richhf", {"dev.tfrecord": as_tfrecord(richhf(), richhf(filename="train/2c.png"))}),
    "genai_bench": Layout("genai_bench", {"genai_image.json": GENAI, "genai_skills.json": GENAI_SKILLS}),
    "t2vscore": Layout("t2vscore", {"t2vscore_human_ratings.json": T2V, "t2vscore_results.csv": T2V_SCORES}, True),
    "winoground, lines": Layout("winoground", {"examples.jsonl": WINOGROUND}),
    "winoground, Parquet": Layout("winoground", {"test.parquet": WINOGROUND}),
    "winoground, CSV": Layout("winoground", {"metadata.csv": WINOGROUND}),
    "eqben": Layout("eqben", {"all_select.json": EQBEN}),
    "eqben, full": Layout("eqben", {"ann_json_finegrained_random.json": EQBEN_FULL}),
    "seetrue": Layout("seetrue", {"SeeTRUE.csv": SEETRUE}),
    "pick_a_pic": Layout("pick_a_pic", {"test_unique.parquet": PICK_A_PIC}),
    "pick_a_pic, captions": Layout("pick_a_pic", {"test_captions.json": PICK_CAPTIONS}),
    "stanfordt23d": Layout("stanfordt23d", {"stanfordt23d.json": STANFORD}),
    "flickr8k_cf": Layout("flickr8k_cf", {"CrowdFlowerAnnotations.txt": FLICKR}),
    "flickr8k_cf, JSON": Layout("flickr8k_cf", {"crowdflower_flickr8k.json": FLICKR_JSON}),
    "gecko": Layout("gecko", GECKO, True),
    "t2iscorescore": Layout(
        "t2iscorescore", {"ts2_metadata.csv": TS2_METADATA, "ts2_scores_per_image.csv": TS2_SCORES}, True
    ),
    "shapes": Layout("shapes", SHAPES, True),
    "error_graphs": Layout("error_graphs", {"graphs.csv": GRAPH}),
    "imagenhub": Layout("imagenhub", IMAGENHUB, True),
    "genai_arena": Layout("genai_arena", GENAI_ARENA, True),
    "annotations, Label Studio": Layout("annotations", {"export.json": LABEL_STUDIO}),
    "annotations, Argilla": Layout("annotations", {"export.json": ARGILLA_RECORDS}),
    "annotations, flat": Layout("annotations", {"export.json": list(map(flattened, ARGILLA_RECORDS))}),
    "annotations, version 1": Layout("annotations", {"export.json": list(map(of_version_1, ARGILLA_RECORDS))}),
    "annotations, Hub": Layout(
        "annotations", {"export.jsonl": "".join(f"{json.dumps(of_the_hub(one))}\n" for one in ARGILLA_RECORDS)}
    ),
    "long": Layout("long", {"ratings.csv": LONG}),
    "long, Parquet": Layout("long", {"ratings.parquet": LONG}),
}
