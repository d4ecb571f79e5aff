"""Table formats: each is `open_table` of the module with its name; the optional dependency has the same name."""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.exports.score_table import OpenTable

FORMATS = Extensions[OpenTable]("export_formats", declare_modules(__name__, ("iceberg", "lance"), "open_table"))
