"""Meta-evaluation: a release's judgements and a table of scores in, how far each metric agrees with people out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from operators.errors import ConfigError, SourceError
from operators.judging import matching, ratings
from operators.judging.graphs import judge_graphs
from operators.judging.judgement import Comparison, Judgement, Order, comparison_table, judgement_table, order_table
from operators.judging.orders import judge_orders
from operators.judging.pairings import judge_pairings
from operators.judging.preferences import judge_preferences
from operators.judging.publish import to_latex, to_markdown
from operators.judging.scales import off_scale
from operators.statistics.agreement import reliable_prompts
from operators.statistics.options import MATCH_COLUMNS, Match, Sampling
from pipelines.judging.protocols import MetaevalConfig, ProtocolConfig, Task
from pipelines.judging.releases.readers import read_release
from pipelines.judging.releases.release import Release
from pipelines.judging.releases.scores import of_metrics, read_scores
from pipelines.storage import Location, StorageConfig, locate, write_errors
from pipelines.storage import replace as write_file

JUDGED: Mapping[Task, Sequence[str]] = {
    "ratings": ["ratings"],
    "preferences": ["preferences"],
    "pairings": ["pairings"],
    "graphs": ["graph_nodes"],
    "orders": ["ratings", "preferences"],
}
"""The tables of a release that each task reads."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What a meta-evaluation found."""

    protocol: str
    judgements: Sequence[Judgement]
    comparisons: Sequence[Comparison] = ()
    orders: Sequence[Order] = ()
    notes: Sequence[str] = ()
    """What happened to rows on the way, in words."""
    warnings: Sequence[str] = ()
    """What a person should look at before believing the rest."""


def run_metaeval(config: MetaevalConfig) -> Findings:
    """Reads, judges and writes; raises SourceError where nothing that was rated has a score."""
    release = open_release(config.protocol, config.storage)
    if config.scores is not None:
        scores = read_scores(locate(config.scores, config.storage), config.metrics)
    elif len(release.scores):
        scores = of_metrics(release.scores, config.metrics)
    else:
        raise ConfigError(f"protocol {config.protocol.name}: the release holds no scores; set scores=PATH to a table")
    findings = judge(config.protocol, release, scores, config.sampling, config.scores or config.protocol.path)
    write_findings(findings, locate(config.output, config.storage))
    return findings


def open_release(protocol: ProtocolConfig, storage: StorageConfig) -> Release:
    """The release's tables, checked against the protocol; raises SourceError naming the file and the row."""
    release = _in_range(protocol, read_release(protocol.reader, locate(protocol.path, storage)))
    release = _reliable(protocol, release) if protocol.reliable else release
    wanted = {name for task in protocol.tasks for name in JUDGED[task]}
    unwanted = {name for names in JUDGED.values() for name in names} - wanted
    release = replace(release, **{name: getattr(release, name).slice(0, 0) for name in unwanted})
    _require_judgements(protocol, release)
    return release


def _require_judgements(protocol: ProtocolConfig, release: Release) -> None:
    """Raises SourceError where people said nothing that the protocol could set beside scores."""
    columns = {"ratings": release.ratings.column("rating"), "choices": release.preferences.column("preferred")}
    answers = sum(len(column) - column.null_count for column in columns.values())
    if not answers and not len(release.pairings) and not len(release.graph_nodes):
        empty = " and ".join(f"all {len(column)} {name} are empty" for name, column in columns.items() if len(column))
        raise SourceError(
            f"{protocol.path}: nothing to judge by: {empty or 'it holds no judgement'}; fill in the file, or give "
            "another by protocol.path"
        )


def _in_range(protocol: ProtocolConfig, release: Release) -> Release:
    """The release with ratings in the protocol's range only; raises SourceError where others are refused."""
    if protocol.rating_range is None:
        return replace(release, warnings=off_scale(release.ratings))
    low, high = protocol.rating_range
    rating = release.ratings.column("rating")
    outside = pc.fill_null(pc.or_(pc.less(rating, low), pc.greater(rating, high)), False)
    others = release.ratings.filter(outside)
    if not len(others):
        return release
    first = others.slice(0, 1).to_pylist()[0]
    said = (
        f"{len(others)} ratings are outside {low:g} to {high:g}, first {first['rating']:g} of image "
        f"{first['image_id']} by rater {first['rater']}"
    )
    if protocol.out_of_range == "refused":
        raise SourceError(
            f"{protocol.path}: {said}; correct them, or set protocol.rating_range or protocol.out_of_range=left_out"
        )
    kept = pc.if_else(outside, pa.scalar(None, pa.float64()), rating)
    place = release.ratings.schema.get_field_index("rating")
    table = release.ratings.set_column(place, "rating", kept)
    return replace(release, ratings=table, notes=(*release.notes, f"{said}: left out"))


def _reliable(protocol: ProtocolConfig, release: Release) -> Release:
    """The release with only the prompts on which its raters agree; raises SourceError where there is none."""
    kept = pa.array(sorted(reliable_prompts(release.ratings.to_pandas())), pa.string())
    everything = len(pc.unique(release.ratings.column("prompt_id").drop_null()))
    if not len(kept):
        raise SourceError(f"{protocol.path}: raters agree on none of {everything} prompts; set protocol.reliable=false")
    tables = {"ratings": release.ratings, "preferences": release.preferences}
    reliable = {name: table.filter(pc.is_in(table.column("prompt_id"), kept)) for name, table in tables.items()}
    note = f"{len(kept)} of {everything} prompts are reliable: raters' variance below half of the largest"
    return replace(release, **reliable, notes=(*release.notes, note))


def judge(
    protocol: ProtocolConfig, release: Release, scores: pa.Table, sampling: Sampling, scored_by: str = "scores"
) -> Findings:
    """Everything that the protocol asks for, of scores in schema SCORES.

    Raises SourceError, naming the file `scored_by`, where none of them is of an image that people judged.
    """
    judged = pd.concat(
        [matching.rated_ids(release.ratings), matching.chosen_ids(release.preferences)], ignore_index=True
    )
    match = _match(judged, protocol, release, scores, scored_by)
    people = release.ratings
    if match == "image":
        people = matching.complete_ids(people, scores.select(matching.IDS).to_pandas())
    judgements: list[Judgement] = []
    comparisons: list[Comparison] = []
    orders: list[Order] = []
    if "ratings" in protocol.tasks:
        rated = ratings.match_scores(people, scores, match)
        skills = release.skills if protocol.by_skill else {}
        judgements += ratings.judge_ratings(rated, protocol.statistics, skills, sampling)
        comparisons += ratings.compare_metrics(rated, protocol.statistics, sampling)
        judgements += ratings.judge_raters(people, protocol.agreement)
        judgements += ratings.judge_generators(people, match, sampling)
    if "preferences" in protocol.tasks:
        accuracies, compared = judge_preferences(
            release.preferences, scores, match=match, unsure=protocol.unsure, sampling=sampling
        )
        judgements, comparisons = judgements + accuracies, comparisons + compared
    if "pairings" in protocol.tasks:
        judgements += judge_pairings(release.pairings, scores, sampling)
    if "graphs" in protocol.tasks:
        options = _options(protocol, "conventions", "unpublished", "falling")
        judgements += judge_graphs(release.graph_nodes, scores, sampling=sampling, **options)
    if "orders" in protocol.tasks:
        options = _options(protocol, "alpha", "zeros")
        orders, agreements = judge_orders(people, release.preferences, scores, match=match, **options)
        judgements += agreements
    matched = [f"scores and judgements are matched by {matching.named(match)}"] if len(judged) else []
    return Findings(
        protocol=protocol.name,
        judgements=judgements,
        comparisons=comparisons,
        orders=orders,
        notes=(*release.notes, *matched),
        warnings=release.warnings,
    )


def _options(protocol: ProtocolConfig, *names: str) -> dict[str, Any]:
    return {name: getattr(protocol, name) for name in names}


def _match(people: pd.DataFrame, protocol: ProtocolConfig, release: Release, scores: pa.Table, scored_by: str) -> Match:
    """By what the scores meet these ratings and choices; raises SourceError where they meet nothing that was judged."""
    scored = matching.scored_ids(scores)
    if len(scores) and scored.empty:
        errors = scores.column("error").drop_null()
        reason = f" ({errors[0]['message'].as_py()})" if len(errors) else ""
        raise SourceError(f"{scored_by}: all {len(scores)} scores are empty{reason}; score the images again")
    match = protocol.match or matching.best_match(people, scored)
    pairings, images = matching.other_ids(release.pairings), matching.other_ids(release.graph_nodes)
    judged: list[tuple[pd.DataFrame, Match]] = [(people, match), (pairings, "image_and_prompt"), (images, "image")]
    if not len(scores) or any(matching.in_common(ids, scored, by) for ids, by in judged):
        return match
    columns = matching.IDS if protocol.match is None else MATCH_COLUMNS[protocol.match]
    examples = matching.examples(pd.concat([ids for ids, _ in judged]), columns)
    raise SourceError(
        f"{scored_by}: no score is of a judged image; the scores have {matching.examples(scored, columns)}; "
        f"{protocol.path} has {examples}; write the same ids into both"
    )


def write_findings(findings: Findings, folder: Location) -> None:
    """Writes judgements, comparisons and orders as Parquet, and what a paper shows as Markdown and LaTeX."""
    tables = {
        "judgements": judgement_table(findings.judgements),
        "comparisons": comparison_table(findings.comparisons),
        "orders": order_table(findings.orders),
    }
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        _write(folder, f"{name}.parquet", sink.getvalue().to_pybytes())
    _write(folder, "judgements.md", to_markdown(findings.judgements, (*findings.warnings, *findings.notes)).encode())
    _write(folder, "judgements.tex", to_latex(findings.judgements).encode())


def _write(folder: Location, name: str, content: bytes) -> None:
    path = folder.at(name)
    with write_errors(path):
        write_file(folder, path, content)
