"""The tokenizers of the tiny models.

Three tokenizers take their words from sentences about shapes, and spell unknown words letter by letter.
The question writer's tokenizer has words and phrases, decodes exactly, and spells unknown text byte by byte.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from random import Random
from string import ascii_letters, digits
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from plumbline.assets.making.claims import NUMBER_WORDS, SKILLS
from plumbline.assets.making.prompts import sample_prompt
from plumbline.assets.making.questions import (
    OPEN_QUESTIONS,
    VQASCORE_TEMPLATE,
    ask_open_question,
    ask_plain_yes_no_question,
    write_caption,
)
from plumbline.assets.making.scenes import sample_scene
from plumbline.operators.models.networks.clip_flant5 import TEXT_BEFORE_IMAGE

SENTENCE_COUNT = 4000
PUNCTUATION = "\"'?!.,:;()"
SPACE_CHARACTER = "▁"
T5_CONTEXT_TOKENS = 512
CLIP_CONTEXT_TOKENS = 77
NLI_CONTEXT_TOKENS = 128
WRITER_CONTEXT_TOKENS = 4096
WRITER_SPECIAL_TOKENS = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
WRITER_WORD_PATTERN = r" ?[A-Za-z]+| ?[0-9]|\s|[^\sA-Za-z0-9]"
OTHER_WORDS = (
    "A photo depicts Yes No yes no What Which Who How many much color colors size shape shapes part object objects "
    "thing things image picture figure photo there is are the a an in on of at to and or not any all every each none "
    "nothing true for true false this that it show shows have has does do Is Are Does Do Where Choices choice Question "
    "Answer answer About Describe Please the image. between among same different than more fewer less larger smaller "
    "bigger left right top bottom middle center above below beside next under over near with without no only exactly"
)
"""Words that are likely to occur in questions of other metrics."""
FIXED_PHRASES = (
    "A chat between a curious user and an artificial intelligence assistant.",
    "The assistant gives helpful, detailed, and polite answers to the user's questions.",
    "USER:",
    "ASSISTANT:",
    "Does this figure show",
    "Please answer yes or no.",
)
"""Phrases that occur in every conversation. Each is a single token, so that a tiny model need not read it word by word.
"""


def write_sentences(seed: int) -> list[str]:
    """Write statements, questions with answers, and captions that together use every word for describing shapes."""
    rng = Random(f"sentences/{seed}")
    sentences = [TEXT_BEFORE_IMAGE, VQASCORE_TEMPLATE, OTHER_WORDS, " ".join(NUMBER_WORDS), " ".join(digits)]
    for index in range(SENTENCE_COUNT):
        scene, skill = sample_scene(rng), SKILLS[index % len(SKILLS)]
        prompt = sample_prompt(rng, scene, skill)
        topic = list(OPEN_QUESTIONS)[index % len(OPEN_QUESTIONS)]
        questions = [ask_plain_yes_no_question(rng, scene, skill, truth=True), ask_open_question(rng, scene, topic)]
        sentences += [prompt.text] if prompt else []
        sentences += [f"{question.text} {question.answer}" for question in questions if question]
        sentences.append(write_caption(rng, scene))
    return sentences


def make_t5_tokenizer(sentences: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer with T5's conventions: `<pad>` is 0, `</s>` is 1 and ends every text, and `<unk>` is 2."""
    special = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    tokenizer = _make_word_tokenizer(sentences, special, "$A </s>")
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in FIXED_PHRASES])
    return _wrap_tokenizer(tokenizer, special, T5_CONTEXT_TOKENS)


def make_clip_tokenizer(sentences: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer with CLIP's conventions: a start and an end token around texts, and a padding token."""
    special = {
        "pad_token": "<pad>",
        "bos_token": "<|startoftext|>",
        "unk_token": "<unk>",
        "eos_token": "<|endoftext|>",
    }
    return _wrap_tokenizer(
        _make_word_tokenizer(sentences, special, "<|startoftext|> $A <|endoftext|>"), special, CLIP_CONTEXT_TOKENS
    )


def make_bert_tokenizer(sentences: Iterable[str]) -> PreTrainedTokenizerFast:
    """Make a tokenizer with BERT's conventions: `[CLS] premise [SEP] hypothesis [SEP]`, with segment ids."""
    special = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    tokenizer = _make_word_tokenizer(sentences, special, "[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1")
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    return _wrap_tokenizer(tokenizer, special, NLI_CONTEXT_TOKENS, model_input_names=inputs)


def _wrap_tokenizer(
    tokenizer: Tokenizer, special: Mapping[str, str], context: int, *, padding_side: str = "right", **options: Any
) -> PreTrainedTokenizerFast:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, **special, model_max_length=context, padding_side=padding_side, **options
    )


def _make_word_tokenizer(
    sentences: Iterable[str], special: Mapping[str, str], template: str, *, pair: str | None = None
) -> Tokenizer:
    """Make a unigram model of whole words that spells unknown words letter by letter.

    `special` contains the special tokens by role, in the order of their ids. `template` and `pair` are patterns that
    show where these tokens are added to a text and to a pair of texts.
    """
    names = list(special.values())
    tokenizer = Tokenizer(models.Unigram(_count_vocabulary(names, sentences), names.index(special["unk_token"])))
    spaced = [normalizers.Replace(mark, f" {mark} ") for mark in PUNCTUATION]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), *spaced, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE_CHARACTER, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE_CHARACTER, prepend_scheme="always")
    tokenizer.add_special_tokens(names)
    placed = [(name, index) for index, name in enumerate(names) if name in template]
    tokenizer.post_processor = processors.TemplateProcessing(single=template, pair=pair, special_tokens=placed)
    return tokenizer


def _count_vocabulary(special: Sequence[str], sentences: Iterable[str]) -> list[tuple[str, float]]:
    counts = Counter(word for sentence in sentences for word in split_words(sentence))
    total = sum(counts.values())
    words = [(SPACE_CHARACTER + word, math.log(count / total)) for word, count in sorted(counts.items())]
    known = {piece for piece, _ in words}
    letters = SPACE_CHARACTER + ascii_letters + digits + PUNCTUATION + "-/&%"
    rare = [(letter, -30.0) for letter in letters if letter not in known]
    return [(name, 0.0) for name in special] + words + rare


def split_words(sentence: str) -> list[str]:
    """Return the sentence's words and punctuation marks, split as the tokenizer splits them."""
    return re.findall(rf"[{re.escape(PUNCTUATION)}]|[^\s{re.escape(PUNCTUATION)}]+", sentence)


def build_writer_tokenizer(
    texts: Iterable[str], *, instructions: Sequence[str], phrases: Sequence[str]
) -> PreTrainedTokenizerFast:
    """Make a tokenizer from the texts' words; every instruction and every phrase is a single token.

    It is a byte-level BPE without merges, so unknown words are spelled byte by byte and decoding returns the exact
    text. Instructions are matched before anything else.
    """
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    pieces = {piece for text in texts for piece in split_pieces(text, phrases)}
    spelled = {"".join(part for part, _ in byte_level.pre_tokenize_str(piece)) for piece in pieces}
    names = dict.fromkeys(
        [*WRITER_SPECIAL_TOKENS.values(), *sorted(pre_tokenizers.ByteLevel.alphabet()), *sorted(spelled)]
    )
    vocabulary = {name: index for index, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], ignore_merges=True))
    split = pre_tokenizers.Split(Regex(_make_pattern(phrases)), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, byte_level])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(WRITER_SPECIAL_TOKENS.values()))
    tokenizer.add_tokens([AddedToken(instruction, normalized=False) for instruction in instructions])
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return _wrap_tokenizer(tokenizer, WRITER_SPECIAL_TOKENS, WRITER_CONTEXT_TOKENS, padding_side="left")


def split_pieces(text: str, phrases: Sequence[str]) -> list[str]:
    """Split the text into phrases, words (with the space before them), digits and punctuation; keep every character."""
    return re.findall(_make_pattern(phrases), text)


def _make_pattern(phrases: Sequence[str]) -> str:
    """Return a pattern that prefers longer phrases; Python and Oniguruma (tokenizers) interpret it in the same way."""
    longest_first = sorted(phrases, key=len, reverse=True)
    escaped = [re.sub(r"([^A-Za-z0-9\s])", r"\\\1", phrase) for phrase in longest_first]
    return "|".join([*escaped, WRITER_WORD_PATTERN])
