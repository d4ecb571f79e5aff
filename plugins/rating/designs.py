"""From a configuration to the tasks of a study: which images, of which prompts, asked about how."""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from itertools import combinations
from typing import Any, NamedTuple

import pandas as pd
import pyarrow as pa

from plumbline.operators.base.errors import ConfigError, SourceError, suggest
from plumbline.operators.base.sentences import plural
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.rows import identify, image_records
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.storage import Place, StorageConfig
from plumbline.pipelines.cells.question_cells import read_asked
from plumbline.pipelines.cells.runs import find_run, read_manifest
from plumbline.pipelines.cells.store import Store, open_existing_store
from plumbline.pipelines.ingest.score_input import take_in
from plumbline.pipelines.judging.releases.release import words_in
from plumbline.pipelines.judging.releases.sheets import read_sheet
from plumbline.pipelines.report.finished_run import Originals, find_originals
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.shards import read_shard
from plumbline.plugins.rating.gold import COLUMNS as GOLD_COLUMNS
from plumbline.plugins.rating.gold import Gold, read_gold, with_gold
from plumbline.plugins.rating.question_templates import TEMPLATES, Template
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.tasks import ImagePlace, Task, TaskQuestion, task_id_of

YES_NO = {"yes", "no"}
MADE_FROM = ("benchmark", "limits", "shard_rows", "shard_bytes", "adaptive")
"""What of a run's configuration tells its images and prompts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Design:
    """What decides the tasks of a version of a study."""

    templates: tuple[str, ...]
    run: str | None
    images: str | None
    generators: tuple[str, ...]
    """All of them where empty."""
    pictures: int | None
    questions: str | None
    gold: str | None = None
    """Where the table of gold questions is."""
    seed: int
    store: str
    sources: Mapping[str, Any]
    """As a run's manifest has them, the configuration of prompts and images, and what an adaptive run looked at."""

    def as_json(self) -> dict[str, Any]:
        """As the study's file has it."""
        values: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return values


@dataclass(frozen=True, kw_only=True, slots=True)
class OwnImages:
    """Images that are taken in for a study as for a sweep."""

    store: str
    benchmark: BenchmarkConfig
    storage: StorageConfig
    cluster: ClusterConfig = field(default_factory=lambda: ClusterConfig(executor="here"))
    limits: ImageLimits = field(default_factory=ImageLimits)
    max_failed: float = 1.0


class UnreadableImages(ConfigError):
    """The images of a design cannot be read, or were written anew meanwhile."""


class DesignedTasks(NamedTuple):
    """The tasks of a design."""

    tasks: Sequence[Task]
    notes: Sequence[str]
    """What is left out, in a line each."""


class SourceImage(NamedTuple):
    """An image of the sources."""

    image_id: str
    prompt_id: str
    generator: str
    place: ImagePlace


def make_design(config: RateConfig, own: Mapping[str, Any] | None) -> Design:
    """The design that a configuration asks for; what it leaves out is as in the study's `own`, if there is one.

    Raises ConfigError where there is no such run, or no images.
    """
    usual = {"templates": ("likert",), "generators": (), "pictures": None, "questions": None, "gold": None, "seed": 0}
    given = {name: getattr(config, name) for name in usual}
    if config.gold is not None:
        given["gold"] = config.storage.locate(config.gold).url
    known = usual | {name: (own or {}).get(name, value) for name, value in usual.items()}
    chosen = {name: value if value is not None else known[name] for name, value in given.items()}
    if own is not None and config.run is None and config.images is None:
        source = {name: own[name] for name in ("run", "images", "store", "sources")}
    else:
        source = _of_images(config, config.images) if config.images is not None else _of_run(config)
    lists = {name: tuple(chosen[name]) for name in ("templates", "generators")}
    return Design(**(chosen | source | lists))


def _of_run(config: RateConfig) -> dict[str, Any]:
    store = open_existing_store(config)
    run_id = find_run(store, config.run or "latest")
    manifest = read_manifest(store, run_id)
    made_from = {name: manifest["config"][name] for name in MADE_FROM if name in manifest.get("config", {})}
    sources = {"config": made_from, "seen": manifest.get("seen")}
    return {"run": run_id, "images": None, "store": store.place.url, "sources": sources}


def _of_images(config: RateConfig, images: str) -> dict[str, Any]:
    place = config.storage.locate(images)
    benchmark = BenchmarkConfig(name=place.name, prompts=None, images=place.url, require_every_prompt=False)
    store = config.storage.locate(config.store).url
    taken, ingested = take_in(OwnImages(store=store, benchmark=benchmark, storage=config.storage), lambda record: None)
    if ingested is not None and not ingested.rows:
        raise ConfigError(f"images {place}: every image was rejected; see {ingested.url}")
    sources = {"config": {"benchmark": asdict(taken.benchmark)}, "seen": None}
    return {"run": None, "images": place.url, "store": store, "sources": sources}


def open_originals(design: Design, storage: StorageConfig) -> Originals:
    """The prompts and images of a design; raises UnreadableImages with the reason where they cannot be read."""
    originals, unreadable = find_originals(design.sources, Store(storage.locate(design.store)))
    if originals is None:
        raise UnreadableImages(
            f"{_named(design)}: its images cannot be read ({unreadable}); put them back, or name others"
        )
    return originals


def _named(design: Design) -> str:
    return f"images {design.images}" if design.images is not None else f"run {design.run}"


def make_tasks(design: Design, originals: Originals, storage: StorageConfig) -> DesignedTasks:
    """The tasks of a design, prompt by prompt; raises ConfigError where there are none of a template."""
    images = list(_images(originals, design))
    texts = {row["prompt_id"]: row for row in originals.prompts.to_pylist() if (row["text"] or "").strip()}
    of_prompt: dict[str, dict[str, list[SourceImage]]] = {}
    for image in images:
        if image.prompt_id in texts:
            of_prompt.setdefault(image.prompt_id, {}).setdefault(image.generator, []).append(image)
    drawn = sorted(of_prompt, key=lambda prompt_id: _draw(design.seed, prompt_id))[: design.pictures]
    gold = [] if design.gold is None else _gold(storage.locate(design.gold))
    named = {name for one in gold for name in one.names}
    known = dict.fromkeys(image.prompt_id for image in images if named & {image.prompt_id, image.image_id})
    asked = _Questions({}, []) if "questions" not in design.templates else _questions(design, storage)
    tasks = [
        task
        for prompt_id in dict.fromkeys([*drawn, *(prompt for prompt in known if prompt in of_prompt)])
        for template in map(TEMPLATES.__getitem__, design.templates)
        for task in _tasks_of(template, texts[prompt_id], of_prompt[prompt_id], asked.of_prompt.get(prompt_id, ()))
    ]
    kept, once = set(drawn), list({task.task_id: task for task in tasks}.values())
    tasks = [task for task in with_gold(once, gold) if task.gold is not None or task.prompt_id in kept]
    for template in design.templates:
        if not any(task.template == template for task in tasks):
            raise ConfigError(f"templates: {template} has nothing to ask of {_named(design)}; {_lack(template, drawn)}")
    left_out = sum(image.prompt_id not in texts for image in images)
    notes = [f"left out {plural(left_out, 'image')} whose prompt has no text"] if left_out else []
    return DesignedTasks(tasks, [*notes, *asked.notes])


def _gold(place: Place) -> list[Gold]:
    """The gold questions of a table; raises SourceError naming a row that is none."""
    sheet = read_sheet(place).require(("template", "answer"), f"a gold question has {', '.join(GOLD_COLUMNS)}")
    return [read_gold(row, sheet.where(place)) for place, row in enumerate(sheet.table.to_pylist())]


def _lack(template: str, prompts: Sequence[str]) -> str:
    if not prompts:
        return "expected images whose prompts have a text, found none"
    if template == "questions":
        return "none of its prompts has yes-no questions; name another metric, as in questions=dsg"
    return "no prompt has images of two generators; score another generator, or ask another template"


def _draw(seed: int, name: str) -> str:
    """A place in an order that tells nothing, whichever others there are."""
    return hashlib.sha256(f"{seed}\0{name}".encode()).hexdigest()


def _images(originals: Originals, design: Design) -> Iterator[SourceImage]:
    """The images of the design's generators, in the order of the sources."""
    generators = list(dict.fromkeys(generator for generator, _ in originals.shards))
    for name in design.generators:
        if name not in generators:
            raise ConfigError(f"generators: {_named(design)} has no {name!r}; {suggest(name, generators)}")
    for (generator, name), shard in originals.shards.items():
        if design.generators and generator not in design.generators:
            continue
        try:
            records = image_records(_with_ids(shard))
        except SourceError as error:
            raise UnreadableImages(f"{_named(design)}: {error}") from error
        for row, record in enumerate(records):
            ids = identify(record, generator)
            if ids.prompt_id is not None and ids.image_id is not None:
                yield SourceImage(ids.image_id, ids.prompt_id, generator, ImagePlace(name, row))


def _with_ids(shard: Any) -> pa.Table:
    """The ids of a shard's rows, and where they have none of their own, what these are made of."""
    table = read_shard(shard, ("image_id", "prompt_id"))
    named = "image_id" in table.column_names and not table.column("image_id").null_count
    return table if named else read_shard(shard, IMAGE_COLUMNS)


def _tasks_of(
    template: Template,
    prompt: Mapping[str, Any],
    images: Mapping[str, Sequence[SourceImage]],
    questions: Sequence[TaskQuestion],
) -> Iterator[Task]:
    if template.name == "questions" and not questions:
        return
    groups: Iterator[tuple[SourceImage, ...]]
    if template.images == 1:
        groups = ((image,) for of_generator in images.values() for image in of_generator)
    else:
        pairs = (both for a, b in combinations(images.values(), 2) for both in zip(a, b, strict=False))
        groups = (tuple(sorted(both, key=lambda image: _draw(0, "\0".join(image[:3])))) for both in pairs)
    for group in groups:
        yield _task(template.name, prompt, group, questions if template.name == "questions" else ())


def _task(
    template: str, prompt: Mapping[str, Any], group: Sequence[SourceImage], questions: Sequence[TaskQuestion]
) -> Task:
    seen = ([image.image_id for image in group], [image.generator for image in group])
    text = str(prompt["text"])
    return Task(
        task_id=task_id_of(template, prompt["prompt_id"], text, *seen, questions),
        template=template,
        prompt_id=prompt["prompt_id"],
        prompt=text,
        skills=tuple(prompt["skills"] or ()),
        image_ids=tuple(seen[0]),
        generators=tuple(seen[1]),
        words=tuple(word for word, _, _ in words_in(text)) if template == "words" else (),
        questions=tuple(questions),
        places=tuple(image.place for image in group),
    )


class _Questions(NamedTuple):
    of_prompt: Mapping[str, Sequence[TaskQuestion]]
    notes: Sequence[str]


def _questions(design: Design, storage: StorageConfig) -> _Questions:
    """The yes-no questions of the metric that the design names, or of the first of the run's that has any."""
    if design.run is None:
        raise ConfigError(
            "templates: questions are those of a run's metric, and images= have none; score the images first "
            "(plumbline score images=PATH metrics=[dsg]) and name run=latest"
        )
    store = open_existing_store(_StoreOf(design.store, storage))
    metrics = read_manifest(store, design.run)["metrics"]
    if design.questions is not None and design.questions not in metrics:
        raise ConfigError(
            f"questions={design.questions}: run {design.run} has no such metric; it has {', '.join(metrics)}"
        )
    for metric in metrics if design.questions is None else [design.questions]:
        asked = read_asked(store, design.run, metric).to_pandas()
        asked = asked[asked["question_id"].notna() & (asked["keep"] != False)]  # noqa: E712  # null has no filter
        if len(asked):
            return _yes_no(asked, metric)
    raise ConfigError(
        f"templates: run {design.run} asked no questions; add a metric that does, as in metric=[dsg], or leave "
        "`questions` out"
    )


def _yes_no(asked: pd.DataFrame, metric: str) -> _Questions:
    plain = asked["choices"].map(lambda choices: {str(choice).lower() for choice in choices} == YES_NO)
    kept = asked[plain].drop_duplicates(["prompt_id", "question_id"])
    of_prompt = {
        str(prompt_id): [TaskQuestion(*one) for one in rows[["question_id", "text"]].itertuples(index=False)]
        for prompt_id, rows in kept.groupby("prompt_id", sort=False)
    }
    others = int((~plain).sum())
    notes = [f"left out {plural(others, 'question')} of {metric} whose answers are not yes and no"] if others else []
    return _Questions(of_prompt, notes)


class _StoreOf(NamedTuple):
    """A store as it is opened."""

    store: str
    storage: StorageConfig


def study_place(config: RateConfig) -> Place:
    """Where the study is: a folder by its name among the store's studies, or anywhere."""
    name = config.study
    if name is None and config.images is not None:
        name = config.storage.locate(config.images).name
    if name is None:
        name = find_run(open_existing_store(config), config.run or "latest")
    if "/" in name or name.startswith("."):
        return config.storage.locate(name)
    return config.storage.locate(config.store) / f"studies/{name}"
