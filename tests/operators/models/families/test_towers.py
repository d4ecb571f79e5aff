"""Dual encoders of every family: the cosine is the library's own, in a batch as alone, and so are its measures."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel, AutoTokenizer

from plumbline.operators.models.calls import Measure, Pair
from plumbline.operators.models.families import model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.networks.dual_encoder import Towers
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models.alike import PICTURES, TEXTS, require_alike
from tests.operators.tiny import rewards
from tests.operators.tiny.families import KINDS

PAIRS = [Pair(image, text) for image in range(len(PICTURES)) for text in TEXTS]
DUAL = (
    "pickscore",
    "open_clip",
    "open_clip_quick",
    "pyramid_clip",
    "siglip",
    "siglip2",
    "siglip2_naflex",
    "align",
)


@pytest.fixture(scope="module", params=DUAL)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def folder(kind: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return KINDS[kind].save(tmp_path_factory.mktemp(kind))


@pytest.fixture
def model(kind: str, folder: Path) -> Towers:
    return loaded(KINDS[kind].family, folder)


def loaded(family: str, folder: Path, **options: Any) -> Towers:
    return load(
        resolve_model(model_config(family=family, checkpoint=str(folder), **options), on_gpu=False), "similarity"
    )


def compared(model: Towers, measure: Measure) -> list[float]:
    features = model.encode([model.preprocess(picture) for picture in PICTURES])
    return [row.similarity for row in model.compare(features, PAIRS, measure)]


class Said(NamedTuple):
    """What another's model says of one pair."""

    image_embeds: torch.Tensor
    text_embeds: torch.Tensor
    logits_per_image: torch.Tensor


@torch.no_grad()
def by_open_clip(folder: Path, picture: Image.Image, text: str) -> Said:
    """By OpenCLIP's arithmetic."""
    pyramid = folder.name == "made"
    network = rewards.pyramid_clip() if pyramid else rewards.open_clip(quick="quick" in folder.name)
    width, height = (tiny.SIDE * length // min(picture.size) for length in picture.size)
    left, top = (round((length - tiny.SIDE) / 2) for length in (width, height))
    resized = picture.resize((width, height), Image.Resampling.BICUBIC)
    square = resized.crop((left, top, left + tiny.SIDE, top + tiny.SIDE))
    pixels = (np.asarray(square, dtype=np.float32) / 255 - tiny.IMAGE_MEAN) / tiny.IMAGE_STD
    image = network.visual(torch.tensor(pixels.transpose(2, 0, 1)[None], dtype=torch.float32))
    ids = rewards.clip_tokenizer()([text], truncation=True, max_length=rewards.CLIP_CONTEXT, return_tensors="pt")
    padding = torch.zeros(1, rewards.CLIP_CONTEXT - ids.input_ids.shape[1], dtype=torch.long)
    words = network.encode_text(torch.cat([ids.input_ids, padding], dim=1) if pyramid else ids.input_ids)
    cosine = torch.nn.functional.cosine_similarity(image, words)
    return Said(image, words, network.logit_scale.exp() * cosine)


def by_the_library(folder: Path, picture: Image.Image, text: str) -> Any:
    """What its makers' own model says of one pair, by the files of its checkpoint."""
    if folder.name == "made" or "open_clip" in folder.name:
        return by_open_clip(folder, picture, text)
    network, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    processor = AutoImageProcessor.from_pretrained(folder, backend="pil")
    siglip = network.config.model_type.startswith("siglip")
    length = network.config.text_config.max_position_embeddings
    words = tokenizer(
        [text.lower()] if siglip else [text],
        padding="max_length" if siglip else False,
        truncation=True,
        max_length=length,
        return_tensors="pt",
    ).input_ids
    with torch.no_grad():
        return network(input_ids=words, **processor(images=picture, return_tensors="pt"))


def test_the_cosine_and_the_logit_are_the_librarys_own(model: Towers, folder: Path) -> None:
    cosines, logits = compared(model, "cosine"), compared(model, "logit")
    assert max(cosines) - min(cosines) > 0.01, "the pairs must differ for this to say something"
    for pair, cosine, logit in zip(PAIRS, cosines, logits, strict=True):
        output = by_the_library(folder, PICTURES[pair.image], pair.text)
        unit = [torch.nn.functional.normalize(each, dim=-1)[0] for each in (output.image_embeds, output.text_embeds)]
        assert cosine == pytest.approx(float(unit[0] @ unit[1]), abs=1e-4)
        assert logit == pytest.approx(float(output.logits_per_image), abs=1e-3)


@pytest.mark.parametrize(("broken", "how"), [("pickscore", "left"), ("align", "unmasked"), ("siglip", "longest")])
def test_padding_that_is_wrong_is_found(broken: str, how: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the wrong side; read as words; or up to the longest text, where the model knows one length."""
    model = loaded(KINDS[broken].family, KINDS[broken].save(tmp_path / broken))
    if how == "left":
        model.tokenizer.padding_side = "left"
    elif how == "longest":
        model.reading = model.reading._replace(padded=False)
    else:
        read = model.model.get_text_features
        monkeypatch.setattr(model.model, "get_text_features", lambda input_ids, attention_mask: read(input_ids))
    with pytest.raises(AssertionError):
        require_alike(model, "similarity")


def test_siglip_gives_the_probability_that_was_trained(tmp_path: Path) -> None:
    model = loaded("siglip", rewards.save_siglip(tmp_path))
    expected = torch.sigmoid(torch.tensor(compared(model, "logit"), dtype=torch.float64)).tolist()
    assert compared(model, "match") == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("save", [rewards.save_siglip, rewards.save_siglip2, rewards.save_siglip2_naflex])
def test_siglip_reads_capitals_as_it_was_trained_to(save: Callable[[Path], Path], tmp_path: Path) -> None:
    model = loaded("siglip", save(tmp_path))
    small, large = model.encode_texts(["a red circle", "A Red CIRCLE"]).features
    torch.testing.assert_close(small, large)


@pytest.mark.parametrize("kind", ["siglip", "siglip2_naflex", "align"], indirect=True)
def test_a_text_beyond_the_context_is_cut_and_reported(model: Towers) -> None:
    long = " ".join(["red"] * (model.reading.context + 1))
    assert model.encode_texts(["red", long, long + " circle"]).truncated == [False, True, True]
