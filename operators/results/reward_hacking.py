"""Reward hacking: the number that a generator is trained on holds or rises, while others say that its images have
become different, or worse.

Judged of two runs (operators/report/changes.py), and of what a service scores (plugins/reward_server/sentinel.py).
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.base.sentences import Sentence, names, number
from plumbline.operators.metrics.metric import Metric

MARGIN = 0.1
"""Share of its earlier mean by which an image statistic must have moved besides: of many prompts a test tells what no
eye does. A metric that ranks images needs none."""


class Movement(NamedTuple):
    """A metric's means, of earlier and of later images."""

    metric: str
    before: float
    after: float
    towards: int
    """1 where a test finds the later scores higher, -1 where it finds them lower, 0 where it may be chance."""


def suspicious(reward: Movement, others: Sequence[Movement], metrics: Mapping[str, Metric]) -> list[Movement]:
    """Those of the other movements that the reward hides: of a held-out metric a change for the worse, of an image
    statistic any change of more than MARGIN; none where the reward itself is worse.

    `metrics` are those of all movements by name; one that is not there is taken to rank images, higher being better.
    """
    if _is_worse(reward, metrics.get(reward.metric)):
        return []
    return [move for move in others if _is_warning(move, metrics.get(move.metric))]


def _is_worse(move: Movement, metric: Metric | None) -> bool:
    return move.towards == (1 if metric is not None and metric.falling else -1)


def _is_warning(move: Movement, metric: Metric | None) -> bool:
    if metric is None or metric.ranks:
        return _is_worse(move, metric)
    return move.towards != 0 and abs(move.after - move.before) > MARGIN * abs(move.before)


def alarm(who: str, reward: Movement, moved: Sequence[Movement], test: str) -> Sentence:
    """What `suspicious` found, in one sentence; `test` names what tells it from chance."""
    others = names([f"{move.metric} {'rose' if move.towards > 0 else 'fell'} {_means(move)}" for move in moved])
    return Sentence(
        f"{who} may game {reward.metric}:",
        f"while {reward.metric} went {_means(reward)}, {others} ({test}); look at its images.",
    )


def _means(move: Movement) -> str:
    return f"from {number(move.before)} to {number(move.after)}"
