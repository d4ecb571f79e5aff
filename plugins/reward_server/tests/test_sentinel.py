"""The sentinel reports reward hacking, and false alarms are as rare as stated."""

import logging

import numpy as np
import pytest

from plumbline.operators.base.errors import ConfigError, RowError
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.plugins.reward_server.run_service import make_sentinel
from plumbline.plugins.reward_server.sentinel import MAX_FALSE_ALARM_PROBABILITY, Sentinel
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, Served
from tests.commands import load_job_config

METRICS: dict[str, Metric] = {
    "reward": ClipScoreConfig(),
    "held_out": ClipScoreConfig(),
    "edge_density": ImageStatisticConfig(statistic="edge_density"),
}
SERVED = Served({}, None)
GROUP_SIZE = 4
"""Number of similar images per prompt."""
N_PROMPTS = 30
"""Number of prompts per comparison."""


def add_images(
    sentinel: Sentinel, random: np.random.Generator, reward: float, edges: float, held_out: float = 0.6
) -> None:
    for _ in range(N_PROMPTS):
        prompt, offset = str(random.integers(2**62)), random.normal(0, 1, 3)
        for _ in range(GROUP_SIZE):
            levels = np.array([reward, held_out, edges]) * (1 + 0.2 * offset + random.normal(0, 0.05, 3))
            sentinel.add_image(prompt, {name: MetricAnswer(level) for name, level in zip(METRICS, levels, strict=True)})


def create_sentinel() -> Sentinel:
    return Sentinel("reward", METRICS, GROUP_SIZE * N_PROMPTS)


@pytest.mark.parametrize(
    ("reward", "edges", "held_out", "moved"),
    [
        (0.5, 0.05, 0.6, ["edge_density"]),
        (0.3, 0.05, 0.6, ["edge_density"]),
        (0.3, 0.20, 0.6, ["edge_density"]),
        (0.5, 0.10, 0.4, ["held_out"]),
        (0.5, 0.05, 0.4, ["held_out", "edge_density"]),
        (0.5, 0.10, 0.8, []),
        (0.1, 0.05, 0.4, []),
    ],
)
def test_metrics_that_move_while_the_reward_does_not_fall_are_reported(
    reward: float, edges: float, held_out: float, moved: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    sentinel, random = create_sentinel(), np.random.default_rng(0)
    add_images(sentinel, random, 0.3, 0.1)
    assert sentinel.moved == []
    with caplog.at_level(logging.WARNING):
        add_images(sentinel, random, reward, edges, held_out)
    assert sentinel.moved == moved
    assert [record.getMessage().startswith("The generator may game reward: while") for record in caplog.records] == [
        True
    ] * bool(moved)
    add_images(sentinel, random, 0.3, 0.1)
    assert sentinel.moved == []


def test_false_alarms_are_at_most_as_frequent_as_stated() -> None:
    """In the simulated run, images of a prompt are similar, the reward rises, and there are many comparisons."""
    random, alarms, services = np.random.default_rng(2), 0, 100
    for _ in range(services):
        sentinel = create_sentinel()
        add_images(sentinel, random, 0.3, 0.1)
        raised = False
        for look in range(6):
            add_images(sentinel, random, 0.35 + 0.05 * look, 0.1)
            raised |= bool(sentinel.moved)
        alarms += raised
    assert (
        alarms
        <= services * MAX_FALSE_ALARM_PROBABILITY
        + 3 * (services * MAX_FALSE_ALARM_PROBABILITY * (1 - MAX_FALSE_ALARM_PROBABILITY)) ** 0.5
    )


def test_the_first_comparison_with_a_stored_baseline_can_raise_an_alarm() -> None:
    random = np.random.default_rng(0)
    baseline = np.array([0.3, 0.6, 0.1]) * (1 + 0.2 * random.normal(0, 1, (N_PROMPTS, 3)))
    sentinel = Sentinel("reward", METRICS, GROUP_SIZE * N_PROMPTS, baseline)
    add_images(sentinel, random, 0.5, 0.05)
    assert sentinel.moved == ["edge_density"]
    add_images(sentinel, random, 0.5, 0.1)
    assert sentinel.moved == []


def test_an_image_that_lacks_a_score_is_skipped() -> None:
    sentinel, null = create_sentinel(), MetricAnswer(None, RowError("corrupt_image", "no"))
    sentinel.add_image("a", {"reward": MetricAnswer(0.5), "held_out": null, "edge_density": MetricAnswer(0.1)})
    sentinel.add_image("a", {"reward": MetricAnswer(0.5)})
    assert sentinel.count == 0


def test_the_sentinel_watches_served_metrics_other_than_the_reward() -> None:
    words = ["metric=[clipscore,edge_density]", "models=shapes"]
    config = load_job_config("serve", *words, "reward=clipscore", "sentinel=[edge_density]")
    sentinel = make_sentinel(config, SERVED)
    assert sentinel is not None
    assert sentinel.add_watched_metrics(["clipscore"]) == ("clipscore", "edge_density")
    assert sentinel.add_watched_metrics(["edge_density"]) == ("edge_density",)
    assert make_sentinel(load_job_config("serve", *words), SERVED) is None
    with pytest.raises(ConfigError, match="baseline: 'latest' is only used by sentinel= and by units"):
        load_job_config("serve", *words, "baseline=latest")
    for more in (["sentinel=[edge_density]"], ["reward=clipscore", "sentinel=[clipscore]"], ["sentinel=[entropy]"]):
        with pytest.raises(ConfigError, match="sentinel: expected"):
            load_job_config("serve", *words, *more)
