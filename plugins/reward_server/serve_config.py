"""Configuration of a reward service: its metrics, address and limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated

from plumbline.operators.base.bounds import BoundsChecked, Natural, NonNegative, Positive, Seconds, at_least
from plumbline.operators.base.errors import ConfigError
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.rewards.combination import AnyReward
from plumbline.operators.scoring.prompt_cache import DEFAULT_KEPT_PROMPTS
from plumbline.operators.scoring.scorer import MAX_GROUP, ScorerConfig, compares_images
from plumbline.operators.stages.graph import list_caption_columns
from plumbline.pipelines.base.cluster_config import PoolConfig
from plumbline.pipelines.base.storage import Roots, StorageConfig
from plumbline.pipelines.sources.question_packs import PackConfig
from plumbline.pipelines.web.listening import check_address


@dataclass(frozen=True, kw_only=True, slots=True)
class LoadConfig(BoundsChecked):
    """Batch sizes and limits of a service."""

    replicas: Positive = 1
    """Number of processes that load the models."""
    batch: Positive = 32
    """Maximum number of images, from any requests, that are sent to a replica together."""
    gather_seconds: NonNegative = 0.005
    """Seconds that an image waits for others to join its batch while a replica is idle."""
    deadline: Seconds = 300.0
    """Seconds after which a request is answered with 503."""
    batch_deadline: Seconds = 100.0
    """Seconds allowed for a replica to decode a batch, and again for scoring it. A slower replica is killed, and its
    batch goes to the next replica.
    """
    max_deaths: Annotated[int, at_least(3, ", because two may be caused by another image")] = 3
    """Number of replicas that may die while scoring an image before the image is given up. From the third try on, the
    image is sent alone, so that no image is given up because of another.
    """
    max_waiting: int = 2048
    """Maximum number of images in the queue; further requests are answered with 429."""
    max_request_images: Positive = 512
    """Maximum number of images in a request. Each source and each frame in a list counts; a video file counts as one.
    """
    max_group: Positive = MAX_GROUP
    """Maximum number of images of a prompt in a request, if a metric compares them with each other: n images take
    n (n - 1) comparisons. Each pair of images counts towards `max_waiting`.
    """
    max_body: Positive = 64_000_000
    """Maximum size of a request in bytes, including the videos that it names by path."""
    max_bodies: int = 512_000_000
    """Maximum total size in bytes of requests that have not been answered, or whose images are still in the queue;
    further requests are answered with 429.
    """
    cached_scores: Natural = 200_000
    """Maximum number of scores in the cache, which take about 0.3 KB each; 0 disables the cache."""
    kept_prompts: Positive = DEFAULT_KEPT_PROMPTS
    """Maximum number of prompts per metric whose written questions a replica keeps in memory (about 1.2 KB per
    question); the oldest are dropped.
    """


@dataclass(frozen=True, kw_only=True, slots=True)
class ServeConfig(LoadConfig):
    """Configuration of a reward service: metrics, models, address and limits."""

    models: Mapping[str, AnyModel]
    """Models by role."""
    metrics: Mapping[str, AnyMetric]
    """Metrics by name."""
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    pack: PackConfig = field(default_factory=PackConfig)
    """A benchmark's own questions, used for images that are sent without questions."""
    host: str = "127.0.0.1"
    """Address to listen on. A token is required if other machines can reach the address."""
    hosts: tuple[str, ...] = ()
    """Host names to accept in addition to this machine's own and `host`, such as [rewards.example.org] behind a reverse
    proxy; ["*"] accepts any.
    """
    port: int = 8000
    """Port to listen on; 0 chooses a free port."""
    token_variable: str = "PLUMBLINE_TOKEN"
    """Environment variable that contains the token; the token itself is never configured."""
    video_folders: Roots = ()
    """Folders and cloud prefixes whose videos requests may name by path, after links are resolved; none by default."""
    reward: AnyReward = None
    """Reward on wires with one number per image; required if several metrics are served. Either NAME, or a combination:
    {vqascore: 1, hpsv3: 0.5}, or {weights: {NAME: WEIGHT, ...}, unit: score, z_score or noise, join: sum, min or
    product, clip_parts: [LOW, HIGH], clip: [LOW, HIGH]} (docs/rewards.md).
    """
    sentinel: tuple[str, ...] = ()
    """Served metrics that detect reward hacking, such as [edge_density,entropy,saturation]. They are also computed for
    every image whose reward is requested.
    """
    sentinel_images: Positive = 1000
    """Number of images in each comparison, and in the baseline if no run is used as the baseline."""
    baseline: str | None = None
    """Run in the store: its id, or `latest`. Its scores define the units of a combined reward, and are the baseline of
    the sentinel.
    """
    baseline_generator: str | None = None
    """Generator of the baseline's images; required by the sentinel if the run has several generators."""
    store: str = "store"
    """Folder or cloud prefix of the store that contains the baseline and the questions written by a language model."""
    storage: StorageConfig = field(default_factory=StorageConfig)
    num_cpus: NonNegative = 1.0
    """Number of CPUs that each replica reserves."""
    num_gpus: NonNegative = 0.0
    """Number of GPUs that each replica reserves for its models."""
    decoders: int | None = None
    """Number of images that each replica decodes concurrently; by default `num_cpus` or, with a GPU, the machine's
    cores per GPU.
    """
    threads: int | None = None
    """Number of torch threads per replica; chosen by Ray by default."""
    address: str | None = None
    """Address of a running Ray cluster; null uses RAY_ADDRESS or, if that is not set, starts a local Ray."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not self.metrics:
            raise ConfigError("metrics: expected at least one, got none; for example metric=[vqascore]")
        for name in list_caption_columns(self.metrics):
            raise ConfigError(
                f"metrics.{name}: it needs captions of edits, which the service cannot receive; leave it out, or "
                "score with jobs.score or in Python (plugins/edits/README.md)"
            )
        self._check_reward()
        self._check_sentinel()
        check_address(self.port, self.hosts)
        if self.max_waiting < self.max_request_images or self.max_bodies < self.max_body:
            raise ConfigError(
                "expected max_waiting to be at least max_request_images, and max_bodies at least max_body, got "
                f"max_waiting={self.max_waiting}, max_request_images={self.max_request_images}, "
                f"max_bodies={self.max_bodies}, max_body={self.max_body}; raise the lower one"
            )
        self.make_scorer_config()

    def _check_reward(self) -> None:
        unit = "score" if self.reward is None else self.reward.unit
        if self.reward is not None:
            self.reward.check_parts(self.metrics)
        if unit != "score" and self.baseline is None:
            raise ConfigError(
                f"reward.unit={unit}: expected a run that defines the unit, got none; set baseline=RUN store=STORE"
            )
        if unit == "score" and self.baseline is not None and not self.sentinel:
            raise ConfigError(
                f"baseline: {self.baseline!r} is only used by sentinel= and by units of reward=; add sentinel=[METRIC] "
                "or remove it"
            )

    def _check_sentinel(self) -> None:
        reward = self.find_reward()
        parts = (reward,) if self.reward is None else self.reward.weights
        others = [name for name in self.metrics if name not in parts]
        if self.sentinel and reward is None:
            raise ConfigError(
                f"sentinel: expected a reward as well, got none; set reward= to one of {', '.join(self.metrics)}"
            )
        for name in (*parts, *self.sentinel):
            if self.sentinel and compares_images(self.metrics[name]):
                raise ConfigError(
                    f"sentinel: {name} compares the images of a prompt with each other, so its mean never changes; "
                    "leave the sentinel out, or use a reward that looks at each image alone"
                )
        for name in self.sentinel:
            if name not in others:
                raise ConfigError(
                    f"sentinel: expected one of {', '.join(others) or 'metrics besides the reward'}, got {name!r}"
                )

    def make_scorer_config(self) -> ScorerConfig:
        """Return the configuration of a replica's Scorer; raise ConfigError if a model cannot serve a metric."""
        return ScorerConfig(
            models=self.models,
            metrics=self.metrics,
            limits=self.limits,
            clips=self.clips,
            on_gpu=self.num_gpus > 0,
            kept_prompts=self.kept_prompts,
            max_group=self.max_group,
        )

    def make_pool_config(self) -> PoolConfig:
        """Return the resources that a replica needs."""
        return PoolConfig(
            num_cpus=self.num_cpus or 1.0,
            num_gpus=self.num_gpus,
            decoders=self.decoders,
            threads=self.threads,
            deadline=self.batch_deadline,
        )

    def find_reward(self) -> str | None:
        """Return the name of the reward for wires with one number per image.

        It is a metric's name, or `reward` for a combination. Returns None if several metrics are served and no reward
        is configured.
        """
        if self.reward is not None:
            return self.reward.name
        return next(iter(self.metrics)) if len(self.metrics) == 1 else None
