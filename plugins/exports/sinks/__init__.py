"""Sinks: each module has a function `publish`, and is named after the optional dependency that it needs."""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.exports.sinks.run_contents import PublishFunction

SINKS = Extensions[PublishFunction](
    "sinks", declare_modules(__name__, ("hub", "mlflow", "swanlab", "wandb"), "publish")
)
