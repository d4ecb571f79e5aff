"""Joins people's ratings with a benchmark's images and prompts, and splits them into finetuning and evaluation sets."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import list_image_records, read_image_row
from plumbline.operators.metaeval import matching
from plumbline.operators.metaeval.ratings import average_ratings
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.models.vqa_profiles import VqaProfile
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.pipelines.metaeval.metaeval import Findings, judge_release
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.metaeval.release_selection import open_release
from plumbline.pipelines.metaeval.releases.release import Release
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.shards import ShardSize, read_shard
from plumbline.pipelines.sources.sources import open_sources
from plumbline.pipelines.store.cells import Shard
from plumbline.plugins.training.examples import ExampleShard, RatedImage
from plumbline.plugins.training.training_config import FinetuneConfig


class RatedShards(NamedTuple):
    """A benchmark's rated images, split into a training set and a held-out set."""

    trained: list[ExampleShard]
    held_out: list[ExampleShard]
    release: Release
    """Ratings of the held-out images only."""
    range: tuple[float, float]
    """Lowest and highest rating, which are mapped to 0 and 1."""


def read_rated_shards(config: FinetuneConfig, profile: VqaProfile) -> RatedShards:
    """Return the benchmark's rated images, split into a training set and a held-out set.

    Raises SourceError or ConfigError if one of the sets is empty.
    """
    release = open_release(config.protocol, config.storage)
    sources = open_sources(
        config.benchmark,
        config.storage,
        shard_size=ShardSize(config.shard_rows),
        cache=ImageFileCache(None, config.benchmark),
    )
    if sources.broken:
        raise SourceError(f"{sources.broken[0].message}; training needs all images of its benchmark")
    images = pd.concat([_read_ids(shard, number) for number, shard in enumerate(sources.image_shards)])
    ratings = matching.complete_ids(release.ratings, images)
    match = config.protocol.match or matching.choose_match(matching.list_rated_ids(ratings), images)
    scale = _find_scale(ratings, config.protocol)
    targets = _compute_targets(ratings, match, scale, config.protocol.path)
    rated = images.merge(targets, on=list(MATCH_COLUMNS[match]), validate="m:1")
    if rated.empty:
        columns = matching.format_examples(matching.list_rated_ids(ratings), matching.ID_COLUMNS)
        raise SourceError(
            f"{config.protocol.path}: no image of the benchmark is rated; the ratings have {columns}, the benchmark "
            f"{matching.format_examples(images, matching.ID_COLUMNS)}; use the same ids in both"
        )
    rated["held_out"] = [is_held_out(prompt_id, config) for prompt_id in rated["prompt_id"]]
    for name, value in (("trained on", False), ("held out", True)):
        if not (rated["held_out"] == value).any():
            raise ConfigError(
                "held_out: expected a fraction that leaves rated prompts both for training and for holding out, but "
                f"none of {rated['prompt_id'].nunique()} rated prompts is {name}; set another value"
            )
    metric = VqaScoreConfig().complete_options(lambda role: profile)
    ids, texts = (sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    questions = {prompt_id: metric.question(text) for prompt_id, text in zip(ids, texts, strict=True) if text}
    trained, held_out = (
        _select_rated_shards(sources.image_shards, rows, questions) for _, rows in rated.groupby("held_out")
    )
    prompts = pa.array(rated.loc[rated["held_out"], "prompt_id"].unique())
    held_out_release = replace(release, ratings=ratings.filter(pc.is_in(ratings.column("prompt_id"), prompts)))
    return RatedShards(trained, held_out, held_out_release, scale)


def _read_ids(shard: Shard, number: int) -> pd.DataFrame:
    """Return a table of a shard's images with the columns image_id, prompt_id, generator, shard and row."""
    records = list_image_records(read_shard(shard, ("image_id", "prompt_id")))
    frame = pd.DataFrame([read_image_row(record, shard.group) for record in records])
    return frame.assign(shard=number, row=range(len(frame)))


def _find_scale(ratings: pa.Table, protocol: ProtocolConfig) -> tuple[float, float]:
    """Return the range of ratings that the protocol declares, or else the range in the data.

    Raises SourceError if all ratings are equal.
    """
    if protocol.rating_range is not None:
        return protocol.rating_range
    extremes = pc.min_max(ratings.column("rating")).as_py()
    if extremes["min"] == extremes["max"]:
        raise SourceError(
            f"{protocol.path}: expected different ratings to train on, found {extremes['min']:g} for all images; "
            "choose another protocol"
        )
    return extremes["min"], extremes["max"]


def _compute_targets(ratings: pa.Table, match: Match, scale: tuple[float, float], path: str) -> pd.DataFrame:
    """Return a table with the columns that identify an image, and its mean rating mapped from the scale to [0, 1]."""
    templates = pc.unique(ratings.column("template")).to_pylist()
    if len(templates) > 1:
        raise SourceError(
            f"{path}: expected ratings from one template, got {', '.join(map(str, templates))}; remove the "
            "ratings from the others"
        )
    low, high = scale
    human = average_ratings(ratings, match)
    return human.assign(target=(human["human"] - low) / (high - low))[[*MATCH_COLUMNS[match], "target"]]


def is_held_out(prompt_id: str, config: FinetuneConfig) -> bool:
    """Return True if a prompt is held out from training. This depends only on the prompt's id and the seed."""
    digest = hashlib.sha256(f"{config.seed}\0{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < config.held_out * 2**64


def _select_rated_shards(
    shards: Sequence[Shard], rated: pd.DataFrame, questions: Mapping[str, str]
) -> list[ExampleShard]:
    """Return the shards that contain rated images; raise SourceError if a rated prompt has no text."""
    selected = []
    for number, images in rated.groupby("shard"):
        by_index = {}
        for image in images.sort_values("row").itertuples():
            if image.prompt_id not in questions:
                raise SourceError(
                    f"prompt_id {image.prompt_id!r}: the prompt is rated but has no text; add its text to the prompts"
                )
            question = questions[image.prompt_id]
            by_index[image.row] = RatedImage(image.image_id, image.prompt_id, question, image.target)
        selected.append(ExampleShard(shard=shards[number], rated=by_index))
    return selected


def measure_held_out_agreement(config: FinetuneConfig, release: Release, scores: pa.Table, url: str) -> Findings:
    """Measure VQAScore's agreement with people on the held-out prompts, before and after training."""
    protocol = replace(config.protocol, tasks=("ratings",), agreement=())
    return judge_release(protocol, release, scores, config.sampling, url)
