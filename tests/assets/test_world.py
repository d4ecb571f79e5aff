"""All steps that make the embedded models are checked before the first step runs; the README states their accuracy."""

import json
from pathlib import Path

import pytest

from plumbline.assets.making.world import TRAINING_STAGES, WorldConfig, render_readme
from plumbline.operators.base.errors import ConfigError

ASSETS_FOLDER = Path(__file__).parents[2] / "assets"


def test_an_unknown_step_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(ConfigError, match="got 'write'; did you mean writer"):
        WorldConfig(steps=("data", "write"))


@pytest.mark.parametrize("name", ["shorten", "questions_each"])
def test_config_numbers_below_one_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}: expected at least 1, got 0"):
        WorldConfig(**{name: 0})


def test_a_shortened_recipe_only_changes_the_number_of_steps() -> None:
    config = WorldConfig(shorten=1000)
    assert config.recipe == {
        "seed": 0,
        "tower_steps": 1,
        "clip_steps": 1,
        "caption_steps": 1,
        "place_steps": 1,
        "relation_steps": 1,
        "question_steps": 6,
        "judge_decoder_steps": 1,
        "judge_steps": 1,
        "judge_hard_steps": 1,
        "writer_steps": 6,
        "nli_steps": 3,
    }
    assert config.get_stage("question").peak == TRAINING_STAGES["question"].peak


def test_committed_readme_has_the_numbers_of_the_accuracy_file() -> None:
    measured = json.loads((ASSETS_FOLDER / "accuracy.json").read_text())
    assert render_readme(measured, WorldConfig().recipe) == (ASSETS_FOLDER / "README.md").read_text()
