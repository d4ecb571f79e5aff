"""The table of formats: each of ours is `open_table` in the file of its name, and its library an extra of its name."""

from plumbline.operators.base.extensions import Extensions, declare_modules
from plumbline.plugins.exports.score_table import OpenTable

FORMATS = Extensions[OpenTable]("export_formats", declare_modules(__name__, ("iceberg", "lance"), "open_table"))
