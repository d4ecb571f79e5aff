"""The configuration of a sweep: typed, frozen values that are validated at construction."""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from plumbline.operators.base.bounds import BoundsChecked, Positive, Share
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.generation_settings import COMPARE, SettingsPolicy
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.generation import PicturesConfig
from plumbline.operators.metrics.metric import Metric, PackedMetric, PairSelection, compares_actively
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.service_config import ServiceModel
from plumbline.operators.stages.graph import check_models, make_nodes
from plumbline.operators.stages.table import PLUGIN_STAGES, STAGES
from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.pipelines.base.cluster_config import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.metaeval.protocols import ProtocolConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True, slots=True)
class BaseSweepConfig(BoundsChecked):
    """Configuration shared by sweeps with a single benchmark and sweeps with several benchmarks."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    models: Mapping[str, AnyModel]
    """Models by role."""
    metrics: Mapping[str, AnyMetric]
    """Metrics by name."""
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    shard_rows: Positive | None = None
    """Maximum number of rows in a shard, which consists of row groups of a file. The default is chosen when a benchmark
    is first used with the store, based on its size and the size of its images (docs/scale.md).
    """
    shard_bytes: Positive | None = None
    """Maximum number of bytes in a shard. The default is chosen in the same way as for `shard_rows`; if `shard_rows` is
    set, bytes are not limited by default.
    """
    max_failed: Share = 0.01
    """Maximum fraction of rows without a score for exit code 2; above it, the exit code is 1."""
    dry_run: bool = False
    """True to print the plan and stop."""
    verbose: bool = False
    """Also print each metric's leaderboards, overall and by skill."""
    retry_failed: bool = False
    """Compute only the rows that failed but may succeed now, and the cells that depend on them."""
    verify: bool = False
    """Read every cell that the run is made from, report the damaged ones and compute them again (docs/keeping.md)."""
    image_model: AnyModel | None = None
    """Model that generates images for the benchmark's prompts before scoring, in the benchmark's image folder
    (docs/decide.md); null scores the existing images.
    """
    pictures: PicturesConfig = field(default_factory=PicturesConfig)
    """Settings of the image model, and the number of images per prompt."""
    adaptive: AdaptiveConfig | None = None
    """Rule that ends the sweep as soon as the scored prompts distinguish the generators; null scores all prompts."""
    log: LogConfig = field(default_factory=LogConfig)
    """Format and level of the log that is written during the run (docs/observing.md)."""
    protocol: ProtocolConfig | None = None
    """Protocol for comparing the metrics with human ratings at the end; null skips the comparison."""
    settings: SettingsPolicy = COMPARE
    """`compare` reports no significant differences between images that were generated with different settings
    (docs/decide.md); `ignore` compares them anyway.
    """
    note: str = ""
    """One-line note about the run, shown by status, report and view. It does not affect results."""
    command: str = ""
    """Command line without secrets. The job fills it in, and it is saved in the run's manifest."""

    def __post_init__(self) -> None:
        BoundsChecked.__post_init__(self)
        if not self.note.isprintable():
            raise ConfigError(f"note: expected one line of text, got {self.note!r}")
        if not self.metrics:
            raise ConfigError("metrics: expected at least one, got none; name one, as in metric=[vqascore]")
        check_models(make_nodes(self.metrics), self.models)
        selections = {name: metric.pair_selection for name, metric in self.metrics.items() if metric.pair_selection}
        for key in PairSelection._fields:
            found = {name: getattr(selection, key) for name, selection in selections.items()}
            if len({*found.values()}) > 1:
                listed = " and ".join(f"{value} for {name}" for name, value in found.items())
                raise ConfigError(f"metrics: expected the same {key} for all metrics that compare pairs, got {listed}")
        self.cluster.check_pools([*STAGES, *PLUGIN_STAGES], self.models)
        # prices of services and of GPUs are added up
        for role, model in self.models.items() if self.cluster.price_per_gpu_hour is not None else ():
            if isinstance(model, ServiceModel) and model.prices and model.prices.currency != self.cluster.currency:
                raise ConfigError(
                    f"models.{role}.prices.currency: expected cluster.currency ({self.cluster.currency}), got "
                    f"{model.prices.currency}; give all prices in one currency"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig(BaseSweepConfig):
    """A sweep of one benchmark: its prompts x generators x metrics."""

    benchmark: BenchmarkConfig

    def __post_init__(self) -> None:
        BaseSweepConfig.__post_init__(self)
        for name, metric in self.metrics.items():
            if why := explain_missing_settings(metric, self.benchmark):
                raise ConfigError(f"metrics.{name}: {why}")
        active = [name for name, metric in self.metrics.items() if compares_actively(metric)]
        if self.adaptive is None and active:
            raise ConfigError(
                f"metrics.{active[0]}.pairs: expected a value other than active for a sweep of all prompts; set "
                "adaptive=betting to stop early, or pairs=all"
            )
        if active and len(active) < len(self.metrics):
            other = next(name for name in self.metrics if name not in active)
            raise ConfigError(
                f"metrics.{active[0]}.pairs: pairs=active leaves out images that {other} would score; sweep with "
                f"{other} alone, or set pairs=all"
            )
        if self.adaptive is None:
            return
        if type(self) is not SweepConfig:
            raise ConfigError(
                "adaptive: this job compares generators on all prompts, so it cannot stop early; leave adaptive out"
            )
        if self.retry_failed:
            raise ConfigError(
                "adaptive: a sweep that stops early tries failed rows again anyway; set retry_failed=false"
            )
        if self.verify:
            raise ConfigError("adaptive: a sweep that stops early reads its scores anyway; set verify=false")
        if not active and not any(metric.ranks for metric in self.metrics.values()):
            raise ConfigError("adaptive: expected a metric that ranks generators, got none; add one")

    @property
    def lower_is_better(self) -> frozenset[str]:
        """Metrics for which lower scores are better."""
        return frozenset(name for name, metric in self.metrics.items() if metric.prefers_lower)


def explain_missing_settings(metric: Metric, benchmark: BenchmarkConfig) -> str:
    """Return a message that says which settings a metric needs but the benchmark lacks; empty if it lacks none."""
    if isinstance(metric, PackedMetric) and benchmark.question_pack is None:
        return (
            "it needs questions that come with the benchmark; set benchmark.questions and "
            "benchmark.question_pack (docs/questions.md)"
        )
    lacking = [f"benchmark.columns.{name}" for name in metric.captions if not getattr(benchmark.columns, name)]
    if lacking:
        names = " and ".join(lacking)
        return f"it needs captions of the edit; set their columns with {names} (plugins/edits/README.md)"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedBenchmarkConfig(BoundsChecked):
    """Configuration shared by all benchmarks of a suite."""

    section: ClassVar[str] = "benchmark."
    limit: Positive | None = None
    """Number of prompts to score for each benchmark that has no limit of its own; limit=N for short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteConfig(BaseSweepConfig):
    """Several benchmarks that are planned and computed together, each with its own generators and suitable metrics."""

    benchmarks: Mapping[str, BenchmarkConfig]
    """Benchmarks, by the name of their file in conf/benchmark."""
    benchmark: SharedBenchmarkConfig = field(default_factory=SharedBenchmarkConfig)
    metrics_of: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """Metrics that score each benchmark; null means all metrics that fit the benchmark."""

    def __post_init__(self) -> None:
        BaseSweepConfig.__post_init__(self)
        if not self.benchmarks:
            raise ConfigError("benchmarks: expected at least one, got none; name one, as in benchmarks=[genai_bench]")
        of_one = {"adaptive": self.adaptive, "protocol": self.protocol, "image_model": self.image_model}
        for key, lacks in of_one.items():
            if lacks is not None:
                raise ConfigError(
                    f"{key}: only applies to a single benchmark; leave it out, or sweep each benchmark alone"
                )
        names = Counter(benchmark.name for benchmark in self.benchmarks.values())
        for key, benchmark in self.benchmarks.items():
            if names[benchmark.name] > 1:
                raise ConfigError(f"benchmarks.{key}.name: several benchmarks are named {benchmark.name!r}; rename one")
        for key, metrics in self.metrics_of.items():
            if key not in self.benchmarks:
                raise ConfigError(f"metrics_of.{key}: no such benchmark; {suggest(key, list(self.benchmarks))}")
            for name in metrics or ():
                if name not in self.metrics:
                    remedy = suggest(name, self.metrics, f"metrics_of.{key}=null uses all that fit")
                    known = " or ".join(self.metrics)
                    raise ConfigError(
                        f"metrics_of.{key}: expected metrics of the sweep, {known}, got {name!r}; {remedy}"
                    )

    def make_sweep(self, key: str, metrics: Mapping[str, AnyMetric]) -> SweepConfig:
        """Return the sweep of one benchmark with these metrics, as if it were configured on its own."""
        benchmark = self.benchmarks[key]
        if benchmark.limit is None:
            benchmark = replace(benchmark, limit=self.benchmark.limit)
        shared = {each.name: getattr(self, each.name) for each in fields(BaseSweepConfig)}
        return SweepConfig(**{**shared, "benchmark": benchmark, "metrics": metrics})


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusConfig:
    store: str = "store"
    """Folder or cloud prefix of the store."""
    watch: bool = False
    """Show the progress of running sweeps repeatedly until they end; --watch for short."""
    storage: StorageConfig = field(default_factory=StorageConfig)


def read_config(values: Mapping[str, Any], schema: type[Config]) -> Config:
    """Convert values to an instance of `schema`; raise ConfigError naming the first invalid key."""
    for key, number in _find_non_finite(values):
        raise ConfigError(f"config key {key!r}: expected a finite number, got {number}")
    try:
        return cast(Config, _get_adapter(cast(Hashable, schema)).validate_python(values, extra="forbid"))
    except ValidationError as error:
        kind = values.get("kind") if isinstance(values, Mapping) else None  # it may have come from a damaged file
        raise ConfigError(_describe_validation_error(error, kind, schema)) from error


def list_alternatives(schema: Any) -> tuple[Any, ...]:
    """Return the dataclasses that a value of this type may be an instance of."""
    if isinstance(schema, type) and is_dataclass(schema):
        return (schema,)
    inner = get_args(schema) if get_origin(schema) in (Annotated, Union, UnionType) else ()
    return tuple(each for one in inner for each in list_alternatives(one))


@cache
def list_classes(schema: Any) -> frozenset[Any]:
    """Return the dataclasses that can occur in a value of this type at any depth, including the value itself."""
    own = list_alternatives(schema)
    inner = (field.type for each in own for field in fields(each))
    return frozenset(own).union(*map(list_classes, (*inner, *get_args(schema))))


@cache
def _get_adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _find_non_finite(values: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """Yield NaN and infinite values with their keys; checks against limits would not detect NaN."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _find_non_finite(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        for value in values:
            yield from _find_non_finite(value, key)
    elif isinstance(values, float) and not math.isfinite(values):
        yield key, values


def _describe_validation_error(error: ValidationError, kind: str | None, schema: Any) -> str:
    """Describe the first error with its key: pydantic's path without the names of classes, which are not keys."""
    first = error.errors(include_url=False)[0]
    path = [str(part) for part in first["loc"]] or ["the whole"]
    if path[0] == kind and len(path) > 1:
        del path[0]
    if path[0] in ("metrics", "models") and len(path) > 2:
        del path[2]
    key = ".".join(part for part in path if "[" not in part)  # pydantic names the types that it tried, too
    if first["type"] == "tuple_type":
        return f"config key {key!r}: expected a list, got {first['input']!r}; write {key}=[{first['input']}]"
    if first["type"] == "dataclass_type":
        return f"config key {key!r}: expected keys of its own, got {first['input']!r}; write {key}.NAME=VALUE"
    if first["type"] in ("unexpected_keyword_argument", "extra_forbidden"):
        names = {field.name for each in list_classes(schema) for field in fields(each)}
        return f"unknown config key {key!r}; {suggest(path[-1], sorted(names))}"
    if first["type"].startswith("missing"):
        return f"config key {key!r} is required and not set"
    expected = first["msg"].replace("Input should be", "expected")
    if (plain := EXPECTED_VALUE_DESCRIPTIONS.get(first["type"].partition("_")[0])) is not None:
        expected = f"expected {plain.format(**first.get('ctx', {}))}"
    found = "" if path[0] == "storage" else f", got {first['input']!r}"  # secrets are never printed
    return f"config key {key!r}: {expected}{found}"


EXPECTED_VALUE_DESCRIPTIONS = {
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "string": "text",
    "literal": "{expected}",
    "dict": "keys of its own",
    "mapping": "keys of its own",
}
"""Plain-language descriptions of expected values, by the first part of pydantic's error type. Other errors use
pydantic's own message.
"""
