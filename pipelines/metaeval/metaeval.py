"""Meta-evaluation: how far metrics agree with people, from a release's judgements and a table of scores."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError, SourceError, check_known
from plumbline.operators.base.sentences import ShownTable
from plumbline.operators.metaeval import matching, people, ratings
from plumbline.operators.metaeval.calibration import CALIBRATION, PassMarks, rating_marks
from plumbline.operators.metaeval.contradicted_images import (
    ContradictedImage,
    contradicted_choices,
    contradicted_ratings,
)
from plumbline.operators.metaeval.corrected_means import CorrectedMean, correct_choices, correct_ratings
from plumbline.operators.metaeval.corrected_shares import correct_shares
from plumbline.operators.metaeval.corrected_tables import contradictions_table, shown_means
from plumbline.operators.metaeval.graph_contents import contents_tables, count_contents
from plumbline.operators.metaeval.graph_correlations import (
    CorrelationMatrix,
    correlate_graphs,
    correlation_matrices,
)
from plumbline.operators.metaeval.graph_scores import average_nodes, score_nodes
from plumbline.operators.metaeval.graphs import judge_graphs
from plumbline.operators.metaeval.judgement import Comparison, Judgement, Order
from plumbline.operators.metaeval.orders import judge_orders
from plumbline.operators.metaeval.pairings import judge_pairings
from plumbline.operators.metaeval.paper_tables import to_latex, to_markdown
from plumbline.operators.metaeval.preferences import judge_choosers, judge_preferences, predict_choices
from plumbline.operators.metaeval.ratings import warn_off_scale, warn_several_prompts
from plumbline.operators.metaeval.relations import relations_tables
from plumbline.operators.metaeval.word_ratings import judge_words
from plumbline.operators.metrics.metric import direction
from plumbline.operators.results.metric_correlations import Correlation, correlate_metrics
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.agreement import reliable_prompts
from plumbline.operators.statistics.bootstrap import SHARES, Scale
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match, Sampling
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.metaeval.protocols import MetaevalConfig, ProtocolConfig, Task
from plumbline.pipelines.metaeval.releases.readers import read_release
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.metaeval.releases.scores import (
    SCORES_FILE,
    read_elements,
    read_falling,
    read_scores,
    select_metrics,
)
from plumbline.pipelines.store.store import encode_table

GRAPH_CORRELATIONS = "graph_correlations"
GRAPH_CONTENTS = "graph_contents"
NEGATED = "a lower score is better, so its scores are negated"
ALONE = "no scores: the judgements alone are analysed; run=latest or scores=PATH judges metrics by them"
PAGE = "judgements.md"
INPUTS = "judged: "
UNSCORED_TASKS: Collection[Task] = ("ratings", "preferences", "orders", "graphs")
"""Tasks that also have results without scores: how far raters agree, means and orders, and contents of graphs."""
TABLES = {
    "judgements": schemas.JUDGEMENTS,
    "comparisons": schemas.COMPARISONS,
    "orders": schemas.ORDERS,
    "corrected": schemas.CORRECTED,
    "contradicted": schemas.CONTRADICTED,
    "correlations": schemas.CORRELATIONS,
    GRAPH_CONTENTS: schemas.GRAPH_CONTENTS,
    "graphs": schemas.GRAPHS,
    "graph_images": schemas.GRAPH_IMAGES,
    "graph_means": schemas.GRAPH_MEANS,
    GRAPH_CORRELATIONS: schemas.GRAPH_CORRELATIONS,
    "words": schemas.WORD_MATCHES,
    "mean_ratings": schemas.MEAN_RATINGS,
}


@dataclass(kw_only=True, slots=True)
class Findings:
    """Results of a meta-evaluation."""

    protocol: str
    inputs: str = ""
    """Description of the ratings and scores; empty for a run's own findings."""
    folder: str = ""
    """Address of the results."""
    files: Sequence[str] = ()
    """Names of the page and of the tables with rows."""
    judgements: list[Judgement] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    corrected: list[CorrectedMean] = field(default_factory=list)
    """Means of generators by people and each metric together."""
    contradicted: list[ContradictedImage] = field(default_factory=list)
    """Images that a metric and people disagree about most."""
    correlations: Sequence[Correlation] = ()
    """Correlations of every two metrics by generator."""
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    """Each metric's values of error graphs (`graphs`, and of their nodes and images) and rated words (`words`),
    correlations between metrics over graphs (`graph_correlations`), contents of the graphs (`graph_contents`), and
    people's ratings of images (`mean_ratings`), in the schemas of TABLES."""
    notes: Sequence[str] = ()
    """Notes on rows that were changed or left out."""
    warnings: Sequence[str] = ()
    """Likely errors that should be checked before using the results."""

    @property
    def graph_correlations(self) -> list[CorrelationMatrix]:
        """Correlations of metrics over error graphs, if graphs were judged."""
        found = self.frames.get(GRAPH_CORRELATIONS)
        return [] if found is None else correlation_matrices(found)

    @property
    def graph_contents(self) -> list[ShownTable]:
        """Sources of images and prompts of error graphs, and types of errors, if graphs were judged."""
        found = self.frames.get(GRAPH_CONTENTS)
        return [] if found is None else contents_tables(found)


def run_metaeval(config: MetaevalConfig) -> Findings:
    """Read judgements and scores, judge the metrics, and write the findings.

    Without scores, the ratings, choices and error graphs are analysed alone. Raises SourceError if no judged image has
    a score, and ConfigError if there is nothing to analyse.
    """
    release = open_release(config.protocol, config.storage)
    protocol, table = config.protocol, config.locate_scores()
    if table is not None:
        scores = read_scores(table, config.metrics)
        protocol = replace(protocol, falling=(*protocol.falling, *read_falling(table)))
    elif len(release.scores):
        scores = select_metrics(release.scores, config.metrics)
    else:
        protocol, scores = _select_unscored_tasks(protocol, release, config.metrics), schemas.SCORES.empty_table()
        release = replace(release, notes=(*release.notes, ALONE))
    rated = config.storage.locate(protocol.path)
    scored_by = table or rated
    elements = read_elements(scored_by, config.metrics) if "words" in protocol.tasks else ()
    findings = judge(protocol, release, scores, config.sampling, scored_by.url, elements)
    findings.inputs = f"ratings {rated}" + (f", scores {table}" if table else "")
    output = config.output or _name_output(config, rated, table)
    write_findings(findings, config.storage.locate(output, writable=True))
    return findings


def _name_output(config: MetaevalConfig, rated: Place, table: Place | None) -> str:
    files = [rated, *([] if table is None else [table.parent if table.name == SCORES_FILE else table])]
    stems = [PurePosixPath(file.path).stem for file in files]
    folder = f"{config.store.rstrip('/')}/metaeval/{config.protocol.name}"
    name = "-".join(stem for stem in stems if stem != config.protocol.name)
    return f"{folder}/{name}" if name else folder


def _select_unscored_tasks(protocol: ProtocolConfig, release: Release, metrics: Sequence[str]) -> ProtocolConfig:
    """Return the protocol with the tasks that need no scores; raise ConfigError if none has something to analyse."""
    tables: dict[Task, list[pa.Table]] = {
        name: [getattr(release, table) for table in TASKS[name][1]] for name in UNSCORED_TASKS
    }
    tasks = [name for name, own in tables.items() if any(map(len, own))]
    if metrics or not tasks:
        raise ConfigError(
            f"protocol {protocol.name}: the release has no scores; set run=latest, or scores=PATH to a table"
        )
    return replace(protocol, tasks=tuple(tasks))


def open_release(protocol: ProtocolConfig, storage: StorageConfig) -> Release:
    """Read a release and apply the protocol to it; raise SourceError naming the file and the row."""
    release = read_release(protocol.release, storage.locate(protocol.path), protocol.columns)
    for apply in (_select_choices, _select_templates, _leave_out_skills, _check_range, _reverse_ratings):
        release = apply(protocol, release)
    release = _select_reliable(protocol, release) if protocol.reliable else release
    needed = {name for task in protocol.tasks for name in TASKS[task][1]}
    unneeded = {name for _, tables in TASKS.values() for name in tables} - needed
    release = replace(release, **{name: getattr(release, name).slice(0, 0) for name in unneeded})
    _require_judgements(protocol, release)
    return release


def _require_judgements(protocol: ProtocolConfig, release: Release) -> None:
    columns = {"ratings": release.ratings.column("rating"), "choices": release.preferences.column("preferred")}
    answers = sum(len(column) - column.null_count for column in columns.values())
    if not answers and not any(map(len, (release.pairings, release.graph_nodes, release.words))):
        empty = " and ".join(f"all {len(column)} {name} are empty" for name, column in columns.items() if len(column))
        found = "; ".join([empty or "it has no judgements", *release.notes])
        raise SourceError(
            f"{protocol.path}: nothing to judge by: {found}; fill in the file, or give another by protocol.path"
        )


def _select_choices(protocol: ProtocolConfig, release: Release) -> Release:
    """Select the protocol's choices; raise SourceError if the file lacks any of them."""
    if not protocol.choices:
        return release
    count = len(release.preferences)
    if lacking := [number for number in protocol.choices if not 0 <= number < count]:
        raise SourceError(
            f"{protocol.path}: expected a choice with the id {lacking[0]}, found ids from 0 to {count - 1}; give the "
            "whole file, or other protocol.choices"
        )
    note = f"{len(protocol.choices)} of {count} choices count, by protocol.choices"
    selected = release.preferences.take(pa.array(sorted(protocol.choices)))
    return replace(release, preferences=selected, notes=(*release.notes, note))


def _select_templates(protocol: ProtocolConfig, release: Release) -> Release:
    """Select ratings and choices of the protocol's templates; raise ConfigError for unknown templates."""
    if not protocol.templates:
        return release
    tables = _tables_with_template(release)
    known = {name for table in tables.values() for name in table.column("template").unique().to_pylist()}
    for name in protocol.templates:
        check_known("protocol.templates", name, sorted(known))
    names = pa.array(protocol.templates)
    selected = {name: table.filter(pc.is_in(table.column("template"), names)) for name, table in tables.items()}
    return replace(release, **selected)


def _leave_out_skills(protocol: ProtocolConfig, release: Release) -> Release:
    """Leave out the prompts of protocol.without_skills; raise ConfigError for an unknown skill."""
    known = sorted({skill for skills in release.skills.values() for skill in skills})
    for name in protocol.without_skills:
        check_known("protocol.without_skills", name, known)
    unwanted = {*protocol.without_skills}
    left_out = [prompt_id for prompt_id, skills in release.skills.items() if unwanted & {*skills}]
    if not left_out:
        return release
    prompts = pa.array(left_out, pa.string())
    tables = {name: getattr(release, name) for name in ("ratings", "parts", "preferences", "pairings", "words")}
    kept = {
        name: table.filter(pc.invert(pc.is_in(table.column("prompt_id"), prompts))) for name, table in tables.items()
    }
    note = (
        f"{len(left_out)} prompts with {' or '.join(protocol.without_skills)} are left out, by protocol.without_skills"
    )
    skills = {prompt_id: skills for prompt_id, skills in release.skills.items() if not unwanted & {*skills}}
    return replace(release, **kept, skills=skills, notes=(*release.notes, note))


def _tables_with_template(release: Release) -> dict[str, pa.Table]:
    """Return the tables of a release that have the columns template and prompt_id, by name."""
    return {name: getattr(release, name) for name in ("ratings", "parts", "preferences")}


def protocol_scales(protocol: ProtocolConfig, templates: Iterable[str]) -> dict[str, Scale]:
    """Return the scales of these templates that the protocol names."""
    found = {name: (protocol.scales or {}).get(name, protocol.rating_range) for name in templates}
    return {name: Scale(*scale) for name, scale in found.items() if scale is not None}


def _check_range(protocol: ProtocolConfig, release: Release) -> Release:
    """Leave out ratings outside the protocol's range; raise SourceError if the protocol refuses them."""
    scales = protocol_scales(protocol, release.ratings.column("template").unique().to_pylist())
    unknown = release.ratings.filter(
        pc.invert(pc.is_in(release.ratings.column("template"), pa.array(scales, pa.string())))
    )
    release = replace(release, warnings=(*release.warnings, *warn_off_scale(unknown)))
    others = release.ratings.filter(_is_outside(release.ratings, scales))
    if not len(others):
        return release
    first = others.slice(0, 1).to_pylist()[0]
    low, high = scales[first["template"]]
    found = (
        f"{len(others)} ratings are outside {low:g} to {high:g}, first {first['rating']:g} of image "
        f"{first['image_id']} by rater {first['rater']}"
    )
    if protocol.out_of_range == "refused":
        raise SourceError(
            f"{protocol.path}: {found}; correct them, or set protocol.rating_range or protocol.out_of_range=left_out"
        )
    kept = {name: _blank_outside(getattr(release, name), scales) for name in ("ratings", "parts")}
    return replace(release, **kept, notes=(*release.notes, f"{found}: left out"))


def _is_outside(table: pa.Table, scales: Mapping[str, Scale]) -> pa.ChunkedArray:
    names, rating = pa.array(scales, pa.string()), table.column("rating")
    indices = pc.index_in(table.column("template"), names)
    low, high = (
        pc.take(pa.array([getattr(scale, end) for scale in scales.values()], pa.float64()), indices)
        for end in Scale._fields
    )
    return pc.fill_null(pc.or_(pc.less(rating, low), pc.greater(rating, high)), False)


def _blank_outside(table: pa.Table, scales: Mapping[str, Scale]) -> pa.Table:
    kept = pc.if_else(_is_outside(table, scales), pa.scalar(None, pa.float64()), table.column("rating"))
    return table.set_column(table.schema.get_field_index("rating"), "rating", kept)


def _reverse_ratings(protocol: ProtocolConfig, release: Release) -> Release:
    """Reverse ratings that count errors, so that higher is better; raise ConfigError if a scale is unknown."""
    known = sorted(release.ratings.column("template").unique().to_pylist())
    scales = protocol_scales(protocol, known)
    for name in protocol.fewer_is_better:
        check_known("protocol.fewer_is_better", name, known)
        if name not in scales:
            raise ConfigError(
                f"protocol.fewer_is_better: ratings by {name!r} are reversed on their scale, which is not known; "
                f"name it, as in 'protocol.scales={{{name}: [0, 9]}}'"
            )
    if not protocol.fewer_is_better:
        return release
    sums = {name: scales[name].least + scales[name].greatest for name in protocol.fewer_is_better}
    tables = {name: _subtract_ratings(sums, getattr(release, name)) for name in ("ratings", "parts")}
    notes = [
        f"{name}: fewer is better, so a rating counts as {total:g} minus the rating" for name, total in sums.items()
    ]
    return replace(release, **tables, notes=(*release.notes, *notes))


def _subtract_ratings(sums: Mapping[str, float], table: pa.Table) -> pa.Table:
    """Replace each rating of these templates by sum - rating."""
    index = pc.index_in(table.column("template"), pa.array(sums, pa.string()))
    rating = table.column("rating")
    reversed_ = pc.subtract(pc.take(pa.array(sums.values(), pa.float64()), index), rating)
    column = pc.if_else(pc.is_valid(index), reversed_, rating)
    return table.set_column(table.schema.get_field_index("rating"), "rating", column)


def _select_reliable(protocol: ProtocolConfig, release: Release) -> Release:
    """Select the prompts whose raters agree; raise SourceError if no prompt is left."""
    parts = people.rated_parts(release.ratings, release.parts)
    kept = pa.array(sorted(reliable_prompts(parts.to_pandas())), pa.string())
    total = len(pc.unique(release.ratings.column("prompt_id").drop_null()))
    if not len(kept):
        raise SourceError(f"{protocol.path}: raters agree on none of {total} prompts; set protocol.reliable=false")
    tables = _tables_with_template(release)
    reliable = {name: table.filter(pc.is_in(table.column("prompt_id"), kept)) for name, table in tables.items()}
    note = f"{len(kept)} of {total} prompts are reliable: raters' variance below half of the largest"
    return replace(release, **reliable, notes=(*release.notes, note))


def judge(
    protocol: ProtocolConfig,
    release: Release,
    scores: pa.Table,
    sampling: Sampling,
    scored_by: str = "scores",
    elements: Iterable[pa.Table] = (),
    run: RunScores | None = None,
) -> Findings:
    """Judge scores by a release, with the tasks of a protocol.

    Args:
        protocol: The protocol. Scores of its `falling` metrics are negated, so that every statistic measures agreement.
        release: People's judgements.
        scores: Scores of judged images (schema SCORES).
        sampling: Draws of intervals and tests.
        scored_by: Name of the scores in messages.
        elements: Scores of single questions (read_elements), for the task words.
        run: All scores, if `scores` lacks images without judgements.

    Raises:
        SourceError: No score is of a judged image.
    """
    run = RunScores([_fill_ids(scores).select]) if run is None else run
    scores = _negate(scores, protocol.falling)
    judged_ids = [matching.rated_ids(release.ratings), matching.paired_ids(release.preferences)]
    judged = pd.concat([*judged_ids, matching.other_ids(release.words)], ignore_index=True)
    match = _find_match(judged, protocol, release, scores, scored_by)
    people = release.ratings
    if match == "image":
        ids = scores.select(matching.IDS).to_pandas()
        people = matching.complete_ids(people, ids)
        choices = matching.complete_ids(matching.complete_ids(release.preferences, ids, "a"), ids, "b")
        release = replace(release, preferences=choices, parts=matching.complete_ids(release.parts, ids))
    matched = len(judged) and len(scores)
    notes = [f"scores and judgements are matched by {' and '.join(MATCH_COLUMNS[match])}"] if matched else []
    metrics = scores.column("metric").unique().to_pylist()
    notes += [f"{metric}: {NEGATED}" for metric in metrics if metric in protocol.falling]
    findings = Findings(
        protocol=protocol.name,
        correlations=list(correlate_metrics(RunScores([_fill_ids(scores).select]), metrics)),
        notes=(*release.notes, *notes),
        warnings=(*release.warnings, *(warn_several_prompts(people) if match == "image" else ())),
    )
    case = Case(protocol, release, people, scores, match, sampling, elements, run)
    for name, (judge_task, tables) in TASKS.items():
        judged_by_people = any(len(getattr(release, table)) for table in tables)
        if name in protocol.tasks and judged_by_people:
            judge_task(case, findings)
        elif name in protocol.tasks:
            findings.notes = (*findings.notes, f"task {name}: the release has no judgements for it")
    return findings


class Case(NamedTuple):
    """Inputs of a task."""

    protocol: ProtocolConfig
    release: Release
    people: pa.Table
    """Ratings, with missing ids filled in from the scores."""
    scores: pa.Table
    """Scores; higher is better."""
    match: Match
    sampling: Sampling
    elements: Iterable[pa.Table]
    run: RunScores
    """All scores, in the metrics' own direction."""

    @property
    def skills(self) -> Mapping[str, Sequence[str]]:
        """Skills by prompt; empty if the protocol does not judge by skill."""
        return self.release.skills if self.protocol.by_skill else {}

    @property
    def marks(self) -> PassMarks:
        """Thresholds for passing an image; higher scores are better."""
        protocol = self.protocol
        configured = (protocol.passing_scores or {}).items()
        scores = {metric: direction(metric, protocol.falling) * score for metric, score in configured}
        return PassMarks(rating_marks(self.people, self.scales, protocol.passing_ratings or {}), scores)

    @property
    def scales(self) -> Mapping[str, Scale]:
        """Known scales by template; shares of words or questions are from 0 to 1."""
        templates = self.people.column("template").unique().to_pylist()
        shares = self.release.parts.column("template").unique().to_pylist()
        return dict.fromkeys(shares, SHARES) | protocol_scales(self.protocol, templates)


def _judge_ratings(case: Case, findings: Findings) -> None:
    statistics = case.protocol.statistics
    rated = ratings.match_scores(case.people, case.scores, case.match)
    findings.judgements += ratings.judge_ratings(
        rated, statistics, case.skills, case.sampling, case.marks, by_generator=case.protocol.by_generator
    )
    if case.protocol.by_generator:
        findings.judgements += ratings.judge_means(rated, statistics, case.skills, case.sampling)
    findings.judgements += people.judge_raters(case.people, case.protocol.agreement, case.release.parts)
    if ratings.VIESCORE in statistics:
        findings.judgements += people.judge_people(case.people, rated, case.skills)
    findings.judgements += people.judge_generators(case.people, case.match, case.sampling, case.scales, case.skills)
    findings.frames["mean_ratings"] = people.rate_images(case.people, case.match, case.scales)
    findings.judgements += people.judge_unsure(case.people, case.release.parts, case.sampling)
    findings.judgements += people.correlate_templates(case.people, case.match, case.sampling)
    findings.comparisons += ratings.compare_metrics(rated, statistics, case.sampling)
    scores = _fill_ids(case.scores)
    findings.corrected += correct_ratings(case.people, scores, case.run, case.match, case.protocol.falling)
    if CALIBRATION.keys() & set(statistics):
        findings.corrected += correct_shares(rated, case.marks, case.run, case.protocol.falling)
    findings.contradicted += contradicted_ratings(case.people, scores, case.match)


def _judge_preferences(case: Case, findings: Findings) -> None:
    choices = case.release.preferences
    judgements, comparisons = judge_preferences(
        choices,
        case.scores,
        match=case.match,
        unsure=case.protocol.unsure,
        equal_scores=case.protocol.equal_scores,
        sampling=case.sampling,
    )
    findings.judgements += judgements + judge_choosers(choices, case.protocol.agreement)
    findings.judgements += predict_choices(
        choices,
        case.people,
        match=case.match,
        unsure=case.protocol.unsure,
        equal_scores=case.protocol.equal_scores,
        sampling=case.sampling,
    )
    findings.comparisons += comparisons
    scores = _fill_ids(case.scores)
    findings.corrected += correct_choices(choices, scores, case.run, case.match, case.protocol.falling)
    findings.contradicted += contradicted_choices(choices, scores, case.match)


def _judge_pairings(case: Case, findings: Findings) -> None:
    findings.judgements += judge_pairings(case.release.pairings, case.scores, case.sampling)


def _judge_graphs(case: Case, findings: Findings) -> None:
    protocol = case.protocol
    findings.frames[GRAPH_CONTENTS] = count_contents(case.release.graph_nodes)
    if not len(case.scores):
        return
    scores = _negate(case.scores, protocol.falling)  # back to the metrics' own direction, which decides ranks of ties
    judgements, graphs = judge_graphs(
        case.release.graph_nodes,
        scores,
        conventions=protocol.conventions,
        unpublished=protocol.unpublished,
        sampling=case.sampling,
        falling=protocol.falling,
    )
    findings.judgements += judgements
    findings.frames["graphs"] = graphs
    images = score_nodes(case.release.graph_nodes, scores)
    findings.frames |= {"graph_images": images, "graph_means": average_nodes(images)}
    findings.frames[GRAPH_CORRELATIONS] = correlate_graphs(graphs)


def _judge_words(case: Case, findings: Findings) -> None:
    judgements, findings.frames["words"] = judge_words(
        case.release.words, case.elements, case.match, case.skills, case.sampling
    )
    findings.judgements += judgements


def _judge_orders(case: Case, findings: Findings) -> None:
    alpha, zeros, falling = case.protocol.alpha, case.protocol.zeros, case.protocol.falling
    orders, judgements = judge_orders(
        case.people, case.release.preferences, case.scores, match=case.match, alpha=alpha, zeros=zeros
    )
    findings.orders += [  # with differences in the metrics' own direction
        order._replace(difference=direction(order.judge, falling) * order.difference) for order in orders
    ]
    findings.judgements += judgements


TASKS: Mapping[Task, tuple[Callable[[Case, Findings], None], Sequence[str]]] = {
    "ratings": (_judge_ratings, ["ratings"]),
    "preferences": (_judge_preferences, ["preferences"]),
    "pairings": (_judge_pairings, ["pairings"]),
    "graphs": (_judge_graphs, ["graph_nodes"]),
    "words": (_judge_words, ["words"]),
    "orders": (_judge_orders, ["ratings", "preferences"]),
}
"""Functions by task, with the tables of a release that they need."""


def _fill_ids(scores: pa.Table) -> pa.Table:
    """Fill missing ids: an image without an id is named by prompt and generator, a prompt by its image."""
    image, prompt, generator = (pc.cast(scores.column(name), pa.string()) for name in matching.IDS)
    generator = pc.fill_null(generator, "")
    image = pc.coalesce(image, pc.binary_join_element_wise(prompt, generator, "/"))
    columns = dict(zip(matching.IDS, (image, pc.coalesce(prompt, image), generator), strict=True))
    return pa.table({**columns, **{name: scores.column(name) for name in ("metric", "score", "truncated")}})


def _negate(scores: pa.Table, falling: Collection[str]) -> pa.Table:
    """Negate the scores of metrics that prefer lower scores."""
    column = scores.column("metric")
    metrics = column.unique()
    directions = pa.array([direction(metric, falling) for metric in metrics.to_pylist()], pa.float64())
    negated = pc.multiply(scores.column("score"), directions.take(pc.index_in(column, metrics)))
    return scores.set_column(scores.schema.get_field_index("score"), "score", negated)


def _find_match(
    people: pd.DataFrame, protocol: ProtocolConfig, release: Release, scores: pa.Table, scored_by: str
) -> Match:
    """Return the ids that match scores with judgements; raise SourceError if no judged image has a score."""
    scored = matching.scored_ids(scores)
    if len(scores) and scored.empty:
        errors = scores.column("error").drop_null()
        reason = f" ({errors[0]['message'].as_py()})" if len(errors) else ""
        raise SourceError(f"{scored_by}: all {len(scores)} scores are empty{reason}; score the images again")
    match = protocol.match or matching.best_match(people, scored)
    pairings, images = matching.other_ids(release.pairings), matching.other_ids(release.graph_nodes)
    judged: list[tuple[pd.DataFrame, Match]] = [(people, match), (pairings, "image_and_prompt"), (images, "image")]
    if not len(scores) or any(matching.count_shared(ids, scored, by) for ids, by in judged):
        return match
    columns = matching.IDS if protocol.match is None else MATCH_COLUMNS[protocol.match]
    examples = matching.examples(pd.concat([ids for ids, _ in judged]), columns)
    raise SourceError(
        f"{scored_by}: no score is of a judged image; the scores have {matching.examples(scored, columns)}; "
        f"{protocol.path} has {examples}; write the same ids into both"
    )


def write_findings(findings: Findings, folder: Place) -> None:
    """Write the findings as Parquet, a file for each kind, and as Markdown and LaTeX tables.

    If findings from other inputs are replaced, a warning names them.
    """
    earlier = _read_inputs(folder)
    records: dict[str, Sequence[Mapping[str, Any]] | pd.DataFrame] = {
        "judgements": [judged._asdict() | judged.interval._asdict() for judged in findings.judgements],
        "comparisons": [compared._asdict() for compared in findings.comparisons],
        "orders": [order._asdict() for order in findings.orders],
        "corrected": [mean._asdict() for mean in findings.corrected],
        "contradicted": [image._asdict() for image in findings.contradicted],
        "correlations": [correlation._asdict() for correlation in findings.correlations],
        **findings.frames,
    }
    for name, rows in records.items():
        frame = pd.DataFrame(rows, columns=TABLES[name].names)
        table = pa.Table.from_pandas(frame, TABLES[name], preserve_index=False)
        (folder / f"{name}.parquet").write(encode_table(name, table))
    further = [*shown_means(findings.corrected), *contradictions_table(findings.corrected)]
    further += [*relations_tables(findings.orders), *findings.graph_contents]
    further += [matrix.as_table() for matrix in findings.graph_correlations]
    inputs = [f"{INPUTS}{findings.inputs}"] if findings.inputs else []
    page = to_markdown(findings.judgements, (*inputs, *findings.warnings, *findings.notes), further)
    (folder / PAGE).write(page.encode())
    (folder / "judgements.tex").write(to_latex(findings.judgements).encode())
    findings.folder = folder.url
    findings.files = (PAGE, *(f"{name}.parquet" for name, rows in records.items() if len(rows)))
    if findings.inputs and earlier not in ("", findings.inputs):
        replaced = f"{folder}: replaced the results of {earlier}; output=FOLDER keeps both"
        findings.warnings = (*findings.warnings, replaced)


def _read_inputs(folder: Place) -> str:
    """Return the description of the inputs of the results in a folder; empty without results."""
    page = folder / PAGE
    lines = page.read().decode(errors="replace").splitlines() if page.exists() else []
    return next((line.removeprefix(f"- {INPUTS}") for line in lines if line.startswith(f"- {INPUTS}")), "")
