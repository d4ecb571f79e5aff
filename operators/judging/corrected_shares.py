"""Shares of each generator's images that people would pass, from those that a metric passes and how often it errs.

Other than a mean that is corrected generator by generator (corrected_means.py), it takes the metric to err alike on
the images of all generators, so that images of one tell of its errors on another's.
"""

import math
from collections.abc import Container, Iterator, Sequence

import numpy as np

from plumbline.operators.judging.calibration import PassMarks, calibrate
from plumbline.operators.judging.corrected_means import CorrectedMean
from plumbline.operators.judging.ratings import Rated
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.shares import corrected_share, share


def correct_shares(
    rated: Sequence[Rated], marks: PassMarks, run: RunScores, falling: Container[str]
) -> Iterator[CorrectedMean]:
    """By template, metric and generator; `run` has all scores as the metrics give them."""
    for beside in rated:
        if not len(beside.frame):
            continue
        passed = marks.of(beside.template, beside.metric, beside.frame)
        errors = calibrate(beside.frame, passed)
        scored = run.select_rows(beside.metric).scored()
        passes = direction(beside.metric, falling) * scored.score >= passed.score
        for place, generator in enumerate(run.generators):
            of_generator = scored.generator == place
            if not generator or not of_generator.any():
                continue
            seen = share(passes[of_generator], scored.prompt[of_generator].view(np.int64))
            labelled = beside.frame[beside.frame["generator"] == generator]
            people = share((labelled["human"] >= passed.rating).to_numpy(), labelled["prompt_id"].factorize()[0])
            found = corrected_share(seen, *errors)
            yield CorrectedMean(
                template=beside.template,
                metric=beside.metric,
                scale="passing",
                generator=generator,
                other="",
                corrected=found.value,
                low=found.interval.low,
                high=found.interval.high,
                people=people.value,
                people_low=people.interval.low,
                people_high=people.interval.high,
                predicted=seen.value,
                predicted_low=seen.interval.low,
                predicted_high=seen.interval.high,
                worth=math.nan,
                n_rated=people.n,
                n_scored=seen.n,
                better="",
                metric_better="",
                note=found.note,
            )
