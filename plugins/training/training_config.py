"""Configuration of a training run: model, data, pace and workers."""

from dataclasses import dataclass, field
from typing import Annotated, ClassVar, Literal

from plumbline.operators.base.bounds import (
    Bound,
    BoundsChecked,
    NonNegative,
    NonZeroShare,
    Positive,
    PositiveFloat,
    Probability,
    Share,
)
from plumbline.operators.base.cores import count_cores
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.videos import Clips
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.families.clip_flant5 import ClipFlanT5Model
from plumbline.operators.models.families.vlm import ChatModel
from plumbline.operators.statistics.options import Sampling
from plumbline.pipelines.base.cluster_config import ClusterConfig, PoolConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.plugins.training.loop import TrainingStage

TRAINING_POOL = "training"
TRAINED_FAMILIES = ("clip_flant5", "vlm")
TrainedPart = Literal["mm_projector", "language_model"]


@dataclass(frozen=True, kw_only=True, slots=True)
class PaceConfig(BoundsChecked):
    """Length and learning rate of a training run. The defaults are the values of LLaVA-1.5 and the VQAScore paper."""

    section: ClassVar[str] = "pace."
    batch: Positive = 96
    """Number of images per step, over all workers."""
    rate: PositiveFloat = 2e-5
    """Peak learning rate, after warm-up and before cosine decay."""
    epochs: PositiveFloat = 1.0
    """Number of passes over the rows."""
    steps: Positive | None = None
    """Number of optimiser steps, instead of `epochs`."""
    warm_up: Annotated[float, Bound("a fraction from 0 to below 1", lambda value: 0 <= value < 1)] = 0.03
    """Fraction of the steps during which the learning rate rises to its peak."""
    weight_decay: NonNegative = 0.0
    """Weight decay of AdamW."""

    def make_stage(self, rows: int) -> TrainingStage:
        """Return the training stage for this number of rows."""
        return TrainingStage(
            steps=self.steps or max(1, round(self.epochs * rows / self.batch)),
            peak=self.rate,
            size=self.batch,
            warm_up=self.warm_up,
            final=0.0,
            decay=self.weight_decay,
            momentum=(0.9, 0.999),
        )


def _make_two_worker_cluster() -> ClusterConfig:
    """Return a cluster of two workers, each with half of this machine's CPUs."""
    threads = max(1, count_cores() // 2)
    pool = PoolConfig(num_cpus=0.5, min_size=2, max_size=2, threads=threads, deadline=None)
    return ClusterConfig(pools={TRAINING_POOL: pool})


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingConfig(BoundsChecked):
    """Options that all training runs share."""

    model: AnyModel
    """CLIP-FlanT5 to train. Stages 1 and 2 can also train a LLaVA."""
    output: str
    """Folder or cloud prefix for the trained checkpoint (checkpoint/) and for states, so that a run can resume."""
    trained: tuple[TrainedPart, ...] = ("mm_projector", "language_model")
    """Parts of the network to train. The vision tower is never trained."""
    pace: PaceConfig = field(default_factory=PaceConfig)
    cluster: ClusterConfig = field(default_factory=_make_two_worker_cluster)
    """Cluster to use. Its pool `training` sets the number of workers (min_size) and the resources of each worker."""
    seed: int = 0
    """Seed for the order of rows, the splits of captions, the dropout and the choice of held-out prompts."""
    mixed: Positive = 8
    """Number of shards that each worker keeps in memory, and whose rows are shuffled together. The order of shards is
    also random.
    """
    shard_rows: Positive = 256
    """Maximum number of rows per shard. A shard combines row groups of a file."""
    save_every: Positive = 500
    """Number of steps between saved states."""
    max_failed: Share = 0.01
    """Fraction of rows that may be left out because they cannot be read."""
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not isinstance(self.model, ClipFlanT5Model | ChatModel):
            known = " or ".join(TRAINED_FAMILIES)
            raise ConfigError(
                f"model.family: expected {known}, because only these can be trained, got {self.model.family!r}; "
                "choose one"
            )
        if self.model.system is not None:
            raise ConfigError("model.system: a model is trained with its own system message; set it to null")
        if not self.trained:
            raise ConfigError(
                "trained: expected mm_projector, language_model or both, got none; set trained=[mm_projector]"
            )
        if self.pace.batch % self.workers:
            raise ConfigError(
                f"pace.batch: expected a multiple of the {self.workers} workers (cluster.pools.{TRAINING_POOL}"
                f".min_size), got {self.pace.batch}; change one of them"
            )

    @property
    def pool(self) -> PoolConfig:
        return self.cluster.find_pool(TRAINING_POOL)

    @property
    def workers(self) -> int:
        return self.pool.min_size


@dataclass(frozen=True, kw_only=True, slots=True)
class BeginConfig:
    """Parts from which a new CLIP-FlanT5 or LLaVA is assembled."""

    language_model: str
    """Hub id or folder of a FlanT5 in its original layout, or of a Llama."""
    vision_tower: str
    """Hub id or folder of a CLIP that has the vision tower."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TextColumnsConfig:
    """Column names of the training tables."""

    image: str = "image"
    """Images as encoded bytes, or as the {bytes, path} of Hugging Face datasets."""
    uri: str = "uri"
    """Paths or URLs of images, used if `image` is missing or null."""
    caption: str = "caption"
    """Captions for stage 1."""
    question: str = "question"
    """Questions for stage 2."""
    answer: str = "answer"
    """Answers for stage 2."""


@dataclass(frozen=True, kw_only=True, slots=True)
class StageConfig(TrainingConfig):
    """Stage 1 or 2: each row has an image with a caption, or with a question and its answer."""

    kind: Literal["captions", "questions"]
    data: str
    """A Parquet file or a folder of them, with one row per image and caption, or per image and question. Or LLaVA's
    list of conversations (.json), which is split into one row per turn below `output`.
    """
    columns: TextColumnsConfig = field(default_factory=TextColumnsConfig)
    uri_roots: Roots = ()
    """Folders and cloud prefixes whose images the rows may use, in addition to the data's own folder."""
    begin: BeginConfig | None = None
    """Language model and vision tower to start from instead of the model's checkpoint, with a new projector (stage 1).
    """
    sharded: bool = False
    """Split the weights and AdamW's moments among the workers, so that an XXL model fits on several GPUs."""

    def __post_init__(self) -> None:
        super(StageConfig, self).__post_init__()
        if self.sharded and isinstance(self.model, ChatModel):
            raise ConfigError("sharded: the weights of a LLaVA model cannot be sharded; set sharded=false")

    @property
    def texts(self) -> tuple[str, ...]:
        """Names of the text columns after renaming: `caption`, or `question` and `answer`."""
        return ("caption",) if self.kind == "captions" else ("question", "answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class FinetuneConfig(TrainingConfig):
    """Options for finetuning a VQAScore model on human ratings of benchmark images."""

    kind: Literal["finetune"] = "finetune"
    benchmark: BenchmarkConfig
    """The rated images and their prompts."""
    protocol: ProtocolConfig
    """People's ratings of the images."""
    held_out: Probability = 0.25
    """Fraction of prompts to hold out from training. Their images are used to measure the agreement with people."""
    blend: NonZeroShare = 0.5
    """Weight of the trained checkpoint in the result, which is a mean of initial and trained weights (WiSE-FT, Wortsman
    et al. 2022). Blending prevents the model from forgetting other abilities when it is trained on few prompts.
    """
    sampling: Sampling = field(default_factory=Sampling)

    def __post_init__(self) -> None:
        super(FinetuneConfig, self).__post_init__()
        if not isinstance(self.model, ClipFlanT5Model):
            raise ConfigError(
                "model.family: expected clip_flant5, because only this family is finetuned on ratings, got "
                f"{self.model.family!r}; choose another model"
            )
        if "ratings" not in self.protocol.tasks:
            raise ConfigError(
                f"protocol {self.protocol.name}: it has no ratings of single images to train on; choose another, such "
                "as protocol=long"
            )
