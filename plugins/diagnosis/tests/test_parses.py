"""Yngve depths equal those computed by hand, and a parse of a different text is rejected."""

import math
import random
from collections.abc import Sequence
from typing import TypeAlias

import pytest

from plumbline.plugins.diagnosis.parses import MAX_DEPTH, MAX_PARSE_CHARACTERS, BadParse, compute_mean_yngve_depth

Tree: TypeAlias = "str | Sequence[Tree]"
"""A word, or a sequence of branches."""


def write_brackets(tree: Tree, rng: random.Random) -> str:
    if isinstance(tree, str):
        return f"(NN {tree})"
    parts = [write_brackets(child, rng) for child in tree]
    for extra in ("(, ,)", "(-NONE- *T*-1)", "(-LRB- -LRB-)", "(NP (-NONE- *))"):
        if rng.random() < 0.3:
            parts.insert(rng.randrange(len(parts) + 1), extra)
    return f"(X {' '.join(parts)})"


def list_leaves(tree: Tree) -> list[str]:
    return [tree] if isinstance(tree, str) else [word for child in tree for word in list_leaves(child)]


def compute_depths(tree: Tree, above: int = 0) -> list[int]:
    """Return each word's depth by its definition: the number of branches to the right of the path from the root."""
    if isinstance(tree, str):
        return [above]
    return [depth for place, child in enumerate(tree) for depth in compute_depths(child, above + len(tree) - 1 - place)]


def grow_tree(rng: random.Random, height: int) -> Tree:
    if height == 0 or rng.random() < 0.2:
        return rng.choice(["dog", "Runs", "n't", "7"])
    return [grow_tree(rng, height - 1) for _ in range(rng.randint(1, 4))]


def test_a_words_depth_is_the_sum_of_its_branches_numbered_from_the_right() -> None:
    """In "A dog runs fast", the noun phrase and the verb phrase have two words each.

    The depths of the words are therefore 2, 1, 1 and 0 by Yngve's definition.
    """
    parse = "(ROOT (S (NP (DT A) (NN dog)) (VP (VBZ runs) (ADVP (RB fast))) (. .)))"
    assert compute_mean_yngve_depth(parse, "A dog runs fast.") == pytest.approx((2 + 1 + 1 + 0) / 4)
    assert compute_mean_yngve_depth("(NN dog)", "dog") == 0 and math.isnan(compute_mean_yngve_depth("(X (. .))", "."))
    assert compute_mean_yngve_depth("( (S (NP a) (VP b)) )", "a b") == compute_mean_yngve_depth("(S a b)", "a b") == 0.5


def test_punctuation_and_traces_do_not_change_any_depth() -> None:
    rng = random.Random(0)
    for _ in range(100):
        trees = [grow_tree(rng, 4) for _ in range(rng.randint(1, 3))]
        parse = " ".join(write_brackets(tree, rng) for tree in trees)
        found = compute_mean_yngve_depth(
            parse, " , ".join(word for tree in trees for word in list_leaves(tree)).upper()
        )
        every = [depth for tree in trees for depth in compute_depths(tree)]
        assert found == pytest.approx(sum(every) / len(every))


@pytest.mark.parametrize(
    ("parse", "message"),
    [
        ("", "expected a parse of 'a dog', found one of ''"),
        ("a dog", r"expected a parse such as \(S"),
        ("(NP (DT a) (NN dog)", "unclosed brackets: 1"),
        ("(NP (DT a) (NN dog)))", r"expected a parse such as \(S"),
        ("(NP (DT a) (NN cat))", "expected a parse of 'a dog', found one of 'a cat'"),
        ("(NP (NN dog) (DT a))", "found one of 'dog a'"),
        ("(X " * MAX_DEPTH + "a dog" + ")" * MAX_DEPTH, "at most 200 levels of nested brackets"),
        ("(NP a dog)" + " " * MAX_PARSE_CHARACTERS, "expected at most 100000 characters"),
    ],
)
def test_a_parse_that_does_not_match_its_text_is_refused(parse: str, message: str) -> None:
    with pytest.raises(BadParse, match=message):
        compute_mean_yngve_depth(parse, "a dog")
