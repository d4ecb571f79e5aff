"""Decides which generator of each pair is better, based on the prompts that an adaptive sweep has already scored."""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import ShownTable, format_count, format_signed
from plumbline.operators.metaeval.judgement import compute_mean_matrix
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.operators.statistics.sequential import (
    A_BETTER,
    ALIKE,
    B_BETTER,
    NO_PROMPT_INDEX,
    Indices,
    PairEvidence,
    compute_evidence,
    decide_sequentially,
    order_differences,
)

Floats = NDArray[np.float64]

VERDICT_NAMES = {A_BETTER: "a", B_BETTER: "b", ALIKE: "alike"}

Duels = Mapping[tuple[str, str], Floats]
"""Results of a metric that compares two generators' images directly, by the names of the two generators.

Each array has a number for each prompt: the probability that the first generator's image is better, minus the
probability that the second generator's image is better; nan if the two images were not compared. The two names are in
the order of the list of all generators.
"""


class SweepProgress(NamedTuple):
    """Number of scored prompts in an adaptive sweep, total number of prompts, and the decisions so far."""

    prompts: int
    of_prompts: int
    decisions: pa.Table  # a row for every pair and metric (schema DECISIONS)

    def collect_counts(self) -> dict[str, Any]:
        """Return the numbers that the manifest records: scored and total prompts, and decisions by verdict."""
        verdicts = self.decisions.column("verdict").to_pylist()
        return {
            "prompts": self.prompts,
            "of_prompts": self.of_prompts,
            "pairs": len(verdicts),
            "told_apart": sum(verdict in ("a", "b") for verdict in verdicts),
            "alike": verdicts.count("alike"),
            "undecided": verdicts.count("undecided"),
        }

    def describe(self) -> str:
        """Return one line on the sweep's progress: how many prompts are scored and how many pairs have each verdict."""
        counts = self.collect_counts()
        decided = f"{counts['told_apart']} told apart, {counts['alike']} alike, {counts['undecided']} undecided"
        return f"{self.prompts} of {self.of_prompts} prompts: of {counts['pairs']} pairs {decided}"

    @property
    def is_done(self) -> bool:
        """True if all pairs are decided or all prompts are scored."""
        return self.collect_counts()["undecided"] == 0 or self.prompts >= self.of_prompts


def describe_subsample(counts: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return sentences on how many prompts and images of a run were scored, and how many pairs are decided.

    `counts` and `options` are read from the run's manifest.
    """
    unseen = counts["of_images"] - counts["images"]
    scored = (
        f"The scores are of a balanced random subsample: {counts['prompts']:,} of {counts['of_prompts']:,} prompts, "
        f"{counts['images']:,} of {counts['of_images']:,} images; {unseen:,} images "
        f"({unseen / max(counts['of_images'], 1):.0%}) were not scored."
    )
    left = "none is left" if not counts["undecided"] else f"{counts['undecided']} are undecided"
    return (
        f"{scored} Of {counts['pairs']} pairs, by every metric, {counts['told_apart']} are told apart, "
        f"{counts['alike']} differ by at most the indifference, and {left}. "
        f"{describe_certainty(options['method'], options['alpha'])}"
    )


def describe_certainty(method: str, alpha: float) -> str:
    """Return sentences that say whether the `method` limits the probability of a false decision to `alpha`."""
    if method == "betting":
        return f"The probability that any of these decisions is false for all prompts is at most {alpha:.0%}."
    return (
        f"adaptive=asymptotic does not guarantee that at most {alpha:.0%} of such decisions are false. If only one "
        "prompt in a hundred makes the difference, more than three in ten are. adaptive=betting, with the scores' "
        "adaptive.range, guarantees it."
    )


def make_decisions_table(decisions: pa.Table) -> ShownTable:
    """Return the decisions (schema DECISIONS) as a table for display, with a row for each pair and metric."""
    verdicts = {"a": "{generator_a} is better", "b": "{generator_b} is better"}
    return ShownTable(
        "Decisions from the subsample",
        "Decisions about all prompts of the benchmark, based on a balanced random subsample (adaptive sweep). The test "
        "stays valid if it is repeated as more prompts are scored. Prompts: those with scores of both generators.",
        ("metric", "pair", "decided", "difference", "prompts", "missing", "decided after"),
        [
            (
                row["metric"],
                f"{row['generator_a']}, {row['generator_b']}",
                verdicts.get(row["verdict"], row["verdict"]).format(**row),
                format_signed(row["difference"]),
                format_count(row["n"]),
                format_count(row["n_missing"]),
                format_count(row["decided_after"]),
            )
            for row in decisions.to_pylist()
        ],
    )


class _Pair(NamedTuple):
    metric: str
    a: str
    b: str
    differences: Floats  # score of a - score of b by prompt, higher is better; nan without both scores


def decide_pairs(
    scores: RunScores,
    order: Indices,
    looks: int,
    prompt_ids: Sequence[str],
    generators: Sequence[str],
    metrics: Mapping[str, bool],
    options: AdaptiveConfig,
    duels: Mapping[str, Duels] | None = None,
) -> SweepProgress:
    """Return the decisions on all pairs, based on the prompts in the first `looks` rows of `order`.

    `metrics` maps names to True if lower is better. A metric that compares two generators directly has its results in
    `duels` instead of `scores`; a pair of generators may lack results for prompts that came after the pair was decided.
    Raises ConfigError if the method requires a range and a score is outside it.
    """
    lower_is_better = {metric for metric, is_lower in metrics.items() if is_lower}
    pairs = []
    for metric in metrics:
        means = get_direction(metric, lower_is_better) * _compute_mean_scores(
            scores, metric, prompt_ids, generators, options
        )
        for a, b in combinations(range(len(generators)), 2):
            pairs.append(_Pair(metric, generators[a], generators[b], means[:, a] - means[:, b]))
    for metric, differences_of in (duels or {}).items():
        pairs += [_Pair(metric, a, b, differences_of[a, b]) for a, b in combinations(generators, 2)]
    every = [
        compute_evidence(
            order_differences(pair.differences, order), options, options.get_indifference(pair.metric), len(pairs)
        )
        for pair in pairs
    ]
    verdicts, decided_at = decide_sequentially(
        [PairEvidence(*(log_e[:looks] for log_e in pair)) for pair in every], options.alpha
    )
    n_seen = [int((order[:end] != NO_PROMPT_INDEX).sum()) for end in range(looks + 1)]
    records = []
    for pair, verdict, look in zip(pairs, verdicts.tolist(), decided_at.tolist(), strict=True):
        end = min(look + 1, looks) if pair.metric in (duels or {}) else looks
        differences = pair.differences[order[:end][order[:end] != NO_PROMPT_INDEX]]
        both = np.isfinite(differences)
        difference = (
            float(differences[both].mean()) * get_direction(pair.metric, lower_is_better) if both.any() else None
        )
        records.append(
            {
                "metric": pair.metric,
                "generator_a": pair.a,
                "generator_b": pair.b,
                "verdict": VERDICT_NAMES.get(verdict, "undecided"),
                "difference": difference,
                "n": int(both.sum()),
                "n_missing": int((~both).sum()),
                "decided_after": n_seen[min(look + 1, looks)] if verdict in VERDICT_NAMES else None,
            }
        )
    return SweepProgress(n_seen[-1], len(prompt_ids), rows.table(records, schemas.DECISIONS))


def _compute_mean_scores(
    scores: RunScores, metric: str, prompt_ids: Sequence[str], generators: Sequence[str], options: AdaptiveConfig
) -> Floats:
    columns = scores.select_rows(metric).select_scored()
    low, high = options.range
    if options.method == "betting" and len(columns.score):
        least, most = float(columns.score.min()), float(columns.score.max())
        if least < low or most > high:
            raise ConfigError(
                f"adaptive.range: expected scores from {low:g} to {high:g}, found {metric} from {least:.4g} to "
                f"{most:.4g}; set adaptive.range to the metric's possible scores, or adaptive=asymptotic, which "
                "gives weaker guarantees"
            )
    hashes = hash_ids(prompt_ids)
    by_hash = np.argsort(hashes)
    prompt = by_hash[np.minimum(np.searchsorted(hashes[by_hash], columns.prompt), len(hashes) - 1)]
    known = hashes[prompt] == columns.prompt
    codes = {name: code for code, name in enumerate(generators)}
    generator = np.array([codes.get(name, 0) for name in scores.generators], np.intp)[columns.generator]
    return compute_mean_matrix((len(hashes), len(generators)), prompt[known], generator[known], columns.score[known])
