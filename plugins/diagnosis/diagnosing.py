"""Diagnoses a sweep's metrics by running variants of them without some of their inputs."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.ablation import Ablation
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.resolution import find_vqa_profile
from plumbline.operators.report.rendering import format_tables_markdown
from plumbline.operators.results.metric_correlations import correlate_metrics
from plumbline.operators.results.prompt_properties import PromptProperty, list_properties
from plumbline.operators.stages.graph import check_chain, check_models, make_nodes
from plumbline.operators.stages.table import STAGES
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.base.markdown_sections import write_section
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.metaeval.releases.sheets import read_sheet
from plumbline.pipelines.plans.sweep_config import SweepConfig
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.sweeps.computing import CellTables, compute_and_repair, inspect_cells, register_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.plugins.diagnosis.ablations import measure_effect
from plumbline.plugins.diagnosis.diagnosis import Diagnosis, make_tables
from plumbline.plugins.diagnosis.parses import BadParse, compute_mean_yngve_depth
from plumbline.plugins.diagnosis.prompt_correlations import PromptNumbers, correlate_properties, make_prompt_numbers
from plumbline.plugins.diagnosis.questions import AnswerCounts, AnswerStatistics, QuestionCounts
from plumbline.plugins.diagnosis.word_ratings import WordRatings, compute_mean_rating, read_ratings

MAX_DESCRIBED_PARSES = 5
"""Maximum number of broken parses that are described; further broken parses are only counted."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ParseTable:
    """Constituency parses of prompts, in the Penn Treebank's bracket notation."""

    path: str
    prompt_id: str = "prompt_id"
    """Column of the prompt ids."""
    parse: str = "parse"
    """Column of the parses, with one tree per sentence."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnosisConfig:
    """Inputs to withhold from the metrics, and properties of prompts to measure."""

    ablations: tuple[Ablation, ...] = ("shuffled_images", "blank_images", "shuffled_words")
    """Inputs to withhold from every metric, one at a time."""
    vqa_models: tuple[str, ...] = ()
    """Roles of models that answer instead of each metric's own model, such as a dual encoder and a language model:
    [clip, llm].
    """
    word_ratings: Mapping[str, WordRatings] = field(default_factory=dict)
    """Word lists by property, such as {concreteness: {path: FILE, word: Word, rating: Conc.M}}."""
    parses: ParseTable | None = None
    """Constituency parses of the prompts, used to compute Yngve depth: {path: FILE}."""
    parser: str | None = None
    """An installed spaCy pipeline, such as en_core_web_sm, for measuring the depth of prompts; null omits the depth."""
    page: str | None = None
    """A Markdown page; the tables are also written into its section `diagnosis`, as in plugins/diagnosis/README.md."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DiagnoseConfig(SweepConfig):
    """Options of a sweep, and of the diagnosis of its metrics."""

    diagnosis: DiagnosisConfig = field(default_factory=DiagnosisConfig)

    def make_sweep(self) -> SweepConfig:
        return SweepConfig(**{each.name: getattr(self, each.name) for each in fields(SweepConfig)})


class MetricVariant(NamedTuple):
    """A metric, or the same metric without one of its inputs."""

    metric: str
    denied: str
    """The missing input; empty for the unchanged metric."""
    options: Metric

    @property
    def name(self) -> str:
        """Name under which the variant's cells are stored."""
        return f"{self.metric}:{self.denied}" if self.denied else self.metric


class PlannedDiagnosis(NamedTuple):
    """A planned sweep that includes the variants of its metrics."""

    sweep: PlannedSweep
    variants: list[MetricVariant]
    """All variants, starting with the unchanged metrics."""
    measured: Mapping[str, PromptNumbers]
    """Properties of the prompts, by name."""
    notes: list[str]
    """Reasons why variants or parses are left out."""


def plan_diagnosis(config: DiagnoseConfig) -> PlannedDiagnosis:
    """Plan the sweep with its variants; raise ConfigError if a word list or a parser is missing."""
    rated = {
        name: partial(
            compute_mean_rating,
            read_ratings(f"diagnosis.word_ratings.{name}", words, config.storage.locate(words.path)),
        )
        for name, words in config.diagnosis.word_ratings.items()
    }
    parser = None
    if config.diagnosis.parser is not None:
        from plumbline.operators.results.prompt_properties import open_parser  # imports spaCy

        parser = open_parser(config.diagnosis.parser, "diagnosis.parser")
    wanted = list_properties(rated, parser)
    notes: list[str] = []
    variants = [MetricVariant(name, "", metric) for name, metric in config.metrics.items()]
    variants += _find_computable_variants(config, notes)
    sweep = plan_sweep(replace(config.make_sweep(), metrics={variant.name: variant.options for variant in variants}))
    measured = _measure_prompts(sweep, wanted)
    if config.diagnosis.parses is not None:
        place = config.storage.locate(config.diagnosis.parses.path)
        measured["yngve"] = _measure_parses(config.diagnosis.parses, place, sweep, notes)
    return PlannedDiagnosis(sweep, variants, measured, notes)


def _find_computable_variants(config: DiagnoseConfig, notes: list[str]) -> Iterator[MetricVariant]:
    """Yield the variants that can be computed; append to `notes` why the other variants cannot be computed."""
    for variant in _make_variants(config):
        try:
            check_chain(variant.metric, variant.options)
            variant.options.complete_options(lambda role: find_vqa_profile(config.models[role]))
            check_models(make_nodes({variant.metric: variant.options}), config.models)
            yield variant
        except ConfigError as error:
            notes.append(f"without {variant.name}: {error}")


def _make_variants(config: DiagnoseConfig) -> Iterator[MetricVariant]:
    for name, metric in config.metrics.items():
        for ablation in config.diagnosis.ablations:
            yield MetricVariant(name, ablation, replace(metric, ablation=ablation))
        if any(STAGES[stage].calls.get("model") == "likelihood" for stage in metric.chain):
            for role in config.diagnosis.vqa_models:
                if role not in config.models:
                    raise ConfigError(
                        f"diagnosis.vqa_models: no model has the role {role!r}; roles are {', '.join(config.models)}"
                    )
                yield MetricVariant(name, f"answered by {role}", replace(metric, model=role))  # type: ignore[call-arg]


def _measure_parses(parses: ParseTable, table: Place, sweep: PlannedSweep, notes: list[str]) -> PromptNumbers:
    """Return the mean Yngve depth of each prompt that has a valid parse; append problems to `notes`.

    Raises ConfigError if no prompt has a valid parse.
    """
    sheet = read_sheet(table, [parses.prompt_id, parses.parse])
    remedy = "set diagnosis.parses.prompt_id and diagnosis.parses.parse to its columns"
    sheet.require([parses.prompt_id, parses.parse], remedy)
    ids, texts = (sweep.sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    known, depths, problems = dict(zip(ids, texts, strict=True)), dict[str, float](), list[str]()
    pairs = zip(sheet.texts(parses.prompt_id), sheet.texts(parses.parse), strict=True)
    for row, (prompt_id, parse) in enumerate(pairs):
        if prompt_id is not None and parse is not None and prompt_id in known and prompt_id not in depths:
            try:
                depths[prompt_id] = compute_mean_yngve_depth(parse, known[prompt_id] or "")
            except BadParse as error:
                problems.append(f"{sheet.where(row)}: {error}; correct the parse (it is left out)")
    if not depths:
        first = problems[0] if problems else f"{sheet.url}: none of its prompts are in the benchmark; {remedy}"
        raise ConfigError(f"diagnosis.parses: {first}")
    notes += problems[:MAX_DESCRIBED_PARSES]
    if len(depths) < len(known):
        notes.append(f"diagnosis.parses: {len(known) - len(depths)} of {len(known)} prompts have no valid parse")
    return make_prompt_numbers(hash_ids(ids), [depths.get(prompt_id, math.nan) for prompt_id in ids])


def _measure_prompts(sweep: PlannedSweep, wanted: Mapping[str, PromptProperty]) -> dict[str, PromptNumbers]:
    ids, texts = (sweep.sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    hashes = hash_ids(ids)
    return {
        name: make_prompt_numbers(hashes, [measure(text or "") for text in texts]) for name, measure in wanted.items()
    }


class DiagnosisResult(NamedTuple):
    """A diagnosis, and the metrics that could not be computed in full."""

    diagnosis: Diagnosis
    failed: Mapping[str, str]
    """Reasons why cells could not be computed, by metric or variant."""


def diagnose(planned: PlannedDiagnosis, watch: Watch) -> DiagnosisResult:
    """Compute the missing cells; return the diagnosis and the reasons why some cells could not be computed.

    Images without a score from a variant are left out of the comparison with that variant. The diagnosis counts them.
    """
    with register_sweep(planned.sweep, watch) as (sweep, watch):
        sweep, outcomes, diagnosis = compute_and_repair(
            sweep, watch, lambda now, outcomes: inspect_cells(now, outcomes, partial(_read_diagnosis, planned))
        )
    failed = {
        metric: outcomes[cell.path].message
        for metric, cells in sweep.plan.scores.items()
        for cell in cells
        if cell.path in outcomes and outcomes[cell.path].state == "failed"
    }
    return DiagnosisResult(Diagnosis() if diagnosis is None else diagnosis, failed)


def _read_diagnosis(planned: PlannedDiagnosis, cells: CellTables) -> Diagnosis:
    metrics = [variant.metric for variant in planned.variants if not variant.denied]
    zeroing = {variant.metric: getattr(variant.options, "zeroing", None) for variant in planned.variants}
    counted: dict[str, QuestionCounts] = {}
    for metric, questions in cells.plan.select_prompt_cells("questions").items():
        if metric in metrics:
            counts = QuestionCounts(metric, zeroing[metric])
            for path in cells.list_paths(questions):
                counts.add(cells.read(path))
            counted[metric] = counts
    counted = {metric: counts for metric, counts in counted.items() if counts.known}
    scores = cells.read_scores()
    measured = {
        metric: {
            **planned.measured,
            **({"questions": counted[metric].count_questions_per_prompt()} if metric in counted else {}),
        }
        for metric in metrics
    }
    return Diagnosis(
        correlations=[*correlate_metrics(scores, metrics), *correlate_properties(scores, measured)],
        questions=[counts.compute_statistics() for counts in counted.values()],
        kinds=[kind for counts in counted.values() for kind in counts.list_kinds()],
        answers=[
            _count_answers(variant, counted[variant.metric], cells)
            for variant in planned.variants
            if variant.metric in counted
        ],
        effects=[
            measure_effect(scores, variant.metric, variant.denied, variant.name)
            for variant in planned.variants
            if variant.denied
        ],
    )


def _count_answers(variant: MetricVariant, questions: QuestionCounts, cells: CellTables) -> AnswerStatistics:
    counts = AnswerCounts(variant.metric, variant.denied, questions.known)
    for path in cells.list_paths(cells.plan.scores[variant.name]):
        counts.add(cells.read(path, ["elements"]).column("elements"))
    return counts.compute_statistics()


def write_page(config: DiagnoseConfig, diagnosis: Diagnosis) -> None:
    """Write the tables into the section `diagnosis` of the configured page."""
    assert config.diagnosis.page is not None, "no page is configured"
    text = format_tables_markdown(make_tables(diagnosis), 3)
    write_section(config.storage.locate(config.diagnosis.page), "diagnosis", text)
