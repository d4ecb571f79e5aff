"""Shares of each generator's images that people would pass, from the share that a metric passes and its error rates.

Unlike corrected_means.py, which corrects each generator by itself, this assumes that the metric has the same error
rates for all generators.
"""

import math
from collections.abc import Container, Iterator, Sequence

import numpy as np

from plumbline.operators.metaeval.calibration import PassMarks, calibrate
from plumbline.operators.metaeval.corrected_means import CorrectedMean
from plumbline.operators.metaeval.ratings import Rated
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.shares import corrected_share, share


def correct_shares(
    rated: Sequence[Rated], marks: PassMarks, run: RunScores, falling: Container[str]
) -> Iterator[CorrectedMean]:
    """Yield the shares by template, metric and generator; `run` has all scores, in the metrics' own direction."""
    for template, metric, frame in ((each.template, each.metric, each.frame) for each in rated if len(each.frame)):
        passed = marks.find_thresholds(template, metric, frame)
        errors = calibrate(frame, passed)
        scored = run.select_rows(metric).scored()
        passes = direction(metric, falling) * scored.score >= passed.score
        for code, generator in enumerate(run.generators):
            own = scored.generator == code
            if not generator or not own.any():
                continue
            predicted = share(passes[own], scored.prompt[own].view(np.int64))
            labelled = frame[frame["generator"] == generator]
            people = share((labelled["human"] >= passed.rating).to_numpy(), labelled["prompt_id"].factorize()[0])
            found = corrected_share(predicted, *errors)
            yield CorrectedMean(
                template=template,
                metric=metric,
                scale="passing",
                generator=generator,
                other="",
                corrected=found.value,
                low=found.interval.low,
                high=found.interval.high,
                people=people.value,
                people_low=people.interval.low,
                people_high=people.interval.high,
                predicted=predicted.value,
                predicted_low=predicted.interval.low,
                predicted_high=predicted.interval.high,
                worth=math.nan,
                n_rated=people.n,
                n_scored=predicted.n,
                better="",
                metric_better="",
                note=found.note,
            )
