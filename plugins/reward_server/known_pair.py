"""What a service's metrics say of a picture that fits its prompt and of one that does not, before anybody asks."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plumbline.plugins.reward_server.known_pictures import known_prompts, known_request
from plumbline.plugins.reward_server.service import ScoreBatch
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, Need, Served


class PairScores(NamedTuple):
    """One metric's scores of the two pictures."""

    good: float | None
    bad: float | None
    ordered: bool | None
    """Whether the good one is the better one; None where the metric ranks nothing, or has no score."""
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"has no score ({self.error})"
        return f"{self.good:.4g} where it fits, {self.bad:.4g} where not"


KnownPair = Mapping[str, PairScores]
"""By metric."""


async def score_known_pair(score: ScoreBatch, served: Served) -> KnownPair:
    """Both pictures for one prompt, by all that is served. A failure is an error; the service starts anyway."""
    groups: dict[tuple[Need, ...], list[str]] = {}
    for name in served.metrics:
        groups.setdefault(tuple(served.needs_of(name)), []).append(name)
    scored = [await _score_pair(score, served, names, needs) for needs, names in groups.items()]
    each = {name: scores for of_group in scored for name, scores in of_group.items()}
    return {name: each[name] for name in served.metrics}


async def _score_pair(score: ScoreBatch, served: Served, names: Sequence[str], needs: Sequence[Need]) -> KnownPair:
    """Both pictures by metrics that need the same."""
    prompt, other = known_prompts(needs)[:2]
    metrics = served.measured(names)
    asked = [known_request(prompt, [shown], metrics, needs) for shown in (prompt, other)]
    try:
        good, bad = map(served.with_reward, await score(asked, metrics))
    except Exception as error:
        return dict.fromkeys(names, PairScores(None, None, None, f"{type(error).__name__}: {error}"))
    return {name: _paired(good[name], bad[name], served.order_of(name)) for name in names}


def _paired(good: MetricAnswer, bad: MetricAnswer, order: int) -> PairScores:
    error = good.error or bad.error
    if good.score is None or bad.score is None:
        return PairScores(good.score, bad.score, None, f"{error.kind}: {error.message}" if error else None)
    return PairScores(good.score, bad.score, order * (good.score - bad.score) > 0 if order else None)


def explain_known_pair(known_pair: KnownPair) -> Iterator[str]:
    """A line for each metric that does not prefer the picture that fits."""
    for name, scores in known_pair.items():
        if scores.ordered is False:
            yield (
                f"{name} does not prefer the known picture that fits its prompt: {scores}; check its model, weights "
                "and options before you train on it"
            )
