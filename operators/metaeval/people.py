"""Computes statistics of people's ratings alone: by generator, by rater, and across templates."""

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, combinations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.metaeval.judgement import PEOPLE, Judgement, judge_mean, make_undefined_judgement
from plumbline.operators.metaeval.matching import ID_COLUMNS
from plumbline.operators.metaeval.ratings import (
    VIESCORE_STATISTIC,
    RatedScores,
    average_ratings,
    judge_ratings,
    list_rated_prompts,
    split_by_generator,
    split_by_skill,
)
from plumbline.operators.statistics.agreement import krippendorff_alpha, measure_rater_agreement_viescore
from plumbline.operators.statistics.bootstrap import SHARES, UNDEFINED_INTERVAL, Interval, Prompts, Scale
from plumbline.operators.statistics.options import MATCH_COLUMNS, Level, Match, Sampling

EMPTY_PARTS = schemas.PART_RATINGS.empty_table()  # every rating is about an image as a whole


def list_rated_parts(ratings: pa.Table, parts: pa.Table) -> pa.Table:
    """Return raters' individual answers (schema PART_RATINGS), from `ratings` and from answers about `parts` of images.

    The templates in `parts` ask about words or questions; their ratings are means of these answers, and are left out.
    For any other template, each rating is a single answer.
    """
    about_parts = parts.column("template").unique()
    whole = ratings.filter(pc.invert(pc.is_in(ratings.column("template"), about_parts)))
    position = schemas.PART_RATINGS.get_field_index("part")
    return pa.concat_tables([whole.add_column(position, "part", pa.array([""] * len(whole), pa.string())), parts])


def _split_answers(ratings: pa.Table, parts: pa.Table) -> Iterator[tuple[str, str, pd.DataFrame]]:
    """Yield (template, generator, answers): for each template, all answers (generator ""), then each generator's."""
    answers = list_rated_parts(ratings, parts).to_pandas()
    for template, answered in answers.groupby("template", sort=False, dropna=False):
        yield str(template), "", answered
        for generator, rows in split_by_generator(answered):
            yield str(template), generator, rows


def judge_raters(ratings: pa.Table, levels: Sequence[Level], parts: pa.Table = EMPTY_PARTS) -> list[Judgement]:
    """Return Krippendorff's alpha, the agreement of raters, by template and level of measurement.

    The units are images, or the words or questions in `parts`. Alpha is computed over all generators, as jobs.rate does
    for the same study, and then by generator (Gecko, table 3).
    """
    judgements = []
    for template, generator, rows in _split_answers(ratings, parts):
        rated = "word or question" if rows["part"].ne("").any() else "image"
        units = _add_units(rows[rows["rating"].notna()])
        count, raters = units["unit"].nunique(), units["rater"].nunique()
        for level in levels:
            statistic, value = f"alpha_{level}", krippendorff_alpha(units, level)
            words = f"Krippendorff's alpha by {rated}, {level} distance, {raters} raters, missing ratings allowed for"
            judged = Judgement(PEOPLE, statistic, value, UNDEFINED_INTERVAL, count, words)
            if math.isnan(value):
                judged = make_undefined_judgement(
                    PEOPLE, statistic, count, f"no {rated} has two ratings, or all of them are equal"
                )
            judgements.append(judged._replace(template=template, generator=generator))
    return judgements


def _add_units(ratings: pd.DataFrame) -> pd.DataFrame:
    """Return the ratings with a column `unit`, whose values identify what was rated: an image, or a part of it."""
    ids = (ratings[name].fillna("") for name in (*ID_COLUMNS, "part") if name in ratings)
    return ratings.assign(unit=[" ".join(map(repr, image)) for image in zip(*ids, strict=True)])


def judge_unsure_share(ratings: pa.Table, parts: pa.Table, sampling: Sampling) -> list[Judgement]:
    """Return the fraction of answers without a rating, by template and generator (Gecko, table 9).

    Each answer is about an image, or about a word or question in `parts`.
    """
    words = "share of answers without a rating; each word or question counts, if the template asks about these"
    judgements = []
    for template, generator, rows in _split_answers(ratings, parts):
        prompts = Prompts(rows["prompt_id"].fillna("image " + rows["image_id"]).to_list(), sampling)
        empty = rows["rating"].isna().to_numpy(np.float64)
        judged = judge_mean(PEOPLE, "unsure", empty, prompts, words, SHARES)
        judgements.append(judged._replace(template=template, generator=generator))
    return judgements


def judge_people(
    ratings: pa.Table, rated: Sequence[RatedScores], skills: Mapping[str, Sequence[str]]
) -> list[Judgement]:
    """Return the raters' agreement with each other (`spearman_viescore`) by template, overall and by skill.

    Only generators that a metric scored count; without metrics, all generators count.
    """
    judgements = []
    for template, rows in _add_units(ratings.to_pandas()).groupby("template", sort=False):
        frames = [each.frame["generator"] for each in rated if each.template == template]
        scored = pd.concat(frames or [rows["generator"]])
        for subset, frame in split_by_skill(rows[rows["generator"].isin(scored.dropna())], skills).items():
            images, value = frame["unit"].nunique(), measure_rater_agreement_viescore(frame)
            words = "each rater compared with the mean of the others"
            judged = Judgement(PEOPLE, VIESCORE_STATISTIC, value, UNDEFINED_INTERVAL, images, words)
            if math.isnan(value):
                judged = make_undefined_judgement(
                    PEOPLE,
                    VIESCORE_STATISTIC,
                    images,
                    "a generator has only one rater, or its raters' ratings do not vary",
                )
            judgements.append(judged._replace(template=str(template), subset=subset))
    return judgements


def rate_images(ratings: pa.Table, match: Match, scales: Mapping[str, Scale]) -> pd.DataFrame:
    """Return the mean rating of every image under each template, also rescaled to 0-1 (schema MEAN_RATINGS)."""
    means = average_ratings(ratings, match).rename(columns={"human": "rating"})
    means["prompt_id"] = means["prompt_id"].mask(means["alone"])
    least, greatest = (
        means["template"].map({name: scale[end] for name, scale in scales.items()}).astype(np.float64) for end in (0, 1)
    )
    on_unit = (means["rating"] - least) / (greatest - least)
    return means.assign(rating_0_1=on_unit).reindex(columns=schemas.MEAN_RATINGS.names)


def judge_generators(
    ratings: pa.Table,
    match: Match,
    sampling: Sampling,
    scales: Mapping[str, Scale],
    skills: Mapping[str, Sequence[str]],
) -> list[Judgement]:
    """Return each generator's mean rating, best first (people's leaderboard), and then the means by skill.

    Ratings without a generator are left out. If a template's scale is in `scales`, the mean has an interval even if
    nearly all ratings are equal, and the mean and the standard deviation are also given on a scale from 0 to 1 (Gecko,
    table 3). The means by skill correspond to VQAScore's tables 10a and 10c, and to Gecko's appendix E.1.
    """
    judgements = list[Judgement]()
    for template, rated in average_ratings(ratings, match).groupby("template"):
        scale = scales.get(str(template))
        found = []
        for generator, rows in split_by_generator(rated):
            own = _judge_generator(rows, skills, sampling, scale)
            found.append([judged._replace(template=str(template), generator=generator) for judged in own])
        found.sort(key=lambda judged: -judged[0].value)
        judgements += sorted(chain.from_iterable(found), key=lambda each: each.is_by_generator_and_skill)
    return judgements


def _judge_generator(
    rows: pd.DataFrame, skills: Mapping[str, Sequence[str]], sampling: Sampling, scale: Scale | None
) -> Iterator[Judgement]:
    mean, *by_skill = (
        judge_mean(
            PEOPLE,
            "mean_rating",
            own["human"].to_numpy(np.float64),
            list_rated_prompts(own, sampling),
            "mean over images of the mean rating",
            scale,
        )._replace(subset=subset)
        for subset, own in split_by_skill(rows, skills).items()
        if len(own)
    )
    yield mean
    if scale is not None:
        width, values = scale.greatest - scale.least, rows["human"].to_numpy(np.float64)
        words = f"{scale.least:g} counts 0 and {scale.greatest:g} counts 1"
        value, *ends = ((number - scale.least) / width for number in (mean.value, *mean.interval))
        convention = f"{mean.convention}; {words}"
        yield mean._replace(statistic="mean_0_1", value=value, interval=Interval(*ends), convention=convention)
        if len(values) < 2:
            yield make_undefined_judgement(PEOPLE, "deviation_0_1", len(values), "one image")
        else:
            words = f"standard deviation (n - 1) over images of the mean rating; {words}"
            deviation = float(values.std(ddof=1)) / width
            yield Judgement(PEOPLE, "deviation_0_1", deviation, UNDEFINED_INTERVAL, len(values), words)
    yield from by_skill


def correlate_templates(ratings: pa.Table, match: Match, sampling: Sampling) -> list[Judgement]:
    """Return Spearman's and Pearson's correlation between the mean ratings of any two templates (Gecko, table 10).

    They are computed over all images that were rated under both templates, and then by generator.
    """
    keys = list(MATCH_COLUMNS[match])
    rated = dict(list(average_ratings(ratings, match).dropna(subset=keys).groupby("template")))
    judgements = []
    for one, other in combinations(rated, 2):
        scores = rated[other][[*keys, "human"]].rename(columns={"human": "score"}).drop_duplicates(keys, keep=False)
        both = RatedScores(PEOPLE, f"{one} and {other}", rated[one].merge(scores, on=keys), 0, 0)
        judgements += judge_ratings([both], ("spearman", "pearson"), {}, sampling, by_generator=True)
    return judgements
