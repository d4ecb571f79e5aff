"""A benchmark's making: prompts are read, tagged, drawn and written, and all that becomes of them is told."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import PlumblineError, SourceError
from plumbline.operators.base.usage import Usage
from plumbline.operators.diagnosis.diagnosis import ShownTable
from plumbline.operators.diagnosis.texts import Property, properties
from plumbline.operators.report.rendering import diagnosis_markdown
from plumbline.pipelines.base.exit_codes import exit_code
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.cells.cells import Outcome
from plumbline.pipelines.plans.costs import Cost, node_costs
from plumbline.pipelines.running.events import Watch
from plumbline.pipelines.sources.shards import text_id
from plumbline.pipelines.sweeps.computing import Inspection, compute_whole, model_usage, registered_sweep
from plumbline.pipelines.sweeps.planning import PlannedSweep, plan_sweep
from plumbline.pipelines.sweeps.questions import read_cells, read_if_complete
from plumbline.plugins.benchmark_builder.building_config import BuildConfig
from plumbline.plugins.benchmark_builder.generation import PromptGeneration, read_prompt_request, requests
from plumbline.plugins.benchmark_builder.given_prompts import GECKO, GivenPrompt, read_gecko, read_prompts
from plumbline.plugins.benchmark_builder.prompt_sets import by_skill, drawn, near_duplicates, shown_statistics
from plumbline.plugins.benchmark_builder.tagging import Tagging
from plumbline.plugins.benchmark_builder.taxonomy import Tag

Reason = Literal["near_duplicate", "not_drawn", "no_skill", "failed"]


class LeftOut(NamedTuple):
    """A prompt that is not of the benchmark, or was not written."""

    prompt: GivenPrompt
    reason: Reason
    repeats: str | None = None
    """The prompt that it is a near-duplicate of."""
    error: Mapping[str, Any] | None = None


class Parted(NamedTuple):
    """Prompts that stay, and those that do not."""

    kept: list[GivenPrompt]
    left_out: list[LeftOut]


class PlannedBuild(NamedTuple):
    """All that is known before a model is asked."""

    config: BuildConfig
    read: Parted
    writings: Mapping[str, PlannedSweep]
    """By what is written, tagging and generation, what it takes."""
    published: Sequence[GivenPrompt]
    """Gecko2K's, where the reference is there."""
    properties: Mapping[str, Property]


class WrittenTexts(NamedTuple):
    """What a model wrote of texts."""

    rows: list[dict[str, Any]]
    """Of the schema QUESTIONS."""
    usage: Usage
    cost: Cost | None
    """Where the model has prices."""


class Built(NamedTuple):
    """A benchmark that stands."""

    url: str
    prompts: int
    left_out: Mapping[Reason, int]
    failed: Sequence[str]
    """Why prompts have no tags and requests no prompts, each as a line."""
    table: ShownTable
    usage: Mapping[str, Usage]
    """By what was written, of this run's calls."""
    costs: Mapping[str, Cost]
    exit_code: int


def plan_build(config: BuildConfig) -> PlannedBuild:
    """Reads what there is, and plans what models are to write; writes the tables of it below output/.build.

    Raises ConfigError, SourceError or ModelError, whose message is one line with the remedy.
    """
    reference = config.storage.locate(f"{config.reference}/{GECKO}") if config.reference else None
    published = read_gecko(reference) if reference is not None else []
    parse = None
    if config.parser is not None:
        from plumbline.operators.diagnosis.texts import open_parser

        parse = open_parser(config.parser)
    prompts = read_prompts(config.storage.locate(config.prompts), config.prompt_columns) if config.prompts else []
    _require_skills(prompts, config)
    read = _unrepeated(prompts, config.near_duplicates)
    writings: dict[str, PlannedSweep] = {}
    if config.tagging is not None:
        tagging = Tagging(options=config.tagging, taxonomy=config.taxonomy)
        writings[tagging.kind] = _plan(config, tagging, [(prompt.prompt_id, prompt.text) for prompt in read.kept])
    if config.generation is not None:
        asked = config.generation
        templates = config.taxonomy.templates(asked.sub_skills)
        texts = [one.text() for one in requests(templates, asked.per_sub_skill, asked.controls, asked.seed)]
        generation = PromptGeneration(options=asked)
        writings[generation.kind] = _plan(config, generation, [(text_id(text), text) for text in texts])
    return PlannedBuild(config, read, writings, published, properties({}, parse))


def _require_skills(prompts: Sequence[GivenPrompt], config: BuildConfig) -> None:
    """Raises SourceError where prompts are to be drawn by skill and none has one, nor would get one."""
    if config.drawing is None or config.tagging is not None or any(prompt.skills for prompt in prompts):
        return
    raise SourceError(
        f"{config.prompts}: drawing balances skills, and none of {len(prompts)} prompts has one as "
        f"{config.prompt_columns.skills}; set prompt_columns.skills to what the file calls them, or tagging=llm to "
        "have a model tag the prompts, or drawing=null to keep all"
    )


def _plan(config: BuildConfig, metric: Tagging | PromptGeneration, texts: Sequence[tuple[str, str]]) -> PlannedSweep:
    """What it takes to have a model write about the texts, which are kept as a table of prompts."""
    place = config.storage.locate(f"{config.output}/.build/{metric.kind}.parquet")
    records = [{"prompt_id": text_id, "text": text} for text_id, text in texts]
    table = rows.table(records, schemas.PROMPTS).select(["prompt_id", "text"])
    place.write_table(table, row_group_size=config.shard_rows)
    return plan_sweep(config.writing(metric, place.url), wanted=("questions",))


def write(planned: PlannedSweep, watch: Watch) -> WrittenTexts:
    """Has the model write what is missing; raises PlumblineError where a shard could not be computed."""
    (kind,) = planned.config.metrics
    with registered_sweep(planned, watch) as (planned, watch):
        planned, outcomes, table = compute_whole(planned, watch, partial(_look, kind))
    if isinstance(table, str):
        raise PlumblineError(f"{kind}: {table}; what was written is kept, run again")
    usage = model_usage(planned.plan, outcomes)
    (node,) = (item.node.name for item in planned.plan.nodes)
    return WrittenTexts(table.to_pylist(), usage.get(node, Usage()), node_costs(planned.plan, usage).get(node))


def _look(kind: str, planned: PlannedSweep, outcomes: Mapping[str, Outcome]) -> Inspection[pa.Table | str]:
    """What was written, or why some of it is not there."""
    cells = planned.plan.prompt_cells("questions")[kind]
    table, failed, broken = read_if_complete(planned, outcomes, cells, lambda: read_cells(cells, planned, outcomes))
    return Inspection(failed if table is None else table, broken)


def build(planned: PlannedBuild, written: Mapping[str, WrittenTexts]) -> Built:
    """Writes the benchmark of what was read and written."""
    config = planned.config
    tags = written["tagging"].rows if "tagging" in written else []
    generated = written["generation"].rows if "generation" in written else []
    tagged = _tagged(planned.read.kept, tags, config)
    chosen = _drawn(tagged, tags, config)
    wrote = _written_prompts(generated)
    whole = _unrepeated([*chosen.kept, *wrote.kept], config.near_duplicates)
    left_out = [*planned.read.left_out, *chosen.left_out, *wrote.left_out, *whole.left_out]
    table = _statistics(planned, whole.kept)
    failed = [row for row in (*tags, *generated) if row["error"] is not None]
    asked = len({row["prompt_id"] for row in (*tags, *generated)})
    counts = {
        reason: sum(one.reason == reason for one in left_out) for reason in dict.fromkeys(o.reason for o in left_out)
    }
    place = config.storage.locate(config.output, writable=True)
    _write(place, config, whole.kept, left_out, tags, table)
    return Built(
        url=place.url,
        prompts=len(whole.kept),
        left_out=counts,
        failed=[f"{row['prompt_id']}: {row['error']['message']}" for row in failed],
        table=table,
        usage={kind: one.usage for kind, one in written.items() if one.usage.calls},
        costs={kind: one.cost for kind, one in written.items() if one.cost is not None},
        exit_code=exit_code(len(failed), asked, config.max_failed),
    )


def _unrepeated(prompts: Sequence[GivenPrompt], threshold: float | None) -> Parted:
    """The prompts without near-duplicates, of which the first stays."""
    if threshold is None:
        return Parted([*prompts], [])
    repeats = near_duplicates([prompt.text for prompt in prompts], threshold)
    pairs = list(zip(prompts, repeats, strict=True))
    return Parted(
        [prompt for prompt, first in pairs if first is None],
        [LeftOut(prompt, "near_duplicate", prompts[first].prompt_id) for prompt, first in pairs if first is not None],
    )


def _tags_of(row: Mapping[str, Any], config: BuildConfig) -> Tag | None:
    return config.taxonomy.find(row["kind"]) if row["kind"] is not None else None


def _tagged(
    prompts: Sequence[GivenPrompt], tags: Sequence[Mapping[str, Any]], config: BuildConfig
) -> list[GivenPrompt]:
    """The prompts with their tags among their skills, behind those that they had."""
    names: dict[str, list[str]] = {}
    for row in tags:
        tag = _tags_of(row, config)
        names.setdefault(row["prompt_id"], []).extend(tag.names if tag is not None else ())
    return [
        prompt._replace(skills=tuple(dict.fromkeys((*prompt.skills, *names.get(prompt.prompt_id, ())))))
        for prompt in prompts
    ]


def _drawn(prompts: Sequence[GivenPrompt], tags: Sequence[Mapping[str, Any]], config: BuildConfig) -> Parted:
    """Those of the prompts that are drawn; of those without any skill none is, for nothing says what they test."""
    if config.drawing is None:
        return Parted([*prompts], [])
    asked = config.drawing
    ids, skills, lengths = zip(*((one.prompt_id, one.skills, len(one.text)) for one in prompts), strict=True)
    places = frozenset(drawn(ids, skills, lengths, asked.count, asked.lengths, asked.seed))
    errors = {row["prompt_id"]: row["error"] for row in tags if row["error"] is not None}
    others = [prompt for place, prompt in enumerate(prompts) if place not in places]
    return Parted(
        [prompts[place] for place in sorted(places)],
        [
            LeftOut(prompt, "failed", error=errors[prompt.prompt_id])
            if prompt.prompt_id in errors
            else LeftOut(prompt, "not_drawn" if prompt.skills else "no_skill")
            for prompt in others
        ],
    )


def _written_prompts(generated: Sequence[Mapping[str, Any]]) -> Parted:
    """The prompts that were written, each under a hash of its text, and the requests that have none."""
    kept: dict[str, GivenPrompt] = {}
    failed: list[LeftOut] = []
    for row in generated:
        skill = row["kind"] or read_prompt_request(row["prompt"]).sub_skill
        skills = (skill.partition(":")[0], skill)
        if row["error"] is not None:
            failed.append(LeftOut(GivenPrompt(row["prompt_id"], "", skills, "written"), "failed", error=row["error"]))
        else:
            prompt = GivenPrompt(text_id(row["text"]), row["text"], skills, "written")
            first = kept.setdefault(prompt.prompt_id, prompt)
            kept[prompt.prompt_id] = first._replace(skills=tuple(dict.fromkeys((*first.skills, *skills))))
    return Parted([*kept.values()], failed)


def _statistics(planned: PlannedBuild, prompts: Sequence[GivenPrompt]) -> ShownTable:
    own, published = (
        by_skill([one.text for one in listed], [one.skills for one in listed], planned.properties)
        for listed in (prompts, planned.published)
    )
    return shown_statistics(own, {"Gecko2K": published} if planned.published else {})


def _write(
    place: Place,
    config: BuildConfig,
    prompts: Sequence[GivenPrompt],
    left_out: Sequence[LeftOut],
    tags: Sequence[Mapping[str, Any]],
    table: ShownTable,
) -> None:
    """The benchmark's tables; the manifest comes last, so it says that all is there."""
    made = [{**one._asdict(), "suite": config.name} for one in prompts]
    (place / "prompts.parquet").write_table(rows.table(made, schemas.BUILT_PROMPTS))
    others = [{**one.prompt._asdict(), **one._asdict()} for one in left_out]
    (place / "left_out.parquet").write_table(rows.table(others, schemas.LEFT_OUT))
    (place / "tags.parquet").write_table(rows.table(list(_tag_rows(tags, config)), schemas.TAGS))
    (place / "statistics.md").write(f"{diagnosis_markdown([table]).strip()}\n".encode())
    options = {name: value for name, value in asdict(config).items() if name != "storage"}
    manifest = {"config": options, "prompts": len(prompts), "left_out": len(left_out)}
    (place / "manifest.json").write((json.dumps(manifest, indent=1) + "\n").encode())


def _tag_rows(tags: Sequence[Mapping[str, Any]], config: BuildConfig) -> Iterator[dict[str, Any]]:
    for row in tags:
        tag = _tags_of(row, config)
        yield {
            **{name: row[name] for name in ("prompt_id", "start", "end", "error")},
            "skill": tag.skill if tag is not None else None,
            "sub_skill": tag.sub_skill if tag is not None else None,
            "words": row["span"],
        }
