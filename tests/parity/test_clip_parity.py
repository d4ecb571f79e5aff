"""The CLIP backend's two halves give the cosine of transformers' whole CLIPModel."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPModel

from plumbline.operators.models import loading
from plumbline.operators.models.families import model_config
from plumbline.operators.models.families.clip import ClipSimilarity
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny

PICTURES = [
    tiny.picture(0),
    tiny.picture(1, width=64, height=40),
    tiny.picture(2, width=33, height=90),
    tiny.picture(3, width=32, height=32),
]
TEXTS = ["a red circle", "star", "two blue star left of a green square", "circle " * 30, "unheard , of", "no"]


def by_hand(image: Image.Image) -> torch.Tensor:
    """The shorter side resized with bicubic, the centre cropped, scaled and normalised: (3, side, side)."""
    scale = tiny.SIDE / min(image.size)
    width, height = (int(side * scale) for side in image.size)
    resized = np.asarray(image.resize((width, height), Image.Resampling.BICUBIC))
    left, top = (width - tiny.SIDE) // 2, (height - tiny.SIDE) // 2
    cropped = resized[top : top + tiny.SIDE, left : left + tiny.SIDE] / 255
    return torch.from_numpy(((cropped - tiny.IMAGE_MEAN) / tiny.IMAGE_STD).transpose(2, 0, 1)).float()


@pytest.fixture(scope="module")
def cosines(checkpoints: Path) -> np.ndarray:
    """logits_per_image / exp(logit_scale) of the whole model, one pair at a time: (images, texts)."""
    model = CLIPModel.from_pretrained(checkpoints / "clip").eval()
    tokenizer = AutoTokenizer.from_pretrained(checkpoints / "clip")
    rows = []
    with torch.inference_mode():
        for image in PICTURES:
            for text in TEXTS:
                tokens = tokenizer([text], truncation=True, max_length=tiny.CONTEXT, return_tensors="pt")
                output = model(
                    input_ids=tokens.input_ids, attention_mask=tokens.attention_mask, pixel_values=by_hand(image)[None]
                )
                rows.append((output.logits_per_image / model.logit_scale.exp()).item())
    return np.array(rows).reshape(len(PICTURES), len(TEXTS))


def compare(model: ClipSimilarity) -> np.ndarray:
    """The backend's cosines (images, texts), by one call of each half."""
    images = torch.stack(list(model.encode([model.preprocess(image) for image in PICTURES])))
    return (images @ model.encode_texts(TEXTS).features.T).numpy()


def load(checkpoints: Path, **options: Any) -> ClipSimilarity:
    config = model_config(family="clip", checkpoint=str(checkpoints / "clip"), **options)
    return loading.load(resolve_model(config, on_gpu=False), "similarity")


def test_the_pairs_differ(cosines: np.ndarray) -> None:
    assert len(np.unique(cosines.round(4))) == cosines.size, "or agreeing on them would say little"


@pytest.mark.parametrize("pair_batch", [1, 4, 64])
def test_the_cosine_is_the_whole_models_whatever_the_batch(
    checkpoints: Path, cosines: np.ndarray, pair_batch: int
) -> None:
    np.testing.assert_allclose(compare(load(checkpoints, pair_batch=pair_batch)), cosines, atol=1e-5)


def test_the_batch_of_images_changes_nothing(similarity: ClipSimilarity) -> None:
    pixels = [similarity.preprocess(image) for image in PICTURES]
    together = torch.stack(list(similarity.encode(pixels)))
    alone = torch.stack([similarity.encode([pixel])[0] for pixel in pixels])
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_an_image_is_processed_as_by_hand(similarity: ClipSimilarity) -> None:
    for image in PICTURES:
        torch.testing.assert_close(similarity.preprocess(image), by_hand(image), atol=1e-5, rtol=1e-5)


def test_embeddings_have_unit_length(similarity: ClipSimilarity) -> None:
    images = torch.stack(list(similarity.encode([similarity.preprocess(image) for image in PICTURES])))
    texts = similarity.encode_texts(TEXTS).features
    for features in (images, texts):
        assert features.dtype == torch.float32
        torch.testing.assert_close(features.norm(dim=-1), torch.ones(len(features)), atol=1e-5, rtol=0)


def test_only_the_text_beyond_the_context_is_reported_as_cut(similarity: ClipSimilarity) -> None:
    assert similarity.encode_texts(TEXTS).truncated == [False, False, False, True, False, False]


def test_no_texts_have_no_embeddings(similarity: ClipSimilarity) -> None:
    encoded = similarity.encode_texts([])
    assert (len(encoded.features), encoded.truncated) == (0, [])


def test_bfloat16_is_close_to_float32(checkpoints: Path, cosines: np.ndarray) -> None:
    rounded = compare(load(checkpoints, dtype="bfloat16"))
    np.testing.assert_allclose(rounded, cosines, atol=0.03)
    assert not np.allclose(rounded, cosines, atol=1e-6), "it is bfloat16 indeed"
