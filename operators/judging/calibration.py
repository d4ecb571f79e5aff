"""A metric as a test of what people pass: from where on an image passes, and how often the metric is right about it."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.judging.judgement import Judgement, undefined
from plumbline.operators.statistics.bootstrap import Scale
from plumbline.operators.statistics.shares import Share, share

CALIBRATION = {
    "sensitivity": "of the images that people pass, the share that the metric passes",
    "specificity": "of the images that people do not pass, the share that the metric does not",
}
EXACT = "95% interval: exact (Clopper and Pearson), of fewer images where those of a prompt are judged alike"
HIGH = 0.75
"""Of a template's scale, from its least rating on: 4 of 1 to 5."""


class Passed(NamedTuple):
    """From where on an image passes."""

    rating: float
    """The least mean rating with which people pass it."""
    score: float
    """The least score with which the metric does, more being better."""
    words: str
    undefined: str = ""
    """Reason why the metric has no sensitivity and specificity; empty if it has both."""


class PassMarks(NamedTuple):
    """From where on images pass, as far as that is said."""

    ratings: Mapping[str, float] = {}
    """By template."""
    scores: Mapping[str, float] = {}
    """By metric, more being better; those of others are found from the ratings."""

    def of(self, template: str, metric: str, frame: pd.DataFrame) -> Passed:
        """Of a metric beside a template; `frame` has the mean ratings `human` and the scores of the same images.

        Where no score is said it is the one with which about as many images pass by the metric as by people, and at
        least one does not: the threshold of equal prevalence (Freeman and Moisen 2008, A comparison of the performance
        of threshold criteria for binary classification). It says nothing of the metric if people pass all images or
        none, or if the metric scores all alike.
        """
        rating = self.ratings[template]
        people = f"people pass images with a mean rating of {rating:g} or more"
        if metric in self.scores:
            score = self.scores[metric]
            return Passed(rating, score, f"{people}, the metric those with a score of {score:g} or more")
        values, counts = np.unique(frame["score"].to_numpy(np.float64), return_counts=True)
        if len(values) < 2:
            return Passed(rating, math.inf, f"{people}, the metric none", "all scores are equal")
        fitting = int((frame["human"] >= rating).sum())
        passing = counts[::-1].cumsum()[::-1][1:]
        score = float(values[1:][np.abs(passing - fitting).argmin()])
        how = f"{score:.4g} or more, by which about as many of the rated images pass as by people"
        alike = {0: "no rated image", len(frame): "all rated images"}.get(fitting)
        undefined = f"people pass {alike}" if alike else ""
        return Passed(rating, score, f"{people}, the metric those with a score of {how}", undefined)


NO_MARKS = PassMarks()


def rating_marks(ratings: pa.Table, scales: Mapping[str, Scale], given: Mapping[str, float]) -> Mapping[str, float]:
    """Return by template the least mean rating of an image that passes: the given rating, or `HIGH` on its scale.

    A template without a scale has the one from its least to its greatest rating.
    """
    spans = ratings.to_pandas().groupby("template", dropna=False)["rating"].agg(["min", "max"])
    marks = {}
    for template, span in spans.iterrows():
        least, greatest = scales.get(str(template), Scale(*span))
        marks[str(template)] = given.get(str(template), float(least + HIGH * (greatest - least)))
    return marks


class Calibration(NamedTuple):
    """How far a metric passes what people pass."""

    sensitivity: Share
    """Of the images that people pass, those that the metric passes too."""
    specificity: Share
    """Of the others, those that it does not pass either."""


def calibrate(frame: pd.DataFrame, marks: Passed) -> Calibration:
    """Of rated images with their scores."""
    prompts = frame["prompt_id"].factorize()[0]
    fits = (frame["human"] >= marks.rating).to_numpy()
    passes = (frame["score"] >= marks.score).to_numpy()
    return Calibration(share(passes[fits], prompts[fits]), share(~passes[~fits], prompts[~fits]))


def judge_calibration(metric: str, statistic: str, frame: pd.DataFrame, marks: Passed) -> Judgement:
    """The metric's sensitivity or specificity."""
    found: Share = getattr(calibrate(frame, marks), statistic)
    said = f"{CALIBRATION[statistic]}; {marks.words}"
    if marks.undefined or not found.n:
        return undefined(metric, statistic, found.n, f"{marks.undefined or 'there is none'}; {said}")
    return Judgement(metric, statistic, found.value, found.interval, found.n, f"{said}; {EXACT}")
