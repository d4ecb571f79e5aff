"""The wording of a metric's requests: our templates, the user's, or the prompts that a paper's authors published.

Published prompts are read from a checkout as data: text files, tables, and constants in Python files, which are never
executed (docs/wording.md).
"""

import ast
import csv
import hashlib
import io
import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass, fields, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self, TypeVar

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import PLUGINS_FOLDER
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.metrics.parsing import MAX_REPLY_CHARACTERS
from plumbline.operators.metrics.writing import RETRY_REQUEST, STOP_TEXTS, UnreadableReply, Writing
from plumbline.operators.models.calls import Generation, Request

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile

T = TypeVar("T")
R = TypeVar("R", bound="Release")
TEMPLATE_FOLDERS = (Path(__file__).parent / "templates", *sorted(PLUGINS_FOLDER.glob("*/templates")))
"""Folders with the templates of the core and the plugins."""
PLACEHOLDER_PATTERN = re.compile(r"\{\w+\}")
MAX_FILE_BYTES = 20_000_000
"""Maximum size in bytes of a file in a checkout."""
MAX_QUOTED_CHARACTERS = 200
"""Number of characters at the end of an unreadable reply that the error message quotes."""
READER_ERRORS = (ValueError, LookupError, TypeError, ArithmeticError, RecursionError)
"""Errors that published parsers may raise for a reply of an unexpected form."""


@cache
def read_prompt_template(name: str) -> str:
    """Return templates/NAME.txt unchanged, because its digest is part of the keys of the questions' cells."""
    file = next(folder / f"{name}.txt" for folder in TEMPLATE_FOLDERS if (folder / f"{name}.txt").is_file())
    return file.read_text("utf-8")


def digest_templates(*templates: str) -> str:
    """Return a digest, in 16 hexadecimal digits, of these templates and the texts that all requests share."""
    return hashlib.sha256("\0".join([*STOP_TEXTS, RETRY_REQUEST, *templates]).encode()).hexdigest()[:16]


class Wording(NamedTuple):
    """The texts that a user's folder provides: published prompts, or templates; both are empty without a folder."""

    release: "Release | None" = None
    templates: Mapping[str, str] = {}
    """Templates that replace ours, by name."""

    @property
    def digest(self) -> str:
        if self.release is not None:
            return self.release.digest
        return hashlib.sha256(json.dumps(sorted(self.templates.items())).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)  # no slots, so that a metric can have another base class with fields
class WordedMetric(Metric):
    """Base class of metrics whose requests have a configurable wording."""

    wording: str | None = None
    """Folder with a checkout of the paper's published code, or with the user's templates; null uses our wording.
    Published prompts are sent unchanged, and replies are parsed as in the published code. Templates are named as in
    operators/metrics/templates.
    """
    wording_digest: str | None = None
    """Digest of the wording; null accepts any. The plan fills it in, and workers reject a folder that has changed
    since.
    """

    @property
    def releases(self) -> "tuple[type[Release], ...]":
        return ()

    @property
    def templates(self) -> tuple[str, ...]:
        return ()

    def complete_options(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with the digest of its wording filled in.

        Raise ConfigError if the folder contains no wording for this metric, or one with a different digest. Also raise
        it if an option is set whose value the published prompts determine.
        """
        if self.wording is None:
            return self
        folder = Path(self.wording).expanduser().absolute()
        try:
            wording = read_wording(folder, self.releases, self.templates, self.wording_digest)
        except ConfigError as error:
            raise ConfigError(f"{self.format_key('wording')}: {error}") from error
        if wording.release is not None:
            defaults = {field.name: field.default for field in fields(self)}
            for option in wording.release.fixed_options:
                if option in defaults and getattr(self, option) != defaults[option]:
                    raise ConfigError(
                        f"{self.format_key(option)}: {getattr(self, option)} is ignored with the wording of "
                        f"{wording.release.repository}, which has its own value; set it to {defaults[option]}"
                    )
        return replace(self, wording=str(folder), wording_digest=wording.digest)

    def find_release(self, kind: type[R]) -> R | None:
        """Return the published code that determines the wording; None if there is none or it is of another class."""
        release = self._wording.release
        return release if isinstance(release, kind) else None

    def get_template_text(self, name: str) -> str:
        """Return the user's template with this name or, if there is none, Plumbline's."""
        return self._wording.templates.get(name) or read_prompt_template(name)

    @property
    def _wording(self) -> Wording:
        if self.wording is None:
            return Wording()
        return _read_wording_cached(Path(self.wording), self.releases, self.templates, self.wording_digest)


def read_wording(
    folder: Path, releases: "Sequence[type[Release]]", templates: Sequence[str], digest: str | None = None
) -> Wording:
    """Return the published prompts or the templates in a folder; raise ConfigError if it has neither for the metric.

    Templates that the folder lacks are replaced by ours. If `digest` is given, the folder's content must have it.
    """
    if not releases and not templates:
        raise ConfigError("this metric sends no prompts of its own to a model; leave the wording out")
    markers = f" ({releases[0].marker_file})" if len(releases) == 1 else ""
    names = list(dict.fromkeys(release.repository for release in releases))
    marks = " or ".join(f"a checkout of {name}{markers}" for name in names)
    named = f"templates ({', '.join(f'{name}.txt' for name in templates)})" if templates else ""
    expected = " or ".join(filter(None, (marks, named)))
    if not folder.is_dir():
        raise ConfigError(f"expected {expected} in a local folder, but {folder} is not a folder; correct its path")
    release = next((release for release in releases if (folder / release.marker_file).is_file()), None)
    if release is not None:
        wording = Wording(release.read(Checkout(folder, release.repository)))
    else:
        wording = Wording(templates=_read_own_templates(folder, templates))
        if not wording.templates:
            absent = "neither" if releases and templates else "none"
            raise ConfigError(f"expected {expected}, but {folder} has {absent}; use a folder with these files")
    if digest not in (None, wording.digest):
        raise ConfigError(
            f"{folder} has the digest {wording.digest}, expected {digest}: its files have changed; restore them, or "
            "start again without wording_digest"
        )
    return wording


_read_wording_cached = lru_cache(maxsize=64)(read_wording)


def _read_own_templates(folder: Path, names: Sequence[str]) -> dict[str, str]:
    """Return the user's templates in a folder by name; raise ConfigError if one lacks a placeholder that ours has."""
    files = {name: folder / f"{name}.txt" for name in names}
    try:
        own = {name: file.read_text("utf-8") for name, file in files.items() if file.is_file()}
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{folder}: a template cannot be read as UTF-8 ({error}); correct the file") from error
    for name, text in own.items():
        absent = sorted(
            set(PLACEHOLDER_PATTERN.findall(read_prompt_template(name))) - set(PLACEHOLDER_PATTERN.findall(text))
        )
        if absent:
            raise ConfigError(f"{folder}/{name}.txt lacks {absent[0]}, which is filled in for each prompt; add it")
    return own


@dataclass(frozen=True, slots=True)
class Release(ABC):
    """Base class for the published code of metrics: prompts that are read from a checkout, and methods that use them.

    All fields are part of the keys of requests.
    """

    repository: ClassVar[str]
    """Owner and name of the repository on GitHub."""
    marker_file: ClassVar[str]
    """File whose presence identifies a checkout."""
    fixed_options: ClassVar[tuple[str, ...]]
    """Options of the metric for which the published code has its own values."""
    temperature: ClassVar[float] = 0.0
    """Sampling temperature of the replies, if the published code determines it."""

    @classmethod
    @abstractmethod
    def read(cls, checkout: "Checkout") -> Self:
        """Return the prompts in a checkout; raise ConfigError if the checkout is incomplete."""

    @property
    def digest(self) -> str:
        return hashlib.sha256(json.dumps([type(self).__name__, astuple(self)]).encode()).hexdigest()[:16]


def ask_as_released(
    requests: Sequence[Request], readers: Sequence[Callable[[str], T]], *, tries: int = 1
) -> Writing[list[T]]:
    """Ask for several replies and parse them, even if cut off; if one is unreadable, ask for all of them again.

    Each retry sends the same requests with the next seed. Raise UnreadableReply after `tries` attempts. The readers
    may raise any of READER_ERRORS, as published code does.
    """
    for attempt in range(tries):
        replies = yield [request._replace(seed=request.seed + attempt) for request in requests]
        results: list[T] = []
        try:
            for read, reply in zip(readers, replies, strict=True):
                if len(reply.text) > MAX_REPLY_CHARACTERS:
                    found = len(reply.text)
                    raise UnreadableReply(f"expected at most {MAX_REPLY_CHARACTERS} characters, found {found}")
                results.append(read(reply.text))
            return results
        except (*READER_ERRORS, UnreadableReply) as error:
            problem = f"{error}; {_describe_end(replies[len(results)])}"
    raise UnreadableReply(f"{problem}; replies are parsed as in the release's code")


def _describe_end(reply: Generation) -> str:
    """Return the end of a reply, for the message about a reply that cannot be read."""
    cut = "" if reply.complete else ", and it was cut at the maximum number of tokens"
    return f"the reply ends with {reply.text[-MAX_QUOTED_CHARACTERS:]!r}{cut}"


class Slot(NamedTuple):
    expression: str
    """The expression inside the f-string's braces."""


TemplateText = tuple[str | Slot, ...]
"""A string from a Python file, split at its slots; a plain string has none."""


class Checkout(NamedTuple):
    folder: Path
    repository: str
    """Owner and name of the repository on GitHub."""

    def read_text(self, path: str) -> str:
        """Return the content of a text file in the checkout; raise ConfigError if it is missing or not text."""
        file = self.folder / path
        if not file.is_file():
            raise self.make_checkout_error(path, "is missing")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise self.make_checkout_error(path, f"has more than {MAX_FILE_BYTES} bytes")
        try:
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self.make_checkout_error(path, f"cannot be read ({error})") from error

    def read_rows(self, path: str) -> list[dict[str, str]]:
        return list(csv.DictReader(io.StringIO(self.read_text(path), newline="")))

    def parse_python(self, path: str) -> "PythonFile":
        """Parse a Python file in the checkout; raise ConfigError if it is not valid Python."""
        return self.parse_code(self.read_text(path), path)

    def parse_code(self, code: str, path: str) -> "PythonFile":
        """Parse code from a file in the checkout; raise ConfigError if it is not valid Python."""
        try:
            return PythonFile(self, path, ast.parse(code))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.make_checkout_error(path, f"is not Python ({type(error).__name__})") from error

    def make_checkout_error(self, path: str, problem: str) -> ConfigError:
        """Return the error to raise if a file of the checkout is missing or not as expected."""
        return ConfigError(
            f"{self.folder}: {path} {problem}; give the root of an unchanged checkout of "
            f"https://github.com/{self.repository}"
        )


class PythonFile(NamedTuple):
    checkout: Checkout
    path: str
    tree: ast.Module

    def find_assigned_value(self, name: str) -> ast.expr:
        """Return the first value assigned to a name such as `self.prompt`, searching outer scopes first.

        Raises ConfigError if nothing is assigned to the name.
        """
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                return node.value
        raise self.checkout.make_checkout_error(self.path, f"assigns nothing to {name}")

    def read_text(self, name: str) -> TemplateText:
        return self.read_expression_text(self.find_assigned_value(name), name)

    def read_plain_string(self, name: str) -> str:
        """Return the string that is assigned to a name; raise ConfigError if it is an f-string with slots."""
        return fill_slots(self.read_text(name), {})

    def read_literal(self, name: str) -> Any:
        """Return the literal that is assigned to a name: strings and numbers, possibly in lists and dictionaries."""
        try:
            return ast.literal_eval(self.find_assigned_value(name))
        except ValueError as error:
            raise self.checkout.make_checkout_error(self.path, f"has no literal in {name}") from error

    def read_texts_under(self, name: str, key: str) -> dict[str, str]:
        """Return the plain strings under a key of the nested dictionary that is assigned to a name."""
        inner = _read_members(self.find_assigned_value(name)).get(key)
        texts = _read_members(inner) if inner is not None else {}
        return {
            member: node.value
            for member, node in texts.items()
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def find_returned_texts(self, function: str, key: str, count: int) -> list[TemplateText]:
        """Return the strings under a key in a function's dict literals; raise ConfigError unless there are `count`."""
        bodies = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and node.name == function]
        found = [
            self.read_expression_text(member, function)
            for body in bodies
            for node in ast.walk(body)
            if isinstance(node, ast.Dict) and (member := _read_members(node).get(key)) is not None
        ]
        if len(found) != count:
            raise self.checkout.make_checkout_error(
                self.path, f"has {len(found)} texts in {function}, expected {count}"
            )
        return found

    def read_returned_text(self, function: str) -> str:
        """Return the plain string that a function returns; raise ConfigError unless it has exactly one `return`."""
        bodies = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and node.name == function]
        values = [node.value for body in bodies for node in ast.walk(body) if isinstance(node, ast.Return)]
        if len(values) != 1 or values[0] is None:
            raise self.checkout.make_checkout_error(
                self.path, f"has {len(values)} returns in {function}, expected one text"
            )
        return fill_slots(self.read_expression_text(values[0], function), {})

    def read_expression_text(self, node: ast.expr, name: str) -> TemplateText:
        """Return the text of a string, f-string or `string.Template`, or of a sum or `strip()` of these.

        Raises ConfigError for any other expression; `name` tells the user where the expression is.
        """
        match node:
            case ast.Constant(value=str(text)):
                return (text,)
            case ast.JoinedStr(values=values):
                return tuple(part for value in values for part in self.read_expression_text(value, name))
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return (Slot(ast.unparse(value)),)
            case ast.Call(func=ast.Attribute(value=value, attr="strip" | "lstrip" | "rstrip" as strip), args=[]):
                return (getattr(fill_slots(self.read_expression_text(value, name), {}), strip)(),)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return (*self.read_expression_text(left, name), *self.read_expression_text(right, name))
            case ast.Call(func=ast.Attribute(attr="Template"), args=[value]):
                return self.read_expression_text(value, name)
        raise self.checkout.make_checkout_error(self.path, f"has no text in {name}")


def _read_members(node: ast.expr) -> dict[str, ast.expr]:
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def fill_slots(text: TemplateText, values: Mapping[str, str]) -> str:
    """Return the text with each slot replaced by the value of its expression; raise ConfigError if one is missing."""
    unknown = [part.expression for part in text if isinstance(part, Slot) and part.expression not in values]
    if unknown:
        raise ConfigError(f"the published text has the slot {unknown[0]}, expected only {', '.join(values)}")
    return "".join(values[part.expression] if isinstance(part, Slot) else part for part in text)
