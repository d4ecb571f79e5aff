"""Word overlap of two texts: METEOR (Banerjee and Lavie 2005), BLEU-4, ROUGE-L and CIDEr; also RefCLIPScore.

BLEU-4, ROUGE-L and CIDEr follow the COCO caption evaluation (tylin/coco-caption, pycocoevalcap 1.2 on PyPI), which
needs a Java tokenizer. METEOR comes from NLTK.
"""

import hashlib
import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import explain_missing_extra

WORDNET_FILES = (
    "lexnames",
    *(f"{kind}.{part}" for kind in ("index", "data") for part in ("adj", "adv", "noun", "verb")),
    *(f"{part}.exc" for part in ("adj", "adv", "noun", "verb")),
)
MAX_WORDNET_BYTES = 256 * 2**20
MAX_NGRAM_LENGTH = 4
SMALL, TINY = 1e-9, 1e-15
"""Constants that the COCO evaluation adds to denominators and numerators, so that captions without a common 4-gram can
still be ranked.
"""
ROUGE_BETA = 1.2
CIDER_SIGMA = 6.0
CIDER_SCALE = 10.0

Words = Sequence[str]
Ngram = tuple[str, ...]


class WordNet(NamedTuple):
    """A folder with WordNet's files, laid out as in NLTK's corpora/wordnet."""

    folder: str
    digest: str
    """SHA-256 of the files that METEOR reads."""


class _EmptyWordNet:
    """An empty WordNet. Without it, NLTK would look for its own copy, which is a separate download."""

    def synsets(self, word: str) -> tuple[()]:
        return ()


def split_words(text: str) -> list[str]:
    return re.findall(r"\w+(?:['’]\w+)*", text.lower())


def compute_meteor(candidate: str, reference: str, wordnet: WordNet | None = None) -> float:
    """Return NLTK's METEOR score, from 0 to 1, of a candidate against one reference; 0 if no word matches.

    Two words match if they are equal except for case, or if they have the same stem (by Porter's original algorithm),
    or if they are synonyms in `wordnet`. Punctuation is ignored.
    """
    with explain_missing_extra("captions", "METEOR"):
        from nltk.translate.meteor_score import single_meteor_score  # takes a second
    words, wanted = split_words(candidate), split_words(reference)
    synonyms = _EmptyWordNet() if wordnet is None else _open_wordnet(wordnet)
    return float(single_meteor_score(wanted, words, stemmer=_load_stemmer(), wordnet=synonyms))


def compute_best_meteor(caption: str, references: Sequence[str]) -> float:
    """Return the caption's highest METEOR score, in [0, 1], against any reference."""
    return max(compute_meteor(caption, reference) for reference in references)


@cache
def _load_stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM)


def find_wordnet(folder: str) -> WordNet:
    """Return the WordNet in a folder; raise ConfigError if a file is missing or the files are too large."""
    path = Path(folder).expanduser().absolute()
    files = [path / name for name in WORDNET_FILES]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(
            f"{path}: expected the files of NLTK's corpora/wordnet, but {missing[0]} is missing; correct "
            "the path, or leave it out"
        )
    if sum(file.stat().st_size for file in files) > MAX_WORDNET_BYTES:
        raise ConfigError(f"{path}: larger than {MAX_WORDNET_BYTES >> 20} MiB, the limit for WordNet; check the path")
    content = hashlib.sha256()
    for file in files:
        content.update(hashlib.sha256(file.read_bytes()).digest())
    return WordNet(str(path), content.hexdigest())


@cache
def _open_wordnet(wordnet: WordNet) -> Any:
    """Return NLTK's reader for the files; raise ConfigError if the files have changed or cannot be read."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader, WordNetError

    class _WordNetReader(WordNetCorpusReader):  # type: ignore[misc]
        def map_wn(self, version: str = "wordnet") -> None:
            """Skip the mapping to other WordNet versions, for which NLTK would search its own folders."""

    found = find_wordnet(wordnet.folder)
    if found.digest != wordnet.digest:
        raise ConfigError(f"{wordnet.folder}: WordNet's files have changed since the run was planned; run again")
    nltk.data.path.append(wordnet.folder)  # NLTK only opens files in these folders
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about languages other than English
            return _WordNetReader(wordnet.folder, None)
    except (WordNetError, ValueError, AssertionError, UnicodeDecodeError, StopIteration) as error:
        raise ConfigError(f"{wordnet.folder}: not readable as WordNet ({error}); download it again") from error


def compute_bleu_4(caption: Words, references: Sequence[Words]) -> float:
    """Return BLEU with n-grams up to 4, in [0, 1] (Papineni et al. 2002).

    The brevity penalty uses the reference whose length is closest.
    """
    own, *others = (count_ngrams_by_length(text) for text in (caption, *references))
    possible = 1.0
    for size in range(1, MAX_NGRAM_LENGTH + 1):
        most = {ngram: max(other[size][ngram] for other in others) for ngram in own[size]}
        correct = sum(min(count, most[ngram]) for ngram, count in own[size].items())
        possible *= (correct + TINY) / (own[size].total() + SMALL)
    closest = min((abs(len(reference) - len(caption)), len(reference)) for reference in references)[1]
    ratio = (len(caption) + TINY) / (closest + SMALL)
    return float(possible ** (1 / MAX_NGRAM_LENGTH)) * (math.exp(1 - 1 / ratio) if ratio < 1 else 1.0)


def compute_rouge_l(caption: Words, references: Sequence[Words]) -> float:
    """Return ROUGE-L in [0, 1] (Lin 2004), using the best precision and the best recall over the references."""
    lengths = [compute_lcs_length(caption, reference) for reference in references]
    precision = max(length / len(caption) for length in lengths)
    recall = max(length / len(reference) for length, reference in zip(lengths, references, strict=True))
    if not precision * recall:
        return 0.0
    return (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)


def compute_lcs_length(first: Words, second: Words) -> int:
    lengths = [0] * (len(second) + 1)
    for word in first:
        diagonal = 0
        for index, other in enumerate(second, 1):
            length = diagonal + 1 if word == other else max(lengths[index], lengths[index - 1])
            diagonal, lengths[index] = lengths[index], length
    return lengths[-1]


class _Vector(NamedTuple):
    weights: Mapping[Ngram, float]
    norm: float


class Cider:
    """CIDEr-D (Vedantam, Zitnick and Parikh 2015), from 0 to 10, which gives rare n-grams more weight.

    How rare an n-gram is depends on how many images have it in their references.
    """

    def __init__(self, images: Sequence[Sequence[Words]]) -> None:
        self.images = Counter[Ngram]()
        for references in images:
            self.images.update(
                {ngram for text in references for by in count_ngrams_by_length(text).values() for ngram in by}
            )
        self.log_images = math.log(max(1, len(images)))

    def score(self, caption: Words, references: Sequence[Words]) -> float:
        """Return CIDEr-D: CIDER_SCALE times the mean similarity over the references and the n-gram lengths."""
        own, similarities = self._make_vectors(caption), []
        for text in references:
            cosines = []
            for one, two in zip(own, self._make_vectors(text), strict=True):
                # each n-gram of the caption counts at most as often as in the reference
                common = (ngram for ngram in one.weights if ngram in two.weights)
                product = sum(min(one.weights[ngram], two.weights[ngram]) * two.weights[ngram] for ngram in common)
                cosines.append(product / (one.norm * two.norm or 1.0))
            brevity = math.exp(-((len(caption) - len(text)) ** 2) / (2 * CIDER_SIGMA**2))
            similarities.append(brevity * sum(cosines) / len(cosines))
        return CIDER_SCALE * sum(similarities) / len(similarities)

    def _make_vectors(self, text: Words) -> list[_Vector]:
        vectors = []
        for counts in count_ngrams_by_length(text).values():
            weights = {
                ngram: count * (self.log_images - math.log(max(1, self.images[ngram])))
                for ngram, count in counts.items()
            }
            vectors.append(_Vector(weights, math.sqrt(sum(weight**2 for weight in weights.values()))))
        return vectors


def count_ngrams_by_length(text: Words) -> dict[int, Counter[Ngram]]:
    return {
        size: Counter(tuple(text[start : start + size]) for start in range(len(text) - size + 1))
        for size in range(1, MAX_NGRAM_LENGTH + 1)
    }


def compute_ref_clipscore(clipscore: float, similarities: Sequence[float]) -> float:
    """Return the harmonic mean of CLIPScore and the highest cosine with any reference (Hessel et al. 2021, sec. 3)."""
    best = max(0.0, *similarities)
    return 2 * clipscore * best / (clipscore + best) if clipscore + best > 0 else 0.0
