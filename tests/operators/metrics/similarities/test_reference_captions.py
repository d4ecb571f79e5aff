"""Measures that compare captions with references equal those of pycocoevalcap 1.2 (PyPI) without its tokenizer."""

import random

import pytest

from plumbline.operators.metrics.similarities.word_overlap import (
    Cider,
    compute_bleu_4,
    compute_lcs_length,
    compute_ref_clipscore,
    compute_rouge_l,
)

REFERENCES_BY_CAPTION = {
    "a dog runs on the green grass": (
        "a dog is running on grass", "the brown dog runs on the grass", "a dog",
    ),
    "two cats sleep on a red sofa": ("two cats are asleep on a red sofa", "cats on a couch"),
    "a man rides a horse": ("a woman walks her dog on the beach", "a person on a beach"),
    "the the the": ("the cat sat on the mat the end",),
}  # fmt: skip
EXPECTED_VALUES = {
    "bleu_4": (0.48892302227221796, 0.42383656268685166, 2.0205155036242722e-12, 1.5882481722925387e-10),
    "cider": (2.376463552942513, 2.7667683073657985, 0.09483340654951469, 0.5250607688424634),
    "rouge_l": (0.8591549295774649, 0.7904967602591793, 0.4, 0.5041322314049587),
}
"""Values of Bleu(4), Cider() and Rouge() of pycocoevalcap 1.2 for REFERENCES_BY_CAPTION."""


@pytest.mark.parametrize("measure", EXPECTED_VALUES)
def test_a_measure_equals_the_coco_evaluation(measure: str) -> None:
    texts = {tuple(caption.split()): [text.split() for text in its] for caption, its in REFERENCES_BY_CAPTION.items()}
    measures = {"bleu_4": compute_bleu_4, "rouge_l": compute_rouge_l, "cider": Cider([*texts.values()]).score}
    found = [measures[measure](caption, references) for caption, references in texts.items()]
    assert found == pytest.approx(EXPECTED_VALUES[measure], rel=1e-9)


def test_a_reference_itself_scores_best_and_the_order_of_references_does_not_matter() -> None:
    rng = random.Random(4)
    images = [[[rng.choice("abcdefgh") for _ in range(rng.randint(4, 9))] for _ in range(3)] for _ in range(40)]
    cider = Cider(images)
    for references in images:
        other = [rng.choice("abcdefgh") for _ in range(rng.randint(1, 9))]
        shuffled = rng.sample(references, 3)
        for measure, highest in ((compute_bleu_4, 1.0), (compute_rouge_l, 1.0), (cider.score, 10.0)):
            assert measure(other, references) == pytest.approx(measure(other, shuffled))
            assert 0 <= measure(other, references) <= highest + 1e-9
            assert measure(other, references) <= measure(references[0], references) + 1e-9 or measure == cider.score
        assert compute_bleu_4(references[0], references) == pytest.approx(1.0)
        assert compute_rouge_l(references[0], references) == pytest.approx(1.0)
        assert cider.score(references[0], references[:1]) == pytest.approx(10.0)


@pytest.mark.parametrize("seed", range(5))
def test_the_lcs_length_equals_brute_force(seed: int) -> None:
    rng = random.Random(seed)
    first, second = ([rng.choice("abc") for _ in range(rng.randint(0, 8))] for _ in range(2))
    subsequences = ([word for place, word in enumerate(first) if mask >> place & 1] for mask in range(2 ** len(first)))

    def is_within(words: list[str]) -> bool:
        rest = iter(second)
        return all(word in rest for word in words)

    assert compute_lcs_length(first, second) == max(len(words) for words in subsequences if is_within(words))


@pytest.mark.parametrize(
    ("clipscore", "cosines", "expected"),
    [(0.5, [0.1, 0.5], 0.5), (0.6, [0.3], 0.4), (0.6, [-0.2, -0.1], 0.0), (0.0, [0.0], 0.0), (0.0, [0.9], 0.0)],
)
def test_refclipscore_is_the_harmonic_mean_with_the_nearest_reference(
    clipscore: float, cosines: list[float], expected: float
) -> None:
    assert compute_ref_clipscore(clipscore, cosines) == pytest.approx(expected)
