"""What a reward service serves, where it listens, and what it bears."""

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
from plumbline.pipelines.base.cluster import PoolConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.sources.question_packs import PackConfig
from plumbline.pipelines.web.listening import check_address


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig(BoundsChecked):
    """How much a service takes at once, and how it makes batches of it."""

    replicas: Positive = 1
    """Processes that hold the models."""
    batch: Positive = 32
    """Images that a replica is sent together, of whatever requests."""
    gather_seconds: NotNegative = 0.005
    """How long an image waits for others while a replica is idle."""
    deadline: Seconds = 300.0
    """Seconds after which a request is answered by 503."""
    batch_deadline: Seconds = 100.0
    """Seconds that a replica may take to decode a batch, and its models to score it; then it is ended, and the batch
    goes to the next one."""
    max_deaths: Annotated[int, at_least(3, ", of which two may be for another image")] = 3
    """How often a replica may end with an image before the image is given up; from the third on it goes alone, so that
    no image is given up for another's sake."""
    max_waiting: int = 2048
    """Images that wait; a request beyond is answered by 429."""
    max_request_images: Positive = 512
    """Images of one request; sources and frames of a list count each, a video's file is one."""
    max_body: Positive = 64_000_000
    """Bytes of one request, with the videos that it names by path."""
    max_bodies: int = 512_000_000
    """Bytes of all requests that are not answered, or left images in the queue; a request beyond is answered by 429."""
    cached_scores: Natural = 200_000
    """Scores that are remembered, about 0.3 KB each; 0 remembers none."""
    kept_prompts: Positive = DEFAULT_KEPT_PROMPTS
    """Prompts of each metric whose written questions a replica keeps in memory, about 1.2 KB a question; beyond that
    the oldest go."""


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(LoadConfig):
    """Metrics by models, on replicas behind one address."""

    models: Mapping[str, AnyModel]
    """By role."""
    metrics: Mapping[str, AnyMetric]
    """By name."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    pack: PackConfig = field(default_factory=PackConfig)
    """A benchmark's own questions, for images that come without any."""
    host: str = "127.0.0.1"
    """Where it listens; a host that others reach needs a token."""
    hosts: tuple[str, ...] = ()
    """Names by which it is asked beside this machine's own and `host`, as [rewards.example.org] behind a reverse proxy;
    ["*"] is any."""
    port: int = 8000
    """The port that it listens on; 0 is any that is free."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """The environment variable that holds the token; the token itself is never configured."""
    video_folders: Roots = ()
    """Folders and cloud prefixes whose videos a request may name by path; links are followed first. None by default."""
    reward: AnyReward = None
    """What answers wires which ask for one number; needed where several metrics are served. NAME, or several in one:
    {vqascore: 1, hpsv3: 0.5}, or {weights: {NAME: WEIGHT, ...}, unit: score, z_score or noise, join: sum, min or
    product, clip_parts: [LOW, HIGH], clip: [LOW, HIGH]} (docs/rewards.md)."""
    sentinel: tuple[str, ...] = ()
    """Served metrics that are computed beside the reward, whoever asks for it, to see whether it is gamed: as
    [edge_density,entropy,saturation]."""
    sentinel_images: Positive = 1000
    """Images of each look, and of the baseline, which are the first where no run is."""
    baseline: str | None = None
    """A run of the store, by its id or `latest`: its scores give the units of a combined reward, and the sentinel
    compares with them."""
    baseline_generator: str | None = None
    """Whose images of that run; the sentinel needs it where the run has several generators."""
    store: str = "store"
    """Folder or cloud prefix of the store with the baseline; questions that a language model writes are kept there."""
    storage: StorageConfig = field(default_factory=StorageConfig)
    num_cpus: NotNegative = 1.0
    """CPUs that each replica reserves."""
    num_gpus: NotNegative = 0.0
    """GPUs that each replica reserves; its models run there."""
    decoders: int | None = None
    """Images that each replica decodes at once; by default as many as the machine has cores for its GPUs, also where it
    shares one, or without a GPU as many as `num_cpus`."""
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
                f"metrics.{name}: it compares with captions of edits, and the service takes none; leave it out, or use "
                "jobs.score or the scorer in Python (docs/edits.md)"
            )
        self._check_reward()
        self._check_sentinel()
        check_address(self.port, self.hosts)
        if self.max_waiting < self.max_request_images or self.max_bodies < self.max_body:
            raise ConfigError("max_waiting, max_bodies: expected no less than max_request_images and max_body")
        self.scorer()

    def _check_reward(self) -> None:
        unit = "score" if self.reward is None else self.reward.unit
        if self.reward is not None:
            self.reward.check_parts(self.metrics)
        if unit != "score" and self.baseline is None:
            raise ConfigError(
                f"reward.unit={unit}: expected baseline=RUN store=STORE beside it, whose scores give the unit, got none"
            )
        if unit == "score" and self.baseline is not None and not self.sentinel:
            raise ConfigError(
                f"baseline: {self.baseline!r} is what sentinel= compares with, and what gives reward= a unit; name the "
                "metrics that the sentinel watches"
            )

    def _check_sentinel(self) -> None:
        reward = self.one_reward()
        parts = (reward,) if self.reward is None else self.reward.weights
        others = [name for name in self.metrics if name not in parts]
        if self.sentinel and reward is None:
            raise ConfigError(f"sentinel: expected reward= beside it, of {', '.join(self.metrics)}, got none")
        for name in self.sentinel:
            if name not in others:
                raise ConfigError(
                    f"sentinel: expected of {', '.join(others) or 'metrics beside the reward'}, got {name!r}"
                )

    def scorer(self) -> ScorerConfig:
        """What every replica holds; raises ConfigError where a model does not serve a metric."""
        return ScorerConfig(
            models=self.models,
            metrics=self.metrics,
            limits=self.limits,
            clips=self.clips,
            on_gpu=self.num_gpus > 0,
            kept_prompts=self.kept_prompts,
        )

    def pool(self) -> PoolConfig:
        """What a replica is given."""
        return PoolConfig(
            num_cpus=self.num_cpus or 1.0,
            num_gpus=self.num_gpus,
            decoders=self.decoders,
            threads=self.threads,
            deadline=self.batch_deadline,
        )

    def one_reward(self) -> str | None:
        """What answers wires that ask for one number: a metric, or REWARD for several in one."""
        if self.reward is not None:
            return self.reward.name
        return next(iter(self.metrics)) if len(self.metrics) == 1 else None
