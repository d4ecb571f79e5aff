"""Creates small files in the layouts of EvalMuse-40K and RichHF-18K."""

import struct
from collections.abc import Mapping

from plumbline.plugins.third_party_benchmarks.ratings.tfrecords import compute_masked_crc
from tests.pipelines.metaeval.releases.files import Layout, Rows


def _encode_bytes_field(number: int, content: bytes) -> bytes:
    return _encode_varint(number << 3 | 2) + _encode_varint(len(content)) + content


def _encode_varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number % 128 + 128]) + _encode_varint(number // 128)


def encode_example(features: Mapping[str, str | bytes | float]) -> bytes:
    """Encode a tensorflow.Example without protobuf, following example.proto.

    Text and bytes become a bytes_list, numbers a float_list.
    """
    entries = b""
    for name, value in features.items():
        if isinstance(value, float):
            kind = _encode_bytes_field(2, _encode_bytes_field(1, struct.pack("<f", value)))
        else:
            kind = _encode_bytes_field(1, _encode_bytes_field(1, value.encode() if isinstance(value, str) else value))
        entries += _encode_bytes_field(1, _encode_bytes_field(1, name.encode()) + _encode_bytes_field(2, kind))
    return _encode_bytes_field(1, entries)


def encode_tfrecord(*records: bytes) -> bytes:
    out = b""
    for record in records:
        length = struct.pack("<Q", len(record))
        out += (
            length
            + struct.pack("<I", compute_masked_crc(length))
            + record
            + struct.pack("<I", compute_masked_crc(record))
        )
    return out


def encode_richhf(label: str = "1 0 1 1 1 0", **features: str | bytes | float) -> bytes:
    scores = {"aesthetics_score": 0.5, "artifact_score": 0.75, "misalignment_score": 0.25, "overall_score": 0.5}
    maps = {"artifact_map": b"\xff\xd8jpeg", "misalignment_map": b"\xff\xd8jpeg"}
    return encode_example(
        {"filename": "train/0a1b.png", **scores, **maps, "prompt_misalignment_label": label, **features}
    )


EVALMUSE_RECORDS: Rows = [
    {"prompt_id": "real_7", "prompt": "Two red dogs, near a lake", "type": "real", "img_path": "SDXL-Turbo/00007.png",
     "total_score": [4, 2, 3], "promt_meaningless": [0, 0, 0], "split_confidence": [0, 1, 0],
     "element_score": {"Red dogs (animal)": [1, 0, 1], "two (counting)": [0, 0, 0], "a pond (object)": [1, 1, 1]},
     "attribute_confidence": [1, 1, 1], "fidelity_label": ["none"]},
    {"prompt_id": "synth_1", "prompt": "a cat", "type": "synth", "img_path": "IF/00001.png", "total_score": 2.666667,
     "element_score": {"cat (animal)": 0.333333}, "var": 0.2},
]  # fmt: skip


RICHHF_PROMPT = 'A cat, "asleep" in a box.'
LAYOUTS: Mapping[str, Layout] = {
    "evalmuse": Layout("evalmuse", {"train_list.json": EVALMUSE_RECORDS}),
    "richhf": Layout(
        "richhf", {"dev.tfrecord": encode_tfrecord(encode_richhf(), encode_richhf(filename="train/2c.png"))}
    ),
}
