"""Creates a study's tasks from its configuration: selects prompts and images, and applies the templates."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError, suggest
from plumbline.operators.base.sentences import format_quantity
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import list_image_records, read_image_row
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.ingest.score_input import ingest_images
from plumbline.pipelines.metaeval.releases.release import split_words
from plumbline.pipelines.metaeval.releases.sheets import read_sheet
from plumbline.pipelines.report.finished_run import OriginalSources, find_originals
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.shards import read_shard
from plumbline.pipelines.store.question_cells import read_asked_questions
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store, open_existing_store
from plumbline.plugins.rating.gold import GOLD_COLUMNS as GOLD_COLUMNS
from plumbline.plugins.rating.gold import GoldQuestion, mark_gold_tasks, parse_gold_question
from plumbline.plugins.rating.question_templates import TEMPLATES, Template
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.tasks import ImageLocation, Task, TaskQuestion, hash_task

YES_NO_CHOICES = {"yes", "no"}
SOURCE_SECTIONS = ("benchmark", "limits", "shard_rows", "shard_bytes", "adaptive")
"""Sections of a run's configuration that determine its images and prompts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """The options that determine the tasks of one version of a study."""

    templates: tuple[str, ...]
    run: str | None
    images: str | None
    generators: tuple[str, ...]
    """Generators whose images are rated; empty for all generators."""
    pictures: int | None
    questions: str | None
    gold: str | None = None
    """URL of the table of gold questions."""
    seed: int
    store: str
    sources: Mapping[str, Any]
    """Configuration of the prompts and images, as in a run's manifest; for an adaptive run, also the images it read."""

    def to_json(self) -> dict[str, Any]:
        """Return the content of the study's design file."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnImages:
    """Configuration for ingesting a user's own images in the same way as a sweep does."""

    store: str
    benchmark: BenchmarkConfig
    storage: StorageConfig
    cluster: ClusterConfig = field(default_factory=lambda: ClusterConfig(executor="here"))
    limits: ImageLimits = field(default_factory=ImageLimits)
    max_failed: float = 1.0


class UnreadableImages(ConfigError):
    """Raised if images cannot be read, for example because another process is still writing them."""


class DesignedTasks(NamedTuple):
    """The tasks created from a design."""

    tasks: Sequence[Task]
    notes: Sequence[str]
    """Descriptions of omitted images and questions."""


class SourceImage(NamedTuple):
    """An image from the study's run or folder, with its ids, its generator and its location."""

    image_id: str
    prompt_id: str
    generator: str
    place: ImageLocation


def make_design(config: RateConfig, previous: Mapping[str, Any] | None) -> Design:
    """Return the configured design. Options that are not configured are copied from the study's previous design.

    Raises ConfigError if the run or its images do not exist.
    """
    values: dict[str, Any] = {"templates": ("likert",), "generators": (), "seed": 0}
    values |= dict.fromkeys(("pictures", "questions", "gold"))
    values = {name: (previous or {}).get(name, default) for name, default in values.items()}
    values |= {name: value for name in values if (value := getattr(config, name)) is not None}
    if config.gold is not None:
        values["gold"] = config.storage.locate(config.gold).url
    if previous is not None and config.run is None and config.images is None:
        values |= {name: previous[name] for name in ("run", "images", "store", "sources")}
    else:
        values |= (
            _describe_images_source(config, config.images)
            if config.images is not None
            else _describe_run_source(config)
        )
    return Design(**(values | {name: tuple(values[name]) for name in ("templates", "generators")}))


def _describe_run_source(config: RateConfig) -> dict[str, Any]:
    store = open_existing_store(config)
    run_id = find_run(store, config.run or "latest")
    manifest = read_manifest(store, run_id)
    made_from = {name: manifest["config"][name] for name in SOURCE_SECTIONS if name in manifest.get("config", {})}
    sources = {"config": made_from, "seen": manifest.get("seen")}
    return {"run": run_id, "images": None, "store": store.place.url, "sources": sources}


def _describe_images_source(config: RateConfig, images: str) -> dict[str, Any]:
    place = config.storage.locate(images)
    benchmark = BenchmarkConfig(name=place.name, prompts=None, images=place.url, require_every_prompt=False)
    store = config.storage.locate(config.store).url
    own_images = OwnImages(store=store, benchmark=benchmark, storage=config.storage)
    with_tables, ingested = ingest_images(own_images)
    if ingested is not None and not ingested.rows:
        raise ConfigError(f"images {place}: every image was rejected; see {ingested.url}")
    sources = {"config": {"benchmark": asdict(with_tables.benchmark)}, "seen": None}
    return {"run": None, "images": place.url, "store": store, "sources": sources}


def open_originals(design: Design, storage: StorageConfig) -> OriginalSources:
    """Return the prompts and images of a design; raise UnreadableImages with the reason if they cannot be read."""
    originals, unreadable = find_originals(design.sources, Store(storage.locate(design.store)))
    if originals is None:
        raise UnreadableImages(
            f"{_describe_source(design)}: its images cannot be read ({unreadable}); restore them, or choose other "
            "images"
        )
    return originals


def _describe_source(design: Design) -> str:
    return f"images {design.images}" if design.images is not None else f"run {design.run}"


def make_tasks(design: Design, originals: OriginalSources, storage: StorageConfig) -> DesignedTasks:
    """Return the tasks of a design, prompt by prompt; raise ConfigError if no task can be made for a template."""
    images = list(_read_images(originals, design))
    prompts = {row["prompt_id"]: row for row in originals.prompts.to_pylist() if (row["text"] or "").strip()}
    by_prompt: dict[str, dict[str, list[SourceImage]]] = {}
    for image in images:
        if image.prompt_id in prompts:
            by_prompt.setdefault(image.prompt_id, {}).setdefault(image.generator, []).append(image)
    drawn = sorted(by_prompt, key=lambda prompt_id: _hash_name(design.seed, prompt_id))[: design.pictures]
    gold = [] if design.gold is None else _read_gold_questions(storage.locate(design.gold))
    ids = {name for question in gold for name in question.ids}
    gold_prompts = [image.prompt_id for image in images if ids & {image.prompt_id, image.image_id}]
    questions = _Questions({}, []) if "questions" not in design.templates else _read_questions(design, storage)
    tasks = {
        task.task_id: task
        for prompt_id in dict.fromkeys([*drawn, *(prompt for prompt in gold_prompts if prompt in by_prompt)])
        for template in map(TEMPLATES.__getitem__, design.templates)
        for task in _apply_template(
            template, prompts[prompt_id], by_prompt[prompt_id], questions.by_prompt.get(prompt_id, ())
        )
    }
    rated = set(drawn)
    chosen = [
        task for task in mark_gold_tasks([*tasks.values()], gold) if task.gold is not None or task.prompt_id in rated
    ]
    for template in design.templates:
        if not any(task.template == template for task in chosen):
            reason = _explain_missing_tasks(template, drawn)
            raise ConfigError(f"templates: {template} has no task for {_describe_source(design)}; {reason}")
    omitted = sum(image.prompt_id not in prompts for image in images)
    notes = [f"left out {format_quantity(omitted, 'image')} whose prompt has no text"] if omitted else []
    return DesignedTasks(chosen, [*notes, *questions.notes])


def _read_gold_questions(place: Place) -> list[GoldQuestion]:
    sheet = read_sheet(place).require(("template", "answer"), f"a gold question has {', '.join(GOLD_COLUMNS)}")
    return [parse_gold_question(row, sheet.where(number)) for number, row in enumerate(sheet.table.to_pylist())]


def _explain_missing_tasks(template: str, prompts: Sequence[str]) -> str:
    if not prompts:
        return "none of its images has a prompt text"
    if template == "questions":
        return "none of its prompts has yes-no questions; name another metric, as in questions=dsg"
    return "no prompt has images of two generators; score another generator, or choose another template"


def _hash_name(seed: int, name: str) -> str:
    """Return a sort key for a random order. Adding a name does not change the order of the other names."""
    return hashlib.sha256(f"{seed}\0{name}".encode()).hexdigest()


def _read_images(originals: OriginalSources, design: Design) -> Iterator[SourceImage]:
    generators = list(dict.fromkeys(generator for generator, _ in originals.shards))
    for name in design.generators:
        if name not in generators:
            raise ConfigError(f"generators: {_describe_source(design)} has no {name!r}; {suggest(name, generators)}")
    for (generator, name), shard in originals.shards.items():
        if design.generators and generator not in design.generators:
            continue
        try:
            records = list_image_records(_read_ids(shard))
        except SourceError as error:
            raise UnreadableImages(f"{_describe_source(design)}: {error}") from error
        for row, record in enumerate(records):
            ids = read_image_row(record, generator)
            if ids.prompt_id is not None and ids.image_id is not None:
                yield SourceImage(ids.image_id, ids.prompt_id, generator, ImageLocation(name, row))


def _read_ids(shard: Any) -> pa.Table:
    """Read the ids of a shard's rows, or all columns if image ids must be derived from them."""
    table = read_shard(shard, ("image_id", "prompt_id"))
    has_ids = "image_id" in table.column_names and not table.column("image_id").null_count
    return table if has_ids else read_shard(shard, IMAGE_COLUMNS)


def _apply_template(
    template: Template,
    prompt: Mapping[str, Any],
    images: Mapping[str, Sequence[SourceImage]],
    questions: Sequence[TaskQuestion],
) -> Iterator[Task]:
    if template.name == "questions" and not questions:
        return
    groups: Iterator[tuple[SourceImage, ...]]
    if template.images == 1:
        groups = ((image,) for generator_images in images.values() for image in generator_images)
    else:
        pairs = (pair for a, b in combinations(images.values(), 2) for pair in zip(a, b, strict=False))
        groups = (tuple(sorted(pair, key=lambda image: _hash_name(0, "\0".join(image[:3])))) for pair in pairs)
    for group in groups:
        yield _make_task(template.name, prompt, group, questions if template.name == "questions" else ())


def _make_task(
    template: str, prompt: Mapping[str, Any], group: Sequence[SourceImage], questions: Sequence[TaskQuestion]
) -> Task:
    image_ids, generators = (tuple(image.image_id for image in group), tuple(image.generator for image in group))
    text = str(prompt["text"])
    return Task(
        task_id=hash_task(template, prompt["prompt_id"], text, image_ids, generators, questions),
        template=template,
        prompt_id=prompt["prompt_id"],
        prompt=text,
        skills=tuple(prompt["skills"] or ()),
        image_ids=image_ids,
        generators=generators,
        words=tuple(word for word, _, _ in split_words(text)) if template == "words" else (),
        questions=tuple(questions),
        places=tuple(image.place for image in group),
    )


class _Questions(NamedTuple):
    by_prompt: Mapping[str, Sequence[TaskQuestion]]
    notes: Sequence[str]


class _StoreAddress(NamedTuple):
    store: str
    storage: StorageConfig


def _read_questions(design: Design, storage: StorageConfig) -> _Questions:
    """Read the yes-no questions of the design's metric or, by default, of the run's first metric with questions."""
    if design.run is None:
        raise ConfigError(
            "templates: questions need a metric from a run, but images= gives no run; score the images first "
            "(plumbline score images=PATH metrics=[dsg]) and set run=latest"
        )
    store = open_existing_store(_StoreAddress(design.store, storage))
    metrics = read_manifest(store, design.run)["metrics"]
    if design.questions is not None and design.questions not in metrics:
        raise ConfigError(
            f"questions={design.questions}: run {design.run} does not contain this metric; it has {', '.join(metrics)}"
        )
    for metric in metrics if design.questions is None else [design.questions]:
        questions = read_asked_questions(store, design.run, metric).to_pandas()
        used = questions["question_id"].notna() & (questions["keep"] != False)  # noqa: E712  # null was not filtered
        if used.any():
            return _select_yes_no_questions(questions[used], metric)
    raise ConfigError(
        f"templates: run {design.run} has no metric with questions; add one, such as metric=[dsg], or leave "
        "`questions` out"
    )


def _select_yes_no_questions(questions: pd.DataFrame, metric: str) -> _Questions:
    is_yes_no = questions["choices"].map(lambda choices: {str(choice).lower() for choice in choices} == YES_NO_CHOICES)
    distinct = questions[is_yes_no].drop_duplicates(["prompt_id", "question_id"])
    by_prompt = {
        str(prompt_id): [TaskQuestion(*row) for row in rows[["question_id", "text"]].itertuples(index=False)]
        for prompt_id, rows in distinct.groupby("prompt_id", sort=False)
    }
    others = int((~is_yes_no).sum())
    notes = (
        [f"left out {format_quantity(others, 'question')} of {metric} whose answers are not yes and no"]
        if others
        else []
    )
    return _Questions(by_prompt, notes)


def locate_study(config: RateConfig) -> Place:
    """Return the study's folder: STORE/studies/NAME for a bare name, otherwise the path itself.

    Without a name, the study is named after the folder of images or the run.
    """
    name = config.study
    if name is None and config.images is not None:
        name = config.storage.locate(config.images).name
    if name is None:
        name = find_run(open_existing_store(config), config.run or "latest")
    if "/" in name or name.startswith("."):
        return config.storage.locate(name)
    return config.storage.locate(config.store) / f"studies/{name}"
