"""Table of all kinds of metrics: the class of each kind, by its name."""

from collections.abc import Mapping
from contextlib import suppress
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, TypeAdapter, ValidationError

from plumbline.operators.base.errors import ConfigError, PlumblineError
from plumbline.operators.base.extensions import Extensions
from plumbline.operators.metrics.metric import Metric

KINDS = Extensions[type[Metric]](
    "metrics",
    {
        "vqascore": "plumbline.operators.metrics.questions.vqascore:VqaScoreConfig",
        "clipscore": "plumbline.operators.metrics.similarities.clipscore:ClipScoreConfig",
        "similarity": "plumbline.operators.metrics.similarities.similarity:SimilarityConfig",
        "gecko": "plumbline.operators.metrics.questions.gecko:GeckoConfig",
        "tifa": "plumbline.operators.metrics.questions.tifa:TifaConfig",
        "dsg": "plumbline.operators.metrics.questions.dsg:DsgConfig",
        "vq2": "plumbline.operators.metrics.questions.vq2:Vq2Config",
        "llmscore": "plumbline.operators.metrics.judges.llmscore:LlmScoreConfig",
        "sentence_matching": "plumbline.operators.metrics.similarities.sentence_matching:SentenceMatchingConfig",
        "viescore": "plumbline.operators.metrics.judges.viescore:VieScoreConfig",
        "gpt4v_eval": "plumbline.operators.metrics.judges.gpt4v_eval:Gpt4vEvalConfig",
        "pairwise": "plumbline.operators.metrics.judges.pairwise:PairwiseConfig",
        "vpeval": "plumbline.operators.metrics.questions.vpeval:VpevalConfig",
        "image_statistic": "plumbline.operators.metrics.image_statistic:ImageStatisticConfig",
        "question_pack": "plumbline.operators.metrics.questions.question_pack:QuestionPackConfig",
        "function": "plumbline.operators.metrics.function:FunctionConfig",
    },
    Metric,
)


def _check_kind(name: str, metric: type[Metric]) -> type[Metric]:
    """Return the metric class; raise ConfigError if the default of its field `kind` is not `name`.

    A class that inherits its kind would otherwise replace the class that declares this kind.
    """
    kind = getattr(metric, "__dataclass_fields__", {}).get("kind")
    if kind is None or kind.default != name:
        found = "none" if kind is None else repr(kind.default)
        raise ConfigError(f"{KINDS.describe(name)}: expected the kind {name!r}, found {found}; correct the dataclass")
    return metric


METRICS: tuple[type[Metric], ...] = tuple(_check_kind(name, metric) for name, metric in KINDS.items())


def find_newcomer_description(kind: str) -> str:
    """Return the metric's description for newcomers, which reports show; an empty string for an unknown kind."""
    return next((metric.story for metric in METRICS if metric.__dataclass_fields__["kind"].default == kind), "")


def read_metrics(manifest: Mapping[str, Any]) -> dict[str, Metric]:
    """Return the metrics in a run's manifest by name, omitting metrics whose options belong to another version."""
    read = {}
    for name, options in manifest.get("config", {}).get("metrics", {}).items():
        with suppress(ValidationError, PlumblineError):
            read[name] = _make_validator().validate_python(options)
    return read


def read_lower_is_better(manifest: Mapping[str, Any]) -> frozenset[str]:
    return frozenset(manifest.get("lower_is_better", ()))


@cache
def _make_validator() -> TypeAdapter[Metric]:
    """Return the validator for all metrics. It is cached, because building its schema takes a tenth of a second."""
    return TypeAdapter(AnyMetric)


if TYPE_CHECKING:
    AnyMetric = Metric
else:
    AnyMetric = Annotated[reduce(or_, METRICS), Discriminator("kind")]
    """Options of a metric in a configuration; `kind` selects the class."""
