"""Text properties of prompts are computed by the published formulas."""

import math

import numpy as np
import pytest

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.results.prompt_properties import (
    ParsedWord,
    ParseProperties,
    count_syllables,
    list_properties,
    measure_central_depth,
    measure_depth,
    measure_length,
    measure_parse,
    measure_reading_grade,
    open_parser,
)


@pytest.mark.parametrize(
    ("word", "count"),
    [("dog", 1), ("table", 2), ("purple", 2), ("motorcycle", 4), ("boxes", 2), ("horses", 2), ("jumped", 1),
     ("painted", 2), ("whale", 1), ("apples", 2), ("the", 1), ("Dances", 2), ("brr", 1)],
)  # fmt: skip
def test_syllables_are_groups_of_vowels_except_silent_endings(word: str, count: int) -> None:
    assert count_syllables(word) == count


def test_the_grade_follows_the_flesch_kincaid_formula() -> None:
    assert measure_reading_grade("The dog runs. It barks.") == pytest.approx(0.39 * 5 / 2 + 11.8 * 5 / 5 - 15.59)
    assert measure_reading_grade("a purple motorcycle") == pytest.approx(0.39 * 3 + 11.8 * 7 / 3 - 15.59)
    assert math.isnan(measure_reading_grade("12 !")) and measure_reading_grade(
        "a motorcycle, e.g. a dog"
    ) == measure_reading_grade("a motorcycle, e.g. a dog ")


def test_the_length_counts_only_content_words() -> None:
    assert (measure_length("a red dog is in front of the cat"), measure_length("the"), measure_length("")) == (4, 0, 0)


def test_the_depth_is_the_longest_path_to_the_root_of_any_sentence() -> None:
    assert measure_depth([1, 1, 1]) == 1
    assert measure_depth([1, 2, 3, 3, 4]) == 3, "two sentences"
    assert math.isnan(measure_depth([]))


def compute_central_depth_as_printed(children: list[list[int]], node: int) -> tuple[int, int]:
    """Return the left and the right depth of a node by the pseudo-code in Gecko's appendix B.4.11, exactly as printed.

    The depth on a side without children is 0.
    """
    of_children = {child: compute_central_depth_as_printed(children, child) for child in children[node]}
    return (
        max((depths[1] + 1 for child, depths in of_children.items() if child < node), default=0),
        max((depths[0] + 1 for child, depths in of_children.items() if child > node), default=0),
    )


def test_the_central_depth_equals_that_of_the_papers_pseudo_code() -> None:
    rng = np.random.default_rng(0)
    for _ in range(100):
        order = rng.permutation(rng.integers(1, 30)).tolist()  # a word's head comes before it, or it is a root
        heads = dict(zip(order, [order[max(0, rng.integers(-2, max(1, at)))] for at in range(len(order))], strict=True))
        heads[order[0]] = order[0]
        children = [[child for child, head in heads.items() if head == word != child] for word in range(len(order))]
        roots = [word for word, head in heads.items() if head == word]
        expected = max(max(compute_central_depth_as_printed(children, root)) for root in roots)
        assert measure_central_depth([heads[word] for word in range(len(order))]) == expected
    assert measure_central_depth([1, 1, 1]) == 1 and math.isnan(measure_central_depth([]))
    chain = [max(0, word - 1) for word in range(5000)]
    assert (measure_central_depth(chain), measure_depth(chain)) == (1, 4999), "a branch on only one side is not central"


def test_entities_are_counted_once_each() -> None:
    """The text "A red soccer ball and two balls near the Eiffel Tower" has two entities: ball (twice) and Tower."""
    words = [
        ("a", "DET", "det", 3), ("red", "ADJ", "amod", 3), ("soccer", "NOUN", "compound", 3),
        ("ball", "NOUN", "ROOT", 3), ("and", "CCONJ", "cc", 3), ("two", "NUM", "nummod", 6),
        ("ball", "NOUN", "conj", 3), ("near", "ADP", "prep", 3), ("the", "DET", "det", 10),
        ("Eiffel", "PROPN", "compound", 10),
        ("Tower", "PROPN", "pobj", 7),
    ]  # fmt: skip
    parsed = measure_parse([ParsedWord(head, lemma, part, relation) for lemma, part, relation, head in words])
    assert (parsed.entities, parsed.depth, parsed.central_depth) == (2, 3, 2)
    assert all(map(math.isnan, measure_parse([])))


def test_properties_include_the_parse_only_if_there_is_a_parser() -> None:
    assert list(list_properties({})) == ["length", "grade"]
    measured = list_properties({"letters": lambda text: float(len(text))}, lambda text: ParseProperties(7, 3, 2))
    assert {name: of("a dog") for name, of in measured.items()} == {
        "length": 1, "grade": measure_reading_grade("a dog"), "depth": 7, "central_depth": 3, "entities": 2,
        "letters": 5,
    }  # fmt: skip


def test_a_missing_parser_is_an_error_with_a_remedy() -> None:
    with pytest.raises(ConfigError, match=r"^parser=no_such_pipeline: .*install|download"):
        open_parser("no_such_pipeline")
