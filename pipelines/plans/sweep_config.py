"""A sweep's configuration as typed, frozen values; whatever does not fit is refused in one line."""

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cache
from types import UnionType
from typing import Annotated, Any, ClassVar, TypeVar, Union, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError
from pydantic_core import ErrorDetails

from plumbline.operators.base.bounds import Checked, Positive, Share
from plumbline.operators.base.errors import ConfigError, suggest
from plumbline.operators.images.decoding import ImageLimits
from plumbline.operators.images.generation_settings import COMPARE, Choice
from plumbline.operators.images.videos import Clips
from plumbline.operators.metrics.generation import PicturesConfig
from plumbline.operators.metrics.metric import Metric, PackedMetric
from plumbline.operators.metrics.table import AnyMetric
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.service_config import ServiceModel
from plumbline.operators.stages.graph import check_models, make_nodes
from plumbline.operators.stages.table import STAGES
from plumbline.operators.statistics.options import Adaptive
from plumbline.pipelines.base.cluster import ClusterConfig
from plumbline.pipelines.base.logs import LogConfig
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.judging.protocols import ProtocolConfig
from plumbline.pipelines.sources.benchmark import BenchmarkConfig

Config = TypeVar("Config")


@dataclass(frozen=True, kw_only=True, slots=True)
class AnySweep(Checked):
    """What a sweep of one benchmark and one of several have in common."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    models: Mapping[str, AnyModel]
    """By role."""
    metrics: Mapping[str, AnyMetric]
    """By name."""
    cluster: ClusterConfig
    storage: StorageConfig = field(default_factory=StorageConfig)
    limits: ImageLimits = field(default_factory=ImageLimits)
    clips: Clips = field(default_factory=Clips)
    shard_rows: Positive | None = None
    """Row groups of a file are worked on together up to this many rows. By default the benchmark's size decides when it
    first comes to the store, and its images' bytes (docs/scale.md)."""
    shard_bytes: Positive | None = None
    """And up to this many bytes; by default the same decides, and nothing where `shard_rows` is given."""
    max_failed: Share = 0.01
    """Share of rows without a score up to which the exit code is 2 instead of 1."""
    dry_run: bool = False
    """Print the plan and stop."""
    verbose: bool = False
    """Print each metric's boards too, overall and by skill."""
    retry_failed: bool = False
    """Compute only the rows that failed and may pass now, and the cells that depend on them."""
    verify: bool = False
    """Read every cell that the run was made from, name the damaged ones and compute them again (docs/keeping.md)."""
    image_model: AnyModel | None = None
    """Draws the benchmark's prompts into the folder of its images before they are scored (docs/decide.md); null scores
    the images that are there."""
    pictures: PicturesConfig = field(default_factory=PicturesConfig)
    """How it draws, and how many pictures of each prompt."""
    adaptive: Adaptive | None = None
    """When enough prompts have been scored to tell the generators apart; null scores all."""
    log: LogConfig = field(default_factory=LogConfig)
    """What is written of each cell while the run goes on (docs/observing.md)."""
    protocol: ProtocolConfig | None = None
    """How the metrics are compared with people at the end; null leaves it out."""
    settings: Choice = COMPARE
    """`compare` calls no difference clear between images that were generated with different settings (docs/decide.md);
    `ignore` compares them all the same."""
    note: str = ""
    """One line about the run for people, which status, report and view show; it decides no result."""
    command: str = ""
    """The command line, which a job notes here itself, without secrets; the run's manifest keeps it."""

    def __post_init__(self) -> None:
        Checked.__post_init__(self)
        if not self.note.isprintable():
            raise ConfigError(f"note: expected one line of text, got {self.note!r}")
        if not self.metrics:
            raise ConfigError("metrics: expected at least one, got none; for example metric=[vqascore]")
        check_models(make_nodes(self.metrics), self.models)
        self.cluster.check_pools(STAGES, self.models)
        self._check_currencies()

    def _check_currencies(self) -> None:
        """What GPUs and services cost is added up where GPUs have a price."""
        for role, model in self.models.items() if self.cluster.price_per_gpu_hour is not None else ():
            if isinstance(model, ServiceModel) and model.prices and model.prices.currency != self.cluster.currency:
                raise ConfigError(
                    f"models.{role}.prices.currency: expected cluster.currency ({self.cluster.currency}), got "
                    f"{model.prices.currency}; give all prices in one currency"
                )


@dataclass(frozen=True, kw_only=True, slots=True)
class SweepConfig(AnySweep):
    """Benchmark prompts x generators x metrics."""

    benchmark: BenchmarkConfig

    def __post_init__(self) -> None:
        AnySweep.__post_init__(self)
        for name, metric in self.metrics.items():
            if why := unfit(metric, self.benchmark):
                raise ConfigError(f"metrics.{name}: {why}")
        if self.adaptive is not None:
            self._check_adaptive()

    @property
    def falling(self) -> frozenset[str]:
        """The metrics by which a lower score is better."""
        return frozenset(name for name, metric in self.metrics.items() if metric.prefers_lower)

    def _check_adaptive(self) -> None:
        if type(self) is not SweepConfig:
            raise ConfigError("adaptive: this job looks at all prompts, as it compares; leave it out")
        if self.retry_failed:
            raise ConfigError(
                "adaptive: a sweep that stops early tries failed rows again anyway; set retry_failed=false"
            )
        if self.verify:
            raise ConfigError("adaptive: a sweep that stops early reads its scores anyway; set verify=false")
        if not any(metric.ranks for metric in self.metrics.values()):
            raise ConfigError("adaptive: expected a metric that ranks generators, got none that does; add one")


def unfit(metric: Metric, benchmark: BenchmarkConfig) -> str:
    """What a benchmark's configuration lacks that a metric needs, with the remedy; empty where it lacks nothing."""
    if isinstance(metric, PackedMetric) and benchmark.question_pack is None:
        return (
            "it scores by questions that the benchmark ships; name them by benchmark.questions and "
            "benchmark.question_pack (docs/questions.md)"
        )
    lacking = [f"benchmark.columns.{name}" for name in metric.captions if not getattr(benchmark.columns, name)]
    if lacking:
        return f"it compares with captions of the edit; name their columns by {' and '.join(lacking)} (docs/edits.md)"
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class EveryBenchmark(Checked):
    """What holds for each benchmark of a suite."""

    section: ClassVar[str] = "benchmark."
    limit: Positive | None = None
    """How many prompts of each benchmark are scored, where it has no limit of its own; limit=N for short."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteConfig(AnySweep):
    """Several benchmarks, each with its generators and the metrics that fit, planned and computed together."""

    benchmarks: Mapping[str, BenchmarkConfig]
    """By choice of conf/benchmark."""
    benchmark: EveryBenchmark = field(default_factory=EveryBenchmark)
    metrics_of: Mapping[str, tuple[str, ...] | None] = field(default_factory=dict)
    """By benchmark, the metrics that score it; null takes all that fit."""

    def __post_init__(self) -> None:
        AnySweep.__post_init__(self)
        if not self.benchmarks:
            raise ConfigError("benchmarks: expected at least one, got none; for example benchmarks=[genai_bench]")
        of_one = {"adaptive": self.adaptive, "protocol": self.protocol, "image_model": self.image_model}
        for key, lacks in of_one.items():
            if lacks is not None:
                raise ConfigError(f"{key}: it is one benchmark's; leave it out, or sweep that benchmark alone")
        names = Counter(benchmark.name for benchmark in self.benchmarks.values())
        for key, benchmark in self.benchmarks.items():
            if names[benchmark.name] > 1:
                raise ConfigError(f"benchmarks.{key}.name: several are called {benchmark.name!r}; rename one of them")
        for key, metrics in self.metrics_of.items():
            if key not in self.benchmarks:
                raise ConfigError(f"metrics_of.{key}: no such benchmark; {suggest(key, list(self.benchmarks))}")
            for name in metrics or ():
                if name not in self.metrics:
                    remedy = suggest(name, self.metrics, f"metrics_of.{key}=null takes all that fit")
                    known = " or ".join(self.metrics)
                    raise ConfigError(
                        f"metrics_of.{key}: expected metrics of the sweep, {known}, got {name!r}; {remedy}"
                    )

    def sweep(self, key: str, metrics: Mapping[str, AnyMetric]) -> SweepConfig:
        """The sweep of one of the benchmarks by these metrics, as it is configured alone."""
        benchmark = self.benchmarks[key]
        if benchmark.limit is None:
            benchmark = replace(benchmark, limit=self.benchmark.limit)
        shared = {each.name: getattr(self, each.name) for each in fields(AnySweep)}
        return SweepConfig(**{**shared, "benchmark": benchmark, "metrics": metrics})


@dataclass(frozen=True, kw_only=True, slots=True)
class StatusConfig:
    """Which store to report on."""

    store: str = "store"
    """Folder or cloud prefix of the store."""
    watch: bool = False
    """Show how far the running sweeps are, again and again until they have ended; --watch is short for it."""
    storage: StorageConfig = field(default_factory=StorageConfig)


def read_config(values: Mapping[str, Any], schema: type[Config]) -> Config:
    """The values as a `schema`; raises ConfigError naming the first key that does not fit, and what it expects."""
    for key, number in _not_finite(values):
        raise ConfigError(f"config key {key!r}: expected a finite number, got {number}")
    try:
        return cast(Config, _adapter(cast(Hashable, schema)).validate_python(values, extra="forbid"))
    except ValidationError as error:
        kind = values.get("kind") if isinstance(values, Mapping) else None  # it may have come from a damaged file
        raise ConfigError(_describe(error, kind, schema)) from error


def alternatives(schema: Any) -> tuple[Any, ...]:
    """The dataclasses that a value of this type is one of."""
    if isinstance(schema, type) and is_dataclass(schema):
        return (schema,)
    inner = get_args(schema) if get_origin(schema) in (Annotated, Union, UnionType) else ()
    return tuple(each for one in inner for each in alternatives(one))


@cache
def classes_within(schema: Any) -> frozenset[Any]:
    """The dataclasses that a value of this type may hold at any depth, itself among them."""
    own = alternatives(schema)
    inner = (field.type for each in own for field in fields(each))
    return frozenset(own).union(*map(classes_within, (*inner, *get_args(schema))))


@cache
def _adapter(schema: Any) -> TypeAdapter[Any]:
    return TypeAdapter(schema)


def _not_finite(values: Any, key: str = "") -> Iterator[tuple[str, float]]:
    """NaN and infinities, which no limit holds against, by their keys."""
    if isinstance(values, Mapping):
        for name, value in values.items():
            yield from _not_finite(value, f"{key}.{name}" if key else str(name))
    elif isinstance(values, Sequence) and not isinstance(values, (str, bytes)):
        for value in values:
            yield from _not_finite(value, key)
    elif isinstance(values, float) and not math.isfinite(values):
        yield key, values


def _describe(error: ValidationError, kind: str | None, schema: Any) -> str:
    """The first problem; pydantic names the kinds it chose, of the whole, a metric or a model, which are no keys."""
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
        names = {field.name for each in classes_within(schema) for field in fields(each)}
        return f"unknown config key {key!r}; {suggest(path[-1], sorted(names))}"
    if first["type"].startswith("missing"):
        return f"config key {key!r} is required and not set"
    found = "" if path[0] == "storage" else f", got {first['input']!r}"
    return f"config key {key!r}: {_expectation(first)}{found}"


EXPECTED = {
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "string": "text",
    "literal": "{expected}",
    "dict": "keys of its own",
    "mapping": "keys of its own",
}
"""What a value was to be, by how pydantic begins the names of its errors."""


def _expectation(error: ErrorDetails) -> str:
    """What was expected in plain words; as pydantic says it where that has none."""
    plain = EXPECTED.get(error["type"].partition("_")[0])
    if plain is None:
        return error["msg"].replace("Input should be", "expected")
    return f"expected {plain.format(**error.get('ctx', {}))}"
