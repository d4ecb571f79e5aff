"""Objects that are looked up by name, and belong to the core, to our plugins, or to other packages (via entry points).

Some of them need packages that one of our extras installs.
"""

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from configparser import ConfigParser
from contextlib import contextmanager, redirect_stdout, suppress
from functools import cache, cached_property
from importlib import metadata
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Generic, TypeVar

from packaging.version import Version

from plumbline.operators.base.errors import DISTRIBUTION, ConfigError, MissingExtraError, format_install_remedy

T = TypeVar("T")
EXTENSION_NAME_PATTERN = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")
"""Pattern for the name of an extension, which may become part of a path."""
PLUGINS_FOLDER = Path(__file__).parents[2] / "plugins"
"""Folder of our plugins. Each plugin has a file `entry_points.txt` in the format used by installed packages."""
MAX_REASON_CHARACTERS = 300
"""Maximum characters shown of an error that a package raises."""


class Extensions(Mapping[str, T], Generic[T]):
    """Mapping from the names of a group's extensions to their objects, each loaded when it is first looked up.

    All objects are declared as entry points, `module:attribute`, of the group `plumbline.GROUP` (docs/plugins.md). The
    core's entry points come first, then those of our plugins, then those of other packages; plugins and packages are
    sorted by name.
    """

    def __init__(self, group: str, ours: Mapping[str, str], expected: type | None = None) -> None:
        """Declare a group of extensions; none of its objects is loaded yet.

        Args:
            group: Name of the group without the prefix `plumbline.`.
            ours: The core's entry points, as `module:attribute` by name.
            expected: Class that every object must be an instance or subclass of; None for functions.
        """
        self.group = f"plumbline.{group}"
        self.ours = {**ours, **_read_plugin_entry_points().get(self.group, {})}
        self.expected = expected
        self.loaded: dict[str, T] = {}

    @cached_property
    def declared(self) -> Mapping[str, EntryPoint]:
        """Entry points by name.

        Raises ConfigError if a name is invalid, or if two packages declare the same name.
        """
        points = {name: EntryPoint(name, value, self.group) for name, value in self.ours.items()}
        for point in sorted(entry_points(group=self.group), key=_name_package):
            if not EXTENSION_NAME_PATTERN.fullmatch(point.name):
                raise ConfigError(
                    f"{_name_package(point)}: {self.group} {point.name[:100]!r}: expected up to 100 letters, digits, "
                    f"underscores, hyphens and dots; {_find_remedy(point)}"
                )
            if point.name in points:
                owners = f"{_name_package(points[point.name])} and {_name_package(point)}"
                raise ConfigError(f"{owners} both declare {self.group} {point.name!r}; uninstall or rename one")
            points[point.name] = point
        return points

    def __getitem__(self, name: str) -> T:
        """Return the object; raise KeyError for an unknown name, ConfigError if the module does not load."""
        if name in self.loaded:
            return self.loaded[name]
        point = self.declared[name]
        try:
            with redirect_stdout(sys.stderr):  # programs read the standard output of jobs
                found: Any = point.load()
            check = issubclass if isinstance(found, type) else isinstance
            fits = self.expected is None or check(found, self.expected)
        except (Exception, SystemExit) as error:
            if name in self.ours and not isinstance(error, ImportError):
                raise
            reason = f"{type(error).__name__}: {str(error)[:MAX_REASON_CHARACTERS]}"
            raise ConfigError(f"{self.describe(name)}: {reason}; {_find_remedy(point)}") from error
        if self.expected is not None and not fits:
            problem = f"expected a {self.expected.__name__}, got a value of type {type(found).__name__}"
            raise ConfigError(f"{self.describe(name)}: {problem}; {_find_remedy(point)}")
        self.loaded[name] = found
        return self.loaded[name]

    def __contains__(self, name: object) -> bool:
        return name in self.declared  # Mapping's default would load the object

    def __iter__(self) -> Iterator[str]:
        return iter(self.declared)

    def __len__(self) -> int:
        return len(self.declared)

    def describe(self, name: str) -> str:
        """Return an extension's group, name and package, for messages."""
        point = self.declared[name]
        return f"{self.group.removeprefix('plumbline.')} {point.name!r} of {_name_package(point)} ({point.value})"


@cache
def _read_plugin_entry_points() -> Mapping[str, Mapping[str, str]]:
    declared: dict[str, dict[str, str]] = {}
    for file in sorted(PLUGINS_FOLDER.glob("*/entry_points.txt")):
        parser = ConfigParser(delimiters="=", interpolation=None)
        parser.optionxform = str  # type: ignore[assignment,method-assign]  # names keep their capitals
        parser.read_string(file.read_text(encoding="utf-8"), source=str(file))
        for group in parser.sections():
            declared.setdefault(group, {}).update(parser[group])
    return declared


def declare_modules(package: str, names: Iterable[str], attribute: str) -> dict[str, str]:
    """Map each module name to its entry point, `package.NAME:attribute`."""
    return {name: f"{package}.{name}:{attribute}" for name in names}


def _name_package(point: EntryPoint) -> str:
    return "Plumbline" if point.dist is None else f"{point.dist.name} {point.dist.version}"


def _find_remedy(point: EntryPoint) -> str:
    return format_install_remedy(point.name) if point.dist is None else f"fix or uninstall {point.dist.name}"


EXTRA_REQUIREMENT_PATTERN = re.compile(r"""(?P<package>[\w.-]+).*\bextra\s*==\s*["'](?P<extra>[\w-]+)["']""")
"""Pattern for a requirement that belongs to an extra, as written in the metadata of our distribution."""


@cache
def find_missing_packages(extra: str) -> tuple[str, ...]:
    missing = []
    with suppress(metadata.PackageNotFoundError):  # not installed, so its requirements are unknown
        for requirement in filter(None, map(EXTRA_REQUIREMENT_PATTERN.match, metadata.requires(DISTRIBUTION) or ())):
            if requirement["extra"] == extra:
                try:
                    metadata.version(requirement["package"])
                except metadata.PackageNotFoundError:
                    missing.append(requirement["package"])
    return tuple(missing)


def require_extra(extra: str, what: str) -> None:
    """Raise MissingExtraError if a package of the extra is not installed; `what` is the feature that needs it."""
    if missing := find_missing_packages(extra):
        raise MissingExtraError(f"{what} needs {', '.join(missing)}; {format_install_remedy(extra)}")


@contextmanager
def explain_missing_extra(extra: str, what: str) -> Iterator[None]:
    """Raise MissingExtraError if a module imported in the context is missing; `what` is the feature that needs it."""
    try:
        yield
    except ModuleNotFoundError as error:
        raise MissingExtraError(f"{what} needs {error.name}; {format_install_remedy(extra)}") from error


def require_release(package: str, oldest: str, what: str) -> None:
    """Raise ConfigError if the installed package is older than `oldest`; `what` is the feature that needs it."""
    if Version(metadata.version(package)) < Version(oldest):
        raise ConfigError(
            f"{what} needs {package} {oldest} or later, found {metadata.version(package)}; "
            f"upgrade it: pip install '{package}>={oldest}'"
        )
