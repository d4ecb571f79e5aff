"""Objects that are looked up by name: from the core, from our plugins, and from other packages by entry points."""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from contextlib import redirect_stdout
from functools import cache, cached_property
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

from plumbline.operators.base.errors import ConfigError, install

T = TypeVar("T")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""The name of an extension, which may become a part of a path."""
PLUGINS = Path(__file__).parents[2] / "plugins"
"""Folder of our plugins. Each has a file `entry_points.txt` in the format of an installed package's."""
MAX_REASON = 300
"""Characters of an error that a package raises."""


class Extensions(Mapping[str, T], Generic[T]):
    """The objects of one group by name. Each is loaded when it is first looked up.

    All are declared as entry points, `module:attribute`, of the group `plumbline.GROUP` (docs/plugins.md). The core's
    come first, then those of our plugins, then those of other packages, each in its own order.
    """

    def __init__(self, group: str, ours: Mapping[str, str], expected: type | None = None) -> None:
        """Declare a group.

        Args:
            group: Name of the group without the prefix `plumbline.`.
            ours: The core's entry points, as `module:attribute` by name.
            expected: Class that every object must be an instance or subclass of; None for functions.
        """
        self.group = f"plumbline.{group}"
        self.ours = {**ours, **_declared_by_plugins().get(self.group, {})}
        self.expected = expected
        self.loaded: dict[str, T] = {}

    @cached_property
    def declared(self) -> Mapping[str, EntryPoint]:
        """Entry points by name. Raise ConfigError for an invalid name, or a name that two packages declare."""
        points = {name: EntryPoint(name, value, self.group) for name, value in self.ours.items()}
        for point in sorted(entry_points(group=self.group), key=_owner):
            if not NAME.fullmatch(point.name):
                raise ConfigError(
                    f"{_owner(point)}: {self.group} {point.name[:100]!r}: expected up to 100 letters, digits, "
                    f"underscores, hyphens and dots; {_remedy(point)}"
                )
            if point.name in points:
                owners = f"{_owner(points[point.name])} and {_owner(point)}"
                raise ConfigError(f"{owners} both have {self.group} {point.name!r}; uninstall or rename one")
            points[point.name] = point
        return points

    def __getitem__(self, name: str) -> T:
        """Raise KeyError for an unknown name, and ConfigError if the module or a library that it needs is missing."""
        if name not in self.loaded:
            self.loaded[name] = self._load(self.declared[name])
        return self.loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.declared  # Mapping's own would load it

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)

    def describe(self, name: str) -> str:
        """Return an extension's group, name and package, for messages."""
        return self._where(self.declared[name])

    def _load(self, point: EntryPoint) -> T:
        try:
            with redirect_stdout(sys.stderr):  # programs read the standard output of jobs
                extension = point.load()
            fits = self.expected is None or _is_a(extension, self.expected)
        except (Exception, SystemExit) as error:
            if point.name in self.ours and not isinstance(error, ImportError):
                raise
            reason = f"{type(error).__name__}: {str(error)[:MAX_REASON]}"
            raise ConfigError(f"{self._where(point)}: {reason}; {_remedy(point)}") from error
        if self.expected is not None and not fits:
            found = f"expected a {self.expected.__name__}, got a value of type {type(extension).__name__}"
            raise ConfigError(f"{self._where(point)}: {found}; {_remedy(point)}")
        return cast(T, extension)

    def _where(self, point: EntryPoint) -> str:
        return f"{self.group.removeprefix('plumbline.')} {point.name!r} of {_owner(point)} ({point.value})"


@cache
def _declared_by_plugins() -> Mapping[str, Mapping[str, str]]:
    """Return the entry points of our plugins by group and name, as `module:attribute`."""
    declared: dict[str, dict[str, str]] = {}
    for file in sorted(PLUGINS.glob("*/entry_points.txt")):
        parser = ConfigParser(delimiters="=", interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
        for group in parser.sections():
            declared.setdefault(group, {}).update(parser[group])
    return declared


def declare_modules(package: str, names: Iterable[str], attribute: str) -> dict[str, str]:
    """Return entry points of modules in a package: each name is a module, and its object is this attribute."""
    return {name: f"{package}.{name}:{attribute}" for name in names}


def _owner(point: EntryPoint) -> str:
    return "Plumbline" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _remedy(point: EntryPoint) -> str:
    return install(point.name) if point.dist is None else f"mend or uninstall {point.dist.name}"


def _is_a(extension: Any, expected: type) -> bool:
    return issubclass(extension, expected) if isinstance(extension, type) else isinstance(extension, expected)
