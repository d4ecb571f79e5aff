"""The table of formats: each is `open_table` in the file of its name here, whose library is an extra of its name."""

from importlib import import_module

from plumbline.pipelines.exports.table import OpenTable, extra_errors

NAMES = ("iceberg", "lance")


def opener(name: str) -> OpenTable:
    """How a format opens its table; raises ConfigError where its library is not installed."""
    with extra_errors(name):
        open_table: OpenTable = import_module(f"{__name__}.{name}").open_table
    return open_table
