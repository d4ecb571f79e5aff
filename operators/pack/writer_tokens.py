"""The question writer's tokenizer: whole words and phrases, decoded exactly, with bytes for all it does not know."""

import re
from collections.abc import Iterable, Sequence

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

SPECIAL = ("<pad>", "<s>", "</s>")
WORDS = r" ?[A-Za-z]+| ?[0-9]|\s|[^\sA-Za-z0-9]"
WRITER_CONTEXT = 4096


def split_pieces(text: str, phrases: Sequence[str]) -> list[str]:
    """The text's phrases, words with the space before them, digits and single marks; joined they are the text."""
    return re.findall(_pattern(phrases), text)


def _pattern(phrases: Sequence[str]) -> str:
    longest_first = sorted(phrases, key=len, reverse=True)
    return "|".join([*(_escaped(phrase) for phrase in longest_first), WORDS])


def _escaped(phrase: str) -> str:
    """The phrase as a pattern that Python and the tokenizers' Oniguruma read alike."""
    return re.sub(r"([^A-Za-z0-9\s])", r"\\\1", phrase)


def writer_tokenizer(
    texts: Iterable[str], *, instructions: Sequence[str], phrases: Sequence[str]
) -> PreTrainedTokenizerFast:
    """A tokenizer of the words in the texts, in which every instruction and every phrase of the texts is one token.

    It is byte-level BPE without merges: a word it has not seen falls apart into bytes, and decoding gives back the
    exact text. Instructions are matched before anything else.
    """
    words = sorted({_visible(piece) for text in texts for piece in split_pieces(text, phrases)})
    names = dict.fromkeys([*SPECIAL, *sorted(pre_tokenizers.ByteLevel.alphabet()), *words])
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    pieces = pre_tokenizers.Split(Regex(_pattern(phrases)), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pieces, _byte_level()])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    tokenizer.add_tokens([AddedToken(instruction, normalized=False) for instruction in instructions])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        model_max_length=WRITER_CONTEXT,
        padding_side="left",
    )


def _byte_level() -> pre_tokenizers.ByteLevel:
    return pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


def _visible(piece: str) -> str:
    """The piece as byte-level vocabularies spell it."""
    return "".join(part for part, _ in _byte_level().pre_tokenize_str(piece))
