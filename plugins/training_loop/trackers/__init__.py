"""Trackers: each module has a class `Sender` and is named after the optional dependency that it needs."""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.training_loop.trackers.tracker import StepSender

TRACKERS = Extensions[type[StepSender]](
    "trackers", declare_modules(__name__, ("mlflow", "tensorboard", "wandb"), "Sender"), StepSender
)
