"""Extras of this distribution, and whether their packages are installed."""

import re
from functools import cache
from importlib import metadata

from plumbline.operators.base.errors import DISTRIBUTION, ConfigError, install

EXTRA_REQUIREMENT = re.compile(r"""(?P<package>[\w.-]+).*\bextra\s*==\s*["'](?P<extra>[\w-]+)["']""")
"""A requirement in the distribution's metadata that belongs to an extra."""


@cache
def missing_packages(extra: str) -> tuple[str, ...]:
    """Return the packages of an extra that are not installed."""
    try:
        required = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:  # run from source files without installation
        return ()
    found = filter(None, map(EXTRA_REQUIREMENT.match, required))
    return tuple(each["package"] for each in found if each["extra"] == extra and not _is_installed(each["package"]))


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True


def require_extra(extra: str, what: str) -> None:
    """Raise ConfigError with the remedy if a package of an extra that `what` needs is not installed."""
    if missing := missing_packages(extra):
        raise ConfigError(f"{what} needs {', '.join(missing)}; {install(extra)}")
