"""HPSv3++'s reward depends on the configured iteration, and on a capability inferred from the image."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from plugins.reward_models.tests import tiny_rewards
from plugins.reward_models.tests.references import score_hpsv3_plus_iteration
from plugins.reward_models.tests.test_conversion import convert_release, save_weights
from plumbline.operators.base.errors import ConfigError, ModelError, UnprocessableRowError
from plumbline.operators.models.calls import Pair
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from plumbline.plugins.reward_models import conversion
from tests.operators import tiny
from tests.operators.models.alike import IMAGES, TEXTS
from tests.operators.models.families.test_families import load_model

PAIRS = [Pair(image, TEXTS[0]) for image in range(len(IMAGES))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rewards.save_hpsv3_plus(tmp_path_factory.mktemp("hpsv3_plus") / "hpsv3_plus")


def score(folder: Path, **options: Any) -> list[float]:
    model = load_model("hpsv3_plus", folder, "similarity", **options)
    features = model.encode([model.preprocess(image) for image in IMAGES])
    return [result.similarity for result in model.compare(features, PAIRS, "reward")]


def test_a_reward_depends_on_the_iteration_as_in_the_release(folder: Path) -> None:
    scores = {iteration: score(folder, iteration=iteration) for iteration in (0.0, 0.3, 1.0)}
    with torch.no_grad():
        for iteration, found in scores.items():
            expected = [score_hpsv3_plus_iteration(folder, pair, iteration) for pair in PAIRS]
            assert found == pytest.approx(expected, abs=1e-4)
    assert score(folder) == scores[0.0], "to evaluate, no option is needed"
    assert scores[0.3] != pytest.approx(scores[1.0], abs=1e-3)


def test_the_iteration_is_a_fraction_and_is_in_the_key(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"iteration: expected a fraction between 0 and 1, got 300"):
        make_model_config(family="hpsv3_plus", checkpoint="owner/name", iteration=300)
    keys = [
        resolve_model(make_model_config(family="hpsv3_plus", checkpoint=str(folder), iteration=iteration), on_gpu=False)
        for iteration in (0.0, 0.3)
    ]
    assert [key.options for key in keys] == [{"iteration": 0.0}, {"iteration": 0.3}]


def test_a_prompt_with_the_reward_token_is_refused(folder: Path) -> None:
    model = load_model("hpsv3_plus", folder, "similarity")
    features = model.encode([model.preprocess(IMAGES[0])])
    with pytest.raises(UnprocessableRowError, match="the prompt contains the reward's token; change the prompt's text"):
        model.compare(features, [Pair(0, "a <|Reward|> of red")], "reward")


def test_a_converted_hpsv3_plus_has_the_scores_of_its_release(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(conversion, "PIXELS_PER_IMAGE", tiny_rewards.HPSV3_PLUS_FIELDS["image_pixels"])
    monkeypatch.setattr(conversion, "IMAGE_FACTOR", tiny_rewards.HPSV3_PLUS_FIELDS["image_factor"])
    unused = {"lm_head.weight": torch.zeros(3, 2), "cap_encoder.pool_attn.weight": torch.zeros(1, 6)}
    unused["cap_encoder.pool_attn.bias"] = torch.zeros(1)
    weights = {**load_file(folder / "model.safetensors"), **unused}
    before, after = tiny_rewards.INSTRUCTION.split("The rating")
    source = tmp_path / "data_collator_qwen.py"
    source.write_text(
        f"raise SystemExit\nINSTRUCTION = {before!r}\nprompt_with_special_token = {'The rating' + after!r}\n"
    )
    given = {
        "release": "hpsv3_plus",
        "base": tiny.save_qwen2_vl(tmp_path / "base", kind="qwen3_vl"),
        "instruction": source,
    }
    file = save_weights(tmp_path / "hpsv3++.pth", {"model": weights})
    made = convert_release(tmp_path / "made", weights=file, **given)
    assert (made / "instruction.txt").read_text() == tiny_rewards.INSTRUCTION
    assert score(made) == pytest.approx(score(folder), abs=1e-5)
    lost = save_weights(tmp_path / "hpsv3.pth", {name: weights[name] for name in weights if "film" not in name})
    with pytest.raises(ModelError, match=r"lacks film_gen.0.bias; check that these are the published weights"):
        convert_release(tmp_path / "again", weights=lost, **given)
