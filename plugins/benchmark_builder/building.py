"""Builds a benchmark: reads, tags, samples and writes prompts, and reports every prompt that is left out."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import PlumblineError, SourceError
from plumbline.operators.base.sentences import ShownTable
from plumbline.operators.base.usage import Usage
from plumbline.operators.report.rendering import format_tables_markdown
from plumbline.operators.results.prompt_properties import PromptProperty, list_properties
from plumbline.pipelines.base.exit_codes import compute_exit_code
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.plans.costs import Cost, sum_costs
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.sources.shards import hash_text
from plumbline.pipelines.store.cells import Outcome
from plumbline.pipelines.sweeps.computing import Inspection, compute_and_repair, register_sweep, sum_usage
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.questions import read_cells, read_if_complete
from plumbline.plugins.benchmark_builder.building_config import BuildConfig
from plumbline.plugins.benchmark_builder.generation import PromptGeneration, make_requests, read_prompt_request
from plumbline.plugins.benchmark_builder.input_prompts import GECKO_PROMPTS_FILE, DraftPrompt, read_gecko, read_prompts
from plumbline.plugins.benchmark_builder.prompt_sets import (
    draw_balanced_sample,
    find_near_duplicates,
    make_statistics_table,
    summarize_skills,
)
from plumbline.plugins.benchmark_builder.tagging import Tagging
from plumbline.plugins.benchmark_builder.taxonomy import Tag

OmissionReason = Literal["near_duplicate", "not_drawn", "no_skill", "failed"]


class OmittedPrompt(NamedTuple):
    """A prompt that was left out, or that could not be written."""

    prompt: DraftPrompt
    reason: OmissionReason
    repeats: str | None = None
    """The prompt_id of the earlier prompt that the omitted prompt nearly duplicates."""
    error: Mapping[str, Any] | None = None


class PromptSelection(NamedTuple):
    """Prompts that were kept, and prompts that were left out."""

    kept: list[DraftPrompt]
    left_out: list[OmittedPrompt]


class PlannedBuild(NamedTuple):
    """A planned benchmark build: its input, the sweeps that run its models, and the published prompts."""

    config: BuildConfig
    read: PromptSelection
    writer_sweeps: Mapping[str, PlannedSweep]
    """Planned sweeps of the models that write text, by kind: `tagging` and `generation`."""
    published: Sequence[DraftPrompt]
    """Gecko2K's published prompts, for comparison; empty if no reference is configured."""
    properties: Mapping[str, PromptProperty]


class WrittenTexts(NamedTuple):
    """The texts that a model wrote, with the usage and cost of its calls."""

    rows: list[dict[str, Any]]
    """Rows with the schema QUESTIONS."""
    usage: Usage
    cost: Cost | None
    """Cost of the calls, or None if the model has no prices."""


class BuiltBenchmark(NamedTuple):
    """A finished benchmark, with its failures and the usage of the models."""

    url: str
    prompts: int
    left_out: Mapping[OmissionReason, int]
    failed: Sequence[str]
    """Error messages for prompts that could not be tagged, and for requests that produced no prompt."""
    table: ShownTable
    usage: Mapping[str, Usage]
    """Usage of this run's calls, by kind of text (`tagging` or `generation`)."""
    costs: Mapping[str, Cost]
    exit_code: int


def plan_build(config: BuildConfig) -> PlannedBuild:
    """Read the prompts, write the models' input tables to output/.build, and plan the model calls.

    Raises ConfigError, SourceError or ModelError.
    """
    reference = config.storage.locate(f"{config.reference}/{GECKO_PROMPTS_FILE}") if config.reference else None
    published = read_gecko(reference) if reference is not None else []
    parse = None
    if config.parser is not None:
        from plumbline.operators.results.prompt_properties import open_parser

        parse = open_parser(config.parser)
    prompts = read_prompts(config.storage.locate(config.prompts), config.prompt_columns) if config.prompts else []
    _require_skills(prompts, config)
    read = _drop_near_duplicates(prompts, config.near_duplicates)
    writer_sweeps: dict[str, PlannedSweep] = {}
    if config.tagging is not None:
        tagging = Tagging(options=config.tagging, taxonomy=config.taxonomy)
        writer_sweeps[tagging.kind] = _plan_writer(
            config, tagging, [(prompt.prompt_id, prompt.text) for prompt in read.kept]
        )
    if config.generation is not None:
        options = config.generation
        templates = config.taxonomy.select_templates(options.sub_skills)
        requests = make_requests(templates, options.per_sub_skill, options.controls, options.seed)
        texts = [request.to_json() for request in requests]
        generation = PromptGeneration(options=options)
        writer_sweeps[generation.kind] = _plan_writer(config, generation, [(hash_text(text), text) for text in texts])
    return PlannedBuild(config, read, writer_sweeps, published, list_properties({}, parse))


def _require_skills(prompts: Sequence[DraftPrompt], config: BuildConfig) -> None:
    """Raise SourceError if prompts are drawn by skill, but have no skills and will not be tagged."""
    if config.drawing is None or config.tagging is not None or any(prompt.skills for prompt in prompts):
        return
    raise SourceError(
        f"{config.prompts}: prompts are drawn by skill, but none of the {len(prompts)} prompts has skills in the "
        f"column {config.prompt_columns.skills}; set prompt_columns.skills, or tagging=llm, or drawing=null"
    )


def _plan_writer(
    config: BuildConfig, metric: Tagging | PromptGeneration, texts: Sequence[tuple[str, str]]
) -> PlannedSweep:
    """Write the texts (id, text) as a prompt table, and plan the sweep in which the writer model reads this table."""
    place = config.storage.locate(f"{config.output}/.build/{metric.kind}.parquet")
    records = [{"prompt_id": hash_text, "text": text} for hash_text, text in texts]
    table = rows.table(records, schemas.PROMPTS).select(["prompt_id", "text"])
    place.write_table(table, row_group_size=config.shard_rows)
    return plan_sweep(config.configure_writer_sweep(metric, place.url), wanted=("questions",))


def write_texts(planned: PlannedSweep, watch: Watch) -> WrittenTexts:
    """Have the model write all missing texts, and return all texts; raise PlumblineError if a shard fails."""
    (kind,) = planned.config.metrics
    with register_sweep(planned, watch) as (planned, watch):
        planned, outcomes, table = compute_and_repair(planned, watch, partial(_read_written_texts, kind))
    if isinstance(table, str):
        raise PlumblineError(f"{kind}: {table}; finished texts are kept; run the same command again")
    usage = sum_usage(planned.plan, outcomes)
    (node,) = (item.node.name for item in planned.plan.nodes)
    return WrittenTexts(table.to_pylist(), usage.get(node, Usage()), sum_costs(planned.plan, usage).get(node))


def _read_written_texts(
    kind: str, planned: PlannedSweep, outcomes: Mapping[str, Outcome]
) -> Inspection[pa.Table | str]:
    """Return the table of written texts, or the reason why the table is incomplete."""
    cells = planned.plan.select_prompt_cells("questions")[kind]
    table, broken, failed = read_if_complete(planned, outcomes, cells, lambda: read_cells(cells, planned, outcomes))
    return Inspection(failed if table is None else table, broken)


def build_benchmark(planned: PlannedBuild, written: Mapping[str, WrittenTexts]) -> BuiltBenchmark:
    """Build the benchmark from the file's prompts and the model's prompts, write it, and return a summary of it."""
    config = planned.config
    tags = written["tagging"].rows if "tagging" in written else []
    generated = written["generation"].rows if "generation" in written else []
    tagged = _add_tags(planned.read.kept, tags, config)
    drawn = _draw_prompts(tagged, tags, config)
    generation = _read_generated_prompts(generated)
    final = _drop_near_duplicates([*drawn.kept, *generation.kept], config.near_duplicates)
    left_out = [*planned.read.left_out, *drawn.left_out, *generation.left_out, *final.left_out]
    table = _make_statistics(planned, final.kept)
    failed = [row for row in (*tags, *generated) if row["error"] is not None]
    n_requests = len({row["prompt_id"] for row in (*tags, *generated)})
    place = config.storage.locate(config.output, writable=True)
    _write_benchmark(place, config, final.kept, left_out, tags, table)
    return BuiltBenchmark(
        url=place.url,
        prompts=len(final.kept),
        left_out=Counter(omission.reason for omission in left_out),
        failed=[f"{row['prompt_id']}: {row['error']['message']}" for row in failed],
        table=table,
        usage={kind: texts.usage for kind, texts in written.items() if texts.usage.calls},
        costs={kind: texts.cost for kind, texts in written.items() if texts.cost is not None},
        exit_code=compute_exit_code(len(failed), n_requests, config.max_failed),
    )


def _drop_near_duplicates(prompts: Sequence[DraftPrompt], threshold: float | None) -> PromptSelection:
    """Keep only the first prompt of each group of near-duplicates, or all prompts if `threshold` is None."""
    if threshold is None:
        return PromptSelection([*prompts], [])
    repeats = find_near_duplicates([prompt.text for prompt in prompts], threshold)
    pairs = list(zip(prompts, repeats, strict=True))
    return PromptSelection(
        [prompt for prompt, first in pairs if first is None],
        [
            OmittedPrompt(prompt, "near_duplicate", prompts[first].prompt_id)
            for prompt, first in pairs
            if first is not None
        ],
    )


def _find_tag(row: Mapping[str, Any], config: BuildConfig) -> Tag | None:
    return config.taxonomy.find(row["kind"]) if row["kind"] is not None else None


def _add_tags(
    prompts: Sequence[DraftPrompt], tags: Sequence[Mapping[str, Any]], config: BuildConfig
) -> list[DraftPrompt]:
    names: dict[str, list[str]] = {}
    for row in tags:
        tag = _find_tag(row, config)
        names.setdefault(row["prompt_id"], []).extend(tag.names if tag is not None else ())
    return [
        prompt._replace(skills=tuple(dict.fromkeys((*prompt.skills, *names.get(prompt.prompt_id, ())))))
        for prompt in prompts
    ]


def _draw_prompts(
    prompts: Sequence[DraftPrompt], tags: Sequence[Mapping[str, Any]], config: BuildConfig
) -> PromptSelection:
    """Keep a random sample of the prompts that have skills, or all prompts if `drawing` is null."""
    if config.drawing is None:
        return PromptSelection([*prompts], [])
    options = config.drawing
    ids, skills, lengths = zip(
        *((prompt.prompt_id, prompt.skills, len(prompt.text)) for prompt in prompts), strict=True
    )
    drawn = frozenset(draw_balanced_sample(ids, skills, lengths, options.count, options.lengths, options.seed))
    errors = {row["prompt_id"]: row["error"] for row in tags if row["error"] is not None}
    return PromptSelection(
        [prompts[place] for place in sorted(drawn)],
        [
            OmittedPrompt(prompt, "failed", error=errors[prompt.prompt_id])
            if prompt.prompt_id in errors
            else OmittedPrompt(prompt, "not_drawn" if prompt.skills else "no_skill")
            for place, prompt in enumerate(prompts)
            if place not in drawn
        ],
    )


def _read_generated_prompts(generated: Sequence[Mapping[str, Any]]) -> PromptSelection:
    """Return the prompts that the model wrote, with a hash of the text as id, and the requests that failed."""
    kept: dict[str, DraftPrompt] = {}
    failed: list[OmittedPrompt] = []
    for row in generated:
        skill = row["kind"] or read_prompt_request(row["prompt"]).sub_skill
        skills = (skill.partition(":")[0], skill)
        if row["error"] is not None:
            failed.append(
                OmittedPrompt(DraftPrompt(row["prompt_id"], "", skills, "written"), "failed", error=row["error"])
            )
        else:
            prompt = DraftPrompt(hash_text(row["text"]), row["text"], skills, "written")
            first = kept.setdefault(prompt.prompt_id, prompt)
            kept[prompt.prompt_id] = first._replace(skills=tuple(dict.fromkeys((*first.skills, *skills))))
    return PromptSelection([*kept.values()], failed)


def _make_statistics(planned: PlannedBuild, prompts: Sequence[DraftPrompt]) -> ShownTable:
    own, published = (
        summarize_skills([prompt.text for prompt in group], [prompt.skills for prompt in group], planned.properties)
        for group in (prompts, planned.published)
    )
    return make_statistics_table(own, {"Gecko2K": published} if planned.published else {})


def _write_benchmark(
    place: Place,
    config: BuildConfig,
    prompts: Sequence[DraftPrompt],
    left_out: Sequence[OmittedPrompt],
    tags: Sequence[Mapping[str, Any]],
    table: ShownTable,
) -> None:
    """Write the benchmark's tables, then the manifest, whose existence marks a complete benchmark."""
    records = [{**prompt._asdict(), "suite": config.name} for prompt in prompts]
    (place / "prompts.parquet").write_table(rows.table(records, schemas.BUILT_PROMPTS))
    omissions = [{**omission.prompt._asdict(), **omission._asdict()} for omission in left_out]
    (place / "left_out.parquet").write_table(rows.table(omissions, schemas.LEFT_OUT_PROMPTS))
    (place / "tags.parquet").write_table(rows.table(list(_make_tag_rows(tags, config)), schemas.TAGS))
    (place / "statistics.md").write(f"{format_tables_markdown([table]).strip()}\n".encode())
    options = {name: value for name, value in asdict(config).items() if name != "storage"}
    manifest = {"config": options, "prompts": len(prompts), "left_out": len(left_out)}
    (place / "manifest.json").write((json.dumps(manifest, indent=1) + "\n").encode())


def _make_tag_rows(tags: Sequence[Mapping[str, Any]], config: BuildConfig) -> Iterator[dict[str, Any]]:
    for row in tags:
        tag = _find_tag(row, config)
        yield {
            **{name: row[name] for name in ("prompt_id", "start", "end", "error")},
            "skill": tag.skill if tag is not None else None,
            "sub_skill": tag.sub_skill if tag is not None else None,
            "words": row["span"],
        }
