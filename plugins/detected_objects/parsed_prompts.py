"""Prompts as spaCy parses them: noun phrases, adjectives, and the nouns around a preposition."""

from collections.abc import Mapping, Sequence
from functools import cache, lru_cache
from itertools import pairwise
from threading import Lock
from typing import Any, NamedTuple

_PARSING = Lock()
PREPOSITIONS = ("on top of", "on bottom of", "on the left", "on the right", "next to", "on side of", "near")
"""Prepositions between related objects, in T2I-CompBench's complex prompts (2D_spatial_eval.py)."""


class ParsedPrompt(NamedTuple):
    noun_phrases: tuple[str, ...]
    without_adjectives: str
    """The prompt's words, separated by spaces, without the adjectives."""
    related_nouns: tuple[str, ...]
    """The nouns before and after each preposition in PREPOSITIONS."""


@cache
def _open_pipeline(name: str) -> Any:
    from plumbline.operators.results.prompt_properties import load_pipeline

    return load_pipeline(name)


def describe_pipeline(name: str) -> Mapping[str, str]:
    """Return the version of a spaCy pipeline and of spaCy; raise ConfigError if one of the two is not installed."""
    fields = _open_pipeline(name).meta
    return {"parser": name, "version": fields["version"], "spacy": fields["spacy_version"]}


@lru_cache(maxsize=20_000)
def parse_prompt(text: str, pipeline: str) -> ParsedPrompt:
    """Return the parse of a prompt by a spaCy pipeline."""
    with _PARSING:  # several shards may run at once
        parsed = _open_pipeline(pipeline)(text)
    words, tags = [token.text for token in parsed], [token.pos_ for token in parsed]
    return ParsedPrompt(
        tuple(phrase.text for phrase in parsed.noun_chunks),
        " ".join(word for word, tag in zip(words, tags, strict=True) if tag != "ADJ"),
        tuple(find_related_nouns(words, tags)),
    )


def find_related_nouns(words: Sequence[str], tags: Sequence[str]) -> list[str]:
    """Return the nearest nouns before and after each preposition, given the words and their parts of speech.

    Before a preposition, a proper noun counts, too; after it, only if no common noun follows and the next word is not a
    proper noun.
    """
    tagged, found = list(zip(words, tags, strict=True)), list[str]()
    for start in range(len(words)):
        length = next((size for size in (3, 2, 1) if " ".join(words[start : start + size]) in PREPOSITIONS), None)
        if length is None:
            continue
        following = tagged[start + length :]
        before = [word for word, tag in tagged[:start] if tag in ("NOUN", "PROPN")][-1:]
        after = [word for word, tag in following if tag == "NOUN"] or [
            word for (word, tag), (_, other) in pairwise(following) if tag == "PROPN" != other
        ]
        found += [*before, *after[:1]]
    return found
