"""Each rater beside the others: how steady, how right, how like them and how fast; and who stands out, and why."""

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd
import scipy
from numpy.typing import NDArray

from plumbline.operators.base.sentences import number
from plumbline.operators.statistics.agreement import alpha_interval, krippendorff_alpha
from plumbline.operators.statistics.bootstrap import UNDEFINED, Interval
from plumbline.operators.statistics.levels import SIGNIFICANCE
from plumbline.operators.statistics.options import Sampling
from plumbline.operators.statistics.ordering import holm
from plumbline.operators.statistics.raters import exchange_test
from plumbline.operators.statistics.shares import exact_interval
from plumbline.plugins.rating.answers import Answer
from plumbline.plugins.rating.numbers import Rated, is_right, says_the_same

Floats = NDArray[np.float64]

DRAWS = 1999
FASTEST = 1.0
"""Seconds in which nobody reads a prompt and looks at an image."""
MOST_FAST = 0.05
"""Share of a rater's answers that may be as fast: a key that was pressed twice."""
SLOW = 2.0
"""A rater whose median time is so many times the others' may be slow."""
SAME = 0.95
"""A rater who gives one answer in this share of cases may not look."""
FEWEST = 12
"""Answers below which nobody is judged."""


class Tally(NamedTuple):
    """So many of so many."""

    hits: int
    n: int

    @property
    def interval(self) -> Interval:
        """The exact 95% interval of Clopper and Pearson; nan of none."""
        return exact_interval(self.hits, self.n - self.hits)

    @property
    def value(self) -> float:
        return self.hits / self.n if self.n else math.nan

    def __str__(self) -> str:
        if not self.n:
            return "–"
        low, high = self.interval
        return f"{self.hits} of {self.n} ({low:.0%} to {high:.0%})"


NOTHING = Tally(0, 0)


class Likeness(NamedTuple):
    """Agreement of a rater's answers with the mean of the others' answers."""

    correlation: float
    """Pearson's over tasks, of answers that are standardised within their template; nan if one side is constant."""
    p_value: float
    """Probability that answers unrelated to the images agree as well with the others', times the number of raters."""
    n: int
    """Tasks that another rater answered too."""
    p_unlike: float
    """Probability, before correction, that a rater who answers as the others do agrees with them as much less than they
    do with each other; 1 if no task has three answers."""


class RaterQuality(NamedTuple):
    """The statistics and flags of one rater."""

    rater: str
    answers: int
    unsure: Tally
    seconds: float
    """Median of an answer."""
    repeats: Tally
    """Tasks that were answered alike when they came again."""
    gold: Tally
    """Gold questions that were answered rightly."""
    fast: Tally
    """Answers within FASTEST seconds."""
    entropy: float
    """Of the answers, in bits: 0 where all are one."""
    likeness: Likeness
    flags: Sequence[str]
    """Why this rater stands out, in words."""


class TemplateAgreement(NamedTuple):
    """How far the raters agree by one template."""

    template: str
    alpha: float
    """Krippendorff's with ordinal distance, over images, words, questions or pairs."""
    interval: Interval
    """Over prompts."""
    raters: int


def agreement(study: Rated, sampling: Sampling) -> list[TemplateAgreement]:
    """Return Krippendorff's alpha of each template that has answers, as `judge_raters` of jobs.metaeval does."""
    return [_agreement(str(template), rows, sampling) for template, rows in study.parts.groupby("template", sort=False)]


def _agreement(template: str, rows: pd.DataFrame, sampling: Sampling) -> TemplateAgreement:
    alpha = krippendorff_alpha(rows, "ordinal")
    interval = UNDEFINED if math.isnan(alpha) else alpha_interval(rows, sampling)
    return TemplateAgreement(template, alpha, interval, rows["rater"].nunique())


def judge_raters(study: Rated, answers: Sequence[Answer], seed: int = 0) -> list[RaterQuality]:
    """Return the quality of every rater of a study, by name; `answers` include repeats and gold questions."""
    by_rater = {str(rater): rows for rater, rows in study.answers.groupby("rater")}
    gold, repeats = _gold(answers), _repeats(answers)
    likeness = _likeness(study, sorted(by_rater), seed)
    flags = _flags(study.answers, by_rater, gold, repeats, likeness)
    return [
        RaterQuality(
            rater=rater,
            answers=len(rows),
            unsure=Tally(int(rows["number"].isna().sum()), len(rows)),
            seconds=float(rows["seconds"].median()),
            repeats=repeats.get(rater, NOTHING),
            gold=gold.get(rater, NOTHING),
            fast=_fast(rows),
            entropy=_entropy(rows),
            likeness=likeness[rater],
            flags=flags[rater],
        )
        for rater, rows in by_rater.items()
    ]


def _gold(answers: Sequence[Answer]) -> dict[str, Tally]:
    return _shares([(one.rater, is_right(one)) for one in answers if one.gold is not None])


def _repeats(answers: Sequence[Answer]) -> dict[str, Tally]:
    first = {(one.rater, one.task_id): one.answer for one in answers if not one.repeat}
    again = [one for one in answers if one.repeat and (one.rater, one.task_id) in first]
    return _shares([(one.rater, says_the_same(one, first[one.rater, one.task_id])) for one in again])


def _shares(hits: Sequence[tuple[str, bool]]) -> dict[str, Tally]:
    counted: dict[str, Tally] = {}
    for rater, hit in hits:
        share = counted.get(rater, NOTHING)
        counted[rater] = Tally(share.hits + hit, share.n + 1)
    return counted


def _fast(rows: pd.DataFrame) -> Tally:
    return Tally(int((rows["seconds"] < FASTEST).sum()), int(rows["seconds"].count()))


def _entropy(rows: pd.DataFrame) -> float:
    """Mean over the templates, by their answers."""
    of_template = [
        (len(one), scipy.stats.entropy(one["said"].value_counts(), base=2)) for _, one in rows.groupby("template")
    ]
    return float(sum(n * bits for n, bits in of_template) / len(rows))


# Who is like the others


def _likeness(study: Rated, raters: Sequence[str], seed: int) -> dict[str, Likeness]:
    wide = study.answers.pivot(index="task_id", columns="rater", values="number").reindex(columns=list(raters))
    templates = study.answers.groupby("task_id")["template"].first().reindex(wide.index).to_numpy()
    codes = np.unique(templates.astype(str), return_inverse=True)[1]
    values = wide.to_numpy(np.float64)
    everybody = np.arange(len(raters))
    alike = {}
    for place, rater in enumerate(raters):
        others = everybody[everybody != place]
        both = _Both(values, templates, place, others)
        p_value = min(1.0, len(raters) * both.p_value(seed))
        alike[rater] = Likeness(both.correlation, p_value, both.n, exchange_test(values, codes, place, seed))
    return alike


class _Both:
    """A rater's answers and the means of others', on the tasks that both answered, standardised by template."""

    def __init__(self, values: Floats, templates: NDArray[np.object_], rater: int, others: NDArray[np.intp]) -> None:
        theirs = values[:, others]
        counts = np.isfinite(theirs).sum(axis=1)
        means = np.nansum(theirs, axis=1) / np.maximum(counts, 1)
        both = np.isfinite(values[:, rater]) & (counts > 0)
        self.n = int(both.sum())
        of_template = [both & (templates == name) for name in dict.fromkeys(templates[both])]
        self.parts = [(_standardised(values[part, rater]), _standardised(means[part])) for part in of_template]

    @property
    def correlation(self) -> float:
        if not any(own.any() and theirs.any() for own, theirs in self.parts):
            return math.nan
        return float(sum(own @ theirs for own, theirs in self.parts) / self.n)

    def p_value(self, seed: int) -> float:
        """One-sided, over the rater's answers in random orders within each template; 1 where it is not defined."""
        if math.isnan(self.correlation):
            return 1.0
        random = np.random.default_rng(seed)
        sums = np.zeros(DRAWS)
        for own, theirs in self.parts:
            sums += random.permuted(np.tile(own, (DRAWS, 1)), axis=1) @ theirs
        return float((1 + (sums >= self.n * self.correlation - 1e-9).sum()) / (1 + DRAWS))


def _standardised(values: Floats) -> Floats:
    """Zeros where all are equal."""
    spread = values.std()
    return np.zeros_like(values) if spread < 1e-12 else np.asarray((values - values.mean()) / spread)


# Who stands out


class _Doubt(NamedTuple):
    """A reason why a rater may stand out, and how probable it is of one who rates as the others do."""

    rater: str
    p_value: float
    words: str


def _flags(
    answers: pd.DataFrame,
    by_rater: Mapping[str, pd.DataFrame],
    gold: Mapping[str, Tally],
    repeats: Mapping[str, Tally],
    likeness: Mapping[str, Likeness],
) -> dict[str, list[str]]:
    """Return the doubts about each rater that remain after Holm's correction for all raters and kinds of doubts."""
    relative = answers.assign(relative=answers["seconds"] / answers.groupby("template")["seconds"].transform("median"))
    doubts = [
        doubt
        for rater, rows in by_rater.items()
        if len(rows) >= FEWEST
        for doubt in (
            _random(rater, likeness[rater], len(by_rater)),
            _wrong("gold", "right on {} gold questions", rater, gold),
            _wrong("unsteady", "the same again on {} repeats", rater, repeats),
            _hasty(rater, rows),
            _slow(rater, relative),
            _same(rater, answers),
        )
        if doubt is not None
    ]
    corrected = holm([doubt.p_value for doubt in doubts])
    flags: dict[str, list[str]] = {rater: [] for rater in by_rater}
    for doubt, p_value in zip(doubts, corrected, strict=True):
        if p_value < SIGNIFICANCE:
            flags[doubt.rater].append(f"{doubt.words}; p = {p_value:.2g} for {len(by_rater)} raters")
    return flags


def _random(rater: str, likeness: Likeness, raters: int) -> _Doubt | None:
    """Return a doubt, if the answers cannot be distinguished from random ones, with the p-value of `p_unlike`."""
    if likeness.p_value <= SIGNIFICANCE:
        return None
    words = (
        f"random: the answers cannot be told from random ones (correlation with the others' "
        f"{number(likeness.correlation, 2)}, permutation p = {likeness.p_value:.2f} for {raters} raters), and the "
        "others agree better with each other"
    )
    return _Doubt(rater, likeness.p_unlike, words)


def _wrong(kind: str, words: str, rater: str, shares: Mapping[str, Tally]) -> _Doubt | None:
    """Fisher's exact test against the others."""
    own = shares.get(rater, NOTHING)
    others = [share for name, share in shares.items() if name != rater]
    theirs = Tally(sum(share.hits for share in others), sum(share.n for share in others))
    if not own.n or not theirs.n:
        return None
    table = [[own.hits, own.n - own.hits], [theirs.hits, theirs.n - theirs.hits]]
    p_value = float(scipy.stats.fisher_exact(table, alternative="less").pvalue)
    return _Doubt(rater, p_value, f"{kind}: {words.format(own)}, the others on {theirs}")


def _hasty(rater: str, rows: pd.DataFrame) -> _Doubt | None:
    fast = _fast(rows)
    if not fast.n:
        return None
    p_value = float(scipy.stats.binomtest(fast.hits, fast.n, MOST_FAST, alternative="greater").pvalue)
    return _Doubt(rater, p_value, f"hasty: {fast.hits} of {fast.n} answers took less than {FASTEST:g} s")


def _slow(rater: str, relative: pd.DataFrame) -> _Doubt | None:
    """Mann and Whitney's test against the others, of times beside the median of their template."""
    is_own = relative["rater"] == rater
    own, others = (relative["relative"][rows].dropna() for rows in (is_own, ~is_own))
    if not len(own) or not len(others) or own.median() < SLOW * others.median():
        return None
    p_value = float(scipy.stats.mannwhitneyu(own, others, alternative="greater", method="asymptotic").pvalue)
    seconds = [float(relative["seconds"][rows].median()) for rows in (is_own, ~is_own)]
    return _Doubt(rater, p_value, f"slow: {seconds[0]:.0f} s an answer in the median, the others {seconds[1]:.0f} s")


def _same(rater: str, answers: pd.DataFrame) -> _Doubt | None:
    """Compare the rater's commonest answer by the template answered most with the others', by Fisher's exact test."""
    own = answers[answers["rater"] == rater]
    template = own["template"].mode()[0]
    own, others = (rows[rows["template"] == template]["said"] for rows in (own, answers[answers["rater"] != rater]))
    commonest = own.mode()[0]
    hits = int((own == commonest).sum())
    if hits < SAME * len(own) or not len(others):
        return None
    theirs = int((others == commonest).sum())
    table = [[hits, len(own) - hits], [theirs, len(others) - theirs]]
    p_value = float(scipy.stats.fisher_exact(table, alternative="greater").pvalue)
    words = (
        f"same: {hits} of {len(own)} answers by {template} are {commonest}, of the others' {theirs / len(others):.0%}"
    )
    return _Doubt(rater, p_value, words)
