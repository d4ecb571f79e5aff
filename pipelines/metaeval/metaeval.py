"""Meta-evaluation: measures how well metrics agree with people, given a release's judgements and a table of scores."""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import schemas
from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.base.sentences import ShownTable
from plumbline.operators.metaeval import contradicted_images, corrected_means, graphs, matching, people, ratings
from plumbline.operators.metaeval.calibration import CALIBRATION_CONVENTIONS, PassMarks, choose_rating_marks
from plumbline.operators.metaeval.corrected_tables import make_contradiction_tables, make_mean_tables
from plumbline.operators.metaeval.judgement import Comparison, Judgement, Order
from plumbline.operators.metaeval.orders import judge_orders, make_relations_tables
from plumbline.operators.metaeval.pairings import judge_pairings
from plumbline.operators.metaeval.paper_tables import to_latex, to_markdown
from plumbline.operators.metaeval.preferences import (
    convert_choices_to_comparisons,
    judge_choice_agreement,
    judge_preferences,
    predict_choices,
)
from plumbline.operators.metaeval.ratings import describe_ratings_of_several_prompts
from plumbline.operators.metaeval.word_ratings import judge_words
from plumbline.operators.metrics.metric import get_direction
from plumbline.operators.metrics.table import read_lower_is_better
from plumbline.operators.results.metric_correlations import Correlation, correlate_metrics
from plumbline.operators.results.run_scores import RunScores
from plumbline.operators.statistics.bootstrap import SHARES, Scale
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match, Sampling
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.protocols import MetaevalConfig, ProtocolConfig, Task
from plumbline.pipelines.metaeval.release_selection import TASK_TABLES, get_protocol_scales, open_release
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.metaeval.releases.scores import (
    SCORES_FILE,
    read_elements,
    read_lower_is_better_metrics,
    read_scores,
    select_metrics,
)
from plumbline.pipelines.store.run_scores import list_score_parts, read_run_scores
from plumbline.pipelines.store.runs import read_manifest
from plumbline.pipelines.store.store import Store, encode_table

N_RUN_RESAMPLES = 200  # bootstrap resamples for a run's report; plumbline metaeval draws more
GRAPH_CORRELATIONS_TABLE = "graph_correlations"
GRAPH_CONTENTS_TABLE = "graph_contents"
PEOPLE_CHOICES_TABLE = "people_choices"
NEGATED_NOTE = "a lower score is better, so its scores are negated"
NO_SCORES_NOTE = "no scores: only the judgements are analysed; set run=latest or scores=PATH to judge metrics by them"
PAGE_FILE = "judgements.md"
INPUTS_PREFIX = "judged: "
UNSCORED_TASKS: Collection[Task] = ("ratings", "preferences", "orders", "graphs")
"""Tasks that give results even without scores: raters' agreement, means, orders, and the contents of error graphs."""
TABLE_SCHEMAS = {
    "judgements": schemas.JUDGEMENTS,
    "comparisons": schemas.COMPARISONS,
    "orders": schemas.ORDERS,
    "corrected": schemas.CORRECTED_MEANS,
    "contradicted": schemas.CONTRADICTED_IMAGES,
    "correlations": schemas.CORRELATIONS,
    GRAPH_CONTENTS_TABLE: schemas.GRAPH_CONTENTS,
    "graphs": schemas.GRAPHS,
    "graph_images": schemas.GRAPH_IMAGES,
    "graph_means": schemas.GRAPH_MEANS,
    GRAPH_CORRELATIONS_TABLE: schemas.GRAPH_CORRELATIONS,
    "words": schemas.WORD_MATCHES,
    "mean_ratings": schemas.MEAN_RATINGS,
    PEOPLE_CHOICES_TABLE: schemas.COMPARED_PAIRS,
}


@dataclass(kw_only=True, slots=True)
class Findings:
    """Results of a meta-evaluation."""

    protocol: str
    inputs: str = ""
    """Description of the ratings and scores; empty for the findings in a run's folder."""
    folder: str = ""
    """URL of the folder with the results."""
    files: Sequence[str] = ()
    """Names of the page and of the tables that have rows."""
    judgements: list[Judgement] = field(default_factory=list)
    comparisons: list[Comparison] = field(default_factory=list)
    orders: list[Order] = field(default_factory=list)
    corrected: list[corrected_means.CorrectedMean] = field(default_factory=list)
    """Mean of each generator, estimated from people's ratings combined with the scores of each metric."""
    contradicted: list[contradicted_images.ContradictedImage] = field(default_factory=list)
    """Images that people and a metric judge most differently."""
    correlations: Sequence[Correlation] = ()
    """Correlations between every pair of metrics, by generator."""
    frames: dict[str, pd.DataFrame] = field(default_factory=dict)
    """Other tables by their names in TABLE_SCHEMAS: `words`, `mean_ratings`, people's choices between two images, and
    the tables about error graphs.
    """
    notes: Sequence[str] = ()
    """Notes on rows that were changed or left out."""
    warnings: Sequence[str] = ()
    """Likely mistakes in the inputs, which should be checked before using the results."""

    @property
    def graph_correlations(self) -> list[graphs.CorrelationMatrix]:
        """Correlations between metrics, computed over error graphs; empty if no error graphs were judged."""
        found = self.frames.get(GRAPH_CORRELATIONS_TABLE)
        return [] if found is None else graphs.make_correlation_matrices(found)

    @property
    def graph_contents(self) -> list[ShownTable]:
        """Tables that count images and prompts by source, and errors by type; empty if no error graphs were judged."""
        found = self.frames.get(GRAPH_CONTENTS_TABLE)
        return [] if found is None else graphs.make_contents_tables(found)


def run_metaeval(config: MetaevalConfig) -> Findings:
    """Read judgements and scores, judge the metrics, and write the findings.

    Without scores, only the ratings, choices and error graphs are analysed. Raises SourceError if no judged image has a
    score, and ConfigError if there is nothing to analyse.
    """
    release = open_release(config.protocol, config.storage)
    protocol, table = config.protocol, config.locate_scores()
    if table is not None:
        scores = read_scores(table, config.metrics)
        protocol = replace(protocol, falling=(*protocol.falling, *read_lower_is_better_metrics(table)))
    elif len(release.scores):
        scores = select_metrics(release.scores, config.metrics)
    else:
        tasks = [name for name in UNSCORED_TASKS if any(len(getattr(release, table)) for table in TASK_TABLES[name])]
        if config.metrics or not tasks:
            raise ConfigError(
                f"protocol {protocol.name}: the release has no scores; set run=latest, or scores=PATH to a table"
            )
        protocol, scores = replace(protocol, tasks=tuple(tasks)), schemas.SCORES.empty_table()
        release = replace(release, notes=(*release.notes, NO_SCORES_NOTE))
    rated = config.storage.locate(protocol.path)
    scored_by = table or rated
    elements = read_elements(scored_by, config.metrics) if "words" in protocol.tasks else ()
    findings = judge_release(protocol, release, scores, config.sampling, scored_by.url, elements)
    findings.inputs = f"ratings {rated}" + (f", scores {table}" if table else "")
    output = config.output
    if not output:
        files = [rated, *([] if table is None else [table.parent if table.name == SCORES_FILE else table])]
        stems = [PurePosixPath(file.path).stem for file in files]
        name = "-".join(stem for stem in stems if stem != protocol.name)
        folder = f"{config.store.rstrip('/')}/metaeval/{protocol.name}"
        output = f"{folder}/{name}" if name else folder
    write_findings(findings, config.storage.locate(output, writable=True))
    return findings


def judge_run(store: Store, run_id: str, protocol: ProtocolConfig) -> Findings:
    """Judge a run and write the findings to its folder, replacing earlier findings.

    Raises SourceError if the judgements cannot be read or are about other images; the run itself remains complete.
    """
    run = store.place / f"runs/{run_id}"
    release = open_release(protocol, store.place.storage)
    protocol = replace(protocol, falling=(*protocol.falling, *read_lower_is_better(read_manifest(store, run_id))))
    judgements = (release.ratings, release.preferences, release.pairings, release.graph_nodes, release.words)
    images, prompts = list[pa.Array](), list[pa.Array]()
    for table in judgements:
        for name in {"image_id", "image_a", "image_b", "prompt_id"} & {*table.column_names}:
            (prompts if name == "prompt_id" else images).extend(table.column(name).chunks)
    image_ids, prompt_ids = (pa.chunked_array(chunks, pa.string()) for chunks in (images, prompts))
    judged: list[pa.Table] = []
    others: list[pa.Table] = []
    for part in map(store.read_table, list_score_parts(store, run_id)):
        is_judged = pc.or_(pc.is_in(part.column("image_id"), image_ids), pc.is_in(part.column("prompt_id"), prompt_ids))
        judged.append(part.filter(is_judged))
        others = others or [part]  # for the error message if no judged image has a score
    scores = pa.concat_tables(judged if any(map(len, judged)) else others)
    elements = read_elements(run) if "words" in protocol.tasks else ()
    all_scores = read_run_scores(store, run_id)
    findings = judge_release(
        protocol, release, scores, Sampling(resamples=N_RUN_RESAMPLES), run.url, elements, all_scores
    )
    write_findings(findings, run / "metaeval")
    return findings


def judge_release(
    protocol: ProtocolConfig,
    release: Release,
    scores: pa.Table,
    sampling: Sampling,
    scored_by: str = "scores",
    elements: Iterable[pa.Table] = (),
    run: RunScores | None = None,
) -> Findings:
    """Compare scores with human judgements, using the tasks of a protocol.

    Args:
        protocol: The protocol. Scores of its `falling` metrics are negated, so that every statistic measures agreement.
        release: Human judgements.
        scores: Scores of judged images (schema SCORES).
        sampling: Number and seed of random draws for intervals and tests.
        scored_by: Name of the scores in messages.
        elements: Scores of individual questions (from read_elements), for the task `words`.
        run: The scores of all images, if `scores` is limited to judged images.

    Raises:
        SourceError: No judged image has a score.
    """
    run = RunScores([_fill_ids(scores).select]) if run is None else run
    scores = _negate_falling_scores(scores, protocol.falling)
    judged_ids = [matching.list_rated_ids(release.ratings), matching.list_paired_ids(release.preferences)]
    judged = pd.concat([*judged_ids, matching.list_distinct_ids(release.words)], ignore_index=True)
    match = _choose_match(judged, protocol, release, scores, scored_by)
    people = release.ratings
    if match == "image":
        ids = scores.select(matching.ID_COLUMNS).to_pandas()
        people = matching.complete_ids(people, ids)
        choices = matching.complete_ids(matching.complete_ids(release.preferences, ids, "a"), ids, "b")
        release = replace(release, preferences=choices, parts=matching.complete_ids(release.parts, ids))
    matched = len(judged) and len(scores)
    notes = [f"scores and judgements are matched by {' and '.join(MATCH_COLUMNS[match])}"] if matched else []
    metrics = scores.column("metric").unique().to_pylist()
    notes += [f"{metric}: {NEGATED_NOTE}" for metric in metrics if metric in protocol.falling]
    findings = Findings(
        protocol=protocol.name,
        correlations=list(correlate_metrics(RunScores([_fill_ids(scores).select]), metrics)),
        notes=(*release.notes, *notes),
        warnings=(*release.warnings, *(describe_ratings_of_several_prompts(people) if match == "image" else ())),
    )
    case = TaskInputs(protocol, release, people, scores, match, sampling, elements, run)
    for name, judge_task in TASK_JUDGES.items():
        judged_by_people = any(len(getattr(release, table)) for table in TASK_TABLES[name])
        if name in protocol.tasks and judged_by_people:
            judge_task(case, findings)
        elif name in protocol.tasks:
            findings.notes = (*findings.notes, f"task {name}: the release has no judgements for it")
    return findings


class TaskInputs(NamedTuple):
    """Everything that a task needs: judgements, scores and options."""

    protocol: ProtocolConfig
    release: Release
    people: pa.Table  # ratings, with missing ids filled in from the scores
    scores: pa.Table  # higher is better
    match: Match
    sampling: Sampling
    elements: Iterable[pa.Table]
    run: RunScores  # all scores, not negated

    @property
    def skills(self) -> Mapping[str, Sequence[str]]:
        """Skills by prompt; empty if the protocol does not produce results by skill."""
        return self.release.skills if self.protocol.by_skill else {}

    @property
    def pass_marks(self) -> PassMarks:
        """Minimum ratings and scores at which an image passes; scores are negated if lower is better."""
        protocol = self.protocol
        configured = (protocol.passing_scores or {}).items()
        scores = {metric: get_direction(metric, protocol.falling) * score for metric, score in configured}
        return PassMarks(choose_rating_marks(self.people, self.scales, protocol.passing_ratings or {}), scores)

    @property
    def scales(self) -> Mapping[str, Scale]:
        """Known scales by template; fractions of words or questions are on a scale from 0 to 1."""
        templates = self.people.column("template").unique().to_pylist()
        shares = self.release.parts.column("template").unique().to_pylist()
        return dict.fromkeys(shares, SHARES) | get_protocol_scales(self.protocol, templates)


def _judge_ratings(case: TaskInputs, findings: Findings) -> None:
    statistics = case.protocol.statistics
    rated = ratings.match_scores(case.people, case.scores, case.match)
    findings.judgements += ratings.judge_ratings(
        rated, statistics, case.skills, case.sampling, case.pass_marks, by_generator=case.protocol.by_generator
    )
    if case.protocol.by_generator:
        findings.judgements += ratings.judge_means(rated, statistics, case.skills, case.sampling)
    findings.judgements += people.judge_raters(case.people, case.protocol.agreement, case.release.parts)
    if ratings.VIESCORE_STATISTIC in statistics:
        findings.judgements += people.judge_people(case.people, rated, case.skills)
    findings.judgements += people.judge_generators(case.people, case.match, case.sampling, case.scales, case.skills)
    findings.frames["mean_ratings"] = people.rate_images(case.people, case.match, case.scales)
    findings.judgements += people.judge_unsure_share(case.people, case.release.parts, case.sampling)
    findings.judgements += people.correlate_templates(case.people, case.match, case.sampling)
    findings.comparisons += ratings.compare_metrics(rated, statistics, case.sampling)
    scores = _fill_ids(case.scores)
    findings.corrected += corrected_means.correct_ratings(
        case.people, scores, case.run, case.match, case.protocol.falling
    )
    if CALIBRATION_CONVENTIONS.keys() & set(statistics):
        findings.corrected += corrected_means.correct_shares(rated, case.pass_marks, case.run, case.protocol.falling)
    findings.contradicted += contradicted_images.find_contradicted_ratings(case.people, scores, case.match)


def _judge_preferences(case: TaskInputs, findings: Findings) -> None:
    choices, protocol = case.release.preferences, case.protocol
    match, unsure, equal_scores = case.match, protocol.unsure, protocol.equal_scores
    judgements, comparisons = judge_preferences(
        choices, case.scores, match=match, unsure=unsure, equal_scores=equal_scores, sampling=case.sampling
    )
    findings.judgements += judgements + judge_choice_agreement(choices, protocol.agreement)
    findings.judgements += predict_choices(
        choices, case.people, match=match, unsure=unsure, equal_scores=equal_scores, sampling=case.sampling
    )
    findings.comparisons += comparisons
    scores = _fill_ids(case.scores)
    findings.frames[PEOPLE_CHOICES_TABLE] = convert_choices_to_comparisons(choices, scores, case.match)
    findings.corrected += corrected_means.correct_choices(choices, scores, case.run, case.match, case.protocol.falling)
    findings.contradicted += contradicted_images.find_contradicted_choices(choices, scores, case.match)


def _judge_pairings(case: TaskInputs, findings: Findings) -> None:
    findings.judgements += judge_pairings(case.release.pairings, case.scores, case.sampling)


def _judge_graphs(case: TaskInputs, findings: Findings) -> None:
    protocol = case.protocol
    findings.frames[GRAPH_CONTENTS_TABLE] = graphs.count_contents(case.release.graph_nodes)
    if not len(case.scores):
        return
    scores = _negate_falling_scores(
        case.scores, protocol.falling
    )  # undo the negation, because it affects the ranks of ties
    judgements, measured = graphs.judge_graphs(
        case.release.graph_nodes,
        scores,
        conventions=protocol.conventions,
        unpublished=protocol.unpublished,
        sampling=case.sampling,
        lower_is_better=protocol.falling,
    )
    findings.judgements += judgements
    findings.frames["graphs"] = measured
    images = graphs.score_nodes(case.release.graph_nodes, scores)
    findings.frames |= {"graph_images": images, "graph_means": graphs.average_nodes(images)}
    findings.frames[GRAPH_CORRELATIONS_TABLE] = graphs.correlate_graphs(measured)


def _judge_words(case: TaskInputs, findings: Findings) -> None:
    judgements, findings.frames["words"] = judge_words(
        case.release.words, case.elements, case.match, case.skills, case.sampling
    )
    findings.judgements += judgements


def _judge_orders(case: TaskInputs, findings: Findings) -> None:
    alpha, zeros, falling = case.protocol.alpha, case.protocol.zeros, case.protocol.falling
    orders, judgements = judge_orders(
        case.people, case.release.preferences, case.scores, match=case.match, alpha=alpha, zeros=zeros
    )
    findings.orders += [  # with differences that are not negated
        order._replace(difference=get_direction(order.judge, falling) * order.difference) for order in orders
    ]
    findings.judgements += judgements


TASK_JUDGES: Mapping[Task, Callable[[TaskInputs, Findings], None]] = {
    "ratings": _judge_ratings,
    "preferences": _judge_preferences,
    "pairings": _judge_pairings,
    "graphs": _judge_graphs,
    "words": _judge_words,
    "orders": _judge_orders,
}


def _fill_ids(scores: pa.Table) -> pa.Table:
    """Fill in missing ids: an image is named after its prompt and generator, and a prompt after its image."""
    image, prompt, generator = (pc.cast(scores.column(name), pa.string()) for name in matching.ID_COLUMNS)
    generator = pc.fill_null(generator, "")
    image = pc.coalesce(image, pc.binary_join_element_wise(prompt, generator, "/"))
    columns = dict(zip(matching.ID_COLUMNS, (image, pc.coalesce(prompt, image), generator), strict=True))
    return pa.table({**columns, **{name: scores.column(name) for name in ("metric", "score", "truncated")}})


def _negate_falling_scores(scores: pa.Table, falling: Collection[str]) -> pa.Table:
    column = scores.column("metric")
    metrics = column.unique()
    directions = pa.array([get_direction(metric, falling) for metric in metrics.to_pylist()], pa.float64())
    negated = pc.multiply(scores.column("score"), directions.take(pc.index_in(column, metrics)))
    return scores.set_column(scores.schema.get_field_index("score"), "score", negated)


def _choose_match(
    people: pd.DataFrame, protocol: ProtocolConfig, release: Release, scores: pa.Table, scored_by: str
) -> Match:
    scored = matching.list_scored_ids(scores)
    if len(scores) and scored.empty:
        errors = scores.column("error").drop_null()
        reason = f" ({errors[0]['message'].as_py()})" if len(errors) else ""
        raise SourceError(f"{scored_by}: all {len(scores)} scores are empty{reason}; score the images again")
    match = protocol.match or matching.choose_match(people, scored)
    pairings, images = matching.list_distinct_ids(release.pairings), matching.list_distinct_ids(release.graph_nodes)
    judged: list[tuple[pd.DataFrame, Match]] = [(people, match), (pairings, "image_and_prompt"), (images, "image")]
    if not len(scores) or any(matching.count_shared_images(ids, scored, by) for ids, by in judged):
        return match
    columns = matching.ID_COLUMNS if protocol.match is None else MATCH_COLUMNS[protocol.match]
    examples = matching.format_examples(pd.concat([ids for ids, _ in judged]), columns)
    raise SourceError(
        f"{scored_by}: no judged image has a score; the scores have {matching.format_examples(scored, columns)}; "
        f"{protocol.path} has {examples}; use the same ids in both"
    )


def write_findings(findings: Findings, folder: Place) -> None:
    """Write the findings as Parquet (one file for each kind), and as Markdown and LaTeX tables.

    Add a warning if this replaces findings from other inputs.
    """
    page = folder / PAGE_FILE
    lines = page.read().decode(errors="replace").splitlines() if page.exists() else []
    earlier = next(
        (line.removeprefix(f"- {INPUTS_PREFIX}") for line in lines if line.startswith(f"- {INPUTS_PREFIX}")),
        "",
    )
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
        frame = pd.DataFrame(rows, columns=TABLE_SCHEMAS[name].names)
        table = pa.Table.from_pandas(frame, TABLE_SCHEMAS[name], preserve_index=False)
        (folder / f"{name}.parquet").write(encode_table(name, table))
    further = [*make_mean_tables(findings.corrected), *make_contradiction_tables(findings.corrected)]
    further += [*make_relations_tables(findings.orders), *findings.graph_contents]
    further += [matrix.make_table() for matrix in findings.graph_correlations]
    inputs = [f"{INPUTS_PREFIX}{findings.inputs}"] if findings.inputs else []
    text = to_markdown(findings.judgements, (*inputs, *findings.warnings, *findings.notes), further)
    page.write(text.encode())
    (folder / "judgements.tex").write(to_latex(findings.judgements).encode())
    findings.folder = folder.url
    findings.files = (PAGE_FILE, *(f"{name}.parquet" for name, rows in records.items() if len(rows)))
    if findings.inputs and earlier not in ("", findings.inputs):
        replaced = f"{folder}: replaced the results of {earlier}; output=FOLDER keeps both"
        findings.warnings = (*findings.warnings, replaced)
