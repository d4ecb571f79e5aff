"""Sinks: each is `publish` of the module with its name; its optional dependency has the same name."""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.exports.sinks.run_contents import Publish

SINKS = Extensions[Publish]("sinks", declare_modules(__name__, ("hub", "mlflow", "swanlab", "wandb"), "publish"))
