"""Scores images and prompts in this process, with the same stages as sweeps."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from threading import Lock
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.bounds import BoundsChecked, Positive
from plumbline.operators.base.errors import ConfigError, RowError, suggest
from plumbline.operators.base.rows import list_values
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.ablation import replace_images
from plumbline.operators.metrics.metric import Metric, takes_questions
from plumbline.operators.metrics.questions.question_list import read_questions, require_question_metric
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families import FAMILIES
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.resolution import find_vqa_profile, resolve_model
from plumbline.operators.scoring.prompt_cache import DEFAULT_KEPT_PROMPTS, PromptCache
from plumbline.operators.scoring.scorer_input import (
    AnyImage,
    AskedPrompt,
    ImageOrFrames,
    ScorerCall,
    convert_arguments,
    hash_prompt,
    list_groups,
    list_pairs,
    make_pair_rows,
    read_file,
)
from plumbline.operators.stages.graph import (
    GraphNode,
    check_image_inputs,
    check_models,
    list_caption_columns,
    list_source_metrics,
    make_nodes,
    require_source_metric,
)
from plumbline.operators.stages.question_pack import NO_QUESTIONS_SENT_ERROR, PackIndex
from plumbline.operators.stages.questions import QuestionsStage, select_reusable_questions
from plumbline.operators.stages.stage import Inputs, RowStage, Stage, StageOptions, UpstreamTables

if TYPE_CHECKING:
    import pandas as pd  # scorers of services do not import it

MAX_GROUP = 32
"""Default of `max_group`; every two of 32 images in both orders are 992 comparisons."""
WINDOW_PAIRS = 64
"""Number of pairs of images that are decoded and compared together."""


class WrittenQuestionStore(Protocol):
    """Storage for questions that a model wrote. The storage outlives the process."""

    def read_new_tables(self, metric: str) -> Sequence[pa.Table]:
        """Return the tables (schema QUESTIONS) that this or any other process has added since the last call."""

    def add(self, metric: str, table: pa.Table) -> None:
        """Store a table (schema QUESTIONS) with the questions of the metric about some prompts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ScorerConfig(BoundsChecked):
    """Configuration of a scorer: the metrics, the models that they use, and resources."""

    models: Mapping[str, AnyModel]
    """Models by role."""
    metrics: Mapping[str, AnyMetric]
    """Metrics by name."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    on_gpu: bool = False
    """True if the models run on this machine's GPU."""
    decoders: int = 1
    """Number of images that are decoded at once."""
    kept_prompts: Positive = DEFAULT_KEPT_PROMPTS
    """Number of prompts per metric whose written questions are kept in memory (about 1.2 KB per question). The oldest
    are dropped first.
    """
    max_group: Positive = MAX_GROUP
    """Maximum number of images of a prompt that a judge of pairs compares with each other: n images take n (n - 1)
    comparisons.
    """

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        check_models(make_nodes(self.metrics), self.models)
        for name, metric in self.metrics.items():
            if metric.pair_selection is not None and metric.pair_selection.pairs != "all":
                raise ConfigError(
                    f"metrics.{name}.pairs: expected all, found {metric.pair_selection.pairs}, which selects "
                    "generators; a scorer compares all images of a prompt; leave it out, or use plumbline sweep"
                )


Phase = Literal["decode", "model"]
"""Part of a stage's work: preparation, which includes the decoding of images, or model calls."""
Watch = Callable[[Phase], AbstractContextManager[object]]


class LoadedNode(NamedTuple):
    node: GraphNode
    stage: Stage
    cache: PromptCache
    """Cache of the stage's rows about prompts; only for stages that process prompts."""


class Scorer:
    """Scores images in the calling process. Every model is loaded once.

    Several threads may call it. A model serves one thread at a time; meanwhile, the next thread's images are
    decoded.
    """

    def __init__(
        self,
        config: ScorerConfig,
        watch: Watch = nullcontext,
        *,
        pack: pa.Table | None = None,
        written: WrittenQuestionStore | None = None,
    ) -> None:
        """Load the models; raise ModelError if a model is missing or does not load.

        Args:
            config: Metrics and models.
            watch: Function that returns a context manager, which is entered for each phase of each stage in the
                thread that calls `score`, and which can end hung calls.
            pack: The benchmark's own questions (schema QUESTIONS), for prompts that come without questions.
            written: Storage for the questions that a model writes.
        """
        self.metrics: dict[str, Metric] = {
            name: metric.complete_options(lambda role: find_vqa_profile(config.models[role]))
            for name, metric in config.metrics.items()
        }
        nodes = make_nodes(self.metrics)
        check_image_inputs(nodes, config.models, config.clips)
        self.nodes = [_load_node(node, config) for node in nodes]
        self.pack = PackIndex(schemas.QUESTIONS.empty_table() if pack is None else pack)
        self.written = written
        self.max_group = config.max_group
        self.states = count()
        self.watch = watch
        self.computing = Lock()

    def score(
        self,
        images: AnyImage | Iterable[ImageOrFrames | None],
        prompts: str | Iterable[str | None],
        metrics: str | Iterable[str] | None = None,
        questions: Iterable[Any] | None = None,
        sources: AnyImage | Iterable[ImageOrFrames | None] | None = None,
        captions: Iterable[tuple[str, str] | None] | None = None,
    ) -> "pd.DataFrame":
        """Return the scores of each image for its prompt: one row per image and metric.

        Any list, array, pandas Series or iterator is read in order. A single string is the prompt of every image; a
        single image or metric counts as a list of one. Without `metrics`, all metrics are scored.

        `questions` contains a list or None for each image: metrics that use a benchmark's own questions score the image
        with this list (see operators/metrics/questions/question_list.py for its forms). `sources` contains, for each
        image, the image that it was edited from, or a list of several; a single source is used for all images.
        `captions` contains a pair of texts for each image: a description of the source, and one of the intended result.

        A judge of pairs (`pairwise`) compares every two images that have the same prompt, in both orders. An image's
        score is its mean share of comparisons won.

        The rows of a metric are adjacent, in the order of the images; `image_id` is an image's position in that order,
        and `prompt_id` is derived from the prompt's text and questions. An image gets a null score and an error if it
        cannot be scored, or if its prompt is missing or cannot be used. docs/python.md describes the columns.

        Raises ConfigError for lists of different lengths, for a value that is not an image, for an unknown metric, for
        questions that no metric asks, for sources or captions that are missing or that no metric uses, and for more
        images of a prompt than a judge of pairs may compare (`max_group`).
        """
        import pandas as pd

        given = prompts if isinstance(prompts, str) else list_values(prompts, "prompts")
        scored = self.score_table(images, given, metrics, questions, sources, captions).to_pandas()
        texts = [given if isinstance(given, str) else given[int(image_id)] for image_id in scored["image_id"]]
        # as objects, because pandas' strings cannot contain a lone surrogate
        scored.insert(1, "prompt", pd.Series(texts, dtype=object))
        return scored

    def score_table(
        self,
        images: AnyImage | Iterable[ImageOrFrames | None],
        prompts: str | Iterable[str | None],
        metrics: str | Iterable[str] | None = None,
        questions: Iterable[Any] | None = None,
        sources: AnyImage | Iterable[ImageOrFrames | None] | None = None,
        captions: Iterable[tuple[str, str] | None] | None = None,
        groups: Iterable[Hashable] | None = None,
    ) -> pa.Table:
        """Return the scores as `score` does, as an Arrow table (schema ELEMENT_SCORES).

        `groups` has a key for each image; judges of pairs compare images with equal keys. By default, these are the
        images with the same prompt or, for edits, with the same prompt and sources.
        """
        names = [metrics] if isinstance(metrics, str) else metrics
        wanted = None if names is None else list_values(names, "metrics")
        for name in wanted or ():
            if not isinstance(name, str) or name not in self.metrics:
                raise ConfigError(f"metrics: the scorer has no metric {name!r}; {suggest(name, [*self.metrics])}")
        asked = {name: metric for name, metric in self.metrics.items() if wanted is None or name in wanted}
        _check_sources_and_captions(asked, sources=sources is not None, captions=captions is not None)
        call = convert_arguments(images, prompts, questions, sources, captions)
        comparing = [name for name, metric in asked.items() if compares_images(metric)]
        if comparing:
            call = call._replace(pairs=self._list_pairs(comparing, call, groups))
        if any(prompt.questions is not None for prompt in call.prompts.values()):
            require_question_metric(asked, [name for name, metric in asked.items() if takes_questions(metric)])
        for loaded in self.nodes:
            names = tuple(name for name in loaded.node.metrics if name in asked)
            if names:
                made = self._run_node(loaded, names, call)
                call.tables.update({(name, loaded.node.stage.name): table for name, table in made.items()})
        scores = [call.tables[name, "scores"] for name in asked]
        return call.explain_unusable_prompts(pa.concat_tables([schemas.ELEMENT_SCORES.empty_table(), *scores]))

    def _run_node(self, loaded: LoadedNode, names: Sequence[str], call: ScorerCall) -> Mapping[str, pa.Table]:
        """Run one stage on the images and prompts of a call; return its tables by metric.

        Rows about prompts that were seen in earlier calls come from the cache.
        """
        stage, metrics = loaded.node.stage, loaded.node.metrics
        if stage.row_kind == "prompts" and loaded.node.roles:
            return loaded.cache.make_tables([*call.prompts], names, partial(self._run_on_prompts, loaded, names, call))
        if stage.row_kind == "pairs":
            return self._compare(loaded, names, call)
        shard_rows = call.image_rows if stage.row_kind == "images" else call.prompt_rows
        if stage.looks_at_images():
            shard_rows = replace_images(shard_rows, metrics[names[0]].image_ablation)
        return self._compute_tables(loaded, names, shard_rows, call.tables, call)

    def _list_pairs(
        self, comparing: Sequence[str], call: ScorerCall, groups: Iterable[Hashable] | None
    ) -> list[tuple[int, int]]:
        """Return the pairs of images to compare by the metrics `comparing`; raise ConfigError for a large group."""
        by_sources = any(self.metrics[name].needs_sources for name in comparing)
        keys = call.list_group_keys(by_sources=by_sources) if groups is None else list_values(groups, "groups")
        if len(keys) != len(call.image_rows) or not all(isinstance(key, Hashable) for key in keys):
            raise ConfigError(
                f"groups: expected a text or number for each of {len(call.image_rows)} images, got {len(keys)} values: "
                f"{str(keys)[:100]}; correct the list"
            )
        listed = list_groups(keys, call)
        largest = max(map(len, listed), default=0)
        if largest > self.max_group:
            raise ConfigError(
                f"images: expected at most {self.max_group} images of a prompt for {' and '.join(comparing)}, found "
                f"{largest}, which take {largest * (largest - 1)} comparisons; pass fewer, or raise max_group"
            )
        return list_pairs(listed)

    def _compare(self, loaded: LoadedNode, names: Sequence[str], call: ScorerCall) -> Mapping[str, pa.Table]:
        """Run a stage over pairs on the pairs of a call, some pairs at a time; return its tables by metric."""
        starts = range(0, len(call.pairs), WINDOW_PAIRS)
        windows = [
            self._compute_tables(
                loaded, names, make_pair_rows(call.image_rows, call.pairs[start : start + WINDOW_PAIRS]), {}, call
            )
            for start in starts
        ]
        empty = loaded.stage.schema.empty_table()
        return {name: pa.concat_tables([empty, *(made[name] for made in windows)]) for name in names}

    def _run_on_prompts(
        self, loaded: LoadedNode, names: Sequence[str], call: ScorerCall, prompt_ids: Sequence[str]
    ) -> Mapping[str, pa.Table]:
        metrics, stage = loaded.node.metrics, loaded.node.stage
        inputs = [(name, other) for name in names for other in stage.list_input_stages(metrics[name])]
        read = {each: _select_rows(call.tables[each], prompt_ids) for each in inputs}
        prompts, written = _select_rows(call.prompt_rows, prompt_ids), self.written
        if written is None or stage is not QuestionsStage:
            return self._compute_tables(loaded, names, prompts, read, call)
        known, earlier = {}, {}
        for name in names:  # questions that this process or others have written
            about = {}
            for text, asked in select_reusable_questions(written.read_new_tables(name)).items():
                prompt_id = hash_prompt(text)
                about[prompt_id] = [{**row, "prompt_id": prompt_id, "prompt": text} for row in asked]
            loaded.cache.add({name: about})
            known[name] = loaded.cache.find(name, prompt_ids)
            records = [row for listed in known[name].values() for row in listed]
            earlier[name] = [rows.table(records, schemas.QUESTIONS)]
        made = self._compute_tables(loaded, names, prompts, read, call, earlier)
        for name, table in made.items():
            new = _select_rows(table, [prompt_id for prompt_id in prompt_ids if prompt_id not in known[name]])
            if len(new):
                written.add(name, new)
        return made

    def _compute_tables(
        self,
        loaded: LoadedNode,
        names: Sequence[str],
        shard_rows: pa.Table,
        tables: Mapping[tuple[str, str], pa.Table],
        call: ScorerCall,
        earlier: Mapping[str, Sequence[pa.Table]] = MappingProxyType({}),
    ) -> Mapping[str, pa.Table]:
        node, stage, state = loaded.node, loaded.stage, next(self.states)

        def make_upstream(name: str, table: pa.Table) -> UpstreamTables:
            return UpstreamTables((name,), lambda: [table], table.schema, state=state)

        inputs = Inputs(
            group="",
            rows=shard_rows if issubclass(node.stage, RowStage) else pa.table({}),
            metrics=tuple(names),
            upstream={
                name: {
                    other: make_upstream(f"{name}/{other}", tables[name, other])
                    for other in node.stage.list_input_stages(node.metrics[name])
                }
                for name in names
            },
            prompts=make_upstream("prompts", call.prompt_rows),
            earlier=earlier,
        )
        if any("pack" in node.stage.list_benchmark_parts(node.metrics[name]) for name in names):
            asked = [call.prompts[prompt_id] for prompt_id in shard_rows.column("prompt_id").to_pylist()]
            inputs = inputs._replace(pack=make_upstream("pack", self._make_pack_table(asked)))
        with self.watch("decode"):
            prepared = stage.prepare(inputs)
        with nullcontext() if stage.side_by_side else self.computing, self.watch("model"):
            made = stage.compute(prepared)
        return {name: table.replace_schema_metadata(None) for name, table in made.items()}

    def _make_pack_table(self, asked: Sequence[AskedPrompt]) -> pa.Table:
        """Return the questions about the prompts (schema QUESTIONS): the caller's questions, or else the pack's."""
        records = []
        for prompt in asked:
            found: Sequence[Mapping[str, Any]] | RowError
            if prompt.questions is not None:
                read = read_questions(prompt.questions)
                found = read if isinstance(read, RowError) else [question._asdict() for question in read]
            else:
                known = self.pack.find_id(prompt.prompt_id, prompt.text)
                found = NO_QUESTIONS_SENT_ERROR if isinstance(known, RowError) else self.pack.questions[known]
            if isinstance(found, RowError):
                found = [{"error": rows.error_to_dict(found)}]
            records += [{"prompt": prompt.text, **row, "prompt_id": prompt.prompt_id} for row in found]
        return rows.table(records, schemas.QUESTIONS)


def compares_images(metric: Metric) -> bool:
    """Return True if the metric compares several images of a prompt with each other."""
    return metric.pair_selection is not None


def _check_sources_and_captions(metrics: Mapping[str, Metric], *, sources: bool, captions: bool) -> None:
    """Raise ConfigError if a metric needs sources or captions that are missing, or if no metric uses the given ones."""
    comparing = list_source_metrics(metrics)
    if sources:
        require_source_metric(metrics, comparing)
    elif comparing:
        raise ConfigError(
            f"sources: {' and '.join(comparing)} {'needs' if len(comparing) == 1 else 'need'} the "
            "sources of edited images; pass the image that each was edited from"
        )
    reading = " and ".join(list_caption_columns(metrics))
    if reading and not captions:
        raise ConfigError(
            f"captions: required by {reading}; pass a description of each source and of the intended result, as "
            "(source, target)"
        )
    if captions and not reading:
        raise ConfigError(
            f"captions: {' and '.join(metrics)} would ignore them; leave them out, or use a metric that reads them, "
            "such as clip_direction (plugins/edits/README.md)"
        )


def _load_node(node: GraphNode, config: ScorerConfig) -> LoadedNode:
    from plumbline.operators.models.loading import load  # imports torch; checks of a configuration do not need it

    resolved = {key: resolve_model(config.models[role], on_gpu=config.on_gpu) for key, role in node.roles.items()}
    models = {
        key: load(model, node.stage.choose_needed_call(key, node.metrics.values(), FAMILIES[model.config.family]))
        for key, model in resolved.items()
    }
    options = StageOptions(config.limits, read_file, decoders=config.decoders, clips=config.clips)
    if resolved:  # the stage's own model comes first
        options = options._replace(image_batch=next(iter(resolved.values())).config.image_batch)
    return LoadedNode(
        node, node.stage(node.metrics, models, options), PromptCache(node.stage.schema, config.kept_prompts)
    )


def _select_rows(table: pa.Table, prompt_ids: Sequence[str]) -> pa.Table:
    return table.filter(pc.is_in(table.column("prompt_id"), pa.array(prompt_ids, pa.string())))
