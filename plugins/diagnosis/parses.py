"""Computes Yngve's complexity of Penn Treebank constituency parses ("What makes a good metric?", sec. 3.1)."""

import math
import re
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.metrics.parsing import shorten

MAX_PARSE_CHARACTERS = 100_000
"""Maximum length of a parse, in characters."""
MAX_DEPTH = 200
"""Maximum nesting depth of brackets."""
EXAMPLE_PARSE = "(S (NP (DT a) (NN dog)) (VP (VBZ runs)))"

_TOKEN_PATTERN = re.compile(r"[()]|[^\s()]+")
_BRACKET_PATTERN = re.compile(r"-[LR][RSC]B-")
"""Pattern of a bracket that belongs to the text itself, which the treebank writes as -LRB-, -RRB- and so on."""
_EMPTY_LABEL = "-NONE-"
"""Label of an element that contains no words, such as a trace."""


class BadParse(PlumblineError):
    """Raised for a parse that is malformed or belongs to a different text; the message states the problem."""


class _Node(NamedTuple):
    label: str
    children: "list[_Node | str]"
    """Words, and nodes that contain words."""


def compute_mean_yngve_depth(parse: str, text: str) -> float:
    """Return the mean depth of a text's words (Yngve 1960), or nan for a text without words.

    The branches of each node are numbered from right to left, starting at 0. A word's depth is the sum of the numbers
    on the path from the root to the word. Punctuation is ignored. A parse of several sentences contains one tree for
    each.

    Raises:
        BadParse: Brackets are not closed, the parse is too long or too deep, or its words differ from the text's.
    """
    trees = _parse_trees(parse)
    words = " ".join(word for tree in trees for word in _list_words(tree))
    if _drop_spaces_and_punctuation(words) != _drop_spaces_and_punctuation(text):
        raise BadParse(f"expected a parse of {shorten(text)}, found one of {shorten(words)}")
    depths = [depth for tree in trees for depth in _list_depths(tree, 0)]
    return fmean(depths) if depths else math.nan


def _parse_trees(parse: str) -> list[_Node]:
    """Return the trees of a parse, without punctuation and empty elements; raise BadParse if it is malformed."""
    if len(parse) > MAX_PARSE_CHARACTERS:
        raise BadParse(f"expected at most {MAX_PARSE_CHARACTERS} characters, found {len(parse)}")
    top = _Node("", [])
    open_nodes, before = [top], ")"
    for token in _TOKEN_PATTERN.findall(parse):
        if token == "(":
            open_nodes.append(_Node("", []))
        elif token == ")" and len(open_nodes) > 1:
            closed = open_nodes.pop()
            if closed.children:
                open_nodes[-1].children.append(closed)
        elif token == ")" or len(open_nodes) == 1:
            raise BadParse(f"expected a parse such as {EXAMPLE_PARSE}, found {shorten(parse)}")
        elif before == "(":
            open_nodes[-1] = open_nodes[-1]._replace(label=token)
        elif _is_word(token) and open_nodes[-1].label != _EMPTY_LABEL:
            open_nodes[-1].children.append(token)
        if len(open_nodes) > MAX_DEPTH:
            raise BadParse(f"expected at most {MAX_DEPTH} levels of nested brackets, found more")
        before = token
    if len(open_nodes) > 1:
        raise BadParse(f"unclosed brackets: {len(open_nodes) - 1}, in {shorten(parse)}")
    return [child for child in top.children if isinstance(child, _Node)]


def _is_word(token: str) -> bool:
    return any(map(str.isalnum, token)) and _BRACKET_PATTERN.fullmatch(token) is None


def _list_words(node: _Node) -> Iterator[str]:
    for child in node.children:
        if isinstance(child, str):
            yield child
        else:
            yield from _list_words(child)


def _list_depths(node: _Node, depth: int) -> Iterator[int]:
    for number, child in enumerate(reversed(node.children)):
        if isinstance(child, str):
            yield depth + number
        else:
            yield from _list_depths(child, depth + number)


def _drop_spaces_and_punctuation(text: str) -> str:
    """Return a text's letters and digits in lower case; parses change spaces and punctuation, so these are dropped."""
    return "".join(filter(str.isalnum, text)).casefold()
