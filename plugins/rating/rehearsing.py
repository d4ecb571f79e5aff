"""Rehearsals of adaptive sweeps: on scores or ratings that are all there, how many prompts would have done?"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import PurePosixPath
from typing import NamedTuple

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.operators.base.bounds import Positive
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.sentences import names, number, plural
from plumbline.operators.diagnosis.diagnosis import ShownTable, percent
from plumbline.operators.judging.judgement import PEOPLE
from plumbline.operators.judging.ratings import mean_ratings
from plumbline.operators.report.rendering import diagnosis_markdown
from plumbline.operators.statistics.options import Adaptive
from plumbline.pipelines.base.markdown_sections import write_section
from plumbline.pipelines.judging.metaeval import open_release
from plumbline.pipelines.judging.protocols import ProtocolConfig
from plumbline.pipelines.judging.releases.scores import of_metrics, read_scores
from plumbline.pipelines.judging.scores_source import ScoresSource
from plumbline.plugins.rating.label_plan import by_generator
from plumbline.plugins.rating.labelling import coverage_table
from plumbline.plugins.rating.rehearsal import (
    FEWEST_PROMPTS,
    NAIVE_FIRST,
    GeneratorPair,
    Rehearsed,
    compared_pairs,
    false_decisions,
    naive,
    rehearse,
    tied,
)

EMPTY = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearseConfig(ScoresSource):
    """The scores or ratings that are rehearsed in random orders of their prompts."""

    metrics: tuple[str, ...] = ()
    """Only these metrics; all where empty."""
    adaptive: Adaptive = field(default_factory=Adaptive)
    spreads: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    """Indifferences whose cost is told, in standard deviations of the scores; that of `adaptive` comes after them."""
    orders: Positive = 1000
    """Random orders of the prompts."""
    protocol: ProtocolConfig | None = None
    """People's ratings, with the scores that their release holds."""
    reference: str | None = None
    """The folder of published files that `protocols` are of."""
    protocols: Mapping[str, ProtocolConfig] = field(default_factory=dict)
    """By name, where the published files are in that folder; read where `reference` is set."""
    page: str | None = None
    """A Markdown page that gets the tables too, in its section `rehearsal`, as plugins/rating/planning.md does."""

    def __post_init__(self) -> None:
        ScoresSource.__post_init__(self)
        if all(source is None for source in (self.protocol, self.run, self.scores, self.reference)):
            raise ConfigError(
                "scores: expected a run or a table of scores, got none; set run=latest or scores=PATH, or of people's "
                "ratings protocol=long protocol.path=PATH"
            )


class Judged(NamedTuple):
    """One judge's scores of images: a metric's, or people's ratings."""

    source: str
    """The release, or the file or folder of scores."""
    judge: str
    pairs: Sequence[GeneratorPair]
    labels: Sequence[str]
    """Of each prompt, the skills that orders are balanced over."""
    options: Adaptive
    within: bool
    """Whether its scores keep to the range."""
    deviation: float
    """Of its scores, the standard one."""
    by_pair: bool
    """Whether its pairs are shown one by one: people's, and those of a table of one's own."""

    @property
    def methods(self) -> list[Adaptive]:
        """By which ways it can be looked at: betting wants a range."""
        ways = [replace(self.options, method="betting")] if self.within else []
        return [*ways, replace(self.options, method="asymptotic")]


class Rehearsal(NamedTuple):
    """What was found of all judges."""

    answers: Sequence[str]
    """How many prompts would have done, a sentence for each judge."""
    tables: Sequence[ShownTable]
    """False decisions, costs by indifference, and of people or of scores of one's own the costs by pair."""


def rehearse_all(config: RehearseConfig) -> Rehearsal:
    """Looks at every judge's scores, in every way that they can be looked at.

    Raises ConfigError where no two generators share prompts, SourceError where a table cannot be read.
    """
    judges = list(_judges(config))
    if not judges:
        raise ConfigError(f"rehearse: no two generators have scores of {FEWEST_PROMPTS} prompts in common")
    told = [[_rehearse_judge(judged, options, config) for options in judged.methods] for judged in judges]
    flat = list(chain.from_iterable(told))
    labels = [coverage_table(published, config.storage)] if (published := _published(config)) else []
    by_pair = [_pairs_table(of_judge) for of_judge in told if of_judge[0].judged.by_pair]
    tables = [_false_table(flat, config), _cost_table(flat, config), *by_pair, *labels]
    return Rehearsal([_answer(of_judge[0], config) for of_judge in told], tables)


def _published(config: RehearseConfig) -> list[ProtocolConfig]:
    """The releases below the folder of published files."""
    return list(config.protocols.values()) if config.reference is not None else []


def _judges(config: RehearseConfig) -> Iterator[Judged]:
    for protocol in (*([] if config.protocol is None else [config.protocol]), *_published(config)):
        release = open_release(protocol, config.storage)
        labels = {prompt: "\0".join(skills) for prompt, skills in release.skills.items()}
        rated = mean_ratings(release.ratings, "image").rename(columns={"human": "score"})
        for template, ratings in rated.groupby("template", sort=False):
            judge = PEOPLE if rated["template"].nunique() == 1 else f"{PEOPLE}, {template}"
            scale = protocol.rating_range or (float(rated["score"].min()), float(rated["score"].max()))
            options = replace(config.adaptive, range=scale)
            yield from _judged(protocol.name, judge, ratings, labels, options, by_pair=True)
        yield from _metrics(protocol.name, of_metrics(release.scores, config.metrics), labels, config, by_pair=False)
    if (place := config.locate_scores()) is not None:
        name = PurePosixPath(place.path).name
        yield from _metrics(name, read_scores(place, config.metrics), {}, config, by_pair=True)


def _metrics(
    source: str, scores: pa.Table, labels: Mapping[str, str], config: RehearseConfig, *, by_pair: bool
) -> Iterator[Judged]:
    frame = scores.select(["metric", "generator", "prompt_id", "score"]).to_pandas()
    for metric, of_metric in frame.groupby("metric", sort=False):
        yield from _judged(source, str(metric), of_metric, labels, config.adaptive, by_pair=by_pair)


def _judged(
    source: str, judge: str, frame: pd.DataFrame, labels: Mapping[str, str], options: Adaptive, *, by_pair: bool
) -> Iterator[Judged]:
    """The judge, where it scored two generators on enough prompts; several images of a prompt are averaged."""
    wide = by_generator(frame)
    low, high = options.range
    values = wide.to_numpy(np.float64)
    within = bool(np.nanmin(values, initial=high) >= low and np.nanmax(values, initial=low) <= high)
    pairs = compared_pairs(wide)
    if pairs:
        of_prompts = [labels.get(str(prompt), "") for prompt in wide.index]
        yield Judged(source, judge, pairs, of_prompts, options, within, float(np.nanstd(values)), by_pair)


class _Outcome(NamedTuple):
    """What was found of a judge, looked at in one way."""

    judged: Judged
    options: Adaptive
    found: Sequence[Rehearsed]
    """By indifference, of which the first is 0."""
    of_tied: Rehearsed

    @property
    def row(self) -> tuple[str, str, str]:
        return self.judged.source, self.judged.judge, self.options.method


def _rehearse_judge(judged: Judged, options: Adaptive, config: RehearseConfig) -> _Outcome:
    zones = [0.0, *_zones(judged, config).values()]
    found = rehearse(judged.pairs, judged.labels, options, zones, config.orders)
    low, high = options.range
    shift = max(abs(pair.difference) for pair in judged.pairs)
    wider = replace(options, range=(low - shift / 2, high + shift / 2))  # the shifted scores need so much
    (of_tied,) = rehearse(tied(judged.pairs), judged.labels, wider, [0.0], config.orders)
    return _Outcome(judged, options, found, of_tied)


def _zones(judged: Judged, config: RehearseConfig) -> dict[str, float]:
    """Indifferences in the unit of the judge's scores, by what they are called."""
    own = config.adaptive.indifference_of(judged.judge)
    return {name_of(spread): spread * judged.deviation for spread in config.spreads} | ({"given": own} if own else {})


def name_of(spread: float) -> str:
    """An indifference that is told in standard deviations of the scores."""
    return f"{spread:g} sd"


def _answer(told: _Outcome, config: RehearseConfig) -> str:
    """How many prompts would have done by a judge, at the indifference that is given; and how often that was wrong."""
    own = config.adaptive.indifference_of(told.judged.judge)
    found = told.found[-1 if own else 0]
    within = f", or as alike as {own:g}" if own else ""
    wrong = f"In {percent(found.any_false())} of {config.orders} orders a decision was false."
    return f"{told.judged.source}, {told.judged.judge}: {_enough(found, within)} ({told.options.method}). {wrong}"


def _enough(found: Rehearsed, within: str) -> str:
    """How many prompts tell the pairs apart, but for those that take all prompts."""
    early = found.usually_early()
    late = [f"{pair.a} and {pair.b}" for pair, known in zip(found.pairs, early, strict=True) if not known]
    needed = math.ceil(found.prompts * float(found.used()[:, early].max(axis=1, initial=0).mean()))
    pairs = f"{'the other' if late else 'all'} {plural(int(early.sum()), 'pair')}"
    enough = f"{needed} of {found.prompts} prompts tell {pairs} apart{within}, on average"
    if not late:
        return enough
    lacking = f"it takes all {found.prompts} prompts or more to tell {names(late)} apart{within}"
    return f"{lacking}; {enough}" if early.any() else lacking


def _false_table(told: Sequence[_Outcome], config: RehearseConfig) -> ShownTable:
    return ShownTable(
        "False decisions",
        f"Of {config.orders} random orders, those with any false decision, all pairs together, where at most "
        f"{config.adaptive.alpha:.0%} are promised by betting. As scored: what is not so of all prompts is false. "
        "Tied: the scores are so shifted that all generators have one mean, and any decision is false. Naive: "
        "Student's t-test "
        f"at 5% after every prompt from number {NAIVE_FIRST} on, the first that is significant counts; in brackets "
        "the share of pairs.",
        ("scores", "judge", "method", "pairs", "prompts", "as scored", "tied", "naive, as scored", "naive, tied"),
        [_false_row(one, config) for one in told],
    )


def _false_row(one: _Outcome, config: RehearseConfig) -> tuple[str, ...]:
    judged = one.judged
    shares = [percent(found.any_false()) for found in (one.found[0], one.of_tied)]
    looked = [_naive_false(pairs, judged, config) for pairs in (judged.pairs, tied(judged.pairs))]
    return (*one.row, str(len(judged.pairs)), str(len(judged.labels)), *shares, *looked)


def _naive_false(pairs: Sequence[GeneratorPair], judged: Judged, config: RehearseConfig) -> str:
    false = false_decisions(naive(pairs, judged.labels, config.orders, config.adaptive.seed), pairs, 0)
    return f"{percent(float(false.any(axis=-1).mean()))} ({percent(float(false.mean()))})"


def _cost_table(told: Sequence[_Outcome], config: RehearseConfig) -> ShownTable:
    zones = list(dict.fromkeys(name for one in told for name in _zones(one.judged, config)))
    return ShownTable(
        "What it costs, by indifference",
        "The share of the prompts, and so of the images, after which every pair is decided or found to differ by no "
        f"more than the indifference: the mean of {config.orders} orders. Indifferences are told in standard "
        "deviations (sd) of the judge's scores, whose size stands beside. Without any, the closest pair decides.",
        ("scores", "judge", "method", "sd", "none", *zones),
        [_cost_row(one, zones, config) for one in told],
    )


def _cost_row(one: _Outcome, zones: Sequence[str], config: RehearseConfig) -> tuple[str, ...]:
    shares = [percent(float(found.used_in_all().mean())) for found in one.found]
    by_name = dict(zip(_zones(one.judged, config), shares[1:], strict=True))
    return (*one.row, number(one.judged.deviation), shares[0], *(by_name.get(name, EMPTY) for name in zones))


def _pairs_table(told: Sequence[_Outcome]) -> ShownTable:
    """One judge's pairs, by each method that it can be looked at."""
    judged = told[0].judged
    ordered = sorted(range(len(judged.pairs)), key=lambda place: -abs(judged.pairs[place].difference))
    used = [one.found[0].used() for one in told]
    rows = []
    for rank, place in enumerate(ordered, start=1):
        pair = judged.pairs[place]
        costs = [
            percent(float(share.mean()))
            for of_method in used
            for share in (of_method[:, place], of_method[:, ordered[:rank]].max(axis=1))
        ]
        both = str(int(np.isfinite(pair.differences).sum()))
        rows.append((f"{pair.a}, {pair.b}", both, number(abs(pair.difference)), *costs))
    heads = [name for one in told for name in (f"{one.options.method}: this pair", "with all above it")]
    return ShownTable(
        f"Pair by pair: {' '.join(filter(None, (judged.source, judged.judge)))}",
        "The share of the prompts after which a pair is decided, without indifference; and after which it and all that "
        "differ more are.",
        ("pair", "prompts of both", "difference", *heads),
        rows,
    )


def write_page(config: RehearseConfig, tables: Sequence[ShownTable]) -> None:
    """Writes the tables into the section `rehearsal` of the page."""
    assert config.page is not None, "a page was asked for"
    write_section(config.storage.locate(config.page), "rehearsal", diagnosis_markdown(tables, 3))
