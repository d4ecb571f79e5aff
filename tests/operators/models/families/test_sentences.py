"""A sentence's embedding is the mean of its own tokens' states, whatever it is batched with."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch.nn.functional import normalize
from transformers import AutoTokenizer, BertModel

from plumbline.operators.errors import ModelError
from plumbline.operators.models import loading
from plumbline.operators.models.calls import TextEmbedder
from plumbline.operators.models.families import model_config
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny

TEXTS = ["a red circle", "star", "two blue star left of a green square", "circle " * 30, "unheard , of", ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    torch.set_num_threads(1)
    return tiny.save_sentences(tmp_path / "sentences")


def load(folder: Path, **options: Any) -> TextEmbedder:
    return loading.load(
        resolve_model(model_config(family="sentences", checkpoint=str(folder), **options), on_gpu=False), "embedding"
    )


@torch.inference_mode()
def by_hand(folder: Path, text: str, context: int = tiny.CONTEXT) -> torch.Tensor:
    ids = AutoTokenizer.from_pretrained(folder)(text).input_ids
    cut = ids if len(ids) <= context else [*ids[: context - 1], ids[-1]]
    states = BertModel.from_pretrained(folder).eval()(input_ids=torch.tensor([cut])).last_hidden_state[0]
    return normalize(states.mean(0), dim=0)


def test_an_embedding_is_the_mean_of_the_tokens_of_unit_length(folder: Path) -> None:
    features = load(folder, pair_batch=4).encode_texts(TEXTS).features
    assert features.dtype == torch.float32
    torch.testing.assert_close(features, torch.stack([by_hand(folder, text) for text in TEXTS]), atol=1e-5, rtol=0)
    torch.testing.assert_close(features.norm(dim=-1), torch.ones(len(TEXTS)), atol=1e-5, rtol=0)


def test_only_the_text_beyond_the_context_is_reported_as_cut(folder: Path) -> None:
    assert load(folder).encode_texts(TEXTS).truncated == [False, False, False, True, False, False]


def test_the_shorter_limit_of_sentence_transformers_is_kept(folder: Path) -> None:
    (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 6}))
    encoded = load(folder).encode_texts(TEXTS)
    assert encoded.truncated == [False, False, True, True, False, False]
    torch.testing.assert_close(encoded.features[2], by_hand(folder, TEXTS[2], context=6), atol=1e-5, rtol=0)


def test_a_clips_text_tower_embeds_texts_as_well(tmp_path: Path) -> None:
    clip = tiny.save_clip(tmp_path / "clip")
    model = loading.load(resolve_model(model_config(family="clip", checkpoint=str(clip)), on_gpu=False), "embedding")
    assert tuple(model.encode_texts(TEXTS).features.shape) == (len(TEXTS), 16)


@pytest.mark.parametrize(
    ("name", "needed"), [("encoder.layer.0.output.dense.weight", True), ("pooler.dense.weight", False)]
)
def test_a_checkpoint_needs_all_its_tensors_but_the_pooler(folder: Path, name: str, needed: bool) -> None:
    expected = load(folder).encode_texts(TEXTS).features
    weights = load_file(folder / "model.safetensors")
    del weights[name]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    if needed:
        with pytest.raises(ModelError, match=rf"do not fit its config\.json: lacks {name}"):
            load(folder)
    else:
        assert torch.equal(load(folder).encode_texts(TEXTS).features, expected)


@pytest.mark.parametrize(
    ("fields", "accepted"),
    [
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, True),
        ({"pooling_mode": "mean"}, True),
        ({"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}, False),
        ({"pooling_mode": "cls"}, False),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": True}, False),
    ],
)
def test_a_checkpoint_that_pools_in_another_way_is_refused(
    folder: Path, fields: dict[str, Any], accepted: bool
) -> None:
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(fields))
    if accepted:
        load(folder)
    else:
        with pytest.raises(ModelError, match="not mean pooling"):
            load(folder)
