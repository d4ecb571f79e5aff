"""The table of sinks: each of ours is `publish` in the file of its name here.

A tracker's library is an extra of its name.
"""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.exports.sinks.run_story import Publish

SINKS = Extensions[Publish]("sinks", declare_modules(__name__, ("hub", "mlflow", "swanlab", "wandb"), "publish"))
