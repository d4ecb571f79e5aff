"""TRL's trainers receive one number per completion, or None if the score is missing."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.rewards.trl import trl_reward
from plumbline.operators.scoring.scorer import Scorer
from tests.operators.tiny import TRL_OPTIONS, save_causal_lm
from tests.serving import select_first_pairs


@pytest.fixture(scope="module")
def scorer() -> Scorer:
    return open_scorer("metric=[vqascore,clipscore]", "models=shapes")


def call_like_trl(reward: Any, **columns: Any) -> list[float]:
    """Return the rewards as GRPOTrainer._calculate_rewards gets them: it replaces None with NaN."""
    given = reward(completion_ids=[[1]] * len(columns["prompts"]), trainer_state=object(), **columns)
    return [score if score is not None else math.nan for score in given]


def test_the_reward_of_a_completion_is_its_score(scorer: Scorer) -> None:
    pairs = select_first_pairs(3)
    images, texts = [pair.image for pair in pairs], [pair.prompt for pair in pairs]
    expected = [row["score"] for row in scorer.score_table(images, texts).to_pylist() if row["metric"] == "vqascore"]
    reward = trl_reward(scorer, "vqascore")
    assert reward.__name__ == "vqascore"
    questions = ["Describe the image."] * 3
    assert call_like_trl(reward, prompts=questions, completions=texts, image=images) == pytest.approx(expected)
    spoken = [[{"role": "assistant", "content": text}] for text in texts]
    parts = [[{"role": "assistant", "content": [{"type": "text", "text": text}]}] for text in texts]
    structs = [{"bytes": image, "path": "ignored.png"} for image in images]
    for completions in (spoken, parts):
        given = call_like_trl(reward, prompts=questions, completions=completions, image=structs)
        assert given == pytest.approx(expected)
    made = trl_reward(scorer, "vqascore", images="generated", texts="prompts")
    given = call_like_trl(made, prompts=texts, completions=[""] * 3, generated=[[image] for image in images])
    assert given == pytest.approx(expected)


def test_the_function_accepts_ms_swifts_arguments(scorer: Scorer, tmp_path: Path) -> None:
    """The arguments follow compute_rewards_per_func (modelscope/ms-swift 3602360, swift/rl_core/grpo_algorithm.py)."""
    pairs = select_first_pairs(2)
    for place, pair in enumerate(pairs):
        (tmp_path / f"{place}.png").write_bytes(pair.image)
    columns = {"images": [[{"bytes": None, "path": str(tmp_path / f"{place}.png")}] for place in range(2)]}
    texts = [pair.prompt for pair in pairs]
    expected = scorer.score_table([pair.image for pair in pairs], texts, "vqascore").column("score").to_pylist()
    reward = trl_reward(scorer, "vqascore", images="images")
    assert reward(texts, trainer_state=object(), **columns) == pytest.approx(expected)


def test_a_completion_without_text_has_no_reward_and_does_not_affect_others(scorer: Scorer) -> None:
    pairs = select_first_pairs(3)
    no_text = [{"role": "assistant", "content": None, "tool_calls": []}]
    bad: list[Any] = ["half \ud83d", None, math.nan, 7, [], {}, no_text, [{"role": "assistant"}], ""]
    texts: list[Any] = [pair.prompt for pair in pairs]
    completions = [texts[0], *bad[:5], texts[1], *bad[5:], texts[2]]
    shown = [pair.image for pair in pairs]
    images = [shown[0], *[shown[0]] * 5, shown[1], *[shown[2]] * 4, shown[2]]
    reward = trl_reward(scorer, "clipscore")
    given = reward(completions=completions, prompts=[""] * len(images), image=images)
    assert [given[place] for place in (0, 6, 11)] == pytest.approx(reward(completions=texts, image=shown))
    assert [score for place, score in enumerate(given) if place not in (0, 6, 11)] == [None] * len(bad)


def test_a_column_can_contain_the_questions_of_a_benchmarks_metric() -> None:
    soft_mean = ("metrics.tifa_v1.aggregate=soft_geometric", "metrics.tifa_v1.answers=likelihood")
    scorer, pairs = open_scorer("metric=[tifa_v1]", *soft_mean, "models=shapes"), select_first_pairs(2)
    images, texts = [pair.image for pair in pairs], [pair.prompt for pair in pairs]
    lists = [[["Are there any circles in the image?", "Yes"]], [["How many stars are in the image?", "one"]]]
    expected = scorer.score_table(images, texts, questions=lists).column("score").to_pylist()
    reward = trl_reward(scorer, "tifa_v1", questions="vqa_list")
    assert reward(texts, image=images, vqa_list=lists) == expected and None not in expected


def test_a_missing_score_becomes_none(scorer: Scorer) -> None:
    (pair,) = select_first_pairs(1)
    given = trl_reward(scorer, "clipscore")(
        prompts=["?"] * 4,
        completions=[pair.prompt, pair.prompt, " ", pair.prompt],
        image=[b"no", pair.image, pair.image, None],
    )
    assert [score is None for score in given] == [True, False, True, True]
    nan = call_like_trl(trl_reward(scorer, "clipscore"), prompts=["?"], completions=[pair.prompt], image=[b"no"])
    assert math.isnan(nan[0])


@pytest.mark.slow
def test_trls_trainer_excludes_failed_completions_from_means(scorer: Scorer, tmp_path: Path) -> None:
    """A tiny policy writes about images. One image is missing, so its completions are excluded from all means."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig, GRPOTrainer

    folder = str(save_causal_lm(tmp_path / "policy"))
    asked: list[tuple[list[str], list[float | None]]] = []
    scored = trl_reward(scorer, "clipscore", images="picture")

    def record_reward(**columns: Any) -> list[float | None]:
        asked.append((columns["completions"], scored(**columns)))
        return asked[-1][1]

    pictures = [pair.image for pair in select_first_pairs(3)] + [b"no image"]
    options = {"max_steps": 4, "per_device_train_batch_size": 2, "num_generations": 2, "max_completion_length": 6}
    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(folder),
        reward_funcs=[record_reward],
        args=GRPOConfig(output_dir=str(tmp_path / "trained"), logging_steps=1, **options, **TRL_OPTIONS),
        train_dataset=Dataset.from_list([{"prompt": "Describe it:", "picture": picture} for picture in pictures]),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()
    means = [entry["rewards/record_reward/mean"] for entry in trainer.state.log_history if "loss" in entry]
    assert len(asked) == len(means) == 4
    for mean, (completions, rewards) in zip(means, asked, strict=True):
        assert len(completions) == len(rewards) == 2
        given = [reward for reward in rewards if reward is not None]
        assert mean == (pytest.approx(np.mean(given), abs=1e-6) if given else None)
    assert any(rewards == [None, None] for _, rewards in asked)


def test_an_unknown_metric_or_column_is_an_error(scorer: Scorer) -> None:
    with pytest.raises(ConfigError, match="did you mean"):
        trl_reward(scorer, "vqascor")
    with pytest.raises(ConfigError, match="no column is called 'image'"):
        trl_reward(scorer, "vqascore")(prompts=["?"], completions=["a"], images=[b""])
    odd_names: list[Any] = [None, "", 3, ["image"], pd.NA]
    for odd in odd_names:
        for option in ("images", "texts", "questions", "sources"):
            if odd is not None or option in ("images", "texts"):
                with pytest.raises(ConfigError, match=f"{option}: expected the name of a column"):
                    trl_reward(scorer, "vqascore", **{option: odd})
