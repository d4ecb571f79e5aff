"""CLIPs in OpenCLIP's layout are recognised by their files, and refused if their network is not supported."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.images.image_formats import STORED_IMAGE_KEY
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.tiny import rewards


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.set_num_threads(1)
    return rewards.save_open_clip(tmp_path_factory.mktemp("open_clip"))


def resolve(folder: Path, family: str = "open_clip") -> Any:
    return resolve_model(make_model_config(family=family, checkpoint=str(folder)), on_gpu=False)


def copy_with_changes(folder: Path, copy: Path, section: str, **fields: Any) -> Path:
    """Copy a checkpoint, changing these fields in one section of its open_clip_config.json; return the copy."""
    shutil.copytree(folder, copy)
    config = rewards.make_open_clip_fields(quick=False)
    stated = config if section == "preprocess_cfg" else config["model_cfg"]
    stated[section] = stated[section] | fields
    tiny.write_json(copy / "open_clip_config.json", config)
    return copy


def test_weights_in_transformers_layout_in_the_same_folder_are_ignored(folder: Path, tmp_path: Path) -> None:
    both = tmp_path / "both"
    shutil.copytree(folder, both)
    shutil.copy(rewards.save_pickscore(tmp_path / "clip") / "model.safetensors", both)
    plain, beside = (load(resolve(each), "similarity").model.state_dict() for each in (folder, both))
    assert all(torch.equal(tensor, beside[name]) for name, tensor in plain.items())


def test_a_folder_that_lacks_a_file_is_refused_with_the_files_name(folder: Path, tmp_path: Path) -> None:
    for name, message in (
        ("open_clip_config.json", "has no config.json, so it is not a checkpoint"),
        ("open_clip_model.safetensors", "expected open_clip_model.safetensors, found no weights"),
    ):
        lacking = tmp_path / name
        shutil.copytree(folder, lacking)
        (lacking / name).unlink()
        with pytest.raises(ModelError, match=message):
            resolve(lacking)


def test_a_clip_in_transformers_layout_is_referred_to_its_own_family(tmp_path: Path) -> None:
    with pytest.raises(
        ModelError, match=r"expected open_clip_config.json for family open_clip; .* served by family clip"
    ):
        resolve(rewards.save_pickscore(tmp_path / "clip"))


@pytest.mark.parametrize(
    ("section", "fields", "message"),
    [
        (
            "vision_cfg",
            {"timm_model_name": "vit_base"},
            "`vision_cfg` .* has the setting timm_model_name; only networks like the original CLIP",
        ),
        (
            "text_cfg",
            {"hf_model_name": "roberta-base"},
            "`text_cfg` .* has the setting hf_model_name; only networks like the original CLIP",
        ),
        (
            "preprocess_cfg",
            {"resize_mode": "squash"},
            "`resize_mode` .* is 'squash'; use a checkpoint in which it is 'shortest'",
        ),
    ],
)
def test_a_network_of_another_form_is_refused_with_the_differing_field(
    folder: Path, tmp_path: Path, section: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(ModelError, match=message):
        resolve(copy_with_changes(folder, tmp_path / "changed", section, **fields))


def test_weights_of_another_size_are_refused_when_they_load(folder: Path, tmp_path: Path) -> None:
    larger = copy_with_changes(folder, tmp_path / "larger", "text_cfg", width=48)
    with pytest.raises(ModelError, match="the weights does not load"):
        load(resolve(larger), "similarity")


def test_texts_and_images_are_preprocessed_as_in_the_release(folder: Path) -> None:
    model = load(resolve(folder), "similarity")
    words = model.encode_texts(["l&#39;art  of a cat", "L'ART of a cat"]).features
    torch.testing.assert_close(words[0], words[1])
    stored = tiny.draw_image(0, width=70, height=48).convert("P")
    shown = stored.convert("RGB")
    shown.info[STORED_IMAGE_KEY] = stored
    nearest = stored.resize((46, 32), Image.Resampling.NEAREST).convert("RGB").crop((7, 0, 39, 32))
    assert torch.equal(model.preprocess(shown), model.preprocess(nearest))


def preprocess_padded(image: Image.Image) -> torch.Tensor:
    """Return the pixels after preprocessing as in HPSv2's release, with Pillow and numpy.

    The shape is (3, IMAGE_SIDE, IMAGE_SIDE). Colours are converted to floats from 0 to 1, resized so that the
    longer side fits, centred on a black square, and normalised.
    """
    scale = tiny.IMAGE_SIDE / max(image.size)
    width, height = (round(length * scale) for length in image.size)
    square = np.zeros((tiny.IMAGE_SIDE, tiny.IMAGE_SIDE, 3), dtype=np.float32)
    left, top = (tiny.IMAGE_SIDE - width) // 2, (tiny.IMAGE_SIDE - height) // 2
    for colour, band in enumerate(image.split()):
        numbers = Image.fromarray(np.asarray(band, dtype=np.float32) / 255)
        resized = np.asarray(numbers.resize((width, height), Image.Resampling.BICUBIC))
        square[top : top + height, left : left + width, colour] = resized
    normalised = (square - tiny.IMAGE_MEAN) / tiny.IMAGE_STD
    return torch.tensor(normalised.transpose(2, 0, 1), dtype=torch.float32)


def test_hpsv2_sees_whole_images_on_black_as_released(folder: Path) -> None:
    sizes = [(90, 51), (40, 71), (45, 45), (20, 9)]
    images = [tiny.draw_image(seed, width=width, height=height) for seed, (width, height) in enumerate(sizes)]
    texts = ["a red circle", "two blue stars", "a square", "a"]
    network, tokenizer = rewards.make_open_clip(), rewards.make_clip_tokenizer()
    expected = []
    with torch.inference_mode():
        for image, text in zip(images, texts, strict=True):
            seen = network.visual(preprocess_padded(image)[None])[0]
            read = network.encode_text(tokenizer(text, return_tensors="pt").input_ids)[0]
            expected.append(float(torch.cosine_similarity(seen, read, dim=0)))
    scorer = open_scorer(
        "metric=[hpsv2]", "models=shapes", f"+models.hpsv2={{family: open_clip, checkpoint: '{folder}'}}"
    )
    scores = scorer.score_table(images, texts).column("score").to_pylist()
    assert scores == pytest.approx(expected, abs=1e-5) and max(scores) - min(scores) > 0.01


def test_an_unsupported_image_preprocessing_is_refused() -> None:
    wanted = r"metrics\.hpsv2: the model for role 'hpsv2' is a siglip, which supports pixels=processor, not padded"
    with pytest.raises(ConfigError, match=wanted):
        open_scorer("metric=[hpsv2]", "models=shapes", "+models.hpsv2={family: siglip, checkpoint: owner/name}")
