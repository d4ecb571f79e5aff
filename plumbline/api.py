"""Functions for notebooks and other programs: score images, read tables of runs, compare metrics with ratings."""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa

from plumbline.jobs.scorer import Metric, Metrics, choose_metrics, list_metrics, open_scorer, require_text
from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, SourceError, suggest
from plumbline.operators.base.rows import format_id, list_values
from plumbline.operators.metrics.function import is_function_name, read_source
from plumbline.operators.results.choices import make_frame
from plumbline.operators.scoring.scorer import Scorer
from plumbline.operators.scoring.scorer_input import AnyImage, ImageOrFrames
from plumbline.operators.statistics.options import Match, RatingStatistic, Sampling
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.metaeval import judge_release
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.releases.release import Rating, released
from plumbline.pipelines.plans.sweep_config import read_config
from plumbline.pipelines.store.runs import find_run, read_manifest
from plumbline.pipelines.store.store import Store, open_existing_store

ID_COLUMNS = ("image_id", "prompt_id", "generator", "metric", "rater", "template")
"""Columns of scores and ratings that are compared as text."""
ONLY_SHAPES_WARNING = (
    "models='shapes', the default, only knows coloured shapes; its scores for other images are meaningless. Choose "
    "models='released' for the real models, or models='shapes' to confirm this choice"
)
STATISTICS: tuple[RatingStatistic, ...] = ("spearman", "kendall_b", "pairwise_accuracy")


def score(
    images: AnyImage | Iterable[ImageOrFrames | None],
    prompts: str | Iterable[str | None],
    metrics: Metrics | None = None,
    *,
    metric: Metrics | None = None,
    models: str | None = None,
    on_gpu: bool = False,
    options: str | Iterable[str] = (),
) -> pd.DataFrame:
    """Score every image against its prompt with every metric.

    Args:
        images: a list, array, pandas Series or iterator of images, or a single image. An image is a path, encoded
            bytes, a `PIL.Image`, a uint8 array of shape (height, width, 3), or a list of these (frames or views).
        prompts: one text per image, in the same order (an index is ignored), or one text for all images.
        metrics: the name of a metric, such as `"clipscore"`, a function of an image and its prompt (docs/plugins.md),
            or a list of these; `vqascore` by default.
        metric: another name for `metrics`, as on the command line.
        models: `shapes`, the small models that ship with Plumbline and know only coloured shapes, or `released`, the
            real models from the Hugging Face hub. None uses `shapes` and warns about it.
        on_gpu: True to run the models on this machine's GPU.
        options: other options, as on the command line, such as `"metrics.natural.environment={packages: [brisque]}"`.

    Returns:
        One row per image and metric: `image_id` (the image's index in the list), `prompt`, `metric`, `score` in the
        metric's own unit, `n_questions`, `elements` and `error`. If an image cannot be scored, or its prompt cannot be
        used, the score is null and `error` gives the reason. docs/python.md describes all columns.

    Raises:
        ConfigError: a metric or model is unknown, lists have different lengths, or a value is not an image.
        ModelError: a model cannot be found or loaded.

    The models of the last call stay loaded; `open_scorer` keeps them for as long as its scorer exists.
    """
    chosen = choose_metrics(metrics, metric)
    entries = list_metrics("vqascore" if chosen is None else chosen)
    words = require_text([options] if isinstance(options, str) else list_values(options, "options"), "options")
    (checkpoints,) = require_text(["shapes" if models is None else models], "models")
    scorer = _get_scorer(tuple(entries), _read_function_sources(entries), words, checkpoints, on_gpu)
    if models is None and any(loaded.node.roles for loaded in scorer.nodes):
        warnings.warn(ONLY_SHAPES_WARNING, stacklevel=2)
    return scorer.score(images, prompts)


def _read_function_sources(metrics: Iterable[Metric]) -> tuple[str, ...]:
    """Return the source text of each metric that is given as the name of a function in a file or module.

    Functions that exist only in their metric's own environment are left out, because they cannot be read here.
    """
    texts = []
    for metric in metrics:
        if isinstance(metric, str) and is_function_name(metric):
            with suppress(ConfigError):
                texts.append(read_source(metric).text)
    return tuple(texts)


@lru_cache(maxsize=1)
def _get_scorer(
    metrics: tuple[Metric, ...], texts: tuple[str, ...], options: tuple[str, ...], models: str, on_gpu: bool
) -> Scorer:
    """Return a scorer, which is kept until an argument changes.

    `texts` are the source texts of functions, so that editing a file counts as a change.
    """
    return open_scorer(*options, metrics=metrics, models=models, on_gpu=on_gpu)


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """One run in a store. Its tables are read on demand (docs/results.md describes their columns)."""

    store: Store
    run_id: str

    @property
    def folder(self) -> str:
        """The address of the run's folder."""
        return str(self.store.place / f"runs/{self.run_id}")

    def read_manifest(self) -> dict[str, Any]:
        """Return the run's configuration, versions and counts; raise ConfigError if the manifest is damaged."""
        return read_manifest(self.store, self.run_id)

    def read_scores(self, columns: Sequence[str] | None = None) -> pd.DataFrame:
        """Return one row per image and metric; if a score is null, `error` gives the reason."""
        return self._read_table("scores", columns)

    def read_summary(self) -> pd.DataFrame:
        """Return each generator's mean by metric and skill, with its 95% interval and its coverage."""
        return self._read_table("summary")

    def read_errors(self) -> pd.DataFrame:
        """Return one row for each image, prompt or metric without a result, with the reason and the remedy."""
        return self._read_table("errors")

    def _read_table(self, name: str, columns: Sequence[str] | None = None) -> pd.DataFrame:
        path = f"runs/{self.run_id}/{name}.parquet"
        return self.store.read_table(path, None if columns is None else list(columns)).to_pandas()


@dataclass(frozen=True, kw_only=True, slots=True)
class _Address:
    store: str
    storage: StorageConfig


def open_run(store: str | Path, run: str = "latest", **storage: Any) -> Run:
    """Return a run in a store, which is a folder or an s3:// prefix; `latest` is the newest run.

    `storage` accepts the keys of the `storage` option, such as `endpoint_url`. Keys that are omitted come from the
    standard AWS variables. Raise ConfigError if the store or the run does not exist, or if a key is unknown.
    """
    if not isinstance(store, str | Path):
        raise ConfigError(f"store: expected a folder or an address, got a value of type {type(store).__name__}")
    opened = open_existing_store(_Address(store=str(store), storage=read_config(storage, StorageConfig)))
    return Run(store=opened, run_id=find_run(opened, run))


def judge(
    scores: pd.DataFrame | pa.Table | Iterable[Mapping[str, Any]],
    ratings: pd.DataFrame | pa.Table | Iterable[Mapping[str, Any]],
    *,
    statistics: RatingStatistic | Iterable[RatingStatistic] = STATISTICS,
    match: Match | None = None,
    falling: str | Iterable[str] = (),
) -> pd.DataFrame:
    """Measure how well metrics agree with human ratings of the same images.

    Args:
        scores: `image_id`, `metric` and `score`, and also `prompt_id` and `generator` if known; a pandas DataFrame, an
            Arrow table, or dicts. Ids may be numbers; they are compared as text, so that 7 and 7.0 are both '7'.
        ratings: `image_id` (or `prompt_id` and `generator`) and `rating`; several rows for an image count as several
            raters.
        statistics: any of pearson, spearman, kendall_a, kendall_b, kendall_c, spearman_viescore (within each
            generator), auroc, pairwise_accuracy (with exact tie calibration, Deutsch et al. 2023) and
            pairwise_accuracy_grouped.
        match: the ids by which scores and ratings are matched: image, prompt_and_generator or image_and_prompt; by
            default the ids that match the most images.
        falling: metrics for which a lower score is better.

    Returns:
        One row for each metric, statistic and subset: `value`, `low` and `high` (95%, over prompts), `n`.

    Raises:
        ConfigError: a value is not a table, a table lacks rows or a column, or a choice is unknown.
        SourceError: no rated image has a score, a row rates the same image a second time, or a value is not a
            number.
    """
    scored, rated = _check_table(scores, "scores", ("metric", "score")), _check_table(ratings, "ratings", ("rating",))
    names = [falling] if isinstance(falling, str) else list_values(falling, "falling")
    lower_is_better = [str(format_id(name)) for name in names]
    for metric in lower_is_better:
        if metric not in set(scored["metric"]):
            raise ConfigError(f"falling: the scores have no {metric!r}; {suggest(metric, set(scored['metric']))}")
    given = {
        "name": "ratings", "reader": "long", "path": "ratings", "tasks": ("ratings",), "match": match,
        "statistics": (statistics,) if isinstance(statistics, str) else tuple(list_values(statistics, "statistics")),
        "falling": tuple(lower_is_better),
    }  # fmt: skip
    protocol = read_config(given, ProtocolConfig)
    release = released(ratings=_list_ratings(rated))
    findings = judge_release(protocol, release, _make_scores_table(scored), Sampling())
    columns = ("metric", "statistic", "subset", "value", "interval", "n", "n_unscored", "n_unrated")
    judged = pd.DataFrame([[getattr(judgement, name) for name in columns] for judgement in findings.judgements])
    judged.columns = pd.Index(columns)
    judged.insert(4, "low", judged["interval"].str[0])
    judged.insert(5, "high", judged["interval"].str[1])
    return judged.drop(columns="interval")


def _check_table(table: Any, name: str, required: Sequence[str]) -> pd.DataFrame:
    """Return a table with its ids as text and with None for every null.

    Raise ConfigError if the value is not a table, or if the table has no rows, lacks a required column, or has two
    columns with the same name.
    """
    frame = _make_frame(table, name)
    columns = ", ".join(map(str, frame)) or "none"
    missing = [column for column in required if column not in frame]
    missing += [] if {"image_id", "prompt_id"} & set(frame) else ["image_id"]
    if missing:
        raise ConfigError(f"{name}: expected column(s) {', '.join(missing)}, found {columns}; rename or add them")
    if not frame.columns.is_unique:
        raise ConfigError(f"{name}: expected each column once, found {columns}; rename or remove one")
    if frame.empty:
        raise ConfigError(f"{name}: expected rows, found none")
    frame = _replace_nan(frame.reset_index(drop=True))
    for row in frame.index[frame["metric"].isna()] if "metric" in required else ():
        raise SourceError(f"{name}, row {row}: expected the name of a metric, found none; fill it in")
    return frame.assign(**{column: frame[column].map(format_id) for column in ID_COLUMNS if column in frame})


def _make_frame(table: Any, name: str) -> pd.DataFrame:
    if isinstance(table, pd.DataFrame):
        return table
    if hasattr(table, "to_pandas"):
        table = table.to_pandas()
    elif isinstance(table, Iterable) and not isinstance(table, str | bytes | np.ndarray | Mapping | pd.Series):
        table = list(table)
        if all(isinstance(row, Mapping) for row in table):
            table = make_frame(table)
    if not isinstance(table, pd.DataFrame):
        raise ConfigError(
            f"{name}: expected a pandas DataFrame, an Arrow table or a list of dicts, got a value of type "
            f"{type(table).__name__}; convert it, for example with pd.DataFrame(...)"
        )
    return table


def _parse_number(value: Any, where: str) -> float | None:
    try:
        return None if value is None else float(value)
    except (TypeError, ValueError) as error:
        raise SourceError(f"{where}: expected a number, got {value!r}; correct it, or leave it empty") from error


def _list_ratings(frame: pd.DataFrame) -> list[Rating]:
    """Return the rows as ratings; if the table has no raters, each rating of an image counts as a different rater."""
    images = [name for name in ("image_id", "prompt_id", "generator") if name in frame]
    numbers = frame.groupby(images, dropna=False).cumcount().astype(str)
    complete = frame.assign(rater=frame.get("rater", numbers)).reindex(columns=[*Rating._fields[:-1]])
    return [
        Rating(
            row.image_id, row.prompt_id, row.generator, str(row.rater), row.template or "rating",
            _parse_number(row.rating, f"ratings, row {number}"), f"row {number}",
        )
        for number, row in enumerate(_replace_nan(complete).itertuples(index=False))
    ]  # fmt: skip


def _make_scores_table(frame: pd.DataFrame) -> pa.Table:
    """Return a table with the columns of SCORES; columns that the frame lacks are null."""
    complete = frame.reindex(columns=["image_id", "prompt_id", "generator", "metric", "score"])
    records = enumerate(_replace_nan(complete).to_dict("records"))
    numbers = [{**row, "score": _parse_number(row["score"], f"scores, row {number}")} for number, row in records]
    return rows.table(numbers, schemas.SCORES)


def _replace_nan(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.astype(object).where(frame.notna(), None)
