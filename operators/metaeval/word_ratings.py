"""Judges metrics by people's ratings of a prompt's words: do questions fail if their words are not in the image?"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.judgement import OVERALL, Judgement, compute_group_means, make_undefined_judgement
from plumbline.operators.metaeval.matching import ID_COLUMNS
from plumbline.operators.metaeval.ratings import split_by_skill
from plumbline.operators.statistics.bootstrap import (
    SHARES,
    UNDEFINED_INTERVAL,
    Floats,
    Longs,
    Prompts,
    compute_student_interval,
)
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match, Sampling

TEMPLATE_NAME = "words"
MIN_ALIGNED_SCORE = 0.5  # below this score or mean rating a word is not aligned; exactly here, people are undecided
ACCURACY_CONVENTION = (
    "a word's score is the lowest of the questions about it, and below 0.5 says that it is not aligned; people say so "
    "by the mean of those who were sure, undecided words are left out"
)
STATISTIC_CONVENTIONS = {
    "accuracy": ACCURACY_CONVENTION,
    "precision": "of the words that are not aligned, as for accuracy",
    "recall": "of the words that are not aligned, as for accuracy",
    "auroc": "aligned words against the others by their scores, as for accuracy",
    "coverage": "share of rated words that a question is about",
}


class _RatedWord(NamedTuple):
    """A word of an image's prompt, with the mean rating over the raters who were sure about the word."""

    word: str
    start: int
    end: int
    rated: float


def judge_words(
    words: pa.Table, elements: Iterable[pa.Table], match: Match, skills: Mapping[str, Sequence[str]], sampling: Sampling
) -> tuple[list[Judgement], pd.DataFrame]:
    """Return accuracy, precision, recall and AUROC for every metric whose questions refer to words of the prompt.

    Args:
        words: People's ratings of words (schema WORDS).
        elements: Tables of scores that include the scores of single questions (schema ELEMENT_SCORES).
        match: The ids that scores and ratings share.
        skills: Skills by prompt.
        sampling: Number and seed of resamples for the intervals.

    Returns:
        The judgements, where precision and recall refer to words that are not aligned, and a table with every rated
        word by metric (schema WORD_MATCHES).

    Raises:
        SourceError: The text that a question asks about differs from the rated prompt at the same position, or no
            metric has questions about the rated images.
    """
    keys = list(MATCH_COLUMNS[match])
    columns = [*keys, *_RatedWord._fields[:3]]
    means = compute_group_means(words.to_pandas().dropna(subset=keys), columns, "aligned")
    rated: dict[tuple[Any, ...], list[_RatedWord]] = {}
    for row in means.dropna().reset_index().sort_values([*keys, "start"]).itertuples(index=False):
        rated.setdefault(tuple(row[: len(keys)]), []).append(_RatedWord(*row[len(keys) :]))
    matched = []
    for table in elements:
        for row in table.select([*ID_COLUMNS, "metric", "elements"]).to_pylist():
            if row["elements"] is None:
                continue
            questions = [each for each in row["elements"] if each["score"] is not None and each["start"] is not None]
            ids = {name: row[name] for name in ("metric", *ID_COLUMNS)}
            for word in rated.get(tuple(row[key] for key in keys), ()):
                scores = [question["score"] for question in questions if _is_about(question, word, row)]
                score = min(scores, default=math.nan)
                matched.append({**ids, **word._asdict(), "score": score, "n_questions": len(scores)})
    if not matched:
        raise SourceError(
            "words: no metric in the run asks about words in the prompts of rated images; add one that does, such as "
            "gecko"
        )
    matches = pd.DataFrame(matched)
    judgements = [
        judgement
        for metric, rows in matches.groupby("metric", sort=False)
        for subset, of_subset in split_by_skill(rows, skills).items()
        for judgement in _judge_metric(str(metric), subset, of_subset, sampling)
    ]
    return judgements, matches


def _is_about(question: Mapping[str, Any], word: _RatedWord, row: Mapping[str, Any]) -> bool:
    """Return True if a question refers to part of a word; raise SourceError if the prompts differ at this position."""
    start, end = max(question["start"], word.start), min(question["end"], word.end)
    if start >= end:
        return False
    span = question["span"] or ""
    if len(span) == question["end"] - question["start"]:
        asked = span[start - question["start"] : end - question["start"]]
        if asked.casefold() != word.word[start - word.start : end - word.start].casefold():
            raise SourceError(
                f"words: {row['metric']} asks about {span!r} for image {row['image_id']!r}, but people rated "
                f"{word.word!r} at the same position; score the images with the prompts that people saw"
            )
    return True


def _judge_metric(metric: str, subset: str, frame: pd.DataFrame, sampling: Sampling) -> list[Judgement]:
    decided = frame[frame["rated"] != MIN_ALIGNED_SCORE]
    asked = decided[decided["score"].notna()]
    n_unscored = len(decided) - len(asked) if subset == OVERALL else 0
    wrong, found = (asked["rated"] < MIN_ALIGNED_SCORE).to_numpy(), (asked["score"] < MIN_ALIGNED_SCORE).to_numpy()
    prompts, all_prompts = (
        Prompts(list(rows["prompt_id"].fillna("image " + rows["image_id"].astype(str))), sampling)
        for rows in (asked, decided)
    )
    of_all = np.ones(len(asked), bool)
    is_asked, of_decided = decided["score"].notna().to_numpy(), np.ones(len(decided), bool)
    judgements = [
        _judge_share(metric, "accuracy", wrong == found, of_all, prompts, "no rated word has a question"),
        _judge_share(metric, "precision", wrong & found, found, prompts, "no word is said not to be aligned"),
        _judge_share(metric, "recall", wrong & found, wrong, prompts, "every word is aligned"),
        _judge_auroc(metric, asked, prompts),
        _judge_share(metric, "coverage", is_asked, of_decided, all_prompts, "no word was rated"),
    ]
    return [judged._replace(template=TEMPLATE_NAME, subset=subset, n_unscored=n_unscored) for judged in judgements]


def _judge_share(
    metric: str, name: str, counted: NDArray[np.bool_], among: NDArray[np.bool_], prompts: Prompts, reason: str
) -> Judgement:
    """Return a judgement: the fraction of the words in `among` that are also in `counted`; both are masks of words.

    If `among` contains no words, the fraction is undefined, and `reason` says why.
    """
    if not among.any():
        return make_undefined_judgement(metric, name, 0, reason)
    sums, sizes = (
        np.bincount(prompts.codes, weights=words, minlength=prompts.count).astype(np.float64)
        for words in (counted, among)
    )
    value, interval = float(counted.sum() / among.sum()), prompts.ratio_interval(sums, sizes, SHARES)
    words = f"{STATISTIC_CONVENTIONS[name]}; {prompts.describe(interval, SHARES)}"
    return Judgement(metric, name, value, interval, int(among.sum()), words)


def _judge_auroc(metric: str, asked: pd.DataFrame, prompts: Prompts) -> Judgement:
    aligned = (asked["rated"] > MIN_ALIGNED_SCORE).to_numpy(np.float64)
    levels = np.unique(asked["score"].to_numpy(np.float64), return_inverse=True)[1]
    value = _compute_roc_area(levels, aligned, np.ones(len(asked)))
    if math.isnan(value):
        return make_undefined_judgement(metric, "auroc", len(asked), "all words are rated alike")
    interval = UNDEFINED_INTERVAL
    if prompts.have_enough_variation(aligned, levels.astype(np.float64)):
        drawn = [_compute_roc_area(levels, aligned, times[prompts.codes]) for times in prompts.draw_multiplicities()]
        interval = compute_student_interval(value, np.asarray(drawn), prompts.count, SHARES)
    words = f"{STATISTIC_CONVENTIONS['auroc']}; {prompts.describe(interval)}"
    return Judgement(metric, "auroc", value, interval, len(asked), words)


def _compute_roc_area(levels: Longs, aligned: Floats, weights: Floats) -> float:
    up, down = (np.bincount(levels, weights=weights * part) for part in (aligned, 1 - aligned))
    pairs = up.sum() * down.sum()
    return float(up @ (np.cumsum(down) - down / 2) / pairs) if pairs else math.nan
