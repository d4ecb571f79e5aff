"""Compares each rater with the others: consistency, gold questions, agreement and speed; flags unusual raters."""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.base.sentences import format_number
from plumbline.operators.statistics.agreement import compute_alpha_interval, krippendorff_alpha
from plumbline.operators.statistics.bootstrap import UNDEFINED_INTERVAL, Interval
from plumbline.operators.statistics.confidence_levels import SIGNIFICANCE
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.shares import compute_exact_interval
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.exchange_test import run_exchange_test
from plumbline.plugins.rating.numbers import StudyRatings, agrees_with, is_correct

Floats = NDArray[np.float64]

N_DRAWS = 1999
MIN_ANSWER_SECONDS = 1.0
"""Minimum time in seconds for reading a prompt and looking at an image; faster answers are suspicious."""
MAX_FAST_ANSWER_SHARE = 0.05
"""Fraction of a rater's answers that may be faster than MIN_ANSWER_SECONDS, for example if a key was pressed twice."""
MIN_SLOW_TIME_RATIO = 2.0
"""A rater may be flagged as slow if their median time is at least this many times that of the others."""
MIN_SAME_ANSWER_SHARE = 0.95
"""A rater whose most common answer makes up at least this fraction may be flagged as inattentive."""
MIN_ANSWERS_PER_RATER = 12
"""Raters with fewer answers than this are not judged."""


class HitCount(NamedTuple):
    """Number of hits among n cases."""

    hits: int
    n: int

    @property
    def interval(self) -> Interval:
        """The exact 95% interval (Clopper-Pearson); nan if n is 0."""
        return compute_exact_interval(self.hits, self.n - self.hits)

    def __str__(self) -> str:
        if not self.n:
            return "–"
        low, high = self.interval
        return f"{self.hits} of {self.n} ({low:.0%} to {high:.0%})"


NO_HITS = HitCount(0, 0)


class RaterAgreement(NamedTuple):
    """Agreement of a rater's answers with the mean of the others' answers."""

    correlation: float
    """Pearson correlation over tasks, with answers standardised by template; nan if one side is constant."""
    p_value: float
    """P-value of a positive correlation, multiplied by the number of raters, at most 1."""
    n: int
    """Number of tasks that another rater answered too."""
    p_unlike: float
    """Uncorrected p-value of the test of whether the others agree better with each other than with this rater; 1 if no
    task has three answers.
    """


class RaterQuality(NamedTuple):
    """Statistics and flags of one rater."""

    rater: str
    answers: int
    unsure: HitCount
    seconds: float
    """Median time per answer in seconds."""
    repeats: HitCount
    """Number of repeated tasks that were answered as before."""
    gold: HitCount
    """Number of correct answers to gold questions."""
    fast: HitCount
    """Number of answers that took less than MIN_ANSWER_SECONDS."""
    entropy: float
    """Entropy of the answers in bits; 0 if all are equal."""
    likeness: RaterAgreement
    flags: Sequence[str]
    """Descriptions of unusual behaviour."""


class TemplateAgreement(NamedTuple):
    """Agreement between the raters under one template."""

    template: str
    alpha: float
    """Krippendorff's alpha with ordinal distance, over images, words, questions or pairs."""
    interval: Interval
    """Confidence interval of alpha over prompts."""
    raters: int


def find_agreement(ratings: StudyRatings, sampling: Sampling) -> list[TemplateAgreement]:
    """Return Krippendorff's alpha for each template that has answers, computed in the same way as in jobs.metaeval."""
    result = []
    for template, rows in ratings.parts.groupby("template", sort=False):
        alpha = krippendorff_alpha(rows, "ordinal")
        interval = UNDEFINED_INTERVAL if math.isnan(alpha) else compute_alpha_interval(rows, sampling)
        result.append(TemplateAgreement(str(template), alpha, interval, rows["rater"].nunique()))
    return result


def judge_raters(ratings: StudyRatings, answers: Sequence[Answer], seed: int = 0) -> list[RaterQuality]:
    """Return the quality of each rater of a study, sorted by name; `answers` include repeats and gold questions."""
    by_rater = {str(rater): rows for rater, rows in ratings.answers.groupby("rater")}
    gold = _count_hits((answer.rater, is_correct(answer)) for answer in answers if answer.gold is not None)
    first = {(answer.rater, answer.task_id): answer.answer for answer in answers if not answer.repeat}
    repeated = [answer for answer in answers if answer.repeat and (answer.rater, answer.task_id) in first]
    repeats = _count_hits(
        (answer.rater, agrees_with(answer, first[answer.rater, answer.task_id])) for answer in repeated
    )
    likeness = _compare_with_others(ratings, sorted(by_rater), seed)
    flags = _find_flags(ratings.answers, by_rater, gold, repeats, likeness)
    return [
        RaterQuality(
            rater=rater,
            answers=len(rows),
            unsure=HitCount(int(rows["number"].isna().sum()), len(rows)),
            seconds=float(rows["seconds"].median()),
            repeats=repeats.get(rater, NO_HITS),
            gold=gold.get(rater, NO_HITS),
            fast=_count_fast_answers(rows),
            entropy=_compute_entropy(rows),
            likeness=likeness[rater],
            flags=flags[rater],
        )
        for rater, rows in by_rater.items()
    ]


def _count_hits(hits: Iterable[tuple[str, bool]]) -> dict[str, HitCount]:
    tallies: dict[str, HitCount] = {}
    for rater, hit in hits:
        tally = tallies.get(rater, NO_HITS)
        tallies[rater] = HitCount(tally.hits + hit, tally.n + 1)
    return tallies


def _count_fast_answers(rows: pd.DataFrame) -> HitCount:
    return HitCount(int((rows["seconds"] < MIN_ANSWER_SECONDS).sum()), int(rows["seconds"].count()))


def _compute_entropy(rows: pd.DataFrame) -> float:
    """Return the mean entropy over the templates, weighted by the number of answers."""
    by_template = [answers["answer"].value_counts() for _, answers in rows.groupby("template")]
    return float(sum(counts.sum() * scipy.stats.entropy(counts, base=2) for counts in by_template) / len(rows))


def _compare_with_others(ratings: StudyRatings, raters: Sequence[str], seed: int) -> dict[str, RaterAgreement]:
    wide = ratings.answers.pivot(index="task_id", columns="rater", values="number").reindex(columns=list(raters))
    templates = ratings.answers.groupby("task_id")["template"].first().reindex(wide.index).to_numpy()
    codes = np.unique(templates.astype(str), return_inverse=True)[1]
    values = wide.to_numpy(np.float64)
    likeness = {}
    for column, rater in enumerate(raters):
        shared = _SharedTasks(values, templates, column)
        p_value = min(1.0, len(raters) * shared.compute_p_value(seed))
        likeness[rater] = RaterAgreement(
            shared.correlation, p_value, shared.n, run_exchange_test(values, codes, column, seed)
        )
    return likeness


class _SharedTasks:
    """A rater's answers and the others' mean answers to the tasks they share, standardised by template."""

    def __init__(self, values: Floats, templates: NDArray[np.object_], rater: int) -> None:
        theirs = np.delete(values, rater, axis=1)
        counts = np.isfinite(theirs).sum(axis=1)
        means = np.nansum(theirs, axis=1) / np.maximum(counts, 1)
        shared = np.isfinite(values[:, rater]) & (counts > 0)
        self.n = int(shared.sum())
        by_template = [shared & (templates == name) for name in dict.fromkeys(templates[shared])]
        self.parts = [
            (_standardise_values(values[part, rater]), _standardise_values(means[part])) for part in by_template
        ]

    @property
    def correlation(self) -> float:
        if not any(own.any() and theirs.any() for own, theirs in self.parts):
            return math.nan
        return float(sum(own @ theirs for own, theirs in self.parts) / self.n)

    def compute_p_value(self, seed: int) -> float:
        """Return the p-value of a permutation test for a positive correlation; 1 if the correlation is undefined.

        Answers are permuted within each template.
        """
        if math.isnan(self.correlation):
            return 1.0
        random = np.random.default_rng(seed)
        sums = np.zeros(N_DRAWS)
        for own, theirs in self.parts:
            sums += random.permuted(np.tile(own, (N_DRAWS, 1)), axis=1) @ theirs
        return float((1 + (sums >= self.n * self.correlation - 1e-9).sum()) / (1 + N_DRAWS))


def _standardise_values(values: Floats) -> Floats:
    """Return the values scaled to mean 0 and standard deviation 1; zeros if all are equal."""
    spread = values.std()
    return np.zeros_like(values) if spread < 1e-12 else np.asarray((values - values.mean()) / spread)


class _Suspicion(NamedTuple):
    """A sign that a rater behaves unusually, and its probability if the rater behaves like the others."""

    rater: str
    p_value: float
    words: str


def _find_flags(
    answers: pd.DataFrame,
    by_rater: Mapping[str, pd.DataFrame],
    gold: Mapping[str, HitCount],
    repeats: Mapping[str, HitCount],
    likeness: Mapping[str, RaterAgreement],
) -> dict[str, list[str]]:
    """Return the suspicions about each rater that remain after Holm's correction over all raters and all checks."""
    relative = answers.assign(relative=answers["seconds"] / answers.groupby("template")["seconds"].transform("median"))
    suspicions = [
        suspicion
        for rater, rows in by_rater.items()
        if len(rows) >= MIN_ANSWERS_PER_RATER
        for suspicion in (
            _suspect_random_answers(rater, likeness[rater], len(by_rater)),
            _suspect_few_hits("gold", "correct on {} gold questions", rater, gold),
            _suspect_few_hits("unsteady", "same answer on {} repeats", rater, repeats),
            _suspect_hasty_answers(rater, rows),
            _suspect_slow_answers(rater, relative),
            _suspect_equal_answers(rater, answers),
        )
        if suspicion is not None
    ]
    corrected = holm([suspicion.p_value for suspicion in suspicions])
    flags: dict[str, list[str]] = {rater: [] for rater in by_rater}
    for suspicion, p_value in zip(suspicions, corrected, strict=True):
        if p_value < SIGNIFICANCE:
            flags[suspicion.rater].append(f"{suspicion.words}; p = {p_value:.2g} for {len(by_rater)} raters")
    return flags


def _suspect_random_answers(rater: str, likeness: RaterAgreement, raters: int) -> _Suspicion | None:
    """Return a suspicion if the rater's answers may be random, otherwise None.

    The suspicion's p-value tests whether the others agree better with each other than with this rater.
    """
    if likeness.p_value <= SIGNIFICANCE:
        return None
    words = (
        f"random: the answers may be random (correlation with the others: {format_number(likeness.correlation, 2)}, "
        f"permutation p = {likeness.p_value:.2f} for {raters} raters); the others agree better with each other"
    )
    return _Suspicion(rater, likeness.p_unlike, words)


def _suspect_few_hits(kind: str, words: str, rater: str, tallies: Mapping[str, HitCount]) -> _Suspicion | None:
    """Return a suspicion that a rater has a lower fraction of hits than the others combined (Fisher's exact test).

    Returns None if the rater or the others have no cases.
    """
    own = tallies.get(rater, NO_HITS)
    others = [tally for name, tally in tallies.items() if name != rater]
    theirs = HitCount(sum(tally.hits for tally in others), sum(tally.n for tally in others))
    if not own.n or not theirs.n:
        return None
    table = [[own.hits, own.n - own.hits], [theirs.hits, theirs.n - theirs.hits]]
    p_value = float(scipy.stats.fisher_exact(table, alternative="less").pvalue)
    return _Suspicion(rater, p_value, f"{kind}: {words.format(own)}, other raters on {theirs}")


def _suspect_hasty_answers(rater: str, rows: pd.DataFrame) -> _Suspicion | None:
    fast = _count_fast_answers(rows)
    if not fast.n:
        return None
    p_value = float(scipy.stats.binomtest(fast.hits, fast.n, MAX_FAST_ANSWER_SHARE, alternative="greater").pvalue)
    return _Suspicion(rater, p_value, f"hasty: {fast.hits} of {fast.n} answers took less than {MIN_ANSWER_SECONDS:g} s")


def _suspect_slow_answers(rater: str, relative: pd.DataFrame) -> _Suspicion | None:
    """Return a suspicion that a rater is slower than the others, or None.

    It is None if the median time is less than MIN_SLOW_TIME_RATIO times that of the others, or if times are unknown.

    Times are divided by the median time of their template, and compared by the Mann-Whitney test.
    """
    is_own = relative["rater"] == rater
    own, others = (relative["relative"][rows].dropna() for rows in (is_own, ~is_own))
    if not len(own) or not len(others) or own.median() < MIN_SLOW_TIME_RATIO * others.median():
        return None
    p_value = float(scipy.stats.mannwhitneyu(own, others, alternative="greater", method="asymptotic").pvalue)
    seconds = [float(relative["seconds"][rows].median()) for rows in (is_own, ~is_own)]
    words = f"slow: the median time per answer is {seconds[0]:.0f} s, but {seconds[1]:.0f} s for the others"
    return _Suspicion(rater, p_value, words)


def _suspect_equal_answers(rater: str, answers: pd.DataFrame) -> _Suspicion | None:
    """Return a suspicion that a rater gives the same answer more often than the others, or None.

    Only answers to the template that the rater answered most often are used. The rater's most common answer must make
    up at least MIN_SAME_ANSWER_SHARE of them. The frequency of this answer is compared with the others' by Fisher's
    exact test.
    """
    own = answers[answers["rater"] == rater]
    template = own["template"].mode()[0]
    own, others = (rows[rows["template"] == template]["answer"] for rows in (own, answers[answers["rater"] != rater]))
    commonest = own.mode()[0]
    hits = int((own == commonest).sum())
    if hits < MIN_SAME_ANSWER_SHARE * len(own) or not len(others):
        return None
    theirs = int((others == commonest).sum())
    table = [[hits, len(own) - hits], [theirs, len(others) - theirs]]
    p_value = float(scipy.stats.fisher_exact(table, alternative="greater").pvalue)
    words = (
        f"same: {hits} of {len(own)} answers to {template} are {commonest}, but only "
        f"{theirs / len(others):.0%} of the other raters' answers"
    )
    return _Suspicion(rater, p_value, words)
