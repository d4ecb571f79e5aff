"""Reward hacking is detected in a loop that games its reward; honest improvements rarely raise an alarm."""

import io
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from plumbline.operators.base import rows, schemas
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.questions.gecko import GeckoConfig
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.report.changes import compare_runs
from plumbline.operators.results.reward_hacking import Movement, find_suspicious_movements
from plumbline.operators.results.summary import Skills
from plumbline.operators.rewards.combination import RewardConfig, Unit
from tests.bench_of import read_image_rows, read_prompt_rows
from tests.operators.tallied import wrap_scores

STATISTICS = ("edge_density", "entropy", "saturation")
MANIFEST: dict[str, Any] = {
    "config": {
        "metrics": {
            "clipscore": {"kind": "clipscore"},
            "itm": {"kind": "similarity", "model": "itm"},
            **{name: {"kind": "image_statistic", "statistic": name} for name in STATISTICS},
        }
    }
}
N_PROMPTS = 40
Pixels = NDArray[np.uint8]


class ToyGenerator:
    """A generator that copies images of the embedded benchmark, and only learns how much noise the background gets."""

    def __init__(self, texts: Sequence[str], pictures: Sequence[Pixels]) -> None:
        self.texts, self.pictures = texts, pictures
        self.noise = 60.0

    def draw(self, noise: float, seed: int) -> list[Image.Image]:
        random = np.random.default_rng(seed)
        return [
            Image.fromarray(_add_noise(picture, random.normal(0, noise, picture.shape))) for picture in self.pictures
        ]

    def learn(self, reward: Callable[[Sequence[Image.Image]], float], steps: int) -> None:
        """Change the amount of noise in the direction that raises the reward."""
        for step in range(steps):
            less, more = (reward(self.draw(max(self.noise + way, 0), step)) for way in (-15, 15))
            self.noise = max(self.noise + (15 if more > less else -15), 0)


def _add_noise(picture: Pixels, noise: NDArray[np.float64]) -> Pixels:
    """Return the image with noise on its background, which is every pixel with the colour of the top left corner."""
    background = (picture == picture[0, 0]).all(axis=2, keepdims=True)
    return np.asarray(np.clip(picture + noise * background, 0, 255), np.uint8)


@cache
def make_toy_generator() -> ToyGenerator:
    shown = [
        np.asarray(Image.open(io.BytesIO(row["image"])).convert("RGB")) for row in read_image_rows("atlas", N_PROMPTS)
    ]
    return ToyGenerator([row["text"] for row in read_prompt_rows(N_PROMPTS)], shown)


def make_run(scores: Mapping[str, Sequence[float]]) -> pa.Table:
    """Return a table (schema SCORES) of one generator, given its scores on successive prompts by metric."""
    records = [
        {"image_id": str(at), "prompt_id": f"p{at:03d}", "generator": "toy", "metric": metric, "score": score}
        for metric, column in scores.items()
        for at, score in enumerate(column)
    ]
    return rows.table(records, schemas.SCORES)


TRAINED_REWARD = RewardConfig(weights={"clipscore": 1.0})


def describe_hacking(before: pa.Table, after: pa.Table, reward: RewardConfig | None = TRAINED_REWARD) -> list[str]:
    runs = wrap_scores(before), wrap_scores(after)
    return [str(sentence) for sentence in compare_runs(*runs, Skills(()), (MANIFEST, MANIFEST), reward).sentences]


def test_a_loop_that_learns_to_blank_backgrounds_gives_a_warning_of_one_sentence() -> None:
    scorer = open_scorer("metric=[clipscore,edge_density,entropy,saturation]", "models=shapes")
    generator = make_toy_generator()

    def score_images(pictures: Sequence[Image.Image], metrics: Sequence[str] | None = None) -> pa.Table:
        table = scorer.score_table(pictures, generator.texts, metrics)
        return table.set_column(2, "generator", pa.array(["toy"] * len(table)))

    before = score_images(generator.draw(generator.noise, 100))
    generator.learn(lambda pictures: float(np.mean(score_images(pictures, ["clipscore"]).column("score"))), 4)
    after = score_images(generator.draw(generator.noise, 200))
    assert generator.noise == 0
    first, *others = describe_hacking(before, after)
    assert (
        first.startswith("toy may game clipscore: while clipscore went from 0.")
        and ", edge_density fell from " in first
    )
    assert first.endswith(" (Wilcoxon's signed-rank test, Holm, p < 0.05); look at its images.")
    assert any("toy is lower in edge_density" in sentence for sentence in others)
    assert not any("game" in sentence for sentence in describe_hacking(before, after, None))
    assert not any("game" in sentence for sentence in describe_hacking(before, score_images(generator.draw(60.0, 300))))


def test_an_honest_improvement_gives_a_warning_only_at_the_stated_rate() -> None:
    """Only the reward rises, and the other metrics' scores are drawn from an unchanged distribution.

    The number of alarms in 60 rounds stays within three standard errors of 5%.
    """
    random = np.random.default_rng(1)
    world = {"clipscore": (0.25, 0.05), "itm": (0.6, 0.2), "edge_density": (0.1, 0.08), "saturation": (0.3, 0.2)}
    draw = lambda: {name: random.normal(mean, spread, 30) for name, (mean, spread) in world.items()}  # noqa: E731
    alarms, rounds = 0, 60
    for _ in range(rounds):
        before, after = draw(), draw()
        after["clipscore"] += 0.1
        alarms += "may game" in describe_hacking(make_run(before), make_run(after))[0]
    assert alarms <= 0.05 * rounds + 3 * (rounds * 0.05 * 0.95) ** 0.5


@pytest.mark.parametrize("unit", ["score", "z_score"])
def test_a_combined_reward_is_checked_as_a_whole_and_its_parts_are_not_independent_metrics(unit: Unit) -> None:
    """One part of the reward falls while the other rises by more; this alone does not show that the reward is gamed.

    In z-scores, the mean reward of the earlier run is 0.
    """
    random = np.random.default_rng(1)
    before = {name: random.normal(0.5, 0.1, 40) for name in ("clipscore", "itm", "saturation")}
    after = {**before, "clipscore": before["clipscore"] - 0.1, "itm": before["itm"] + 0.3}
    reward = RewardConfig(weights={"clipscore": 1.0, "itm": 2.0}, unit=unit)
    assert not any("game" in sentence for sentence in describe_hacking(make_run(before), make_run(after), reward))
    after["saturation"] = before["saturation"] - 0.2
    first, *others = describe_hacking(make_run(before), make_run(after), reward)
    mean = float(np.mean(before["clipscore"] + 2 * before["itm"])) if unit == "score" else 0.0
    assert f"toy may game reward: while reward went from {mean:.3f} to " in first.replace("−0.000", "0.000")
    assert ", saturation fell from " in first and "clipscore fell" not in first
    assert any("toy is better by itm" in sentence and "reward (" in sentence for sentence in others)
    alone = {name: scores for name, scores in after.items() if name != "itm"}
    assert not any("reward" in sentence for sentence in describe_hacking(make_run(before), make_run(alone), reward))


def make_movement(metric: str, before: float, after: float, towards: int) -> Movement:
    return Movement(metric, before, after, towards)


METRICS: dict[str, Metric] = {
    "edge_density": ImageStatisticConfig(statistic="edge_density"),
    "clipscore": ClipScoreConfig(),
    "nll": GeckoConfig(likelihood="nll", reduction="sum"),
}


@pytest.mark.parametrize(
    ("reward", "other", "warns"),
    [
        (1, make_movement("edge_density", 0.2, 0.1, -1), True),
        (1, make_movement("edge_density", 0.2, 0.3, 1), True),
        (0, make_movement("edge_density", 0.2, 0.1, -1), True),
        (-1, make_movement("edge_density", 0.2, 0.1, -1), False),
        (1, make_movement("edge_density", 0.2, 0.1, 0), False),
        (1, make_movement("edge_density", 0.2, 0.19, -1), False),
        (1, make_movement("clipscore", 0.3, 0.29, -1), True),
        (1, make_movement("clipscore", 0.3, 0.35, 1), False),
        (1, make_movement("nll", 2.0, 2.1, 1), True),
        (1, make_movement("nll", 2.0, 1.5, -1), False),
        (1, make_movement("unknown", 0.3, 0.2, -1), True),
    ],
)
def test_a_warning_depends_on_how_the_reward_and_another_metric_moved(
    reward: int, other: Movement, warns: bool
) -> None:
    assert bool(find_suspicious_movements(make_movement("reward", 0.5, 0.6, reward), [other], METRICS)) == warns


def test_a_reward_whose_lower_values_are_better_is_gamed_if_it_falls() -> None:
    fallen = make_movement("edge_density", 0.2, 0.1, -1)
    assert find_suspicious_movements(make_movement("nll", 2.0, 1.0, -1), [fallen], METRICS) == [fallen]
    assert find_suspicious_movements(make_movement("nll", 2.0, 3.0, 1), [fallen], METRICS) == []
