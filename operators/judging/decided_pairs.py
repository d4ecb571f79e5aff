"""What the scores of a benchmark's first prompts decide, by metric and pair of generators."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import count, signed
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.options import Adaptive
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.operators.statistics.sequential import (
    A_BETTER,
    ALIKE,
    B_BETTER,
    NOBODY,
    PairEvidence,
    Places,
    decide,
    evidence,
    in_order,
)

Floats = NDArray[np.float64]

WORDS = {A_BETTER: "a", B_BETTER: "b", ALIKE: "alike"}


class SeenPrompts(NamedTuple):
    """What an adaptive sweep has seen, and what it decided."""

    prompts: int
    of_prompts: int
    decisions: pa.Table
    """Schema DECISIONS: every pair by every metric."""

    def counts(self) -> dict[str, Any]:
        """For the manifest."""
        verdicts = self.decisions.column("verdict").to_pylist()
        told = sum(verdict in ("a", "b") for verdict in verdicts)
        return {
            "prompts": self.prompts,
            "of_prompts": self.of_prompts,
            "pairs": len(verdicts),
            "told_apart": told,
            "alike": verdicts.count("alike"),
            "undecided": verdicts.count("undecided"),
        }

    def line(self) -> str:
        """How far it is."""
        counts = self.counts()
        decided = f"{counts['told_apart']} told apart, {counts['alike']} alike, {counts['undecided']} undecided"
        return f"{self.prompts} of {self.of_prompts} prompts: of {counts['pairs']} pairs {decided}"

    @property
    def enough(self) -> bool:
        """Whether nothing is left to decide, or to see."""
        return self.counts()["undecided"] == 0 or self.prompts >= self.of_prompts


def in_words(counts: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """What a reader must know of a run that stopped early; `counts` and `options` (Adaptive's) are the manifest's."""
    unseen = counts["of_images"] - counts["images"]
    seen = (
        f"The scores are of a balanced random subsample: {counts['prompts']:,} of {counts['of_prompts']:,} prompts, "
        f"{counts['images']:,} of {counts['of_images']:,} images; {unseen:,} images "
        f"({unseen / max(counts['of_images'], 1):.0%}) were not looked at."
    )
    left = "none is left" if not counts["undecided"] else f"{counts['undecided']} are undecided"
    return (
        f"{seen} Of {counts['pairs']} pairs, by every metric, {counts['told_apart']} are told apart, {counts['alike']} "
        f"differ by no more than the indifference, and {left}. {surety(options['method'], options['alpha'])}"
    )


def surety(method: str, alpha: float) -> str:
    """How probable false decisions are."""
    if method == "betting":
        return f"The probability that any of this would be otherwise with all prompts is {alpha:.0%} at most."
    return (
        f"adaptive=asymptotic does not promise that {alpha:.0%} at most of such decisions are false: where a loss that "
        "only one prompt in a hundred has makes the difference, more than three in ten were. adaptive=betting with the "
        "scores' adaptive.range promises it."
    )


def decisions_table(decisions: pa.Table) -> ShownTable:
    """The decisions as a person reads them."""
    verdicts = {"a": "{generator_a} is better", "b": "{generator_b} is better"}
    return ShownTable(
        "What the subsample decides",
        "Of all prompts of the benchmark, from the balanced random subsample that was scored (an adaptive sweep): its "
        "own test, which may be looked at while prompts come in. A pair counts the prompts that both have scores of.",
        ("metric", "pair", "decided", "difference", "prompts", "missing", "decided after"),
        [
            (
                row["metric"],
                f"{row['generator_a']}, {row['generator_b']}",
                verdicts.get(row["verdict"], row["verdict"]).format(**row),
                signed(row["difference"]),
                count(row["n"]),
                count(row["n_missing"]),
                count(row["decided_after"]),
            )
            for row in decisions.to_pylist()
        ],
    )


class _Pair(NamedTuple):
    metric: str
    a: str
    b: str
    differences: Floats
    """Of a - b by prompt, in the direction in which more is better; nan of those without both scores."""


def look(
    scores: RunScores,
    order: Places,
    looks: int,
    prompt_ids: Sequence[str],
    generators: Sequence[str],
    metrics: Mapping[str, bool],
    options: Adaptive,
) -> SeenPrompts:
    """Decides what the prompts of the first `looks` of an order tell; of `metrics` is said whether lower is better.

    Raises ConfigError for scores beyond the range, where that is needed.
    """
    falling = {metric for metric, falls in metrics.items() if falls}
    pairs = [
        pair
        for metric in metrics
        for pair in _pairs(metric, _by_prompt(scores, metric, prompt_ids, generators, options), generators, falling)
    ]
    found = [_evidence(pair, order, looks, options, len(pairs)) for pair in pairs]
    verdicts, at = decide(found, options.alpha)
    came = [int((order[:end] != NOBODY).sum()) for end in range(looks + 1)]
    seen = order[:looks][order[:looks] != NOBODY]
    records = []
    for pair, verdict, place in zip(pairs, verdicts.tolist(), at.tolist(), strict=True):
        both = np.isfinite(pair.differences[seen])
        records.append(
            {
                "metric": pair.metric,
                "generator_a": pair.a,
                "generator_b": pair.b,
                "verdict": WORDS.get(verdict, "undecided"),
                "difference": float(pair.differences[seen][both].mean()) * direction(pair.metric, falling)
                if both.any()
                else None,
                "n": int(both.sum()),
                "n_missing": int((~both).sum()),
                "decided_after": came[min(place + 1, looks)] if verdict in WORDS else None,
            }
        )
    return SeenPrompts(came[-1], len(prompt_ids), rows.table(records, schemas.DECISIONS))


def _evidence(pair: _Pair, order: Places, looks: int, options: Adaptive, pairs: int) -> PairEvidence:
    """Of the looks that there were; of the prompts to come no score is needed."""
    indifference = options.indifference_of(pair.metric)
    sides = evidence(in_order(pair.differences, order), options, indifference, pairs)
    return PairEvidence(*(side[:looks] for side in sides))


def _pairs(metric: str, wide: Floats, generators: Sequence[str], falling: set[str]) -> Iterator[_Pair]:
    for a, b in combinations(range(len(generators)), 2):
        differences = direction(metric, falling) * (wide[:, a] - wide[:, b])
        yield _Pair(metric, generators[a], generators[b], differences)


def _by_prompt(
    scores: RunScores, metric: str, prompt_ids: Sequence[str], generators: Sequence[str], options: Adaptive
) -> Floats:
    """A metric's scores (prompts, generators), several of a prompt averaged; nan where there is none."""
    columns = scores.select_rows(metric).scored()
    low, high = options.range
    if options.method == "betting" and len(columns.score):
        least, most = float(columns.score.min()), float(columns.score.max())
        if least < low or most > high:
            raise ConfigError(
                f"adaptive.range: expected scores from {low:g} to {high:g}, found {metric} from {least:.4g} to "
                f"{most:.4g}; set adaptive.range to what it can give, or adaptive=asymptotic, which promises less"
            )
    hashes = hash_ids(prompt_ids)
    by_hash = np.argsort(hashes)
    prompt = by_hash[np.minimum(np.searchsorted(hashes[by_hash], columns.prompt), len(hashes) - 1)]
    known = hashes[prompt] == columns.prompt
    place_of = {name: place for place, name in enumerate(generators)}
    generator = np.array([place_of.get(name, 0) for name in scores.generators], np.intp)[columns.generator]
    sums, counts = np.zeros((2, len(hashes), len(generators)))
    np.add.at(sums, (prompt[known], generator[known]), columns.score[known])
    np.add.at(counts, (prompt[known], generator[known]), 1)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / counts)
