"""A model's part of the cell keys is pinned byte for byte: a change would cause all of its scores to be recomputed."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model

COMMON_FILES = {"model.safetensors": struct.pack("<Q", 2) + b"{}", "tokenizer.json": b"{}"}
PREPROCESSOR_FILES = {"preprocessor_config.json": b"{}"}
CHAT_CONFIG = {"architectures": ["ChatForConditionalGeneration"], "vision_config": {}}
FLANT5_CONFIG = {"d_model": 8, "mm_vision_tower": "../clip", "mm_vision_select_layer": -2}
CHECKPOINTS: dict[str, dict[str, Any]] = {
    "clip": {"model_type": "clip"},
    "flant5": {"model_type": "clip_t5"} | FLANT5_CONFIG,
    "language": {"model_type": "llama", "architectures": ["LlamaForCausalLM"]},
    "llava_1_5": {"model_type": "llava"} | CHAT_CONFIG,
    "llava": {"model_type": "llava", "text_config": {"model_type": "mistral"}} | CHAT_CONFIG,
    "chat": {"model_type": "qwen2_vl"} | CHAT_CONFIG,
    "classifier": {
        "model_type": "bert",
        "architectures": ["BertForSequenceClassification"],
        "id2label": {"0": "entailment", "1": "other"},
    },
    "t5": {"model_type": "t5", "architectures": ["T5ForConditionalGeneration"]},
    "encoder": {"model_type": "bert", "architectures": ["BertModel"]},
    "blip": {"model_type": "blip", "architectures": ["BlipForImageTextRetrieval"]},
    "blip_2": {"model_type": "blip-2", "architectures": ["Blip2ForImageTextRetrieval"]},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write all CHECKPOINTS into one folder, without tensors, because planning reads no weights; return the folder."""
    root = tmp_path_factory.mktemp("folders")
    for name, fields in CHECKPOINTS.items():
        (root / name).mkdir()
        for file, content in (COMMON_FILES | PREPROCESSOR_FILES | {"config.json": json.dumps(fields).encode()}).items():
            (root / name / file).write_bytes(content)
    return root


VLLM_OPTIONS = {
    "engine": "vllm",
    "engine_options": {"max_model_len": 99, "max_num_seqs": 9, "mm_processor_kwargs": {"a": 1}},
}
DIGEST_BY_CHECKPOINT = {
    "clip": "f69e868e00ca70780653e8cd1e3b21bbdf3f747c5b4e1a4635386dd63c69b245",
    "flant5": "ac2db0ebbfc874339b9ad84c0a1ca04d3bda13516fb7b06b0101bd635930df13",
    "language": "6c1c75fe6760eb71d8ee5ac23059f2d0bfeff1a11c8518bc02875f89abc38b79",
    "llava_1_5": "bed6b5374756528dc57f1c49cb4adecd91be3d2076d132cfe564794168b4465a",
    "llava": "697ebc904260b245d773618b269f3ee2f90c0c79a39837b10e90381367e80930",
    "chat": "04c9f0fc579ba353c0e9f22412ff65a935ee354f29b8563595c91065fc0814ef",
    "classifier": "0fd56ca8aff46249c69bb1407edd9b037c4d37afc35982cf4b68a8497431b882",
    "t5": "247c019c6a6cf4aef7867a5e9a2aaabab34f8c79e66c576090a8aa286cbf1172",
    "encoder": "335fc583a68978cd6d901d3b6b938e761284bdd78b6e1aa87bf0771e68f20931",
    "blip": "e0cbc7aed843cfea70294154a7506b65c01e0882399fb1e996842cae1a46f65c",
    "blip_2": "25c24c11c653d9d8de5b0d164c3015260332c43a3398dfa2bdbf7b90d0f292a8",
}
"""Expected digest of each checkpoint's files, keyed by the name of the checkpoint's folder."""


def make_key_part(checkpoint: str, **others: Any) -> dict[str, Any]:
    """Return a local model's part of a cell's key; `others` contains additional fields.

    The field `parts` contains the digests of the checkpoint, the tokenizer and the parts named in `others`.
    """
    parts = {"checkpoint": checkpoint, "tokenizer": checkpoint} | others.pop("parts", {})
    identities = {role: DIGEST_BY_CHECKPOINT[folder] for role, folder in parts.items()}
    return {"version": 1, "dtype": "float32", "label": None, "parts": identities} | others


TOWER_FOLDER = {"vision_tower": "clip"}
TRANSFORMERS_KEY_PART = {"engine": "transformers", "engine_options": {}}
VLLM_KEY_PART = {"engine": "vllm", "engine_options": {"max_model_len": 99, "mm_processor_kwargs": {"a": 1}}}
CHAT_KEY_PART = {"version": 2, "repetition_penalty": "ignored", "max_pixels": None, "system": None}
FLANT5_KEY_PART = {"kind": "clip_flant5", "system": None, "parts": TOWER_FOLDER}
LLAVA_1_5_KEY_PART = {"kind": "llava_1_5", "padding": "released"} | CHAT_KEY_PART
LLAVA_KEY_PART = {"kind": "llava"} | CHAT_KEY_PART
TEXT_ONLY_KEY_PART = {"kind": "text_only"}
SERVICE_KEY_PART = {"version": 1, "kind": "openai", "model": "judge", "image_format": "png"}
JUDGE_OPTIONS = {
    "endpoint": "http://host/v1/",
    "revision": "a",
    "concurrency": 2,
    "max_retries": 0,
    "key_variable": "K",
}
EXPECTED_KEY_PARTS: list[tuple[str, str, dict[str, Any], bool, dict[str, Any]]] = [
    ("clip", "clip", {}, False, make_key_part("clip", kind="cosine")),
    (
        "clip",
        "clip",
        {"revision": "a", "dtype": "bfloat16"},
        False,
        make_key_part("clip", kind="cosine", label="a", dtype="bfloat16"),
    ),
    (
        "clip",
        "clip",
        {"tokenizer": "chat"},
        True,
        make_key_part("clip", kind="cosine", dtype="bfloat16", parts={"tokenizer": "chat"}),
    ),
    ("clip_flant5", "flant5", {}, False, make_key_part("flant5", padding="released", **FLANT5_KEY_PART)),
    (
        "clip_flant5",
        "flant5",
        {"padding": "processor"},
        True,
        make_key_part("flant5", dtype="bfloat16", padding="processor", **FLANT5_KEY_PART),
    ),
    (
        "clip_flant5",
        "flant5",
        {"vision_tower": "clip", "tokenizer": "t5"},
        False,
        make_key_part("flant5", padding="released", **FLANT5_KEY_PART | {"parts": {"tokenizer": "t5"} | TOWER_FOLDER}),
    ),
    ("causal_lm", "language", {}, False, make_key_part("language", **TEXT_ONLY_KEY_PART | TRANSFORMERS_KEY_PART)),
    (
        "causal_lm",
        "language",
        {"engine_options": {"max_model_len": 9}},
        False,
        make_key_part("language", **TEXT_ONLY_KEY_PART | TRANSFORMERS_KEY_PART),
    ),
    (
        "causal_lm",
        "language",
        VLLM_OPTIONS,
        True,
        make_key_part("language", dtype="bfloat16", **TEXT_ONLY_KEY_PART | VLLM_KEY_PART),
    ),
    ("vlm", "llava_1_5", {}, False, make_key_part("llava_1_5", **TRANSFORMERS_KEY_PART | LLAVA_1_5_KEY_PART)),
    (
        "vlm",
        "llava_1_5",
        {"padding": "processor"},
        False,
        make_key_part("llava_1_5", **TRANSFORMERS_KEY_PART | LLAVA_1_5_KEY_PART | {"padding": "processor"}),
    ),
    ("vlm", "llava_1_5", VLLM_OPTIONS, False, make_key_part("llava_1_5", **VLLM_KEY_PART | LLAVA_1_5_KEY_PART)),
    ("vlm", "llava", {}, False, make_key_part("llava", **TRANSFORMERS_KEY_PART | LLAVA_KEY_PART)),
    (
        "vlm",
        "chat",
        {"padding": "processor"},
        True,
        make_key_part("chat", kind="chat", dtype="bfloat16", **TRANSFORMERS_KEY_PART | CHAT_KEY_PART),
    ),
    ("nli", "classifier", {}, True, make_key_part("classifier")),
    ("nli", "t5", {"dtype": "bfloat16"}, True, make_key_part("t5", dtype="bfloat16")),
    ("sentences", "encoder", {}, True, make_key_part("encoder")),
    ("blip_itm", "blip", {}, False, make_key_part("blip")),
    ("blip_itm", "blip_2", {}, False, make_key_part("blip_2")),
    ("openai", "judge", {}, True, SERVICE_KEY_PART | {"endpoint": None, "label": None}),
    ("openai", "judge", JUDGE_OPTIONS, False, SERVICE_KEY_PART | {"endpoint": "http://host/v1", "label": "a"}),
]


@pytest.mark.parametrize(("family", "checkpoint", "options", "on_gpu", "expected"), EXPECTED_KEY_PARTS)
def test_everything_that_can_change_a_models_results_is_in_the_keys(
    folders: Path, family: str, checkpoint: str, options: dict[str, Any], on_gpu: bool, expected: dict[str, Any]
) -> None:
    where = checkpoint if family == "openai" else str(folders / checkpoint)
    paths = {name: str(folders / options[name]) for name in ("tokenizer", "vision_tower") if name in options}
    model = resolve_model(make_model_config(family=family, checkpoint=where, **options | paths), on_gpu=on_gpu)
    assert model.list_key_properties() == expected | {"family": family}
