"""The wording of a metric's requests: ours, the user's own templates, or a release's prompts (docs/wording.md)."""

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Self, TypeVar

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import PLUGINS
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.wordings.checkout import Checkout
from plumbline.operators.metrics.wordings.release import Release
from plumbline.operators.metrics.writing import RETRY, STOP

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile

R = TypeVar("R", bound=Release)
TEMPLATES = (Path(__file__).parent / "templates", *sorted(PLUGINS.glob("*/templates")))
"""Folders with the templates of the core's and the plugins' metrics."""
PLACE = re.compile(r"\{\w+\}")
"""A placeholder in a template."""


@cache
def prompt_template(name: str) -> str:
    """Return templates/NAME.txt unchanged: its digest is in the keys of the questions' cells."""
    file = next(folder / f"{name}.txt" for folder in TEMPLATES if (folder / f"{name}.txt").is_file())
    return file.read_text("utf-8")


def template_digest(*templates: str) -> str:
    """Return a digest, of 16 hexadecimal digits, of templates and of the texts that all requests share."""
    return hashlib.sha256("\0".join([*STOP, RETRY, *templates]).encode()).hexdigest()[:16]


class Wording(NamedTuple):
    """The wording in a folder: a release or templates. Without a folder both are empty and the wording is ours."""

    release: Release | None = None
    templates: Mapping[str, str] = {}
    """Templates that replace ours, by name."""

    @property
    def digest(self) -> str:
        if self.release is not None:
            return self.release.digest
        return hashlib.sha256(json.dumps(sorted(self.templates.items())).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)  # no slots, so that a metric may have another base with fields of its own
class WordedMetric(Metric):
    """A metric with requests in a configurable wording."""

    wording: str | None = None
    """Folder with the checkout of a release, whose prompts are sent and whose replies are read as by its code, or with
    the user's templates, named as in operators/metrics/templates; null is our wording."""
    wording_digest: str | None = None
    """Digest of the wording; null accepts any. The plan fills it in, and workers reject a folder that has changed
    since."""

    @property
    def releases(self) -> tuple[type[Release], ...]:
        """Releases whose prompts it can send."""
        return ()

    @property
    def templates(self) -> tuple[str, ...]:
        """Names of the templates that it fills in."""
        return ()

    def with_model_defaults(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with the digest of its wording.

        Raises ConfigError if the folder has nothing for this metric or another digest, and for an option that the
        release decides.
        """
        if self.wording is None:
            return self
        folder = Path(self.wording).expanduser().absolute()
        try:
            wording = read_wording(folder, self.releases, self.templates, self.wording_digest)
        except ConfigError as error:
            raise ConfigError(f"{self.key_of('wording')}: {error}") from error
        if wording.release is not None:
            self._leave_options_to(wording.release)
        return replace(self, wording=str(folder), wording_digest=wording.digest)

    def _leave_options_to(self, release: Release) -> None:
        defaults = {field.name: field.default for field in fields(self)}
        for option in release.decides:
            if option in defaults and getattr(self, option) != defaults[option]:
                raise ConfigError(
                    f"{self.key_of(option)}: {getattr(self, option)} is not heeded with the wording of "
                    f"{release.repository}, which has its own; set it to {defaults[option]}"
                )

    def released(self, kind: type[R]) -> R | None:
        """Return the release of its wording if it is of this class, else None."""
        release = self._wording.release
        return release if isinstance(release, kind) else None

    def template_text(self, name: str) -> str:
        """Return the template with this name, the user's or ours."""
        return self._wording.templates.get(name) or prompt_template(name)

    @property
    def _wording(self) -> Wording:
        if self.wording is None:
            return Wording()
        return _read_once(Path(self.wording), self.releases, self.templates, self.wording_digest)


def read_wording(
    folder: Path, releases: Sequence[type[Release]], templates: Sequence[str], digest: str | None = None
) -> Wording:
    """Return a folder's wording for a metric with these releases and templates; raise ConfigError if it has none.

    The user's templates may be incomplete: ours replace missing ones.
    """
    if not releases and not templates:
        raise ConfigError("this metric asks no model in words of its own; leave the wording out")
    marks = " or ".join(f"a checkout of {release.repository} ({release.mark})" for release in releases)
    expected = " or ".join(filter(None, (marks, f"templates ({', '.join(f'{name}.txt' for name in templates)})")))
    if not folder.is_dir():
        raise ConfigError(
            f"expected {expected} in a folder of this machine, and {folder} is not a folder; correct its path"
        )
    wording = _read_release(folder, releases) or Wording(templates=_own_templates(folder, templates))
    if wording.release is None and not wording.templates:
        raise ConfigError(f"expected {expected}, and {folder} has neither; name the folder that holds these files")
    if digest not in (None, wording.digest):
        raise ConfigError(
            f"{folder} holds the wording {wording.digest}, expected {digest}: its files were changed; restore them, or "
            "start again without wording_digest"
        )
    return wording


_read_once = lru_cache(maxsize=64)(read_wording)


def _read_release(folder: Path, releases: Sequence[type[Release]]) -> Wording | None:
    for release in releases:
        checkout = Checkout(folder, release.repository)
        if checkout.has(release.mark):
            return Wording(release.read(checkout))
    return None


def _own_templates(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the templates in the folder; raise ConfigError if one lacks a placeholder of ours."""
    files = {name: folder / f"{name}.txt" for name in names}
    try:
        own = {name: file.read_text("utf-8") for name, file in files.items() if file.is_file()}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: a template is not text in UTF-8 ({error}); write it again") from error
    for name, text in own.items():
        absent = sorted(set(PLACE.findall(prompt_template(name))) - set(PLACE.findall(text)))
        if absent:
            raise ConfigError(
                f"{folder}/{name}.txt lacks {absent[0]}, which is filled in for each prompt; write it there"
            )
    return own
