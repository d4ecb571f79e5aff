"""Metrics in this process: images and prompts in, scores with their elements out, by the stages that sweeps run."""

import hashlib
import io
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from threading import Lock
from types import MappingProxyType
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from PIL import Image

from plumbline.operators import rows, schemas
from plumbline.operators.bounds import Checked, Positive
from plumbline.operators.errors import ConfigError, RowError, suggest
from plumbline.operators.image_decoding import ImageLimits
from plumbline.operators.image_rows import CAPTIONS, SOURCES
from plumbline.operators.kept_prompts import KEPT_PROMPTS, KeptPrompts
from plumbline.operators.metrics.ablation import shown_instead
from plumbline.operators.metrics.metric import Metric, takes_questions
from plumbline.operators.metrics.question_list import read_questions, require_asker
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.operators.stages.graph import (
    GraphNode,
    check_models,
    check_shown,
    make_nodes,
    need_captions,
    need_sources,
    require_comparison,
)
from plumbline.operators.stages.question_pack import NONE_CAME, PackIndex
from plumbline.operators.stages.questions import QuestionsStage, kept_questions
from plumbline.operators.stages.stage import Inputs, Stage, StageOptions, Upstream
from plumbline.operators.videos import Clips

Picture = Image.Image | np.ndarray | bytes | str | Path
"""An image: decoded, as uint8 of shape (height, width), (height, width, 3) or (height, width, 4), encoded, or where its
file is."""
Shown = Picture | Sequence[Picture]
"""What a prompt was made into: an image, or the frames or views of a video or a 3D model."""
IN_PNG = ("1", "L", "LA", "P", "RGB", "RGBA", "I", "I;16")
IN_TIFF = ("CMYK", "LAB", "F")
"""Modes of decoded images that these formats keep as they are; all others become RGB."""
NO_IMAGE = b"\0"
"""In the place of an image whose pixels cannot be had: it fails as other bytes do that are no image."""


class WrittenQuestions(Protocol):
    """Where questions that a model wrote outlast the process."""

    def unread(self, metric: str) -> Sequence[pa.Table]:
        """The tables (schema QUESTIONS) that were added since the last call, by whomever."""

    def add(self, metric: str, table: pa.Table) -> None:
        """Adds the questions about some prompts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerConfig(Checked):
    """Which metrics, by which models."""

    models: Mapping[str, AnyModel]
    """By role."""
    metrics: Mapping[str, AnyMetric]
    """By name."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    on_gpu: bool = False
    """Whether the models run on this machine's GPU."""
    decoders: int = 1
    """Images that are decoded at once."""
    kept_prompts: Positive = KEPT_PROMPTS
    """Prompts of each metric whose written questions are kept in memory, about 1.2 KB a question; beyond that the
    oldest go."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        check_models(make_nodes(self.metrics), self.models)


Part = Literal["decode", "model"]
"""What a stage does of a call: its preparation, which decodes images, and its work, which calls its models."""
Watch = Callable[[Part], AbstractContextManager[object]]


class LoadedNode(NamedTuple):
    """A stage with its models, ready to compute."""

    node: GraphNode
    stage: Stage
    kept: KeptPrompts
    """What its model made of prompts, where it is a stage over them."""


class AskedPrompt(NamedTuple):
    """A prompt with the questions that came with it, under an id made of both."""

    prompt_id: str
    text: str
    questions: Any = None
    """As they came; None where none did."""


class Call(NamedTuple):
    """What one call of the scorer is about."""

    prompts: Mapping[str, AskedPrompt]
    """By prompt_id."""
    prompt_rows: pa.Table
    """Schema PROMPTS."""
    image_rows: pa.Table
    tables: dict[tuple[str, str], pa.Table]
    """What was made, by metric and stage."""


class Scorer:
    """Scores images in the process that calls it, every model loaded once.

    Several threads may call it: models work for one at a time, while images are decoded for the next.
    """

    def __init__(
        self,
        config: ScorerConfig,
        watch: Watch = nullcontext,
        *,
        pack: pa.Table | None = None,
        written: WrittenQuestions | None = None,
    ) -> None:
        """Loads the models; raises ModelError where one cannot be found or does not load.

        `watch` is entered for each part of a call, as by who ends what hangs; by the thread that calls `score`. `pack`
        has a benchmark's own questions (schema QUESTIONS), for prompts that come without any. `written` keeps the
        questions that a model writes.
        """
        self.metrics: dict[str, Metric] = {
            name: metric.settled(lambda role: find_vqa_profile(config.models[role]))
            for name, metric in config.metrics.items()
        }
        nodes = make_nodes(self.metrics)
        check_shown(nodes, config.models, config.clips)
        self.nodes = [_loaded(node, config) for node in nodes]
        self.pack = PackIndex(schemas.QUESTIONS.empty_table() if pack is None else pack)
        self.written = written
        self.states = count()
        self.watch = watch
        self.computing = Lock()

    def score(
        self,
        images: Picture | Sequence[Shown | None],
        prompts: str | Sequence[str | None],
        metrics: str | Collection[str] | None = None,
        questions: Sequence[Any] | None = None,
        sources: Picture | Sequence[Shown | None] | None = None,
        captions: Sequence[tuple[str, str] | None] | None = None,
    ) -> pa.Table:
        """Scores (schema ELEMENT_SCORES) of each image for the prompt beside it: one row for each image and metric, of
        `metrics` or of all.

        One text that is in no list is the prompt of every image, one image or metric the only one. `questions` has a
        list beside every image, or None: what metrics with a benchmark's own questions score it by
        (operators/metrics/question_list.py has the forms). `sources` has beside every image the one that it was edited
        from, or a list of several; one alone is the source of all. `captions` has beside every image what its source
        shows and what the edit was to make of it, in words. The rows of a metric stand together, in the order of
        the images; `image_id` is an image's place in that order, and `prompt_id` is made of the prompt's text and
        questions. An image that cannot be scored has a null score and its error, and so has one without a prompt.
        docs/python.md has the columns. Raises ConfigError for lists of other lengths, for what is no image and no text,
        for a metric that is not there, for questions that no metric asks, and for sources or captions that are missing,
        or that no metric looks at.
        """
        wanted = self._wanted([metrics] if isinstance(metrics, str) else metrics)
        self._check_sources(wanted, given=sources is not None)
        self._check_captions(wanted, given=captions is not None)
        call = _call(images, prompts, questions, sources, captions)
        if any(prompt.questions is not None for prompt in call.prompts.values()):
            require_asker(wanted, [name for name in wanted if takes_questions(self.metrics[name])])
        for loaded in self.nodes:
            names = tuple(name for name in loaded.node.metrics if name in wanted)
            if names:
                made = self._tables_of(loaded, names, call)
                call.tables.update({(name, loaded.node.stage.name): table for name, table in made.items()})
        scores = [call.tables[name, "scores"] for name in wanted]
        return pa.concat_tables([schemas.ELEMENT_SCORES.empty_table(), *scores])

    def _check_sources(self, wanted: Sequence[str], *, given: bool) -> None:
        """Raises ConfigError where a metric needs sources and none are given, and where none needs those given."""
        comparing = need_sources({name: self.metrics[name] for name in wanted})
        if comparing and not given:
            raise ConfigError(
                f"sources: {' and '.join(comparing)} looks at what images were edited from; give the image that "
                "each was edited from"
            )
        if given:
            require_comparison(wanted, comparing)

    def _check_captions(self, wanted: Sequence[str], *, given: bool) -> None:
        """Raises ConfigError where a metric needs captions and none are given, and where none needs those given."""
        reading = " and ".join(need_captions({name: self.metrics[name] for name in wanted}))
        if reading and not given:
            raise ConfigError(
                f"captions: {reading} compares with captions of the edits; give what each source shows and what was "
                "wanted, as (source, target)"
            )
        if given and not reading:
            raise ConfigError(
                f"captions: {' and '.join(wanted)} would ignore them; leave them out, or use a metric that reads them, "
                "such as clip_direction (docs/edits.md)"
            )

    def _tables_of(self, loaded: LoadedNode, names: Sequence[str], call: Call) -> Mapping[str, pa.Table]:
        """The stage's tables, by metric; of what a model makes of prompts alone, those that it made before."""
        stage, metrics = loaded.node.stage, loaded.node.metrics
        if stage.over == "prompts" and loaded.node.roles:
            return loaded.kept.of([*call.prompts], names, partial(self._make, loaded, names, call))
        own_rows = call.image_rows if stage.over == "images" else call.prompt_rows
        shown = shown_instead(own_rows, metrics[names[0]].shown) if stage.decodes else own_rows
        return self._compute(loaded, names, shown, call.tables, call)

    def _make(
        self, loaded: LoadedNode, names: Sequence[str], call: Call, prompt_ids: Sequence[str]
    ) -> Mapping[str, pa.Table]:
        """The tables of a stage over prompts about some of the call's, by metric."""
        metrics, stage = loaded.node.metrics, loaded.node.stage
        places = [(name, other) for name in names for other in stage.reads(metrics[name])]
        read = {place: _about(call.tables[place], prompt_ids) for place in places}
        prompts, written = _about(call.prompt_rows, prompt_ids), self.written
        if written is None or stage is not QuestionsStage:
            return self._compute(loaded, names, prompts, read, call)
        known = {name: self._recall(written, loaded, name, prompt_ids) for name in names}
        earlier = {name: [_questions_table(of_metric)] for name, of_metric in known.items()}
        made = self._compute(loaded, names, prompts, read, call, earlier)
        for name, table in made.items():
            new = _about(table, [prompt_id for prompt_id in prompt_ids if prompt_id not in known[name]])
            if len(new):
                written.add(name, new)
        return made

    def _recall(
        self, written: WrittenQuestions, loaded: LoadedNode, name: str, prompt_ids: Sequence[str]
    ) -> Mapping[str, Sequence[Mapping[str, Any]]]:
        """What was written about prompts by other processes, and before this one."""
        about = kept_questions(written.unread(name))
        loaded.kept.keep({name: {_id_of(text): _renamed(asked, _id_of(text), text) for text, asked in about.items()}})
        return loaded.kept.known(name, prompt_ids)

    def _compute(
        self,
        loaded: LoadedNode,
        names: Sequence[str],
        shard_rows: pa.Table,
        tables: Mapping[tuple[str, str], pa.Table],
        call: Call,
        earlier: Mapping[str, Sequence[pa.Table]] = MappingProxyType({}),
    ) -> Mapping[str, pa.Table]:
        node, stage, state = loaded.node, loaded.stage, next(self.states)

        def upstream(name: str, table: pa.Table) -> Upstream:
            return Upstream((name,), lambda: [table], table.schema, state=state)

        inputs = Inputs(
            group="",
            rows=shard_rows if node.stage.reads_rows else pa.table({}),
            metrics=tuple(names),
            upstream={
                name: {
                    other: upstream(f"{name}/{other}", tables[name, other])
                    for other in node.stage.reads(node.metrics[name])
                }
                for name in names
            },
            prompts=upstream("prompts", call.prompt_rows),
            earlier=earlier,
        )
        if any(node.stage.reads_pack(node.metrics[name]) for name in names):
            asked = [call.prompts[prompt_id] for prompt_id in shard_rows.column("prompt_id").to_pylist()]
            inputs = inputs._replace(pack=upstream("pack", self._pack_of(asked)))
        with self.watch("decode"):
            prepared = stage.prepare(inputs)
        with nullcontext() if stage.side_by_side else self.computing, self.watch("model"):
            made = stage.compute(prepared)
        return {name: table.replace_schema_metadata(None) for name, table in made.items()}

    def _pack_of(self, asked: Sequence[AskedPrompt]) -> pa.Table:
        """The questions (schema QUESTIONS) that came with prompts, or that the pack has about them."""
        records = [
            {"prompt": prompt.text, **row, "prompt_id": prompt.prompt_id}
            for prompt in asked
            for row in self._questions_about(prompt)
        ]
        return rows.table(records, schemas.QUESTIONS)

    def _questions_about(self, prompt: AskedPrompt) -> Sequence[Mapping[str, Any]]:
        if prompt.questions is None:
            known = self.pack.id_of(prompt.prompt_id, prompt.text)
            return [{"error": rows.error_value(NONE_CAME)}] if isinstance(known, RowError) else self.pack.asked[known]
        read = read_questions(prompt.questions)
        if isinstance(read, RowError):
            return [{"error": rows.error_value(read)}]
        return [question._asdict() for question in read]

    def _wanted(self, metrics: Collection[str] | None) -> list[str]:
        """The metrics of these names, or all, in the scorer's order."""
        for name in set(metrics or ()) - self.metrics.keys():
            raise ConfigError(f"metrics: the scorer has none called {name!r}; {suggest(name, [*self.metrics])}")
        return [name for name in self.metrics if metrics is None or name in metrics]


def _loaded(node: GraphNode, config: ScorerConfig) -> LoadedNode:
    from plumbline.operators.models.loading import load  # takes torch, which a look at the configuration does not

    resolved = {key: resolve_model(config.models[role], on_gpu=config.on_gpu) for key, role in node.roles.items()}
    models = {key: load(model, node.stage.calls[key]) for key, model in resolved.items()}
    options = StageOptions(config.limits, lambda path: Path(path).read_bytes(), decoders=config.decoders)
    options = options._replace(clips=config.clips)
    for model in list(resolved.values())[:1]:
        options = options._replace(image_batch=model.config.image_batch)
    return LoadedNode(
        node, node.stage(node.metrics, models, options), KeptPrompts(node.stage.schema, config.kept_prompts)
    )


def _call(
    images: Picture | Sequence[Shown | None],
    prompts: str | Sequence[str | None],
    questions: Sequence[Any] | None,
    sources: Picture | Sequence[Shown | None] | None,
    captions: Sequence[tuple[str, str] | None] | None,
) -> Call:
    """The rows that a sweep would read from its sources."""
    shown = [_pictures(image, f"images[{place}]") for place, image in enumerate(_listed(images))]
    texts = [prompts] * len(shown) if isinstance(prompts, str) else [*map(_text, prompts, count())]
    lists = [None] * len(shown) if questions is None else questions
    if len(shown) != len(texts):
        raise ConfigError(
            f"expected one prompt beside every image, got {len(shown)} images and {len(texts)} prompts; one text that "
            "is in no list is the prompt of all"
        )
    if len(shown) != len(lists):
        raise ConfigError(
            f"questions: expected a list, or None, beside every image, got {len(shown)} images and {len(lists)} entries"
        )
    asked = [_asked(text, listed) for text, listed in zip(texts, lists, strict=True)]
    each = {prompt.prompt_id: prompt for prompt in asked}
    prompt_rows = [{"prompt_id": prompt.prompt_id, "text": prompt.text} for prompt in each.values()]
    image_rows = _image_rows(shown, [prompt.prompt_id for prompt in asked])
    if sources is not None:
        image_rows = _with_sources(image_rows, sources)
    if captions is not None:
        image_rows = _with_captions(image_rows, captions)
    return Call(each, rows.table(prompt_rows, schemas.PROMPTS), image_rows, {})


def _asked(text: str, questions: Any) -> AskedPrompt:
    of_questions = "" if questions is None else f"-{_id_of(repr(questions))}"
    return AskedPrompt(_id_of(text) + of_questions, text, questions)


def _image_rows(images: Sequence[Sequence[Picture | None]], prompt_ids: Sequence[str]) -> pa.Table:
    ids = {"image_id": [str(place) for place in range(len(images))], "prompt_id": prompt_ids}
    return pa.table({**ids, **_picture_columns(images, "image", "uri")})


def _with_sources(image_rows: pa.Table, sources: Picture | Sequence[Shown | None]) -> pa.Table:
    """The rows with the sources beside their images; raises ConfigError for another number of sources."""
    alone = isinstance(sources, Picture) and not (isinstance(sources, np.ndarray) and sources.ndim > 3)
    each = list(_listed(sources)) * len(image_rows) if alone else _listed(sources)
    if len(each) != len(image_rows):
        raise ConfigError(
            f"sources: expected one, or a list or None, beside every image, got {len(image_rows)} images and "
            f"{len(each)} sources"
        )
    shown = [_pictures(source, f"sources[{place}]") for place, source in enumerate(each)]
    for name, column in _picture_columns(shown, *SOURCES).items():
        image_rows = image_rows.append_column(name, column)
    return image_rows


def _with_captions(image_rows: pa.Table, captions: Sequence[tuple[str, str] | None]) -> pa.Table:
    """The rows with the captions of their edits; raises ConfigError for another number, or where they are not texts."""
    if len(captions) != len(image_rows):
        raise ConfigError(
            f"captions: expected two, or None, beside every image, got {len(image_rows)} images and {len(captions)} "
            "entries"
        )
    for place, both in enumerate(captions):
        texts = isinstance(both, tuple | list) and [isinstance(one, str) for one in both] == [True, True]
        if both is not None and not texts:
            raise ConfigError(f"captions[{place}]: expected two texts, (source, target), got {both!r}")
    for place, name in enumerate(CAPTIONS):
        column = pa.array([both and both[place] for both in captions], pa.string())
        image_rows = image_rows.append_column(name, column)
    return image_rows


def _picture_columns(pictures: Sequence[Sequence[Picture | None]], image: str, uri: str) -> dict[str, pa.Array]:
    """The columns of these names with what is encoded, and with the addresses of files."""
    return {
        image: pa.array([[_encoded(one) for one in shown] for shown in pictures], pa.list_(pa.large_binary())),
        uri: pa.array([[_address(one) for one in shown] for shown in pictures], pa.list_(pa.string())),
    }


def _renamed(asked: Sequence[Mapping[str, Any]], prompt_id: str, text: str) -> Sequence[Mapping[str, Any]]:
    """Rows about a prompt of this text under this id."""
    return [{**row, "prompt_id": prompt_id, "prompt": text} for row in asked]


def _questions_table(about: Mapping[str, Sequence[Mapping[str, Any]]]) -> pa.Table:
    return rows.table([row for asked in about.values() for row in asked], schemas.QUESTIONS)


def _about(table: pa.Table, prompt_ids: Sequence[str]) -> pa.Table:
    """The rows about these prompts."""
    return table.filter(pc.is_in(table.column("prompt_id"), pa.array(prompt_ids, pa.string())))


def _listed(images: Picture | Sequence[Shown | None]) -> Sequence[Shown | None]:
    """The images of a call; an array of four dimensions holds several."""
    alone = images.ndim < 4 if isinstance(images, np.ndarray) else isinstance(images, Picture)
    return [images] if alone else images  # type: ignore[list-item,return-value]


def _pictures(shown: object, where: str) -> list[Picture | None]:
    """An image, or each of several, None where one is missing; raises ConfigError for what is no image."""
    if shown is None:
        return [None]
    if isinstance(shown, list | tuple):
        return [picture for place, each in enumerate(shown) for picture in _pictures(each, f"{where}[{place}]")]
    if isinstance(shown, np.ndarray) and not _holds_colours(shown):
        found = f"an array of {shown.dtype} and shape {shown.shape}"
    elif isinstance(shown, Picture):
        return [shown]
    else:
        found = f"a value of type {type(shown).__module__}.{type(shown).__name__}"
    raise ConfigError(
        f"{where}: expected a path, encoded bytes, a PIL.Image, an array of uint8 and shape (height, width, 3), or a "
        f"list of these, got {found}; convert it, as by torchvision's to_pil_image"
    )


def _holds_colours(array: np.ndarray) -> bool:
    return array.dtype == np.uint8 and (array.ndim == 2 or (array.ndim == 3 and array.shape[2] in (3, 4)))


def _text(prompt: object, place: int) -> str:
    """A prompt; without one the text is empty, for which no image is scored. Raises ConfigError for other values."""
    if isinstance(prompt, str) or prompt is None:
        return prompt or ""
    raise ConfigError(f"prompts[{place}]: expected a text, got a value of type {type(prompt).__name__}")


def _address(image: Picture | None) -> str | None:
    return str(image) if isinstance(image, str | Path) else None


def _id_of(prompt: str) -> str:
    return hashlib.sha256(prompt.encode()).hexdigest()[:16]


def _encoded(image: Picture | None) -> bytes | None:
    """The image's bytes, but for a file, which is read where it is decoded."""
    if isinstance(image, bytes):
        return image
    if isinstance(image, np.ndarray):
        return _saved(Image.fromarray(image))
    return _saved(image) if isinstance(image, Image.Image) else None


def _saved(image: Image.Image) -> bytes:
    """The pixels without loss; where they do not decode, the bytes that they should be decoded from."""
    file = io.BytesIO()
    try:
        kept = image if image.mode in (*IN_PNG, *IN_TIFF) else image.convert("RGB")
        kept.save(file, "TIFF" if kept.mode in IN_TIFF else "PNG", compress_level=1)
    except Exception:
        return _source(image) or NO_IMAGE
    return file.getvalue()


def _source(image: Image.Image) -> bytes | None:
    """What an image that was opened and not yet read is read from."""
    stream = getattr(image, "fp", None)
    if stream is None or stream.closed:
        return None
    stream.seek(0)
    return bytes(stream.read())
