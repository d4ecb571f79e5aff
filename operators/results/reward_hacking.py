"""Detects reward hacking: a generator in training maintains its reward while other metrics change or get worse.

operators/report/changes.py applies this to two runs, and plugins/reward_server/sentinel.py to the scores of a service.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.base.sentences import Sentence, format_names, format_number
from plumbline.operators.metrics.metric import Metric

MIN_RELATIVE_CHANGE = 0.1
"""Minimum change of an image statistic, as a fraction of its earlier mean. It is needed because, with many prompts,
even an invisible change is significant. Metrics that rank images need no margin.
"""


class Movement(NamedTuple):
    """A metric's means on earlier and on later images, and the direction of a significant change."""

    metric: str
    before: float
    after: float
    towards: int
    """1 if the later scores are significantly higher, -1 if they are significantly lower, otherwise 0."""


def find_suspicious_movements(
    reward: Movement, others: Sequence[Movement], metrics: Mapping[str, Metric]
) -> list[Movement]:
    """Return the movements that suggest reward hacking; none if the reward itself got worse.

    Only significant changes count. A held-out metric is suspicious if it got worse, an image statistic if its mean
    changed by more than the fraction MIN_RELATIVE_CHANGE.
    A metric that is missing from `metrics` is assumed to rank images, with higher scores being better.
    """

    def is_worse(move: Movement) -> bool:
        metric = metrics.get(move.metric)
        return move.towards == (1 if metric is not None and metric.prefers_lower else -1)

    def is_warning(move: Movement) -> bool:
        metric = metrics.get(move.metric)
        if metric is None or metric.ranks:
            return is_worse(move)
        return move.towards != 0 and abs(move.after - move.before) > MIN_RELATIVE_CHANGE * abs(move.before)

    return [] if is_worse(reward) else [move for move in others if is_warning(move)]


def describe_alarm(who: str, reward: Movement, moved: Sequence[Movement], test: str) -> Sentence:
    """Return a sentence about the suspicious movements of a generator, `who`; `test` names the significance test."""
    means = {move: f"from {format_number(move.before)} to {format_number(move.after)}" for move in (reward, *moved)}
    others = format_names([f"{move.metric} {'rose' if move.towards > 0 else 'fell'} {means[move]}" for move in moved])
    return Sentence(
        f"{who} may game {reward.metric}:",
        f"while {reward.metric} went {means[reward]}, {others} ({test}); look at its images.",
    )
