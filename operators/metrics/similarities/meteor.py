"""METEOR: how well the words of one text match those of another, and in what order (Banerjee and Lavie 2005)."""

import hashlib
import re
import warnings
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from plumbline.operators.base.errors import ConfigError

WORDNET_FILES = (
    "lexnames",
    *(f"{kind}.{part}" for kind in ("index", "data") for part in ("adj", "adv", "noun", "verb")),
    *(f"{part}.exc" for part in ("adj", "adv", "noun", "verb")),
)
MAX_WORDNET_BYTES = 256 * 2**20


class WordNet(NamedTuple):
    """A folder with WordNet's files, as NLTK has them in corpora/wordnet."""

    folder: str
    digest: str
    """SHA-256 of the files that are read."""


class _NoSynonyms:
    """An empty WordNet, which is a separate download."""

    def synsets(self, word: str) -> tuple[()]:
        """Return no synonyms."""
        return ()


def meteor(candidate: str, reference: str, wordnet: WordNet | None = None) -> float:
    """Return METEOR, from 0 to 1, of a candidate compared with one reference, by NLTK; 0 if no word matches.

    Words match if they are equal except for case, or else if their stems are, by the stemmer of Porter's paper, or else
    if they are synonyms in `wordnet`. Punctuation is left out.
    """
    from nltk.translate.meteor_score import single_meteor_score  # takes a second

    words, wanted = split_words(candidate), split_words(reference)
    synonyms = _NoSynonyms() if wordnet is None else _open_wordnet(wordnet)
    return float(single_meteor_score(wanted, words, stemmer=_stemmer(), wordnet=synonyms))


def find_wordnet(folder: str) -> WordNet:
    """Return the WordNet in a folder; raise ConfigError if a file is missing or the files are too large."""
    place = Path(folder).expanduser().absolute()
    files = [place / name for name in WORDNET_FILES]
    if missing := [file.name for file in files if not file.is_file()]:
        raise ConfigError(
            f"{place}: expected WordNet's files as NLTK has them in corpora/wordnet, found no {missing[0]}; correct "
            "the path, or leave it out"
        )
    if sum(file.stat().st_size for file in files) > MAX_WORDNET_BYTES:
        raise ConfigError(f"{place}: over {MAX_WORDNET_BYTES >> 20} MiB, the limit of WordNet's files; is it WordNet?")
    content = hashlib.sha256()
    for file in files:
        content.update(hashlib.sha256(file.read_bytes()).digest())
    return WordNet(str(place), content.hexdigest())


@cache
def _open_wordnet(wordnet: WordNet) -> Any:
    """Return NLTK's reader of the files; raise ConfigError if they have changed or cannot be read."""
    import nltk.data
    from nltk.corpus.reader.wordnet import WordNetCorpusReader, WordNetError

    class _Reader(WordNetCorpusReader):  # type: ignore[misc]
        def map_wn(self, version: str = "wordnet") -> None:
            """Skip the mapping to another WordNet, which NLTK looks for in its own folders."""

    found = find_wordnet(wordnet.folder)
    if found.digest != wordnet.digest:
        raise ConfigError(f"{wordnet.folder}: WordNet's files were changed since the run was planned; run again")
    nltk.data.path.append(wordnet.folder)  # NLTK opens no file outside these folders
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about languages other than English
            return _Reader(wordnet.folder, None)
    except (WordNetError, ValueError, AssertionError, UnicodeDecodeError, StopIteration) as error:
        raise ConfigError(f"{wordnet.folder}: not readable as WordNet ({error}); download it again") from error


@cache
def _stemmer() -> Any:
    from nltk.stem.porter import PorterStemmer

    return PorterStemmer(mode=PorterStemmer.ORIGINAL_ALGORITHM)


def split_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without punctuation."""
    return re.findall(r"\w+(?:['’]\w+)*", text.lower())
