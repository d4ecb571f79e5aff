"""Rehearses adaptive sweeps on finished scores or ratings to find how many prompts would have been enough."""

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
from plumbline.operators.base.sentences import ShownTable, format_names, format_number, format_percent, format_quantity
from plumbline.operators.metaeval.judgement import PEOPLE
from plumbline.operators.metaeval.ratings import average_ratings
from plumbline.operators.report.rendering import format_tables_markdown
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.pipelines.base.markdown_sections import write_section
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.metaeval.releases.scores import read_scores, select_metrics
from plumbline.pipelines.metaeval.scores_source import ScoresSource
from plumbline.plugins.rating.label_plan import pivot_by_generator
from plumbline.plugins.rating.labelling import measure_coverage
from plumbline.plugins.rating.rehearsal import (
    MIN_NAIVE_PROMPTS,
    MIN_PROMPTS,
    GeneratorPair,
    RehearsedDecisions,
    decide_naively,
    equalise_means,
    find_false_decisions,
    pair_generators,
    rehearse,
)

EMPTY_CELL = "–"


@dataclass(frozen=True, kw_only=True, slots=True)
class RehearseConfig(ScoresSource):
    """Settings of jobs.rehearse: the scores or ratings, and how an adaptive sweep would evaluate them."""

    metrics: tuple[str, ...] = ()
    """The metrics to rehearse; empty for all."""
    adaptive: AdaptiveConfig = field(default_factory=AdaptiveConfig)
    spreads: tuple[float, ...] = (0.05, 0.1, 0.2, 0.3)
    """Indifferences to rehearse, in standard deviations of the scores; the indifference of `adaptive` is added."""
    orders: Positive = 1000
    """Number of random orders of the prompts."""
    protocol: ProtocolConfig | None = None
    """People's ratings, with the metrics' scores that their release contains."""
    reference: str | None = None
    """Folder with the published files that `protocols` read."""
    protocols: Mapping[str, ProtocolConfig] = field(default_factory=dict)
    """Releases in the `reference` folder, by name; not read unless `reference` is set."""
    page: str | None = None
    """Markdown page whose `rehearsal` section is replaced by the tables, such as plugins/rating/planning.md."""

    def __post_init__(self) -> None:
        ScoresSource.__post_init__(self)
        if all(source is None for source in (self.protocol, self.run, self.scores, self.reference)):
            raise ConfigError(
                "scores: expected a run or a table of scores, got none; set run=latest or scores=PATH or, for people's "
                "ratings, protocol=long and protocol.path=PATH"
            )


class JudgeScores(NamedTuple):
    """One judge's scores for images: a metric's scores or people's ratings."""

    source: str
    """Name of the release, or of the file or folder with the scores."""
    judge: str
    pairs: Sequence[GeneratorPair]
    labels: Sequence[str]
    """Skills of each prompt; the orders are balanced by these."""
    options: AdaptiveConfig
    in_range: bool
    """True if all scores are within the range that the betting method needs."""
    deviation: float
    """Standard deviation of the scores."""
    by_pair: bool
    """True if the tables list each pair, as they do for people's ratings and the user's own scores."""

    @property
    def methods(self) -> list[AdaptiveConfig]:
        """Methods that can be applied to the scores: betting only if `in_range`."""
        ways = [replace(self.options, method="betting")] if self.in_range else []
        return [*ways, replace(self.options, method="asymptotic")]


class Rehearsal(NamedTuple):
    """Results of a rehearsal for all judges: a sentence for each judge, and tables."""

    answers: Sequence[str]
    """A sentence for each judge: how many prompts would have been enough."""
    tables: Sequence[ShownTable]
    """Tables of false decisions, of cost by indifference, of cost by pair for some judges, and of interval coverage."""


def rehearse_all_judges(config: RehearseConfig) -> Rehearsal:
    """Rehearse each judge's scores with every method that applies to them.

    Raises ConfigError if no two generators share enough prompts, SourceError if a table cannot be read.
    """
    judges = list(_read_judges(config))
    if not judges:
        raise ConfigError(
            f"rehearse: expected two generators with {MIN_PROMPTS} scored prompts in common, found none; score more "
            "prompts"
        )
    outcomes = [[_rehearse_judge(scores, options, config) for options in scores.methods] for scores in judges]
    flat = list(chain.from_iterable(outcomes))
    labels = [measure_coverage(published, config.storage)] if (published := _list_releases(config)) else []
    by_pair = [_tabulate_pairs(of_judge) for of_judge in outcomes if of_judge[0].scores.by_pair]
    tables = [_tabulate_false_decisions(flat, config), _tabulate_cost(flat, config), *by_pair, *labels]
    return Rehearsal([_describe_result(of_judge[0], config) for of_judge in outcomes], tables)


def _list_releases(config: RehearseConfig) -> list[ProtocolConfig]:
    return list(config.protocols.values()) if config.reference is not None else []


def _read_judges(config: RehearseConfig) -> Iterator[JudgeScores]:
    for protocol in (*([] if config.protocol is None else [config.protocol]), *_list_releases(config)):
        release = open_release(protocol, config.storage)
        labels = {prompt: "\0".join(skills) for prompt, skills in release.skills.items()}
        rated = average_ratings(release.ratings, "image").rename(columns={"human": "score"})
        for template, ratings in rated.groupby("template", sort=False):
            judge = PEOPLE if rated["template"].nunique() == 1 else f"{PEOPLE}, {template}"
            scale = protocol.rating_range or (float(rated["score"].min()), float(rated["score"].max()))
            options = replace(config.adaptive, range=scale)
            yield from _make_judge_scores(protocol.name, judge, ratings, labels, options, by_pair=True)
        yield from _read_metrics(
            protocol.name, select_metrics(release.scores, config.metrics), labels, config, by_pair=False
        )
    if (place := config.locate_scores()) is not None:
        name = PurePosixPath(place.path).name
        yield from _read_metrics(name, read_scores(place, config.metrics), {}, config, by_pair=True)


def _read_metrics(
    source: str, scores: pa.Table, labels: Mapping[str, str], config: RehearseConfig, *, by_pair: bool
) -> Iterator[JudgeScores]:
    frame = scores.select(["metric", "generator", "prompt_id", "score"]).to_pandas()
    for metric, of_metric in frame.groupby("metric", sort=False):
        yield from _make_judge_scores(source, str(metric), of_metric, labels, config.adaptive, by_pair=by_pair)


def _make_judge_scores(
    source: str, judge: str, frame: pd.DataFrame, labels: Mapping[str, str], options: AdaptiveConfig, *, by_pair: bool
) -> Iterator[JudgeScores]:
    """Yield the judge's scores, averaged over a prompt's images; nothing if no two generators share enough prompts."""
    wide = pivot_by_generator(frame)
    low, high = options.range
    values = wide.to_numpy(np.float64)
    within = bool(np.nanmin(values, initial=high) >= low and np.nanmax(values, initial=low) <= high)
    pairs = pair_generators(wide)
    if pairs:
        of_prompts = [labels.get(str(prompt), "") for prompt in wide.index]
        yield JudgeScores(source, judge, pairs, of_prompts, options, within, float(np.nanstd(values)), by_pair)


class _Outcome(NamedTuple):
    scores: JudgeScores
    options: AdaptiveConfig
    results: Sequence[RehearsedDecisions]
    """Results by indifference, starting with an indifference of 0."""
    tied_result: RehearsedDecisions
    """Result for scores that are shifted so that no generator is better."""

    @property
    def row(self) -> tuple[str, str, str]:
        return self.scores.source, self.scores.judge, self.options.method


def _rehearse_judge(scores: JudgeScores, options: AdaptiveConfig, config: RehearseConfig) -> _Outcome:
    zones = [0.0, *_list_indifferences(scores, config).values()]
    found = rehearse(scores.pairs, scores.labels, options, zones, config.orders)
    low, high = options.range
    shift = max(abs(pair.difference) for pair in scores.pairs)
    # Half of the shift is added to one generator's scores and subtracted from the other's, which may leave the range.
    wider = replace(options, range=(low - shift / 2, high + shift / 2))
    (tied_result,) = rehearse(equalise_means(scores.pairs), scores.labels, wider, [0.0], config.orders)
    return _Outcome(scores, options, found, tied_result)


def _list_indifferences(scores: JudgeScores, config: RehearseConfig) -> dict[str, float]:
    """Return the indifference margins above 0, in units of the judge's scores, keyed by their name in the table."""
    own = config.adaptive.get_indifference(scores.judge)
    indifferences = {format_spread(spread): spread * scores.deviation for spread in config.spreads}
    return indifferences | ({"given": own} if own else {})


def format_spread(spread: float) -> str:
    """Return the name of an indifference margin that is given in standard deviations of the scores."""
    return f"{spread:g} sd"


def _describe_result(outcome: _Outcome, config: RehearseConfig) -> str:
    own = config.adaptive.get_indifference(outcome.scores.judge)
    found = outcome.results[-1 if own else 0]
    within = f" or find them within {own:g} of each other" if own else ""
    wrong = f"In {format_percent(found.measure_false_share())} of {config.orders} orders a decision was false."
    need = f"{_describe_need(found, within)} ({outcome.options.method})"
    return f"{outcome.scores.source}, {outcome.scores.judge}: {need}. {wrong}"


def _describe_need(found: RehearsedDecisions, within: str) -> str:
    early = found.find_early_pairs()
    late = [f"{pair.a} and {pair.b}" for pair, known in zip(found.pairs, early, strict=True) if not known]
    needed = math.ceil(found.prompts * float(found.measure_cost()[:, early].max(axis=1, initial=0).mean()))
    pairs = f"{'the other' if late else 'all'} {format_quantity(int(early.sum()), 'pair')}"
    enough = f"{needed} of {found.prompts} prompts are enough to decide {pairs}{within}, on average"
    if not late:
        return enough
    lacking = f"it takes all {found.prompts} prompts or more to decide between {format_names(late)}{within}"
    return f"{lacking}; {enough}" if early.any() else lacking


def _tabulate_false_decisions(outcomes: Sequence[_Outcome], config: RehearseConfig) -> ShownTable:
    return ShownTable(
        "False decisions",
        f"Share of {config.orders} random orders with at least one false decision about any pair; betting guarantees "
        f"at most {config.adaptive.alpha:.0%}. As scored: a decision is false if the scores of all prompts contradict "
        "it. Tied: scores are shifted to the same mean for all generators, so that every decision is false. Naive: "
        f"Student's t-test at 5% after every prompt from number {MIN_NAIVE_PROMPTS} on, stopping at the first "
        "significant result; the share of pairs is in parentheses.",
        ("scores", "judge", "method", "pairs", "prompts", "as scored", "tied", "naive, as scored", "naive, tied"),
        [_make_false_decisions_row(outcome, config) for outcome in outcomes],
    )


def _make_false_decisions_row(outcome: _Outcome, config: RehearseConfig) -> tuple[str, ...]:
    scores = outcome.scores
    shares = [format_percent(found.measure_false_share()) for found in (outcome.results[0], outcome.tied_result)]
    looked = [_measure_naive(pairs, scores, config) for pairs in (scores.pairs, equalise_means(scores.pairs))]
    return (*outcome.row, str(len(scores.pairs)), str(len(scores.labels)), *shares, *looked)


def _measure_naive(pairs: Sequence[GeneratorPair], scores: JudgeScores, config: RehearseConfig) -> str:
    false = find_false_decisions(decide_naively(pairs, scores.labels, config.orders, config.adaptive.seed), pairs, 0)
    return f"{format_percent(float(false.any(axis=-1).mean()))} ({format_percent(float(false.mean()))})"


def _tabulate_cost(outcomes: Sequence[_Outcome], config: RehearseConfig) -> ShownTable:
    zones = list(dict.fromkeys(name for outcome in outcomes for name in _list_indifferences(outcome.scores, config)))
    return ShownTable(
        "Cost by indifference",
        "Share of the prompts, and so of the images, after which every pair is decided or found to differ by at most "
        f"the indifference. Values are means over {config.orders} orders. Indifferences are in standard deviations "
        "of the judge's scores (column sd). Without an indifference, the cost is that of the closest pair.",
        ("scores", "judge", "method", "sd", "none", *zones),
        [_make_cost_row(outcome, zones, config) for outcome in outcomes],
    )


def _make_cost_row(outcome: _Outcome, zones: Sequence[str], config: RehearseConfig) -> tuple[str, ...]:
    shares = [format_percent(float(found.measure_total_cost().mean())) for found in outcome.results]
    by_name = dict(zip(_list_indifferences(outcome.scores, config), shares[1:], strict=True))
    return (
        *outcome.row,
        format_number(outcome.scores.deviation),
        shares[0],
        *(by_name.get(name, EMPTY_CELL) for name in zones),
    )


def _tabulate_pairs(outcomes: Sequence[_Outcome]) -> ShownTable:
    scores = outcomes[0].scores
    ordered = sorted(range(len(scores.pairs)), key=lambda place: -abs(scores.pairs[place].difference))
    used = [outcome.results[0].measure_cost() for outcome in outcomes]
    rows = []
    for rank, place in enumerate(ordered, start=1):
        pair = scores.pairs[place]
        costs = [
            format_percent(float(share.mean()))
            for of_method in used
            for share in (of_method[:, place], of_method[:, ordered[:rank]].max(axis=1))
        ]
        both = str(int(np.isfinite(pair.differences).sum()))
        rows.append((f"{pair.a}, {pair.b}", both, format_number(abs(pair.difference)), *costs))
    heads = [name for outcome in outcomes for name in (f"{outcome.options.method}: this pair", "with all above it")]
    return ShownTable(
        f"Pair by pair: {' '.join(filter(None, (scores.source, scores.judge)))}",
        "Share of the prompts after which this pair is decided, without indifference. With all above it: the share "
        "after which all pairs with a larger difference are decided, too.",
        ("pair", "prompts of both", "difference", *heads),
        rows,
    )


def write_page(config: RehearseConfig, tables: Sequence[ShownTable]) -> None:
    """Write the tables to the `rehearsal` section of the page."""
    assert config.page is not None, "a page is configured"
    write_section(config.storage.locate(config.page), "rehearsal", format_tables_markdown(tables, 3))
