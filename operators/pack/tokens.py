"""Word tokenizers of the tiny models, counted from the world's own sentences, with letters for words unknown."""

import math
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from random import Random
from string import ascii_letters, digits

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from operators.models.clip_flant5 import BEFORE_IMAGE
from operators.pack.claims import NUMBERS, SKILLS
from operators.pack.prompts import sample_statement
from operators.pack.questions import (
    OPEN_QUESTIONS,
    VQASCORE_TEMPLATE,
    ask_directly,
    ask_openly,
    caption,
)
from operators.pack.scenes import random_scene

SENTENCES = 4000
PUNCTUATION = "\"'?!.,:;()"
SPACE = "▁"
T5_CONTEXT = 512
CLIP_CONTEXT = 77
NLI_CONTEXT = 128
OTHER_WORDS = (
    "A photo depicts Yes No yes no What Which Who How many much color colors size shape shapes part object objects "
    "thing things image picture figure photo there is are the a an in on of at to and or not any all every each none "
    "nothing true for true false this that it show shows have has does do Is Are Does Do Where Choices choice Question "
    "Answer answer About Describe Please the image. between among same different than more fewer less larger smaller "
    "bigger left right top bottom middle center above below beside next under over near with without no only exactly"
)
"""Words that questions of other metrics are likely to use."""
FIXED_PHRASES = (
    "A chat between a curious user and an artificial intelligence assistant.",
    "The assistant gives helpful, detailed, and polite answers to the user's questions.",
    "USER:",
    "ASSISTANT:",
    "Does this figure show",
    "Please answer yes or no.",
)
"""What every conversation repeats is one token each, so that a tiny model need not read it word by word."""


def world_sentences(seed: int) -> list[str]:
    """Statements, questions with answers, and captions that between them use every word of the world."""
    rng = Random(f"sentences/{seed}")
    sentences = [BEFORE_IMAGE, VQASCORE_TEMPLATE, OTHER_WORDS, " ".join(NUMBERS), " ".join(digits)]
    for index in range(SENTENCES):
        scene, skill = random_scene(rng), SKILLS[index % len(SKILLS)]
        statement = sample_statement(rng, scene, skill)
        topic = list(OPEN_QUESTIONS)[index % len(OPEN_QUESTIONS)]
        asked = [ask_directly(rng, scene, skill, truth=True), ask_openly(rng, scene, topic)]
        sentences += [statement.text] if statement else []
        sentences += [f"{question.text} {question.answer}" for question in asked if question]
        sentences.append(caption(rng, scene))
    return sentences


def t5_tokenizer(sentences: Sequence[str]) -> PreTrainedTokenizerFast:
    """T5's conventions: `<pad>` 0, `</s>` 1 appended to every text, `<unk>` 2."""
    tokenizer = _word_tokenizer(["<pad>", "</s>", "<unk>"], sentences, unknown="<unk>")
    tokenizer.add_tokens([AddedToken(phrase, normalized=False) for phrase in FIXED_PHRASES])
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=T5_CONTEXT,
        padding_side="right",
    )


def clip_tokenizer(sentences: Sequence[str]) -> PreTrainedTokenizerFast:
    """CLIP's conventions: a text stands between its start and end tokens; padding is a token of its own."""
    names = ["<pad>", "<|startoftext|>", "<unk>", "<|endoftext|>"]
    tokenizer = _word_tokenizer(names, sentences, unknown="<unk>")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<|startoftext|> $A <|endoftext|>", special_tokens=[("<|startoftext|>", 1), ("<|endoftext|>", 3)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        bos_token="<|startoftext|>",
        eos_token="<|endoftext|>",
        unk_token="<unk>",
        model_max_length=CLIP_CONTEXT,
        padding_side="right",
    )


def bert_tokenizer(sentences: Sequence[str]) -> PreTrainedTokenizerFast:
    """BERT's conventions: `[CLS] premise [SEP] hypothesis [SEP]`, the second segment marked."""
    tokenizer = _word_tokenizer(["[PAD]", "[UNK]", "[CLS]", "[SEP]"], sentences, unknown="[UNK]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", 2), ("[SEP]", 3)],
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        model_max_length=NLI_CONTEXT,
        model_input_names=["input_ids", "token_type_ids", "attention_mask"],
        padding_side="right",
    )


def _word_tokenizer(special: Sequence[str], sentences: Iterable[str], *, unknown: str) -> Tokenizer:
    """A unigram model of whole words; a word it has not seen falls apart into letters."""
    tokenizer = Tokenizer(models.Unigram(_vocabulary(special, sentences), special.index(unknown)))
    spaced = [normalizers.Replace(mark, f" {mark} ") for mark in PUNCTUATION]
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.NFKC(), *spaced, normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.add_special_tokens(list(special))
    return tokenizer


def _vocabulary(special: Sequence[str], sentences: Iterable[str]) -> list[tuple[str, float]]:
    counts = Counter(word for sentence in sentences for word in split_words(sentence))
    total = sum(counts.values())
    words = [(SPACE + word, math.log(count / total)) for word, count in sorted(counts.items())]
    known = {piece for piece, _ in words}
    letters = [SPACE, *(mark for mark in ascii_letters + digits + PUNCTUATION + "-/&%")]
    rare = [(letter, -30.0) for letter in letters if letter not in known]
    return [(name, 0.0) for name in special] + words + rare


def split_words(sentence: str) -> list[str]:
    """The sentence's words and punctuation marks, as the tokenizer separates them."""
    return re.findall(rf"[{re.escape(PUNCTUATION)}]|[^\s{re.escape(PUNCTUATION)}]+", sentence)
