"""Every metric there is."""

from collections.abc import Mapping
from functools import cache, reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import Discriminator, TypeAdapter, ValidationError

from plumbline.operators.errors import PlumblineError
from plumbline.operators.metrics.clipscore import ClipScoreConfig
from plumbline.operators.metrics.dsg import DsgConfig
from plumbline.operators.metrics.gecko import GeckoConfig
from plumbline.operators.metrics.gpt4v_eval import Gpt4vEvalConfig
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.metrics.llmscore import LlmScoreConfig
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.question_pack import QuestionPackConfig
from plumbline.operators.metrics.rubric import RubricConfig
from plumbline.operators.metrics.sentence_matching import SentenceMatchingConfig
from plumbline.operators.metrics.similarity import SimilarityConfig
from plumbline.operators.metrics.tifa import TifaConfig
from plumbline.operators.metrics.viescore import VieScoreConfig
from plumbline.operators.metrics.vpeval import VpevalConfig
from plumbline.operators.metrics.vq2 import Vq2Config
from plumbline.operators.metrics.vqascore import VqaScoreConfig

METRICS: tuple[type[Metric], ...] = (
    VqaScoreConfig,
    ClipScoreConfig,
    SimilarityConfig,
    GeckoConfig,
    TifaConfig,
    DsgConfig,
    Vq2Config,
    LlmScoreConfig,
    SentenceMatchingConfig,
    VieScoreConfig,
    Gpt4vEvalConfig,
    VpevalConfig,
    ImageStatisticConfig,
    QuestionPackConfig,
    RubricConfig,
)


def metric_story(kind: str) -> str:
    """What metrics of the kind do, for a newcomer; empty for a kind that is not known here."""
    return next((metric.story for metric in METRICS if metric.__dataclass_fields__["kind"].default == kind), "")


def read_metrics(manifest: Mapping[str, Any]) -> dict[str, Metric]:
    """The metrics of a run's manifest by name, but for those whose options are of another version."""
    options = manifest.get("config", {}).get("metrics", {})
    read = {name: _read_metric(of_metric) for name, of_metric in options.items()}
    return {name: metric for name, metric in read.items() if metric is not None}


def falling_metrics(manifest: Mapping[str, Any]) -> frozenset[str]:
    """The metrics of a run by which a lower score is better: as it states them, or for a run from before this was
    stated, as its metrics' options have it.
    """
    stated = manifest.get("lower_is_better")
    if stated is None:
        return frozenset(name for name, metric in read_metrics(manifest).items() if metric.falling)
    return frozenset(stated)


def _read_metric(options: Any) -> Metric | None:
    try:
        return _adapter().validate_python(options)
    except (ValidationError, PlumblineError):
        return None


@cache
def _adapter() -> TypeAdapter[Metric]:
    """Made once, for its schema of all metrics takes a tenth of a second."""
    return TypeAdapter(AnyMetric)


if TYPE_CHECKING:
    AnyMetric = Metric
else:
    AnyMetric = Annotated[reduce(or_, METRICS), Discriminator("kind")]
    """A metric's options as a configuration holds them, told apart by their `kind`."""
