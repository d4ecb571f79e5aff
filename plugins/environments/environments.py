"""Separate Python environments, made by uv, for scorers whose packages conflict with Plumbline's or with each other.

The packages are resolved once, when a command starts. The result is cached and is part of the cells' keys. Every worker
installs exactly these versions.
"""

import json
import logging
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import ClassVar, NamedTuple

from plumbline.operators.base.bounds import BoundsChecked, Seconds
from plumbline.operators.base.errors import ConfigError, PlumblineError, hide_secrets

LOG = logging.getLogger(__name__)
SECONDS_BETWEEN_NOTICES = 30.0
"""Seconds between the messages that uv is still at work."""
MAX_PACKAGES = 100
"""Maximum number of packages that a configuration lists."""
MAX_REQUIREMENT_CHARACTERS = 300
"""Maximum length of a package with its version, in characters."""
MAX_REASON_CHARACTERS = 400
"""Maximum number of characters quoted from a message of uv."""
REQUIRED_PACKAGE = "pillow"
"""Package that every worker needs, to pass images to the function."""
PYTHON_VERSION_PATTERN = re.compile(r"3\.\d{1,2}(\.\d{1,2})?")
PACKAGE_PATTERN = re.compile(
    r"[A-Za-z0-9]([\w.-]*[A-Za-z0-9])?(\[[\w.,\s-]*\])?\s*([<>=!~][^@/\\]*|@\s*git\+https://[\w.-]+(:\d+)?/[\w./~-]+(@[\w./-]+)?)?"
)
"""Pattern for a package from an index, with or without versions, or from a git repository. Options of uv are not
allowed. Files are not allowed because their content would not be part of a key.
"""
PLATFORM_NAME = f"{sys.platform}-{platform.machine()}"


class EnvironmentFailed(PlumblineError):
    """Raised if an environment cannot be made; the same command may succeed later."""


@dataclass(frozen=True, kw_only=True, slots=True)
class EnvironmentConfig(BoundsChecked):
    """Packages and Python version of a scorer with an environment of its own."""

    section: ClassVar[str] = "environment."
    packages: tuple[str, ...]
    """Packages as for pip: `hpsv3==1.0.0`, `numpy<2` or `name @ git+https://host/repository@commit`."""
    python: str | float | None = None
    """Python version in quotes, such as "3.11"; as a number, 3.10 would be 3.1. Defaults to the version that runs
    Plumbline. uv downloads versions that are not installed.
    """
    folder: str = "~/.cache/plumbline/environments"
    """Folder for finished environments. It can be deleted at any time."""
    timeout: Seconds = 600
    """Seconds allowed for loading the function, and for each call of the function."""
    install_timeout: Seconds = 3600
    """Seconds allowed for resolving the packages, and for installing them."""

    def __post_init__(self) -> None:
        """Raise ConfigError for a Python version or package that uv could misread, for example as an option."""
        BoundsChecked.__post_init__(self)
        if self.python is not None and not (
            isinstance(self.python, str) and PYTHON_VERSION_PATTERN.fullmatch(self.python)
        ):
            raise ConfigError(
                f'environment.python: expected a version in quotes, such as "3.11", got {self.python!r}; set such a '
                "version"
            )
        if not 0 < len(self.packages) <= MAX_PACKAGES:
            raise ConfigError(
                f"environment.packages: expected 1 to {MAX_PACKAGES} packages, got {len(self.packages)}; list the "
                "packages that the function imports"
            )
        for package in self.packages:
            if len(package) > MAX_REQUIREMENT_CHARACTERS or not PACKAGE_PATTERN.fullmatch(package):
                raise ConfigError(
                    f"environment.packages: expected packages such as numpy==2.0.0 or NAME @ git+https://ADDRESS, got "
                    f"{hide_secrets(package[:MAX_REQUIREMENT_CHARACTERS])!r}; use one of these forms"
                )

    @property
    def python_version(self) -> str:
        return str(self.python) if self.python else f"{sys.version_info.major}.{sys.version_info.minor}"


class Environment(NamedTuple):
    """A resolved environment: the exact version of every package. It is made on each machine when it is first used."""

    python_version: str
    pins: tuple[str, ...]
    """Every package with its version, as uv resolved them."""
    folder: str
    timeout: float
    install_timeout: float

    def ensure_python(self) -> Path:
        """Make the environment if it does not exist, and return its Python; raise EnvironmentFailed if that fails.

        Several processes may do this at the same time: each makes a folder of its own, and the first to rename its
        folder wins.
        """
        folder = _open_folder(self.folder)
        target = folder / _compute_digest(self.python_version, self.pins)
        python = target / "bin" / "python"
        if python.exists():
            return python
        work = f"installing {len(self.pins)} packages into {target}"
        started = time.monotonic()
        try:
            with tempfile.TemporaryDirectory(prefix=".making-", dir=folder) as making:
                draft, pins = Path(making) / "environment", Path(making) / "pins.txt"
                pins.write_text("\n".join(self.pins))
                base = ("--relocatable", "--python", _choose_interpreter(self.python_version))
                _run_uv(work, "venv", *base, str(draft), timeout=self.install_timeout)
                into = ("--python", str(draft / "bin" / "python"))
                _run_uv(work, "pip", "install", *into, "--no-deps", "-r", str(pins), timeout=self.install_timeout)
                size = sum(file.lstat().st_size for file in draft.rglob("*") if file.is_file())
                with suppress(OSError):  # another process was faster
                    draft.rename(target)
        except OSError as error:
            raise EnvironmentFailed(f"environment.folder: {error}; choose a folder with space for packages") from error
        if not python.exists():
            raise EnvironmentFailed(f"{target}: expected an environment, found something else; delete this folder")
        LOG.warning(
            "created an environment of %d packages in %.0f seconds; it uses %s MB in %s",
            len(self.pins), time.monotonic() - started, f"{size / 1e6:,.0f}", target,
        )  # fmt: skip
        return python


def resolve_environment(config: EnvironmentConfig) -> Environment:
    """Return the environment with the exact version of every package; raise ConfigError if uv finds no solution.

    The result is kept in the environments' folder, so that later commands use the same versions without asking an
    index.
    """
    python_version = config.python_version
    wanted = [*config.packages, REQUIRED_PACKAGE]
    try:
        kept = _open_folder(config.folder) / f"{_compute_digest(python_version, sorted(wanted))}.txt"
        if not kept.exists():
            options = ("--python", sys.executable, "--python-version", python_version, "--no-header", "--no-annotate")
            work = f"resolving {', '.join(wanted)}"[:MAX_REASON_CHARACTERS]
            text = "\n".join(wanted)
            found = _run_uv(work, "pip", "compile", "-", *options, text=text, timeout=config.install_timeout)
            with tempfile.NamedTemporaryFile("w", dir=kept.parent, prefix=".resolving-", delete=False) as draft:
                draft.write(found)
            Path(draft.name).replace(kept)
        pins = tuple(line.strip() for line in kept.read_text().splitlines() if line.strip())
    except OSError as error:
        raise ConfigError(f"environment.folder: {error}; choose a folder that can be written to") from error
    except EnvironmentFailed as error:
        raise ConfigError(f"environment: {error}") from error
    return Environment(python_version, pins, config.folder, config.timeout, config.install_timeout)


def _open_folder(folder: str) -> Path:
    opened = Path(os.path.expanduser(folder)).absolute()  # noqa: PTH111 - leaves an unknown user's ~ as it is
    opened.mkdir(parents=True, exist_ok=True)
    return opened


def _choose_interpreter(python_version: str) -> str:
    """Return this process's interpreter if its version fits; otherwise, return the version for uv to find."""
    own = platform.python_version_tuple()
    return sys.executable if [*own][: python_version.count(".") + 1] == python_version.split(".") else python_version


def _compute_digest(python_version: str, packages: "tuple[str, ...] | list[str]") -> str:
    return sha256(json.dumps([python_version, PLATFORM_NAME, packages]).encode()).hexdigest()[:16]


def _run_uv(work: str, *arguments: str, text: str = "", timeout: float) -> str:
    """Run uv in an empty folder, so that uv reads no project's settings, and return uv's output.

    While uv runs, `work`, a description of what uv is doing, is logged every SECONDS_BETWEEN_NOTICES seconds.
    Raises EnvironmentFailed if uv fails or takes longer than `timeout` seconds.
    """
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv is None:
        raise EnvironmentFailed("expected the command uv, found none; install it, for example with pip install uv")
    with tempfile.TemporaryDirectory(prefix="plumbline-uv-") as folder:
        # in a session of its own, uv ends with the processes that it started, such as builds of packages
        process = subprocess.Popen(
            [uv, *arguments, "--quiet", "--color", "never"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=folder,
            start_new_session=True,
        )
        with process:
            try:
                output, message = _wait_for_output(process, work, text, timeout)
            except BaseException:
                with suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                raise
    if process.returncode != 0:
        raise EnvironmentFailed(
            f"{_read_reason(message)}; correct the packages or the Python version, or check the connection"
        )
    return output


def _wait_for_output(process: "subprocess.Popen[str]", work: str, text: str, timeout: float) -> tuple[str, str]:
    given: str | None = text
    waited = 0.0
    while True:
        step = min(SECONDS_BETWEEN_NOTICES, timeout - waited)
        try:
            return process.communicate(given, timeout=step)
        except subprocess.TimeoutExpired as error:
            given, waited = None, waited + step  # the text is sent only once
            if waited >= timeout:
                raise EnvironmentFailed(
                    f"{work} took more than {timeout:g} seconds; check the connection to the package index, or raise "
                    "environment.install_timeout"
                ) from error
            LOG.warning("still %s, after %g seconds", hide_secrets(work), waited)


def _read_reason(message: str) -> str:
    """Return the reason in uv's error message as one line, without its heading and its box-drawing characters."""
    message = message[max(message.rfind("error:"), message.rfind("×"), 0) :]
    _, _, reason = message.replace("╰─▶", "cause:").partition("cause:")
    words = re.sub(r"[\s│]+", " ", reason or message.removeprefix("error:")).strip()
    return hide_secrets(words.replace(" cause:", ":"))[:MAX_REASON_CHARACTERS].rstrip(".")
