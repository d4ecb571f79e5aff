"""Collects the test data that plugins add to tests that cover the core and all plugins."""

from importlib import import_module
from typing import Any

from tests.environment import ROOT


def merge_test_data(module: str, attribute: str) -> dict[str, Any]:
    """Return the merged mappings that plugins define as `attribute` in the module `module` of their `tests/` folder."""
    files = sorted((ROOT / "plugins").glob(f"*/tests/{module}.py"))
    modules = [import_module(".".join(file.relative_to(ROOT).with_suffix("").parts)) for file in files]
    return {name: entry for module in modules for name, entry in getattr(module, attribute, {}).items()}
