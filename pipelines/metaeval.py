"""Meta-evaluation: a release's judgements and a table of scores in, how far each metric agrees with people out."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from operators.errors import ConfigError, SourceError
from operators.judging import orders, ratings
from operators.judging.graphs import judge_graphs
from operators.judging.judgement import (
    PEOPLE,
    Comparison,
    Judgement,
    Order,
    comparison_table,
    judgement_table,
    order_table,
)
from operators.judging.pairings import judge_pairings
from operators.judging.preferences import judge_preferences
from operators.judging.publish import to_latex, to_markdown
from operators.statistics.agreement import reliable_prompts
from operators.statistics.options import MATCH_COLUMNS, Sampling
from pipelines.protocols import MetaevalConfig, ProtocolConfig
from pipelines.releases.readers import READERS
from pipelines.releases.release import Release
from pipelines.releases.score_tables import read_scores
from pipelines.storage import Location, StorageConfig, locate, write_errors
from pipelines.storage import replace as write_file


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """What a meta-evaluation found."""

    protocol: str
    judgements: Sequence[Judgement]
    comparisons: Sequence[Comparison] = ()
    orders: Sequence[Order] = ()
    notes: Sequence[str] = ()
    """What happened to rows on the way, in words."""

    @property
    def matched(self) -> bool:
        """Whether any statistic that sets scores beside people's judgements has a row to stand on."""
        beside = [its for its in self.judgements if its.metric != PEOPLE and its.statistic not in orders.STATISTICS]
        return any(its.n for its in beside) or not beside


def run_metaeval(config: MetaevalConfig) -> Findings:
    """Reads, judges and writes; raises SourceError where nothing that was rated has a score."""
    release = open_release(config.protocol, config.storage)
    scores = release.scores if config.scores is None else read_scores(locate(config.scores, config.storage))
    if not len(scores):
        raise ConfigError(f"protocol {config.protocol.name}: the release holds no scores; set scores=PATH to a table")
    found = judge(config.protocol, release, _only(scores, config.metrics), config.sampling)
    require_matches(found, config.protocol, config.scores or config.protocol.path)
    write_findings(found, locate(config.output, config.storage))
    return found


def open_release(protocol: ProtocolConfig, storage: StorageConfig) -> Release:
    """The release's tables, checked against the protocol; raises SourceError naming the file and the row."""
    release = _in_range(protocol, READERS[protocol.reader](locate(protocol.path, storage)))
    return _reliable(release) if protocol.reliable else release


def _in_range(protocol: ProtocolConfig, release: Release) -> Release:
    """The release with ratings in the protocol's range only; raises SourceError where others are refused."""
    if protocol.rating_range is None or not len(release.ratings):
        return release
    low, high = protocol.rating_range
    rating = release.ratings.column("rating")
    outside = pc.fill_null(pc.or_(pc.less(rating, low), pc.greater(rating, high)), False)
    if not (found := pc.sum(outside).as_py()):
        return release
    row = release.ratings.filter(outside).slice(0, 1).to_pylist()[0]
    said = (
        f"{found} ratings are outside {low:g} to {high:g}, first {row['rating']:g} of image {row['image_id']} "
        f"by rater {row['rater']}"
    )
    if protocol.out_of_range == "refused":
        raise SourceError(
            f"{protocol.path}: {said}; correct them, or set protocol.rating_range or protocol.out_of_range=left_out"
        )
    kept = pc.if_else(outside, pa.scalar(None, pa.float64()), rating)
    ratings_column = release.ratings.schema.get_field_index("rating")
    table = release.ratings.set_column(ratings_column, "rating", kept)
    return replace(release, ratings=table, notes=(*release.notes, f"{said}: left out"))


def _reliable(release: Release) -> Release:
    """The release with only the prompts on which its raters agree."""
    kept = reliable_prompts(release.ratings.to_pandas())
    everything = len(pc.unique(release.ratings.column("prompt_id")))
    tables = {
        name: table.filter(pc.is_in(table.column("prompt_id"), pa.array(sorted(kept), pa.string())))
        for name in ("ratings", "preferences")
        if len(table := getattr(release, name))
    }
    note = f"{len(kept)} of {everything} prompts are reliable: raters' variance below half of the largest"
    return replace(release, **tables, notes=(*release.notes, note))


def _only(scores: pa.Table, metrics: Sequence[str]) -> pa.Table:
    """The scores of the metrics asked for; raises ConfigError for one that is not there."""
    known = scores.column("metric").unique().to_pylist()
    for metric in metrics:
        if metric not in known:
            raise ConfigError(f"metrics: no scores of {metric!r}; there are {', '.join(known)}")
    return scores.filter(pc.is_in(scores.column("metric"), pa.array(list(metrics)))) if metrics else scores


def judge(protocol: ProtocolConfig, release: Release, scores: pa.Table, sampling: Sampling) -> Findings:
    """Everything that the protocol asks for, of scores in schema SCORES."""
    skills: Mapping[str, Sequence[str]] = release.skills if protocol.by_skill else {}
    judgements: list[Judgement] = []
    comparisons: list[Comparison] = []
    ordered: list[Order] = []
    if "ratings" in protocol.tasks:
        rated = ratings.match_scores(release.ratings, scores, protocol.match)
        judgements += ratings.judge_ratings(rated, protocol.statistics, skills, sampling)
        comparisons += ratings.compare_metrics(rated, protocol.statistics, sampling)
        judgements += ratings.judge_raters(release.ratings, protocol.agreement)
        judgements += ratings.judge_generators(release.ratings, protocol.match, sampling)
    if "preferences" in protocol.tasks:
        accuracies, compared = judge_preferences(
            release.preferences, scores, match=protocol.match, unsure=protocol.unsure, sampling=sampling
        )
        judgements, comparisons = judgements + accuracies, comparisons + compared
    if "pairings" in protocol.tasks:
        judgements += judge_pairings(release.pairings, scores, sampling)
    if "graphs" in protocol.tasks:
        judgements += judge_graphs(
            release.graph_nodes,
            scores,
            conventions=protocol.conventions,
            unpublished=protocol.unpublished,
            falling=protocol.falling,
            sampling=sampling,
        )
    if "orders" in protocol.tasks:
        ordered = _orders(protocol, release, scores)
        judgements += orders.agree_on_order(ordered)
    return Findings(
        protocol=protocol.name, judgements=judgements, comparisons=comparisons, orders=ordered, notes=release.notes
    )


def _orders(protocol: ProtocolConfig, release: Release, scores: pa.Table) -> list[Order]:
    found: list[Order] = []
    if len(release.ratings):
        found += orders.order_by_ratings(release.ratings, protocol.match, alpha=protocol.alpha, zeros=protocol.zeros)
    if len(release.preferences):
        found += orders.order_by_preferences(release.preferences, alpha=protocol.alpha, zeros=protocol.zeros)
    return found + orders.order_by_scores(scores, alpha=protocol.alpha, zeros=protocol.zeros)


def require_matches(found: Findings, protocol: ProtocolConfig, scores: str) -> None:
    """Raises SourceError, naming the `scores`, where none of them has a judgement beside it."""
    if not found.matched:
        keys = " and ".join(MATCH_COLUMNS[protocol.match])
        raise SourceError(
            f"{scores}: no score is of a rated image; scores and ratings are matched by {keys}: compare both files' "
            "ids, or set protocol.match"
        )


def write_findings(found: Findings, folder: Location) -> None:
    """Writes judgements, comparisons and orders as Parquet, and what a paper shows as Markdown and LaTeX."""
    tables = {
        "judgements": judgement_table(found.judgements),
        "comparisons": comparison_table(found.comparisons),
        "orders": order_table(found.orders),
    }
    for name, table in tables.items():
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, compression="zstd")
        _write(folder, f"{name}.parquet", sink.getvalue().to_pybytes())
    _write(folder, "judgements.md", to_markdown(found.judgements, found.notes).encode())
    _write(folder, "judgements.tex", to_latex(found.judgements).encode())


def _write(folder: Location, name: str, content: bytes) -> None:
    path = folder.at(name)
    with write_errors(path):
        write_file(folder, path, content)
