"""Loads each public name of a module from the file that defines it, when the name is first used."""

import ast
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any


def read_stub(file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return a module's `__getattr__`, `__dir__` and `__all__` for the names that its stub imports.

    The stub is the .pyi file beside the module `file`. It contains lines such as `from .api import score as score`, so
    that type checkers and this function read the same list. Nothing is imported until a name is used.
    """
    lines = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8")).body
    imports = [line for line in lines if isinstance(line, ast.ImportFrom)]
    modules = {each.name: f"{__package__}.{line.module}" for line in imports for each in line.names}

    def load(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"{Path(file).parent.name} has no public name {name!r}")
        return getattr(import_module(modules[name]), name)

    return load, lambda: sorted(modules), sorted(modules)
