"""Judges how well a metric predicts which images people would pass: thresholds, sensitivity and specificity."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.metaeval.judgement import Judgement, make_undefined_judgement
from plumbline.operators.statistics.bootstrap import Scale
from plumbline.operators.statistics.shares import Share, estimate_share

CALIBRATION_CONVENTIONS = {
    "sensitivity": "of the images that people pass, the share that the metric passes",
    "specificity": "of the images that people do not pass, the share that the metric does not",
}
EXACT_INTERVAL_CONVENTION = (
    "95% interval: exact (Clopper and Pearson); images of a prompt that are judged alike count as fewer"
)
DEFAULT_PASSING_FRACTION = 0.75  # default pass mark as a fraction of a template's scale: 4 on a scale from 1 to 5


class Thresholds(NamedTuple):
    """Minimum mean rating and minimum score at which an image passes, according to people and to a metric."""

    rating: float  # minimum mean rating of images that people pass
    score: float  # minimum score of images that the metric passes; higher is better
    words: str
    undefined: str = ""  # reason why the metric has no sensitivity and specificity; empty if it has both


class PassMarks(NamedTuple):
    """Configured minimum mean ratings (by template) and minimum scores (by metric) at which an image passes."""

    ratings: Mapping[str, float] = {}  # minimum mean rating by template
    scores: Mapping[str, float] = {}  # minimum score by metric, higher is better; others follow from the ratings

    def find_thresholds(self, template: str, metric: str, frame: pd.DataFrame) -> Thresholds:
        """Return the thresholds for a metric and template, given mean ratings (`human`) and scores of images.

        If no threshold is configured for the metric, it is chosen so that the metric passes about as many images as
        people do, and fails at least one. This is the threshold of equal prevalence (Freeman and Moisen 2008, A
        comparison of the performance of threshold criteria for binary classification). It is undefined if people pass
        all images or none, or if all scores are equal.
        """
        rating = self.ratings[template]
        people = f"people pass images with a mean rating of {rating:g} or more"
        if metric in self.scores:
            score = self.scores[metric]
            return Thresholds(rating, score, f"{people}, the metric passes those with a score of {score:g} or more")
        values, counts = np.unique(frame["score"].to_numpy(np.float64), return_counts=True)
        if len(values) < 2:
            return Thresholds(rating, math.inf, f"{people}, the metric passes none", "all scores are equal")
        passed_by_people = int((frame["human"] >= rating).sum())
        passed_by_metric = counts[::-1].cumsum()[::-1][1:]
        score = float(values[1:][np.abs(passed_by_metric - passed_by_people).argmin()])
        how = f"{score:.4g} or more, about as many of the rated images as people pass"
        extreme = {0: "no rated image", len(frame): "all rated images"}.get(passed_by_people)
        undefined = f"people pass {extreme}" if extreme else ""
        return Thresholds(rating, score, f"{people}, the metric passes those with a score of {how}", undefined)


NO_MARKS = PassMarks()


def choose_rating_marks(
    ratings: pa.Table, scales: Mapping[str, Scale], given: Mapping[str, float]
) -> Mapping[str, float]:
    """Return the minimum mean rating for an image to pass, by template.

    The default for a template without a configured minimum is DEFAULT_PASSING_FRACTION of its scale.
    If a template's scale is unknown, it is taken to range from the template's lowest rating to its highest.
    """
    ranges = ratings.to_pandas().groupby("template", dropna=False)["rating"].agg(["min", "max"])
    marks = {}
    for template, least_and_greatest in ranges.iterrows():
        least, greatest = scales.get(str(template), Scale(*least_and_greatest))
        marks[str(template)] = given.get(str(template), float(least + DEFAULT_PASSING_FRACTION * (greatest - least)))
    return marks


def calibrate_metric(frame: pd.DataFrame, thresholds: Thresholds) -> tuple[Share, Share]:
    """Return the metric's sensitivity (share of good images that pass) and specificity (share of bad images that fail).

    Images are good if people's mean rating reaches the threshold; `frame` has the rated and scored images.
    """
    prompts = frame["prompt_id"].factorize()[0]
    good = (frame["human"] >= thresholds.rating).to_numpy()
    passes = (frame["score"] >= thresholds.score).to_numpy()
    return estimate_share(passes[good], prompts[good]), estimate_share(~passes[~good], prompts[~good])


def judge_calibration(metric: str, statistic: str, frame: pd.DataFrame, thresholds: Thresholds) -> Judgement:
    """Return the metric's sensitivity or specificity, as named by `statistic`, or the reason why it is undefined."""
    sensitivity, specificity = calibrate_metric(frame, thresholds)
    found = sensitivity if statistic == "sensitivity" else specificity
    words = f"{CALIBRATION_CONVENTIONS[statistic]}; {thresholds.words}"
    if thresholds.undefined or not found.n:
        return make_undefined_judgement(
            metric, statistic, found.n, f"{thresholds.undefined or 'there is none'}; {words}"
        )
    return Judgement(metric, statistic, found.value, found.interval, found.n, f"{words}; {EXACT_INTERVAL_CONVENTION}")
