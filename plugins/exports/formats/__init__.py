"""Table formats: each module has a function `open_table`, and is named after the optional dependency that it needs."""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.exports.score_table import OpenTable

FORMATS = Extensions[OpenTable]("export_formats", declare_modules(__name__, ("iceberg", "lance"), "open_table"))
