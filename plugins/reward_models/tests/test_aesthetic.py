"""LAION's aesthetic predictors rate an image without its prompt; each released form is converted."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plugins.reward_models.tests import tiny_rewards
from plugins.reward_models.tests.references import score_aesthetic
from plugins.reward_models.tests.test_conversion import convert_release
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.models.calls import Pair
from plumbline.operators.models.families import make_model_config
from plumbline.operators.stages.graph import check_models, make_nodes
from plumbline.operators.stages.similarities import PromptTexts, SimilaritiesStage
from tests.operators import tiny
from tests.operators.models.alike import IMAGES
from tests.operators.models.families.test_families import load_model
from tests.operators.stages.given import decode, make_options

PAIRS = [Pair(image) for image in range(len(IMAGES))]
LINEAR, WITH_RELU = (0, 2, 4, 6, 7), (0, 3, 6, 9, 11)
"""Numbers of the layers in the release's files ...-linearMSE.pth and ...-reluMSE.pth."""


def rate(folder: Path) -> list[float]:
    model = load_model("laion_aesthetic", folder, "similarity")
    features = model.encode([model.preprocess(image) for image in IMAGES])
    return [result.similarity for result in model.compare(features, PAIRS, "reward")]


def save_release(file: Path, folder: Path, numbers: tuple[int, ...] | None) -> Path:
    """Save the head of a converted checkpoint as in the release, and return the file."""
    weights = load_file(folder / "model.safetensors")
    head = {name.removeprefix("head."): tensor for name, tensor in weights.items() if name.startswith("head.")}
    released = {
        part if numbers is None else f"layers.{numbers[int(layer)]}.{part}": head[f"{layer}.{part}"]
        for layer, part in (name.split(".") for name in head)
    }
    torch.save(released, file)
    return file


@pytest.mark.parametrize("numbers", [None, LINEAR, WITH_RELU], ids=["v1", "linear", "relu"])
def test_a_converted_predictor_has_the_ratings_of_its_release(tmp_path: Path, numbers: tuple[int, ...] | None) -> None:
    options: dict[str, Any] = {"relu": numbers == WITH_RELU, "seed": 3}
    if numbers is not None:
        options["widths"] = tiny_rewards.AESTHETIC_HEAD_WIDTHS
    reference = tiny_rewards.save_aesthetic(tmp_path / "reference", **options)
    base = tiny_rewards.save_fixed_clip(tmp_path / "base")
    weights = save_release(tmp_path / "release.pth", reference, numbers)
    made = convert_release(tmp_path / "made", release="laion_aesthetic", weights=weights, base=base)
    with torch.no_grad():
        expected = [score_aesthetic(reference, pair, "reward").numbers[0] for pair in PAIRS]
    assert rate(made) == pytest.approx(expected, abs=1e-5)
    assert not list(made.glob("*token*")), "it reads no text"


def test_other_weights_and_other_bases_are_refused(tmp_path: Path) -> None:
    base, file = tiny_rewards.save_fixed_clip(tmp_path / "base"), tmp_path / "release.pth"
    given = {"release": "laion_aesthetic", "weights": file}
    torch.save({"layers.0.weight": torch.zeros(2, 24), "layers.1.weight": torch.zeros(1, 2)}, file)
    with pytest.raises(ModelError, match=r"expected the layers of one of LAION's .*, found layers.0.weight, layers.1"):
        convert_release(tmp_path / "made", base=base, **given)
    torch.save({"weight": torch.zeros(1, 768), "bias": torch.zeros(1)}, file)
    with pytest.raises(ModelError, match=r"head.0.weight has the shape \(1, 768\), but \(1, 24\) in `base`"):
        convert_release(tmp_path / "made", base=base, **given)
    with pytest.raises(ModelError, match="expected a CLIP model in transformers' layout"):
        convert_release(tmp_path / "made", base=tiny.save_qwen2_vl(tmp_path / "other"), **given)


def test_a_predictor_cannot_compare_an_image_with_a_prompt() -> None:
    models = {"laion_aesthetic": make_model_config(family="laion_aesthetic", checkpoint="owner/name")}
    metric = SimilarityConfig(model="laion_aesthetic", measure="reward")
    with pytest.raises(ConfigError, match=r"metrics\.a: .*, which supports compares=image, not prompt"):
        check_models(make_nodes({"a": metric}), models)


def test_an_image_without_a_known_prompt_is_rated_and_a_bad_file_has_no_rating(tmp_path: Path) -> None:
    model = load_model("laion_aesthetic", tiny_rewards.save_aesthetic(tmp_path / "checkpoint"), "similarity")
    metric = SimilarityConfig(model="laion_aesthetic", measure="reward", compares="image")
    stage = SimilaritiesStage({"a": metric}, {"model": model}, make_options(image_batch=2))
    files = [tiny.encode_image(IMAGES[0]), tiny.encode_image(IMAGES[0]), b"no image"]
    images = decode(stage, tiny.make_image_table(files, ["p", "unknown", "p"]))
    table = stage.measure(images, {"a": PromptTexts({"p": "a red circle"}, metric)})["a"]
    rating = model.encode([model.preprocess(IMAGES[0])])[0]
    assert table["similarity"].to_pylist() == [pytest.approx(rating), pytest.approx(rating), None]
