"""Reads a release's checkout as data: texts, tables, and constants of Python files, which are never run."""

import ast
import csv
import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError

MAX_FILE_BYTES = 20_000_000
"""Maximum size of a file."""


class Slot(NamedTuple):
    """A gap in a text that the release's code fills in."""

    expression: str
    """Expression in the f-string."""


Text = tuple[str | Slot, ...]
"""A text of a Python file; without slots it is a plain string."""


class Checkout(NamedTuple):
    """A folder with a copy of a release's repository."""

    folder: Path
    repository: str
    """Owner and name on GitHub."""

    def has(self, path: str) -> bool:
        return (self.folder / path).is_file()

    def text(self, path: str) -> str:
        """Return a file's text; raise ConfigError if it is missing or not text."""
        file = self.folder / path
        if not file.is_file():
            raise self.refusal(path, "is missing")
        if file.stat().st_size > MAX_FILE_BYTES:
            raise self.refusal(path, f"has more than {MAX_FILE_BYTES} bytes")
        try:
            return file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise self.refusal(path, f"cannot be read ({error})") from error

    def rows(self, path: str) -> list[dict[str, str]]:
        """Return the rows of a CSV file."""
        return list(csv.DictReader(io.StringIO(self.text(path), newline="")))

    def python(self, path: str) -> "PythonFile":
        """Parse a Python file; raise ConfigError if it is not Python."""
        try:
            return PythonFile(self, path, ast.parse(self.text(path)))
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise self.refusal(path, f"is not Python ({type(error).__name__})") from error

    def refusal(self, path: str, problem: str) -> ConfigError:
        """Return the error for a file that differs from the release's."""
        return ConfigError(
            f"{self.folder}: {path} {problem}; name the root of an unchanged checkout of "
            f"https://github.com/{self.repository}"
        )


class PythonFile(NamedTuple):
    """The syntax tree of one of a release's files."""

    checkout: Checkout
    path: str
    tree: ast.Module

    def assigned(self, name: str) -> ast.expr:
        """Return the value assigned to a name such as `prompt` or `self.prompt`.

        Outermost assignments come first, then earlier ones. Raises ConfigError if the file assigns nothing to it.
        """
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Assign) and name in map(ast.unparse, node.targets):
                return node.value
        raise self.checkout.refusal(self.path, f"assigns nothing to {name}")

    def text(self, name: str) -> Text:
        """Return the text that is assigned to a name."""
        return self.text_of(self.assigned(name), name)

    def plain(self, name: str) -> str:
        """Return the text without slots that is assigned to a name."""
        return fill_slots(self.text(name), {})

    def value(self, name: str) -> Any:
        """Return the literal that is assigned to a name: texts and numbers, in lists and dictionaries."""
        try:
            return ast.literal_eval(self.assigned(name))
        except ValueError as error:
            raise self.checkout.refusal(self.path, f"has no literal in {name}") from error

    def texts_under(self, name: str, key: str) -> dict[str, str]:
        """Return the plain texts under a key of the nested dictionaries that are assigned to a name."""
        inner = _members(self.assigned(name)).get(key)
        texts = _members(inner) if inner is not None else {}
        return {
            member: node.value
            for member, node in texts.items()
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }

    def returned(self, function: str, key: str, count: int) -> list[Text]:
        """Return the texts under a key of a function's dictionaries; raise ConfigError unless there are `count`."""
        bodies = [node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef) and node.name == function]
        found = [
            self.text_of(member, function)
            for body in bodies
            for node in ast.walk(body)
            if isinstance(node, ast.Dict) and (member := _members(node).get(key)) is not None
        ]
        if len(found) != count:
            raise self.checkout.refusal(self.path, f"has {len(found)} texts in {function}, expected {count}")
        return found

    def text_of(self, node: ast.expr, name: str) -> Text:
        """Return the text of an expression: a string, an f-string, a `string.Template` of either, or a stripped one."""
        match node:
            case ast.Constant(value=str(text)):
                return (text,)
            case ast.JoinedStr(values=values):
                return tuple(part for value in values for part in self.text_of(value, name))
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return (Slot(ast.unparse(value)),)
            case ast.Call(func=ast.Attribute(value=value, attr="strip" | "lstrip" | "rstrip" as strip), args=[]):
                return (getattr(fill_slots(self.text_of(value, name), {}), strip)(),)
            case ast.Call(func=ast.Attribute(attr="Template"), args=[value]):
                return self.text_of(value, name)
        raise self.checkout.refusal(self.path, f"has no text in {name}")


def _members(node: ast.expr) -> dict[str, ast.expr]:
    """Return the values of a dictionary whose keys are texts; for other nodes nothing."""
    pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
    return {key.value: value for key, value in pairs if isinstance(key, ast.Constant) and isinstance(key.value, str)}


def fill_slots(text: Text, values: Mapping[str, str]) -> str:
    """Return the text with its slots filled; raise ConfigError for a slot without a value."""
    unknown = [part.expression for part in text if isinstance(part, Slot) and part.expression not in values]
    if unknown:
        raise ConfigError(f"the release's text has a place for {unknown[0]}, which is not known here")
    return "".join(values[part.expression] if isinstance(part, Slot) else part for part in text)
