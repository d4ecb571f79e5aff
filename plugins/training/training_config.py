"""What is trained on what, how long, and by how many workers."""

import os
from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from plumbline.operators.base.bounds import (
    AboveZero,
    Bound,
    BoundsChecked,
    NotNegative,
    Positive,
    Probability,
    Share,
    SomeShare,
)
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.videos import Clips
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.families.clip_flant5 import ClipFlanT5Model
from plumbline.operators.models.families.vlm import ChatModel
from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.judging.protocols import ProtocolConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.plugins.training.loop import TrainingStage

POOL = "training"
TRAINED_FAMILIES = ("clip_flant5", "vlm")
Part = Literal["mm_projector", "language_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceConfig(BoundsChecked):
    """How long is trained, and how fast; the defaults are LLaVA-1.5's, which the VQAScore paper takes over."""

    section: ClassVar[str] = "pace."
    batch: Positive = 96
    """Images of a step, of all workers together."""
    rate: AboveZero = 2e-5
    """The highest learning rate, after warm-up and before cosine decay."""
    epochs: AboveZero = 1.0
    """How often each row is seen."""
    steps: Positive | None = None
    """Optimiser steps, in place of `epochs`."""
    warm_up: Annotated[float, Bound("a share from 0 to below 1", lambda value: 0 <= value < 1)] = 0.03
    """Share of the steps in which the rate rises to its peak."""
    weight_decay: NotNegative = 0.0
    """AdamW's."""

    def stage(self, rows: int) -> TrainingStage:
        """The stage over so many rows."""
        return TrainingStage(
            steps=self.steps or max(1, round(self.epochs * rows / self.batch)),
            peak=self.rate,
            size=self.batch,
            warm_up=self.warm_up,
            final=0.0,
            decay=self.weight_decay,
            momentum=(0.9, 0.999),
        )


def _two_workers() -> ClusterConfig:
    """Of half of this machine's CPUs each."""
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    pool = PoolConfig(num_cpus=0.5, min_size=2, max_size=2, threads=threads, deadline=None)
    return ClusterConfig(pools={POOL: pool})


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig(BoundsChecked):
    """What the trainings of a checkpoint have in common."""

    model: AnyModel
    """The CLIP-FlanT5 that is trained on, or in the two stages the LLaVA."""
    output: str
    """Folder or cloud prefix of the trained checkpoint, checkpoint/, and of the states that a run resumes from."""
    trained: tuple[Part, ...] = ("mm_projector", "language_model")
    """Which parts of the network are trained; the vision tower never is."""
    pace: PaceConfig = field(default_factory=PaceConfig)
    cluster: ClusterConfig = field(default_factory=_two_workers)
    """Its pool `training` says how many workers there are (min_size) and what each takes."""
    seed: int = 0
    """Decides the order of the rows, where captions are cut, what is dropped out and which prompts are held out."""
    mixed: Positive = 8
    """Shards whose rows are shuffled together, and that each worker holds in memory; all shards are shuffled too."""
    shard_rows: Positive = 256
    """Row groups of a file are read together up to this many rows."""
    save_every: Positive = 500
    """Steps from one state on disk to the next."""
    max_failed: Share = 0.01
    """Share of rows that may be left out because they cannot be read."""
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not isinstance(self.model, ClipFlanT5Model | ChatModel):
            known = " and ".join(TRAINED_FAMILIES)
            raise ConfigError(f"model.family: only {known} are trained, got {self.model.family!r}")
        if self.model.system is not None:
            raise ConfigError("model.system: a model is trained with its own system message; set it to null")
        if not self.trained:
            raise ConfigError("trained: expected some of mm_projector, language_model, got none")
        if self.pace.batch % self.workers:
            raise ConfigError(
                f"pace.batch: expected a multiple of the {self.workers} workers (cluster.pools.{POOL}.min_size), got "
                f"{self.pace.batch}"
            )

    @property
    def pool(self) -> PoolConfig:
        return self.cluster.pool(POOL)

    @property
    def workers(self) -> int:
        return self.pool.min_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginConfig:
    """The parts that a CLIP-FlanT5 or a LLaVA is put together of."""

    language_model: str
    """Hub id or folder of a FlanT5 in its own layout, or of a Llama."""
    vision_tower: str
    """Hub id or folder of a CLIP."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextColumnsConfig:
    """What the columns of the training tables are called."""

    image: str = "image"
    """Encoded bytes, or the {bytes, path} of Hugging Face datasets."""
    uri: str = "uri"
    """A path or an address, where `image` is absent or null."""
    caption: str = "caption"
    """Of stage 1."""
    question: str = "question"
    """Of stage 2."""
    answer: str = "answer"
    """Of stage 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig(TrainingConfig):
    """Stage 1 or 2: over rows of an image with a caption, or with a question and its answer."""

    kind: Literal["captions", "questions"]
    data: str
    """A Parquet file, or a folder of them: a row per image with its caption, or per image and question. Or LLaVA's list
    of conversations (.json), which is split into a row for each turn below `output`."""
    columns: TextColumnsConfig = field(default_factory=TextColumnsConfig)
    uri_roots: Roots = ()
    """Folders and cloud prefixes that rows may name images below, besides the data's own."""
    begin: BeginConfig | None = None
    """Language model and tower to begin with in place of the model's checkpoint, with a fresh projector (stage 1)."""
    sharded: bool = False
    """Each worker holds a part of the weights and of AdamW's moments, so that an XXL fits several GPUs."""

    def __post_init__(self) -> None:
        super(StageConfig, self).__post_init__()
        if self.sharded and isinstance(self.model, ChatModel):
            raise ConfigError("sharded: a LLaVA's weights are not sharded; set sharded=false")

    @property
    def texts(self) -> tuple[str, ...]:
        """The columns that every row has besides its image, by our names."""
        return ("caption",) if self.kind == "captions" else ("question", "answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig(TrainingConfig):
    """Finetuning of VQAScore's answer on people's ratings of a benchmark's images."""

    kind: Literal["finetune"] = "finetune"
    benchmark: BenchmarkConfig
    """The images that were rated, and their prompts."""
    protocol: ProtocolConfig
    """The ratings."""
    held_out: Probability = 0.25
    """Share of the prompts that are not trained on; agreement with people is measured on their images."""
    blend: SomeShare = 0.5
    """The trained weights' share of the result; the rest is of those that it began with (WiSE-FT, Wortsman et al.
    2022): a model that a few prompts have taught too much keeps what it knew."""
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        super(FinetuneConfig, self).__post_init__()
        if not isinstance(self.model, ClipFlanT5Model):
            raise ConfigError(f"model.family: only clip_flant5 is finetuned on ratings, got {self.model.family!r}")
        if "ratings" not in self.protocol.tasks:
            raise ConfigError(
                f"protocol {self.protocol.name}: it has no ratings of single images to train on; choose one whose "
                "tasks have ratings, such as protocol=long"
            )
