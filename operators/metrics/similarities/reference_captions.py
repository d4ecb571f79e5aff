"""Captions compared with people's captions of the same image: BLEU-4, METEOR, ROUGE-L, CIDEr and RefCLIPScore.

BLEU-4, ROUGE-L and CIDEr follow the COCO caption evaluation (tylin/coco-caption, PyPI's pycocoevalcap 1.2), which needs
a Java tokenizer; METEOR is NLTK's (meteor.py).
"""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from plumbline.operators.metrics.similarities.meteor import meteor

MAX_NGRAM = 4
SMALL, TINY = 1e-9, 1e-15
"""Additions of the COCO evaluation to numerators and denominators, so that captions without a common 4-gram can still
be ranked."""
ROUGE_BETA = 1.2
CIDER_SIGMA = 6.0
CIDER_SCALE = 10.0

Words = Sequence[str]
Ngram = tuple[str, ...]


def bleu_4(caption: Words, references: Sequence[Words]) -> float:
    """Return BLEU of n-grams up to 4 in [0, 1] (Papineni et al. 2002); the closest reference counts for brevity."""
    own, *others = (counts_by_length(text) for text in (caption, *references))
    possible = 1.0
    for size in range(1, MAX_NGRAM + 1):
        most = {ngram: max(other[size][ngram] for other in others) for ngram in own[size]}
        correct = sum(min(count, most[ngram]) for ngram, count in own[size].items())
        possible *= (correct + TINY) / (own[size].total() + SMALL)
    closest = min((abs(len(reference) - len(caption)), len(reference)) for reference in references)[1]
    ratio = (len(caption) + TINY) / (closest + SMALL)
    return float(possible ** (1 / MAX_NGRAM)) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)


def rouge_l(caption: Words, references: Sequence[Words]) -> float:
    """Return ROUGE-L in [0, 1] (Lin 2004) of the best precision and the best recall of any reference."""
    lengths = [common_length(caption, reference) for reference in references]
    precision = max(length / len(caption) for length in lengths)
    recall = max(length / len(reference) for length, reference in zip(lengths, references, strict=True))
    if not precision * recall:
        return 0.0
    return (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)


def common_length(first: Words, second: Words) -> int:
    """Return the length of the longest common subsequence."""
    lengths = [0] * (len(second) + 1)
    for word in first:
        before = 0
        for place, other in enumerate(second, 1):
            before, lengths[place] = (
                lengths[place],
                before + 1 if word == other else max(lengths[place], lengths[place - 1]),
            )
    return lengths[-1]


def best_meteor(caption: str, references: Sequence[str]) -> float:
    """Return the highest METEOR, in [0, 1], of the caption with any reference."""
    return max(meteor(caption, reference) for reference in references)


class _Vector(NamedTuple):
    """A text's n-grams of one length, weighed by how rare they are."""

    weights: Mapping[Ngram, float]
    norm: float


class Cider:
    """CIDEr-D (Vedantam, Zitnick and Parikh 2015) from 0 to 10.

    It compares n-grams of captions, weighted by how rare they are among the references of all images.
    """

    def __init__(self, images: Sequence[Sequence[Words]]) -> None:
        """Count for each n-gram the images whose references contain it."""
        self.images = Counter[Ngram]()
        for references in images:
            self.images.update({ngram for text in references for by in counts_by_length(text).values() for ngram in by})
        self.log_images = math.log(max(1, len(images)))

    def score(self, caption: Words, references: Sequence[Words]) -> float:
        """Return the mean over references and lengths of n-grams."""
        own = self._vectors(caption)
        similarities = [self._compare(own, self._vectors(text), len(caption) - len(text)) for text in references]
        return CIDER_SCALE * sum(similarities) / len(similarities)

    def _vectors(self, text: Words) -> list[_Vector]:
        vectors = []
        for counts in counts_by_length(text).values():
            weights = {
                ngram: count * (self.log_images - math.log(max(1, self.images[ngram])))
                for ngram, count in counts.items()
            }
            vectors.append(_Vector(weights, math.sqrt(sum(weight**2 for weight in weights.values()))))
        return vectors

    @staticmethod
    def _compare(own: Sequence[_Vector], other: Sequence[_Vector], difference: int) -> float:
        """Return the mean cosine over lengths of n-grams, each n-gram at most as often as in the reference."""
        cosines = [
            sum(min(one.weights[ngram], two.weights[ngram]) * two.weights[ngram] for ngram in common)
            / (one.norm * two.norm or 1.0)
            for one, two in zip(own, other, strict=True)
            for common in [[ngram for ngram in one.weights if ngram in two.weights]]
        ]
        return math.exp(-(difference**2) / (2 * CIDER_SIGMA**2)) * sum(cosines) / len(cosines)


def counts_by_length(text: Words) -> dict[int, Counter[Ngram]]:
    """Return the n-grams of a text by their length, each with its count."""
    return {
        size: Counter(tuple(text[place : place + size]) for place in range(len(text) - size + 1))
        for size in range(1, MAX_NGRAM + 1)
    }


def ref_clipscore(clipscore: float, similarities: Sequence[float]) -> float:
    """Return the harmonic mean of CLIPScore in its original scale and the highest cosine with a reference.

    Hessel et al. 2021, section 3; negative cosines count as 0.
    """
    best = max(0.0, *similarities)
    return 2 * clipscore * best / (clipscore + best) if clipscore + best > 0 else 0.0
