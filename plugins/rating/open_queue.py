"""The queue of a study that is open: in which order its tasks are asked, and beside which scores of its run."""

from collections.abc import Sequence

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.metric import direction
from plumbline.pipelines.judging.releases.scores import read_falling, read_scores
from plumbline.plugins.rating.designs import Design
from plumbline.plugins.rating.label_plan import by_generator
from plumbline.plugins.rating.order import Sequencing
from plumbline.plugins.rating.progress import Telling
from plumbline.plugins.rating.queue import Beside, Queue, QueueOptions
from plumbline.plugins.rating.rate_config import RateConfig
from plumbline.plugins.rating.tasks import Task


def open_queue(tasks: Sequence[Task], design: Design, config: RateConfig) -> Queue:
    """The queue of a version's tasks; raises ConfigError where the metric is not one of the run's."""
    telling = Telling(alpha=config.alpha, chance=config.chance)
    options = QueueOptions(config.queue, config.stop, telling, _beside(design, config))
    return Queue(tasks, Sequencing(design.seed, config.raters, config.repeats), options)


def _beside(design: Design, config: RateConfig) -> Beside | None:
    """The scores of the metric that is named, or for queue=labels of the run's first."""
    if design.run is None and config.metrics:
        raise ConfigError("metrics: a study of images= has no scores; score them and name the run, or leave it out")
    if design.run is None or (not config.metrics and config.queue == "seeded"):
        return None
    run = config.storage.locate(design.store) / f"runs/{design.run}"
    scores = read_scores(run, config.metrics)
    metric = str(scores.column("metric")[0].as_py())
    frame = scores.to_pandas()
    wide = by_generator(frame[frame["metric"] == metric])
    return Beside(metric, direction(metric, {metric} & read_falling(run)) * wide)
