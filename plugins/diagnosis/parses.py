"""Yngve's complexity of constituency parses in the Penn Treebank's brackets ("What makes a good metric?", sec. 3.1)."""

import math
import re
from collections.abc import Iterator
from statistics import fmean
from typing import NamedTuple

from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.metrics.parsing import shorten

MAX_PARSE = 100_000
"""Characters."""
MAX_DEPTH = 200
"""Brackets within brackets."""
EXAMPLE = "(S (NP (DT a) (NN dog)) (VP (VBZ runs)))"

_TOKEN = re.compile(r"[()]|[^\s()]+")
_BRACKET = re.compile(r"-[LR][RSC]B-")
"""A bracket of the text, which the treebank writes as -LRB- and the like."""
_EMPTY = "-NONE-"
"""Label of an element without words, such as a trace."""


class BadParse(PlumblineError):
    """A parse that cannot be read, or belongs to another text; the message names the fault."""


class _Node(NamedTuple):
    label: str
    children: "list[_Node | str]"
    """Words, and nodes that contain words."""


def mean_yngve_depth(parse: str, text: str) -> float:
    """Return the mean depth of a text's words (Yngve 1960); nan for a text without words.

    The branches of a node are numbered from right to left, from 0, and a word's depth is the sum of the numbers on the
    way to it. Punctuation is ignored. A parse of several sentences has a tree for each.

    Raises:
        BadParse: Brackets do not close, the parse is too long or too deep, or its words are not the text's.
    """
    trees = _read(parse)
    words = " ".join(word for tree in trees for word in _words(tree))
    if _letters(words) != _letters(text):
        raise BadParse(f"expected a parse of {shorten(text)}, found one of {shorten(words)}")
    depths = [depth for tree in trees for depth in _depths(tree, 0)]
    return fmean(depths) if depths else math.nan


def _read(parse: str) -> list[_Node]:
    """Return the trees of a parse without punctuation and empty elements; raise BadParse if it cannot be read."""
    if len(parse) > MAX_PARSE:
        raise BadParse(f"expected at most {MAX_PARSE} characters, found {len(parse)}")
    top = _Node("", [])
    open_nodes, before = [top], ")"
    for token in _TOKEN.findall(parse):
        if token == "(":
            open_nodes.append(_Node("", []))
        elif token == ")" and len(open_nodes) > 1:
            closed = open_nodes.pop()
            if closed.children:
                open_nodes[-1].children.append(closed)
        elif token == ")" or len(open_nodes) == 1:
            raise BadParse(f"expected a parse such as {EXAMPLE}, found {shorten(parse)}")
        elif before == "(":
            open_nodes[-1] = open_nodes[-1]._replace(label=token)
        elif _is_word(token) and open_nodes[-1].label != _EMPTY:
            open_nodes[-1].children.append(token)
        if len(open_nodes) > MAX_DEPTH:
            raise BadParse(f"expected at most {MAX_DEPTH} brackets within brackets, found more")
        before = token
    if len(open_nodes) > 1:
        raise BadParse(f"{len(open_nodes) - 1} brackets are not closed in {shorten(parse)}")
    return [child for child in top.children if isinstance(child, _Node)]


def _is_word(token: str) -> bool:
    return any(map(str.isalnum, token)) and _BRACKET.fullmatch(token) is None


def _words(node: _Node) -> Iterator[str]:
    for child in node.children:
        if isinstance(child, str):
            yield child
        else:
            yield from _words(child)


def _depths(node: _Node, depth: int) -> Iterator[int]:
    for number, child in enumerate(reversed(node.children)):
        if isinstance(child, str):
            yield depth + number
        else:
            yield from _depths(child, depth + number)


def _letters(text: str) -> str:
    """Return the letters and digits of a text in lower case, because parses change spaces and punctuation."""
    return "".join(filter(str.isalnum, text)).casefold()
