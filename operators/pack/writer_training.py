"""Training of the question writer: lessons on statements of training wording, the loss on the replies alone."""

from collections.abc import Iterator, Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from operators.pack.batches import IGNORED
from operators.pack.lessons import INSTRUCTIONS, METRICS, GoldWriter, Lesson
from operators.pack.nli_claims import Told, entailed, not_entailed, sample_told
from operators.pack.schedule import Report, Stage, optimise
from operators.pack.writer_gold import Asked, yes_no
from operators.pack.writer_tokens import writer_tokenizer

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
CHOOSING = "tifa choose"
CHOSEN = 3
"""Lessons of choosing an answer on each prompt; there would be too many of them."""
POOLED = 8


def vocabulary_texts(seed: int) -> list[str]:
    """Requests without their instructions, and replies, that between them use every word of the world."""
    rng = Random(f"writer words/{seed}")
    lessons = [one for _ in range(VOCABULARY_PROMPTS) for one in lessons_of(rng, sample_told(rng, held_out=False))]
    texts = [one.text.removeprefix(INSTRUCTIONS[one.kind]) for one in lessons] + [one.reply for one in lessons]
    return sorted(set(texts))


def make_writer_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The writer's tokenizer: each of the metrics' instructions is one token."""
    return writer_tokenizer(vocabulary_texts(seed), instructions=list(INSTRUCTIONS.values()), phrases=PHRASES)


def lessons_of(rng: Random, told: Told) -> list[Lesson]:
    """Every metric's requests about the prompt with the right replies, and questions on what it does not say."""
    writer = GoldWriter(told.prompt)
    careless = GoldWriter(told.prompt, doubted=doubts(rng, told))
    lessons = [lesson for metric in METRICS for lesson in writer.written(metric).lessons if lesson.kind != CHOOSING]
    choosing = [lesson for lesson in careless.written("tifa").lessons if lesson.kind == CHOOSING]
    return lessons + rng.sample(choosing, min(CHOSEN, len(choosing)))


def doubts(rng: Random, told: Told) -> list[Asked]:
    """Yes/no questions that the prompt does not imply, and one that it does."""
    claims = [not_entailed(rng, told) for _ in range(DOUBTS)]
    denied = [yes_no(claim, truth=False) for claim in claims if claim is not None]
    return [*denied, yes_no(entailed(rng, told))]


class Sequences(NamedTuple):
    """One training step's input."""

    ids: torch.Tensor
    """(n, tokens), right-padded."""
    labels: torch.Tensor
    """(n, tokens), the token that follows each position of a reply; IGNORED elsewhere."""


class LessonMaker:
    """Draws statements and makes batches of their lessons, lessons of like length together."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, rng: Random, size: int) -> None:
        """`size` lessons make a batch."""
        self.tokenizer = tokenizer
        self.rng = rng
        self.size = size

    def batches(self) -> Iterator[Sequences]:
        """Batches without end."""
        while True:
            lessons: list[Lesson] = []
            while len(lessons) < POOLED * self.size:
                lessons += lessons_of(self.rng, sample_told(self.rng, held_out=False))
            rows = sorted(self._rows(lessons), key=lambda row: len(row[0]) + self.rng.random())
            pooled = [rows[first : first + self.size] for first in range(0, len(rows), self.size)]
            self.rng.shuffle(pooled)
            yield from (self._batch(batch) for batch in pooled)

    def _rows(self, lessons: Sequence[Lesson]) -> list[tuple[list[int], int]]:
        """The tokens of each lesson with the number of those that are read, not written."""
        read = self.tokenizer([lesson.text for lesson in lessons]).input_ids
        written = self.tokenizer([lesson.reply for lesson in lessons], add_special_tokens=False).input_ids
        end = self.tokenizer.eos_token_id
        return [([*mine, *its, end], len(mine)) for mine, its in zip(read, written, strict=True)]

    def _batch(self, rows: Sequence[tuple[list[int], int]]) -> Sequences:
        width = max(len(ids) for ids, _ in rows)
        pad = self.tokenizer.pad_token_id
        padded = torch.tensor([ids + [pad] * (width - len(ids)) for ids, _ in rows])
        labels = padded[:, 1:].clone()
        for row, (ids, read) in enumerate(rows):
            labels[row, : read - 1] = IGNORED
            labels[row, len(ids) - 1 :] = IGNORED
        return Sequences(padded[:, :-1], labels)


def reply_loss(model: LlamaForCausalLM, batch: Sequences) -> torch.Tensor:
    """Mean cross-entropy over the tokens of the replies, their end included; in single precision, faster this small."""
    with torch.autocast("cpu", enabled=False):
        hidden = model.model(input_ids=batch.ids).last_hidden_state
        asked = batch.labels != IGNORED
        return cross_entropy(model.lm_head(hidden[asked]), batch.labels[asked])


def train_writer(model: LlamaForCausalLM, stage: Stage, maker: LessonMaker, report: Report) -> None:
    """Trains all of the writer."""
    batches = maker.batches()
    model.train()
    optimise(list(model.parameters()), stage, lambda step: reply_loss(model, next(batches)), report, name="writer")
