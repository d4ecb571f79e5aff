"""Training of the question writer: lessons on prompts of training wording, the loss on the replies alone."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from plumbline.assets.making.entailment import Illustrated, entailed, not_entailed, sample_illustrated
from plumbline.assets.making.lessons import METRICS, REPLIES, GoldWriter, Lesson
from plumbline.assets.making.tokens import writer_tokenizer
from plumbline.assets.making.writer_gold import ChoiceQuestion, yes_no_question
from plumbline.operators.metrics import tifa

IGNORED = -100
PHRASES = (
    "Description:\n",
    "\nThe visually groundable words and their scores are labelled below:\n",
    "\nThe visually groundable words are labelled below:\n",
    "\nGenerated questions and answers are below:\n",
    "\nQuestions and answers are below:\n",
    "\nQuestion:\n",
    "?\nChoices:\n",
    "?\nAnswer:\n",
    "\nAnswer:\n",
    "\nTuples:\n",
    "\nPhrases:\n",
    "\nPhrase:\n",
    "Questions:\n",
    "Dependencies:\n",
    "yes, no",
    "one, two, three, four",
    "About ",
    "About {",
    "}:\nQ: ",
    *(f" ({kind}):\nQ: " for kind in ("object", "color", "attribute", "counting", "spatial", "other")),
    "?\nChoices: yes, no\nA: yes\n",
    "?\nChoices: one, two, three, four\nA: ",
    "Is there a",
    " are there",
    " {",
    "}[",
    *(f", {kind}]" for kind in ("entity", "color", "attribute", "counting", "spatial", "other")),
    *(f", {kind}, 1.0]" for kind in ("entity", "color", "attribute", "counting", "spatial")),
    *(", attribute, 0.8]", ", counting, 0.8]", ", other, 0.5]"),
    " | entity - whole (",
    " | entity - part (",
    " | attribute - color (",
    " | attribute - size (",
    " | attribute - count (",
    " | relation - spatial (",
    " | global (",
    " | ",
    ")\n",
    "?\n",
    "to the left of",
    " to the left of",
    "to the right of",
    " to the right of",
)
"""What the metrics' requests and replies repeat is one token each, so that a tiny model need not spell it out."""
VOCABULARY_PROMPTS = 600
DOUBTS = 2
CHOICES_KEPT = 3
"""Lessons of choosing an answer on each prompt; there would be too many of them."""
POOLED = 8


def make_writer_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The writer's tokenizer of every word of the world: each of the metrics' instructions is one token."""
    rng = Random(f"writer words/{seed}")
    lessons = [lesson for _ in range(VOCABULARY_PROMPTS) for lesson in training_lessons(rng)]
    texts = {lesson.text.removeprefix(lesson.instruction) for lesson in lessons} | {lesson.reply for lesson in lessons}
    return writer_tokenizer(texts, instructions=list(REPLIES), phrases=PHRASES)


def training_lessons(rng: Random) -> list[Lesson]:
    """The lessons of a fresh prompt of training wording."""
    return lessons_of(rng, sample_illustrated(rng, held_out=False))


def lessons_of(rng: Random, illustrated: Illustrated) -> list[Lesson]:
    """Every metric's requests about the prompt with the right replies, and questions on what it does not say."""
    writer = GoldWriter(illustrated.prompt)
    doubting = GoldWriter(illustrated.prompt, doubted=_doubts(rng, illustrated))
    lessons = [lesson for metric in METRICS for lesson in writer.written(metric).lessons if not _is_choice(lesson)]
    choices = [lesson for lesson in doubting.written("tifa").lessons if _is_choice(lesson)]
    return lessons + rng.sample(choices, min(CHOICES_KEPT, len(choices)))


def _is_choice(lesson: Lesson) -> bool:
    return lesson.instruction == tifa.CHOOSE_INSTRUCTIONS


def _doubts(rng: Random, illustrated: Illustrated) -> list[ChoiceQuestion]:
    """Yes/no questions that the prompt does not imply, and one that it does."""
    claims = [not_entailed(rng, illustrated) for _ in range(DOUBTS)]
    denied = [yes_no_question(claim, truth=False) for claim in claims if claim is not None]
    return [*denied, yes_no_question(entailed(rng, illustrated.prompt))]


class Sequences(NamedTuple):
    """One training step's input."""

    ids: torch.Tensor
    """(n, tokens), right-padded."""
    labels: torch.Tensor
    """(n, tokens), the token that follows each position of a reply; IGNORED elsewhere."""


def lesson_batches(tokenizer: PreTrainedTokenizerFast, rng: Random, size: int) -> Iterator[Sequences]:
    """Batches of `size` lessons without end, lessons of like length together."""
    while True:
        lessons: list[Lesson] = []
        while len(lessons) < POOLED * size:
            lessons += training_lessons(rng)
        rows = sorted(_rows(tokenizer, lessons), key=lambda row: len(row[0]) + rng.random())
        batches = [rows[first : first + size] for first in range(0, len(rows), size)]
        rng.shuffle(batches)
        yield from (_sequences(batch, tokenizer.pad_token_id) for batch in batches)


Row = tuple[torch.Tensor, torch.Tensor]
"""A lesson's tokens, and the same tokens with those that are read, not written, IGNORED."""


def _rows(tokenizer: PreTrainedTokenizerFast, lessons: Sequence[Lesson]) -> list[Row]:
    read = tokenizer([lesson.text for lesson in lessons]).input_ids
    written = tokenizer([lesson.reply + tokenizer.eos_token for lesson in lessons], add_special_tokens=False).input_ids
    return [
        (torch.tensor(before + after), torch.tensor([IGNORED] * len(before) + after))
        for before, after in zip(read, written, strict=True)
    ]


def _sequences(rows: Sequence[Row], pad: int) -> Sequences:
    ids = pad_sequence([ids for ids, _ in rows], batch_first=True, padding_value=pad)
    labels = pad_sequence([labels for _, labels in rows], batch_first=True, padding_value=IGNORED)
    return Sequences(ids[:, :-1], labels[:, 1:])


def reply_loss(model: LlamaForCausalLM, batch: Sequences) -> torch.Tensor:
    """Mean cross-entropy over the tokens of the replies, their end included."""
    hidden = model.model(input_ids=batch.ids).last_hidden_state
    labelled = batch.labels != IGNORED
    return cross_entropy(model.lm_head(hidden[labelled]), batch.labels[labelled])
