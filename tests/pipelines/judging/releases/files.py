"""Small files in the layouts that the benchmarks release, and how the tests read them."""

import csv
import io
import json
import os
import struct
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

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


def _varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + _varint(number // 128)


def _field(number: int, content: bytes) -> bytes:
    """A field of bytes in protobuf's encoding."""
    return _varint(number << 3 | 2) + _varint(len(content)) + content


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


def put(file: Path, content: str | bytes) -> Path:
    """A file with this content, in a folder that is made for it."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_bytes(content.encode() if isinstance(content, str) else content)
    return file


TIFA = {
    f"coco_{number}_{generator}": {
        "text_id": f"coco_{number}",
        "image_path": f"coco_{number}_{generator}.jpg",
        "text": "a dog",
        "human_scores": [5, 4],
        "human_avg": 4.5,
        "meteor": 0.25 + number,
        "tifa_vilt": 1.0,
    }
    for number in (1, 2)
    for generator in ("mini_dalle", "vq_diffusion")
}
EVALMUSE: Rows = [
    {
        "prompt_id": "real_7",
        "prompt": "Two red dogs, near a lake",
        "type": "real",
        "img_path": "SDXL-Turbo/00007.png",
        "total_score": [4, 2, 3],
        "element_score": {"Red dogs (animal)": [1, 0, 1], "two (counting)": [0, 0, 0], "a pond (object)": [1, 1, 1]},
        "promt_meaningless": [0, 0, 0],
        "split_confidence": [0, 1, 0],
        "attribute_confidence": [1, 1, 1],
        "fidelity_label": ["none"],
    },
    {"prompt_id": "synth_1", "prompt": "a cat", "type": "synth", "img_path": "IF/00001.png", "total_score": 2.666667,
     "element_score": {"cat (animal)": 0.333333}, "var": 0.2},
]  # fmt: skip
RICHHF_PROMPT = 'A cat, "asleep" in a box.'
DSG_LIKERT: Rows = [
    {
        "dsg_prompt_split": "tifa160",
        "t2i_model": generator,
        "item_id": "tifa160_14",
        "source_id": "coco_36",
        "worker_id": worker,
        "question": "How consistent is the image with the text description?",
        "answer": answer,
    }
    for generator in ("mini-dalle", "sd2dot1")
    for worker, answer in ((4375840905, 3), (4375843592, 5))
]
GENAI = {
    "00007": {
        "id": "7",
        "prompt": "Two cubes.",
        "prompt in Chinese": "...",
        "models": {"One": [1, 2, 3], "Two": [4, 4, 5]},
    },
    "00008": {"id": "00008", "prompt": "A ball.", "models": {"One": [5, 5, 4]}},
}
T2V = {"0": {"prompt": "a dog", "models": {"gen2": [1.3], "pika": [2.5]}}}
T2V_SCORES: Rows = [
    {"model_name": "gen2", "video_id": "0", "prompt": "a dog", "CLIP Score": 24.5, "BLIP-BLEU": "1.40E-16"},
    {"model_name": "pika", "video_id": "0", "prompt": "a dog", "CLIP Score": 32.25, "BLIP-BLEU": 0.25},
]
WINOGROUND: Rows = [
    {
        "id": number,
        "image_0": f"ex_{number}_img_0",
        "image_1": f"ex_{number}_img_1",
        "caption_0": "an old person kisses a young person",
        "caption_1": "a young person kisses an old person",
        "tag": "Adjective-Age",
        "secondary_tag": "Morpheme-Level" if number else "",
        "num_main_preds": 1,
        "collapsed_tag": "Object",
    }
    for number in (0, 1)
]
EQBEN: Rows = [
    {
        "image0": f"{part}/7/0.png",
        "image1": f"{part}/7/1.png",
        "caption0": "three cups on the floor",
        "caption1": "two cups on the floor",
    }
    for part in ("eqbensd", "eqbenkubric_cnt")
]
EQBEN_FULL: Rows = [
    {
        "image": f"eqbensd/{name[-1]}.png",
        "caption": f"a caption {name[1]}",
        "private_info": {"dataset": "eqbensd", "sample_cnt": sample, "name": name},
    }
    for name in ("c1i0", "c0i0", "c1i1", "c0i1")
    for sample in (3, 12)
]
SEETRUE: Rows = [
    {
        "image": "0133_sd.png",
        "text": "A zebra, a hydrant.",
        "label": 0,
        "original_dataset_id": "t_1",
        "dataset_source": "drawbench",
    },
    {
        "image": "0133_sd.png",
        "text": "A zebra.",
        "label": 1,
        "original_dataset_id": "t_2",
        "dataset_source": "drawbench",
    },
    {"image": "5.png", "text": "A zebra.", "label": 1, "original_dataset_id": 1972.0, "dataset_source": "editbench"},
]
PICK_A_PIC: Rows = [
    {
        "are_different": True,
        "caption": "a cat",
        "has_label": has_label,
        "image_0_uid": f"u{number}-0",
        "image_1_uid": f"u{number}-1",
        "jpg_0": b"not read",
        "label_0": label,
        "label_1": 1 - label,
        "model_0": "sdxl",
        "model_1": None,
        "ranking_id": number,
        "user_id": 9,
    }
    for number, (label, has_label) in enumerate([(1.0, True), (0.0, True), (0.5, True), (0.0, False)])
]
FLICKR = "1.jpg\t2.jpg#0\t0.3333333333333333\t1\t2\n1.jpg\t3.jpg#4\t1\t3\t0\n"
FLICKR_JSON = {
    "1.jpg": {
        "image_path": "Flicker8k_Dataset/1.jpg",
        "ground_truth": ["A dog runs ."],
        "human_judgement": [
            {"image_path": "Flicker8k_Dataset/1.jpg", "caption": "A dog .", "rating": 1 / 3},
            {"image_path": "Flicker8k_Dataset/1.jpg", "caption": "A dog .", "rating": 0.0},
            {"image_path": "Flicker8k_Dataset/1.jpg", "caption": "A cat .", "rating": float("nan")},
        ],
    }
}
TS2_METADATA: Rows = [
    {
        "id": graph,
        "target_prompt": "a dog",
        "file_name": f"images/{graph:03}-{place:02}.jpg",
        "image_source": source,
        "rank": rank,
    }
    for graph, source in ((0, "SD2.1"), (111, "DALL-E2"), (136, "Natural"), (164, "SDXL"))
    for place, rank in enumerate(("0", "0b", "1a", "10"))
]
TS2_SCORES: Rows = [
    {"id": row["id"], "image_id": 7, "clipscore": 0.5 + place / 100, "viescore": None if place == 3 else place}
    for place, row in enumerate(TS2_METADATA)
]
LONG: Rows = [
    {
        "image_id": "001",
        "prompt_id": "07",
        "generator": "atlas",
        "rater": "ann",
        "template": "wl",
        "rating": 0.5,
        "skills": "color",
    },
    {
        "image_id": "002",
        "prompt_id": "08",
        "generator": "atlas",
        "rater": "ann",
        "template": "wl",
        "rating": 1,
        "skills": "",
    },
]
GECKO: Mapping[str, Rows] = {
    "likert": [
        {"prompt_id": "07", "generator": "muse", "rater": rater, "answer": answer}
        for rater, answer in (("a", "5"), ("b", "2"), ("c", "Unsure"))
    ],
    "wl": [
        {"prompt_id": "07", "generator": "muse", "rater": rater, "word": word, "answer": answer}
        for rater, answers in (("a", ("Aligned", "Not aligned", "Unsure")), ("b", ("Unsure",)))
        for word, answer in enumerate(answers)
    ],
    "dsg_h": [
        {"prompt_id": "07", "generator": "muse", "rater": "a", "question_id": place, "answer": answer}
        for place, answer in enumerate(("Yes", "yes", "No", "Invalid", "Subjective", "I do not know the answer"))
    ],
    "sxs": [
        {"prompt_id": "07", "generator_a": "muse", "generator_b": "sdxl", "rater": rater, "answer": answer}
        for rater, answer in (("a", "a"), ("b", "B"), ("c", "Unsure"))
    ],
}
GECKO_PROMPTS: Rows = [
    {
        "": place,
        "dataset_id": origin,
        "prompt": "one, two three",
        "prompt_type": "Gecko(S)",
        "prompt_id": prompt,
        "max_disagreement_less_0.45": False,
        "max_disagreement_less_0.5": reliable,
    }
    for place, (origin, prompt, reliable) in enumerate(
        [("att/count:additive_2", "07", True), ("ne/art:art", "8", False)]
    )
]


def gecko(folder: Path, **instead: Rows) -> Path:
    """A folder of Gecko's ratings, in our layout."""
    for name, rows in {**GECKO, **instead}.items():
        put(folder / f"{name}.csv", as_csv(rows))
    put(folder / "prompts.csv", as_csv(GECKO_PROMPTS))
    return folder


def t2v(folder: Path) -> Path:
    """A folder of T2VScore's two files."""
    put(folder / "t2vscore_human_ratings.json", json.dumps(T2V))
    put(folder / "t2vscore_results.csv", as_csv(T2V_SCORES))
    return folder


def ts2(folder: Path) -> Path:
    """A folder of T2IScoreScore's two files."""
    put(folder / "ts2_metadata.csv", as_csv(TS2_METADATA))
    put(folder / "ts2_scores_per_image.csv", as_csv(TS2_SCORES))
    return folder


FILES: Mapping[str, tuple[str, str, Callable[[], str | bytes]]] = {
    "tifa160": ("tifa160", "human_annotations_with_scores.json", lambda: json.dumps(TIFA)),
    "dsg_tifa160": ("dsg_tifa160", "tifa160-likert-anns.csv", lambda: as_csv(DSG_LIKERT)),
    "evalmuse": ("evalmuse", "train_list.json", lambda: json.dumps(EVALMUSE)),
    "richhf": ("richhf", "dev.tfrecord", lambda: as_tfrecord(richhf(), richhf(filename="train/2c.png"))),
    "genai_bench": ("genai_bench", "genai_image.json", lambda: json.dumps(GENAI)),
    "winoground, lines": ("winoground", "examples.jsonl", lambda: as_lines(WINOGROUND)),
    "winoground, Parquet": ("winoground", "test.parquet", lambda: as_parquet(WINOGROUND)),
    "eqben": ("eqben", "all_select.json", lambda: json.dumps(EQBEN)),
    "eqben, full": ("eqben", "ann_json_finegrained_random.json", lambda: json.dumps(EQBEN_FULL)),
    "seetrue": ("seetrue", "SeeTRUE.csv", lambda: as_csv(SEETRUE)),
    "pick_a_pic": ("pick_a_pic", "test_unique.parquet", lambda: as_parquet(PICK_A_PIC)),
    "flickr8k_cf": ("flickr8k_cf", "CrowdFlowerAnnotations.txt", lambda: FLICKR),
    "flickr8k_cf, JSON": ("flickr8k_cf", "crowdflower_flickr8k.json", lambda: json.dumps(FLICKR_JSON)),
    "long": ("long", "ratings.csv", lambda: as_csv(LONG)),
    "long, Parquet": ("long", "ratings.parquet", lambda: as_parquet(LONG)),
}
"""By what it is: the reader, the file's name and its content."""
