"""How deep sentences are, by a spaCy pipeline that the user has installed; spaCy is the extra `parse`."""

import math

from plumbline.operators.diagnosis.texts import Property, depth
from plumbline.operators.errors import ConfigError


def open_parser(name: str) -> Property:
    """What gives the depth of a text's dependency parse, the deepest of its sentences.

    Only packages are opened, never folders. Raises ConfigError where spaCy, the package or its parser is missing.
    """
    try:
        import spacy
    except ImportError as error:
        raise ConfigError(f"diagnosis.parser={name}: spaCy is not installed; install the extra parse") from error
    if not spacy.util.is_package(name):
        raise ConfigError(
            f"diagnosis.parser={name}: no installed spaCy pipeline is called so; python -m spacy download {name}"
        )
    pipeline = spacy.load(name, exclude=["ner", "lemmatizer"])
    if "parser" not in pipeline.pipe_names:
        raise ConfigError(f"diagnosis.parser={name}: the pipeline has no parser; use another, as en_core_web_sm")

    def parse(text: str) -> float:
        heads = [token.head.i for token in pipeline(text)]
        return depth(heads) if heads else math.nan

    return parse
