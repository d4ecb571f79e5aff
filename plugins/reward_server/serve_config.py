"""Configuration of a reward service: its metrics, its address and its limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from plumbline.operators.base.bounds import BoundsChecked, Natural, NotNegative, Positive, Seconds, at_least
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.rewards.combination import AnyReward
from plumbline.operators.scoring.prompt_cache import DEFAULT_KEPT_PROMPTS
from plumbline.operators.scoring.scorer import ScorerConfig
from plumbline.operators.stages.graph import need_captions
from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.sources.question_packs import PackConfig
from plumbline.pipelines.web.listening import check_address


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig(BoundsChecked):
    """Batches and limits of a service."""

    replicas: Positive = 1
    """Processes that hold the models."""
    batch: Positive = 32
    """Images that are sent to a replica together, from any requests."""
    gather_seconds: NotNegative = 0.005
    """Seconds that an image waits for others while a replica is idle."""
    deadline: Seconds = 300.0
    """Seconds after which a request is answered with 503."""
    batch_deadline: Seconds = 100.0
    """Seconds that a replica may take to decode a batch, and again to score it; a slower replica is killed, and its
    batch goes to the next replica."""
    max_deaths: Annotated[int, at_least(3, ", because two may be caused by another image")] = 3
    """Replicas that may die with an image before the image is given up. From the third try on it is sent alone, so
    that no image is given up because of another."""
    max_waiting: int = 2048
    """Images that may wait; further requests are answered with 429."""
    max_request_images: Positive = 512
    """Images of one request; each source and each frame of a list counts, a video file counts as one."""
    max_body: Positive = 64_000_000
    """Bytes of one request, with the videos that it names by path."""
    max_bodies: int = 512_000_000
    """Bytes of all requests that are not answered, or left images in the queue; further requests are answered with
    429."""
    cached_scores: Natural = 200_000
    """Scores in the cache, about 0.3 KB each; 0 turns it off."""
    kept_prompts: Positive = DEFAULT_KEPT_PROMPTS
    """Prompts of each metric whose written questions a replica keeps in memory, about 1.2 KB a question; the oldest are
    dropped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(LoadConfig):
    """A service: metrics, models, address and limits."""

    models: Mapping[str, AnyModel]
    """Models by role."""
    metrics: Mapping[str, AnyMetric]
    """Metrics by name."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    pack: PackConfig = field(default_factory=PackConfig)
    """A benchmark's own questions, for images that are sent without questions."""
    host: str = "127.0.0.1"
    """Address to listen on; an address that other machines can reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Host names to accept besides this machine's own and `host`, such as [rewards.example.org] behind a reverse proxy;
    ["*"] accepts any."""
    port: int = 8000
    """Port to listen on; 0 takes a free port."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that holds the token; the token itself is never configured."""
    video_folders: Roots = ()
    """Folders and cloud prefixes whose videos requests may name by path, with links resolved first. None by default."""
    reward: AnyReward = None
    """The reward on wires with one number per image; required if several metrics are served. NAME, or a combination:
    {vqascore: 1, hpsv3: 0.5}, or {weights: {NAME: WEIGHT, ...}, unit: score, z_score or noise, join: sum, min or
    product, clip_parts: [LOW, HIGH], clip: [LOW, HIGH]} (docs/rewards.md)."""
    sentinel: tuple[str, ...] = ()
    """Served metrics that are computed for each image whose reward is requested, to detect a gamed reward: such as
    [edge_density,entropy,saturation]."""
    sentinel_images: Positive = 1000
    """Images of each comparison, and of the baseline if no run is the baseline."""
    baseline: str | None = None
    """A run of the store, by its id or `latest`: its scores give the units of a combined reward, and the sentinel
    compares with them."""
    baseline_generator: str | None = None
    """Generator of the baseline's images; the sentinel needs it if the run has several generators."""
    store: str = "store"
    """Folder or cloud prefix of the store with the baseline, and with the questions that a language model writes."""
    storage: StorageConfig = field(default_factory=StorageConfig)
    num_cpus: NotNegative = 1.0
    """CPUs that each replica reserves."""
    num_gpus: NotNegative = 0.0
    """GPUs that each replica reserves for its models."""
    decoders: int | None = None
    """Images that each replica decodes at once; by default `num_cpus`, or with a GPU the machine's cores per GPU."""
    threads: int | None = None
    """Torch threads of each replica; Ray's choice by default."""
    address: str | None = None
    """A running Ray cluster; null takes RAY_ADDRESS, or else starts a local Ray."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not self.metrics:
            raise ConfigError("metrics: expected at least one, got none; for example metric=[vqascore]")
        for name in need_captions(self.metrics):
            raise ConfigError(
                f"metrics.{name}: it needs captions of edits, which the service cannot receive; leave it out, or use "
                "jobs.score or the scorer in Python (plugins/edits/README.md)"
            )
        self._check_reward()
        self._check_sentinel()
        check_address(self.port, self.hosts)
        if self.max_waiting < self.max_request_images or self.max_bodies < self.max_body:
            raise ConfigError("max_waiting, max_bodies: expected at least max_request_images and max_body")
        self.scorer()

    def _check_reward(self) -> None:
        unit = "score" if self.reward is None else self.reward.unit
        if self.reward is not None:
            self.reward.check_parts(self.metrics)
        if unit != "score" and self.baseline is None:
            raise ConfigError(
                f"reward.unit={unit}: expected baseline=RUN store=STORE, whose scores define the unit, got none"
            )
        if unit == "score" and self.baseline is not None and not self.sentinel:
            raise ConfigError(
                f"baseline: {self.baseline!r} is only used by sentinel= and by units of reward=; add sentinel=[METRIC] "
                "or remove it"
            )

    def _check_sentinel(self) -> None:
        reward = self.one_reward()
        parts = (reward,) if self.reward is None else self.reward.weights
        others = [name for name in self.metrics if name not in parts]
        if self.sentinel and reward is None:
            raise ConfigError(f"sentinel: expected reward= as well, one of {', '.join(self.metrics)}, got none")
        for name in self.sentinel:
            if name not in others:
                raise ConfigError(
                    f"sentinel: expected one of {', '.join(others) or 'metrics besides the reward'}, got {name!r}"
                )

    def scorer(self) -> ScorerConfig:
        """Return the configuration of a replica's scorer; raise ConfigError if a model cannot serve a metric."""
        return ScorerConfig(
            models=self.models,
            metrics=self.metrics,
            limits=self.limits,
            clips=self.clips,
            on_gpu=self.num_gpus > 0,
            kept_prompts=self.kept_prompts,
        )

    def pool(self) -> PoolConfig:
        """Return the resources of a replica."""
        return PoolConfig(
            num_cpus=self.num_cpus or 1.0,
            num_gpus=self.num_gpus,
            decoders=self.decoders,
            threads=self.threads,
            deadline=self.batch_deadline,
        )

    def one_reward(self) -> str | None:
        """Return the reward on wires with one number: a metric, REWARD for a combination, or None."""
        if self.reward is not None:
            return self.reward.name
        return next(iter(self.metrics)) if len(self.metrics) == 1 else None
