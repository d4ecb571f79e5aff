"""Judging metrics by people's ratings of a prompt's words: do questions fail about those that are not in the image?"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metaeval.judgement import OVERALL, Judgement, group_means, undefined
from plumbline.operators.metaeval.matching import IDS
from plumbline.operators.metaeval.ratings import subsets
from plumbline.operators.statistics.bootstrap import SHARES, UNDEFINED, Floats, Longs, Prompts, student_interval
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match, Sampling

TEMPLATE = "words"
BOUND = 0.5
"""Below it a word is not aligned, by a metric and by people; of people, half is undecided."""
WORDS = (
    "a word's score is the lowest of the questions about it, and below 0.5 says that it is not aligned; people say so "
    "by the mean of those who were sure, undecided words are left out"
)
SAID = {
    "accuracy": WORDS,
    "precision": "of the words that are not aligned, as for accuracy",
    "recall": "of the words that are not aligned, as for accuracy",
    "auroc": "aligned words against the others by their scores, as for accuracy",
    "coverage": "share of rated words that a question is about",
}
PLACE = ["word", "start", "end"]


class RatedWord(NamedTuple):
    """A word of an image's prompt, as people see it."""

    word: str
    start: int
    end: int
    rated: float


class JudgedWords(NamedTuple):
    """What ratings of words tell."""

    judgements: list[Judgement]
    matches: pd.DataFrame
    """Every rated word by metric (operators/base/schemas.py, WORD_MATCHES)."""


def judge_words(
    words: pa.Table, elements: Iterable[pa.Table], match: Match, skills: Mapping[str, Sequence[str]], sampling: Sampling
) -> JudgedWords:
    """Accuracy, precision, recall and AUROC of every metric whose questions say which words they are about.

    `elements` are tables of scores with their elements (schemas.ELEMENT_SCORES). Precision and recall are of
    the words that are not aligned. Raises SourceError where a question is about other words than stand in the rated
    prompt at its place, or no metric asks about the rated images.
    """
    rated = _rated_words(words, match)
    matched = [record for table in elements for record in _matched(table, rated, match)]
    if not matched:
        raise SourceError(
            "words: no metric of the run asks questions about the words of a rated image; score it by one"
        )
    matches = pd.DataFrame(matched)
    judgements = [
        judgement
        for metric, rows in matches.groupby("metric", sort=False)
        for subset, of_subset in subsets(rows, skills).items()
        for judgement in _judge(str(metric), subset, of_subset, sampling)
    ]
    return JudgedWords(judgements, matches)


def _rated_words(words: pa.Table, match: Match) -> dict[tuple[Any, ...], list[RatedWord]]:
    """Return the rated words of each image, with the mean over the raters who were sure; others are left out."""
    keys = list(MATCH_COLUMNS[match])
    frame = words.to_pandas().dropna(subset=keys)
    means = group_means(frame, [*keys, *PLACE], "aligned").dropna().reset_index().sort_values([*keys, "start"])
    rated: dict[tuple[Any, ...], list[RatedWord]] = {}
    for row in means.itertuples(index=False):
        rated.setdefault(tuple(row[: len(keys)]), []).append(RatedWord(*row[len(keys) :]))
    return rated


def _matched(
    table: pa.Table, rated: Mapping[tuple[Any, ...], Sequence[RatedWord]], match: Match
) -> Iterator[dict[str, Any]]:
    """Yield the rated words of a table's images with the lowest score of the questions about each."""
    for row in table.select([*IDS, "metric", "elements"]).to_pylist():
        if row["elements"] is None:
            continue
        placed = [one for one in row["elements"] if one["score"] is not None and one["start"] is not None]
        ids = {name: row[name] for name in IDS}
        for word in rated.get(tuple(row[key] for key in MATCH_COLUMNS[match]), ()):
            scores = [one["score"] for one in placed if _is_about(one, word, row)]
            yield {
                "metric": row["metric"],
                **ids,
                **word._asdict(),
                "score": min(scores, default=math.nan),
                "n_questions": len(scores),
            }


def _is_about(element: Mapping[str, Any], word: RatedWord, row: Mapping[str, Any]) -> bool:
    start, end = max(element["start"], word.start), min(element["end"], word.end)
    if start >= end:
        return False
    span = element["span"] or ""
    if len(span) == element["end"] - element["start"]:
        own, theirs = (
            span[start - element["start"] : end - element["start"]],
            word.word[start - word.start : end - word.start],
        )
        if own.casefold() != theirs.casefold():
            raise SourceError(
                f"words: {row['metric']} asks about {span!r} of image {row['image_id']!r}, where {word.word!r} was "
                "rated; the prompts differ: score the images by the texts that people saw"
            )
    return True


def _judge(metric: str, subset: str, frame: pd.DataFrame, sampling: Sampling) -> list[Judgement]:
    """Return the statistics of one metric over the words on which people decided."""
    decided = frame[frame["rated"] != BOUND]
    claimed = decided[decided["score"].notna()]
    n_unscored = len(decided) - len(claimed) if subset == OVERALL else 0
    wrong, found = (claimed["rated"] < BOUND).to_numpy(), (claimed["score"] < BOUND).to_numpy()
    prompts = Prompts(_prompt_ids(claimed), sampling)
    shares = {
        "accuracy": (wrong == found, np.ones(len(claimed), bool), "no rated word has a question"),
        "precision": (wrong & found, found, "no word is said not to be aligned"),
        "recall": (wrong & found, wrong, "every word is aligned"),
    }
    judgements = [_share(metric, name, part, whole, prompts, reason) for name, (part, whole, reason) in shares.items()]
    judgements.append(_auroc(metric, claimed, prompts))
    about = decided["score"].notna().to_numpy()
    everything = Prompts(_prompt_ids(decided), sampling)
    judgements.append(_share(metric, "coverage", about, np.ones(len(decided), bool), everything, "no word was rated"))
    return [one._replace(template=TEMPLATE, subset=subset, n_unscored=n_unscored) for one in judgements]


def _prompt_ids(frame: pd.DataFrame) -> list[str]:
    return list(frame["prompt_id"].fillna("image " + frame["image_id"].astype(str)))


def _share(
    metric: str, name: str, part: "np.ndarray[Any, Any]", whole: "np.ndarray[Any, Any]", prompts: Prompts, reason: str
) -> Judgement:
    """Return the share of some words among others, with its interval over prompts."""
    if not whole.any():
        return undefined(metric, name, 0, reason)
    sums, sizes = (
        np.bincount(prompts.codes, weights=one, minlength=prompts.count).astype(np.float64) for one in (part, whole)
    )
    value, interval = float(part.sum() / whole.sum()), prompts.ratio_interval(sums, sizes, SHARES)
    words = f"{SAID[name]}; {prompts.describe(interval, SHARES)}"
    return Judgement(metric, name, value, interval, int(whole.sum()), words)


def _auroc(metric: str, claimed: pd.DataFrame, prompts: Prompts) -> Judgement:
    aligned = (claimed["rated"] > BOUND).to_numpy(np.float64)
    levels = np.unique(claimed["score"].to_numpy(np.float64), return_inverse=True)[1]
    value = _area(levels, aligned, np.ones(len(claimed)))
    if math.isnan(value):
        return undefined(metric, "auroc", len(claimed), "all words are rated alike")
    interval = UNDEFINED
    if prompts.all_differ(aligned, levels.astype(np.float64)):
        drawn = [_area(levels, aligned, times[prompts.codes]) for times in prompts.multiplicities()]
        interval = student_interval(value, np.asarray(drawn), prompts.count, SHARES)
    words = f"{SAID['auroc']}; {prompts.describe(interval)}"
    return Judgement(metric, "auroc", value, interval, len(claimed), words)


def _area(levels: Longs, aligned: Floats, weights: Floats) -> float:
    """Return the area under the ROC curve of weighted words; `levels` are the ranks of their scores."""
    up, down = (np.bincount(levels, weights=weights * part) for part in (aligned, 1 - aligned))
    pairs = up.sum() * down.sum()
    return float(up @ (np.cumsum(down) - down / 2) / pairs) if pairs else math.nan
