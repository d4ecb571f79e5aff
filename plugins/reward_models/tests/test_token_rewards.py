"""Special cases of HPSv3, VideoAlign and EditReward. Everything else is covered by the tests of all families."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
from torch.nn.utils.rnn import pad_sequence

from plugins.reward_models.tests import tiny_rewards
from plumbline.operators.base.errors import ConfigError, ModelError, UnprocessableRowError
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.models.calls import Pair
from plumbline.operators.models.families import make_model_config
from plumbline.operators.stages.graph import check_models, make_nodes
from plumbline.plugins.reward_models import reward_tokens
from tests.operators import tiny
from tests.operators.models.alike import IMAGES, require_batch_invariance
from tests.operators.models.families.test_families import load_model
from tests.operators.tiny.families import KINDS


@pytest.mark.slow
@pytest.mark.parametrize("name", ["hpsv3", "videoalign", "editreward"])
def test_padding_on_the_left_changes_the_rewards(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = KINDS[name].save(tmp_path / name)
    model, alone = load_model(name, folder, "similarity"), load_model(name, folder, "similarity")
    before = partial(pad_sequence, padding_side="left", padding_value=1)
    monkeypatch.setattr(reward_tokens, "pad_sequence", before)
    with pytest.raises(AssertionError):
        require_batch_invariance(model, "similarity", measure="reward", alone=alone)


def encode_images(model: Any) -> Any:
    return model.encode([model.preprocess(picture) for picture in IMAGES])


def test_hpsv3_refuses_prompts_that_contain_its_special_tokens(tmp_path: Path) -> None:
    model = load_model("hpsv3", tiny_rewards.save_hpsv3(tmp_path / "hpsv3"), "similarity")
    for text in ("a <|Reward|> of red", "two <|image_pad|>"):
        with pytest.raises(UnprocessableRowError, match="token; change the prompt's text"):
            model.compare(encode_images(model), [Pair(0, text)], "reward")
    assert len(model.compare(encode_images(model), [Pair(0, "a {text_prompt} in {braces}")], "reward")) == 1


def test_hpsv3_requires_one_placeholder_in_the_instruction_and_the_reward_token_in_the_tokenizer(
    tmp_path: Path,
) -> None:
    folder, plain = tiny_rewards.save_hpsv3(tmp_path / "hpsv3"), tiny.save_qwen2_vl(tmp_path / "plain")
    with pytest.raises(ModelError, match=r"has no <\|Reward\|>; convert the release again"):
        load_model("hpsv3", folder, "similarity", tokenizer=str(plain))
    for instruction in ("rate it", "{text_prompt} and {text_prompt}"):
        (folder / "instruction.txt").write_text(instruction)
        with pytest.raises(ModelError, match=r"expected {text_prompt} exactly once, for the prompt; convert the rel"):
            load_model("hpsv3", folder, "similarity")


def test_a_model_for_edits_cannot_compare_an_image_with_a_prompt() -> None:
    models = {"editreward": make_model_config(family="editreward", checkpoint="owner/name")}
    metric = SimilarityConfig(model="editreward", measure="reward")
    with pytest.raises(ConfigError, match=r"metrics\.e: .*, which supports compares=edit, not prompt"):
        check_models(make_nodes({"e": metric}), models)
