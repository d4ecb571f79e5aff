"""Scores two known images when a service starts: one that matches its prompt, and one that does not."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from plumbline.plugins.reward_server.groups import join_pairs, make_pairs
from plumbline.plugins.reward_server.known_images import make_request, select_prompts
from plumbline.plugins.reward_server.service import ScoreBatch
from plumbline.plugins.reward_server.wires.wire import MetricAnswer, Need, Served


class PairScores(NamedTuple):
    """Scores of the two known images by one metric."""

    good: float | None
    bad: float | None
    ordered: bool | None
    """True if the metric prefers the matching image.

    None if the metric does not rank images or does not read prompts, or if a score is missing.
    """
    error: str | None = None

    def __str__(self) -> str:
        if self.error is not None:
            return f"has no score ({self.error})"
        return f"{self.good:.4g} if the image fits, {self.bad:.4g} if not"


KnownPair = Mapping[str, PairScores]
"""Scores of the two known images, by metric."""


async def score_known_pair(score: ScoreBatch, served: Served) -> KnownPair:
    """Return the scores of the two known images by metric.

    If scoring fails, the error takes the place of the scores, so that the service can still start.
    """
    groups: dict[tuple[Need, ...], list[str]] = {}
    for name in served.metrics:
        groups.setdefault(tuple(served.list_needs(name)), []).append(name)
    scores: dict[str, PairScores] = {}
    for needs, names in groups.items():
        scores |= await _score_group(score, served, names, needs)
    return {name: scores[name] for name in served.metrics}


async def _score_group(score: ScoreBatch, served: Served, names: Sequence[str], needs: Sequence[Need]) -> KnownPair:
    """Score the matching and the other image with the metrics in `names`, which all need the inputs in `needs`."""
    prompt, other = select_prompts(needs)[:2]
    comparing = served.select_comparing(names)
    metrics = [name for name in served.find_metrics_to_compute(names) if name not in comparing]
    requests = [make_request(prompt, [shown], names, needs) for shown in (prompt, other)]
    pairs = make_pairs(requests, served)
    try:
        alone = await score(requests, metrics) if metrics else [{}, {}]
        in_pairs = await score([pair.request for pair in pairs], comparing) if pairs else []
        compared = join_pairs(requests, pairs, in_pairs, served)
        good, bad = (served.add_reward({**one, **both}) for one, both in zip(alone, compared, strict=True))
    except Exception as error:
        return dict.fromkeys(names, PairScores(None, None, None, f"{type(error).__name__}: {error}"))
    orders = {name: 0 if name in served.promptless else served.find_direction(name) for name in names}
    return {name: _compare_scores(good[name], bad[name], orders[name]) for name in names}


def _compare_scores(good: MetricAnswer, bad: MetricAnswer, order: int) -> PairScores:
    error = good.error or bad.error
    if good.score is None or bad.score is None:
        return PairScores(good.score, bad.score, None, f"{error.kind}: {error.message}" if error else None)
    return PairScores(good.score, bad.score, order * (good.score - bad.score) > 0 if order else None)


def explain_known_pair(known_pair: KnownPair) -> Iterator[str]:
    """Yield a warning for each metric that does not prefer the matching image."""
    for name, scores in known_pair.items():
        if scores.ordered is False:
            yield (
                f"{name} does not prefer the known image that fits its prompt: {scores}; check its model, weights "
                "and options before you train on it"
            )
