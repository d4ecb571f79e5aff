"""Creates the queue of a study from its configuration, including a metric's scores from the run."""

from collections.abc import Sequence

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import get_direction
from plumbline.pipelines.metaeval.releases.scores import read_lower_is_better_metrics, read_scores
from plumbline.plugins.rating.designs import Design
from plumbline.plugins.rating.label_plan import pivot_by_generator
from plumbline.plugins.rating.order import OrderParameters
from plumbline.plugins.rating.progress import ErrorProbabilities
from plumbline.plugins.rating.queue import MetricScores, Queue, QueueOptions
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.tasks import Task


def open_queue(tasks: Sequence[Task], design: Design, config: RateConfig) -> Queue:
    """Create the queue of a version's tasks; raise ConfigError if the run lacks the metric."""
    confidence = ErrorProbabilities(alpha=config.alpha, chance=config.chance)
    options = QueueOptions(config.queue, config.stop, confidence, _read_metric(design, config))
    return Queue(tasks, OrderParameters(design.seed, config.raters, config.repeats), options)


def _read_metric(design: Design, config: RateConfig) -> MetricScores | None:
    """Return the scores of the configured metric (with queue=labels, by default the run's first), or None.

    The result is None if the study has no run, or if queue=seeded and no metric is configured.
    """
    if design.run is None and config.metrics:
        raise ConfigError(
            "metrics: a study with images= has no scores; score the images and name the run, or leave metrics out"
        )
    if design.run is None or (not config.metrics and config.queue == "seeded"):
        return None
    run = config.storage.locate(design.store) / f"runs/{design.run}"
    scores = read_scores(run, config.metrics)
    metric = str(scores.column("metric")[0].as_py())
    frame = scores.to_pandas()
    wide = pivot_by_generator(frame[frame["metric"] == metric])
    return MetricScores(metric, get_direction(metric, {metric} & read_lower_is_better_metrics(run)) * wide)
