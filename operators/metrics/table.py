"""Every metric there is."""

from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Annotated

from pydantic import Discriminator

from operators.metrics.clipscore import ClipScoreConfig
from operators.metrics.dsg import DsgConfig
from operators.metrics.gecko import GeckoConfig
from operators.metrics.metric import Metric
from operators.metrics.tifa import TifaConfig
from operators.metrics.vq2 import Vq2Config
from operators.metrics.vqascore import VqaScoreConfig

METRICS: tuple[type[Metric], ...] = (VqaScoreConfig, ClipScoreConfig, GeckoConfig, TifaConfig, DsgConfig, Vq2Config)


def metric_story(kind: str) -> str:
    """What metrics of the kind do, for a newcomer; empty for a kind that is not known here."""
    return next((metric.story for metric in METRICS if metric.__dataclass_fields__["kind"].default == kind), "")


if TYPE_CHECKING:
    AnyMetric = Metric
else:
    AnyMetric = Annotated[reduce(or_, METRICS), Discriminator("kind")]
    """A metric's options as a configuration holds them, told apart by their `kind`."""
