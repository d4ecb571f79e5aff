"""People's ratings as what a model is finetuned on: beside the images and prompts of a benchmark, some held out."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.operators.images.rows import identify, image_records
from plumbline.operators.judging import matching
from plumbline.operators.judging.ratings import mean_ratings
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.models.vqa_profiles import VqaProfile
from plumbline.operators.statistics.options import MATCH_COLUMNS, Match
from plumbline.pipelines.cells.cells import Shard
from plumbline.pipelines.judging.metaeval import Findings, judge, open_release
from plumbline.pipelines.judging.protocols import ProtocolConfig
from plumbline.pipelines.judging.releases.release import Release
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.shards import ShardSize, read_shard
from plumbline.pipelines.sources.sources import Sources, open_sources
from plumbline.plugins.training.examples import ExampleShard, RatedImage
from plumbline.plugins.training.training_config import FinetuneConfig


class RatedShards(NamedTuple):
    """The rated images of a benchmark, and what people said of the held-out ones."""

    trained: list[ExampleShard]
    held_out: list[ExampleShard]
    release: Release
    """With the ratings of the held-out images alone."""
    range: tuple[float, float]
    """The ratings that count as 0 and as 1."""


def read_rated(config: FinetuneConfig, profile: VqaProfile) -> RatedShards:
    """The images that both benchmark and protocol have; raises SourceError or ConfigError where none is left."""
    release = open_release(config.protocol, config.storage)
    sources = open_sources(
        config.benchmark,
        config.storage,
        shard_size=ShardSize(config.shard_rows),
        memory=FileMemory(None, config.benchmark),
    )
    if sources.broken:
        raise SourceError(f"{sources.broken[0].message}; a training wants all images of its benchmark")
    images = pd.concat([_ids(shard, number, config) for number, shard in enumerate(sources.image_shards)])
    ratings = matching.complete_ids(release.ratings, images)
    match = config.protocol.match or matching.best_match(matching.rated_ids(ratings), images)
    scale = _scale(ratings, config.protocol)
    rated = images.merge(
        _shares(ratings, match, scale, config.protocol.path), on=list(MATCH_COLUMNS[match]), validate="m:1"
    )
    if rated.empty:
        columns = matching.examples(matching.rated_ids(ratings), matching.IDS)
        raise SourceError(
            f"{config.protocol.path}: no image of the benchmark is rated; the ratings have {columns}, the benchmark "
            f"{matching.examples(images, matching.IDS)}; write the same ids into both"
        )
    rated["held_out"] = [is_held_out(prompt_id, config) for prompt_id in rated["prompt_id"]]
    for name, held_out in (("trained on", False), ("held out", True)):
        if not (rated["held_out"] == held_out).any():
            raise ConfigError(f"held_out: of {rated['prompt_id'].nunique()} rated prompts none is {name}; set another")
    asked = _questions(sources, profile)
    trained, other = (_shards(sources.image_shards, rows, asked) for _, rows in rated.groupby("held_out"))
    wanted = pa.array(rated.loc[rated["held_out"], "prompt_id"].unique())
    of_held_out = replace(release, ratings=ratings.filter(pc.is_in(ratings.column("prompt_id"), wanted)))
    return RatedShards(trained, other, of_held_out, scale)


def _ids(shard: Shard, number: int, config: FinetuneConfig) -> pd.DataFrame:
    """A shard's images: image_id, prompt_id, generator, and their shard's number and places."""
    records = image_records(read_shard(shard, ("image_id", "prompt_id")))
    frame = pd.DataFrame([identify(record, shard.group) for record in records])
    return frame.assign(shard=number, place=range(len(frame)))


def _scale(ratings: pa.Table, protocol: ProtocolConfig) -> tuple[float, float]:
    """The least and the greatest rating, as the protocol says or as they are; raises SourceError for a single one."""
    if protocol.rating_range is not None:
        return protocol.rating_range
    extremes = pc.min_max(ratings.column("rating")).as_py()
    if extremes["min"] == extremes["max"]:
        raise SourceError(f"{protocol.path}: all ratings are {extremes['min']:g}; there is nothing to learn from them")
    return extremes["min"], extremes["max"]


def _shares(ratings: pa.Table, match: Match, scale: tuple[float, float], path: str) -> pd.DataFrame:
    """By what tells an image, its mean rating as a share of the scale."""
    templates = pc.unique(ratings.column("template")).to_pylist()
    if len(templates) > 1:
        raise SourceError(
            f"{path}: ratings of several templates ({', '.join(map(str, templates))}), which may mean "
            "different things; keep one of them in the file"
        )
    low, high = scale
    human = mean_ratings(ratings, match)
    return human.assign(share=(human["human"] - low) / (high - low))[[*MATCH_COLUMNS[match], "share"]]


def is_held_out(prompt_id: str, config: FinetuneConfig) -> bool:
    """Whether a prompt is not trained on: by a hash of its id and the seed, whatever the other prompts."""
    digest = hashlib.sha256(f"{config.seed}\0{prompt_id}".encode()).digest()
    return int.from_bytes(digest[:8], "big") < config.held_out * 2**64


def _questions(sources: Sources, profile: VqaProfile) -> Mapping[str, str]:
    """By prompt_id, what VQAScore asks a model of this profile."""
    metric = VqaScoreConfig().with_model_defaults(lambda role: profile)
    ids, texts = (sources.prompts.column(name).to_pylist() for name in ("prompt_id", "text"))
    return {prompt_id: metric.question(text) for prompt_id, text in zip(ids, texts, strict=True) if text}


def _shards(shards: Sequence[Shard], rated: pd.DataFrame, asked: Mapping[str, str]) -> list[ExampleShard]:
    """The shards that have some of these images, with them; raises SourceError for a prompt without text."""
    found = []
    for number, images in rated.groupby("shard"):
        by_place = {}
        for image in images.sort_values("place").itertuples():
            if image.prompt_id not in asked:
                raise SourceError(
                    f"prompt_id {image.prompt_id!r}: rated, and not among the prompts with a text; add it"
                )
            by_place[image.place] = RatedImage(image.image_id, image.prompt_id, asked[image.prompt_id], image.share)
        found.append(ExampleShard(shard=shards[number], rated=by_place))
    return found


def judge_held_out(config: FinetuneConfig, release: Release, scores: pa.Table, url: str) -> Findings:
    """How far the scores before and after agree with people on the held-out prompts."""
    protocol = replace(config.protocol, tasks=("ratings",), agreement=())
    return judge(protocol, release, scores, config.sampling, url)
