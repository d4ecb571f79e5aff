"""Training data for the NLI model (claims that a prompt does or does not entail) and for the question writer."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils.rnn import pad_sequence
from transformers import BertForSequenceClassification, LlamaForCausalLM, PreTrainedTokenizerFast

from plumbline.assets.making.claims import (
    LARGER,
    RELATIONS,
    SKILLS,
    SMALLER,
    AbsenceClaim,
    Claim,
    CountClaim,
    Description,
    ExistenceClaim,
    OutnumberingClaim,
    PairClaim,
    RelationClaim,
    UniversalityClaim,
)
from plumbline.assets.making.lessons import (
    QUESTION_METRICS,
    REPLY_WRITERS,
    ChoiceQuestion,
    GoldWriter,
    Lesson,
    make_choice_question,
    make_yes_no_question,
)
from plumbline.assets.making.prompts import Prompt, is_held_out, sample_prompt
from plumbline.assets.making.scenes import COLOURS, PARTS, SHAPES, SIZES, Palette, Scene, edit_scene, sample_scene
from plumbline.assets.making.tokens import build_writer_tokenizer
from plumbline.operators.metrics.questions import tifa
from plumbline.operators.stages import entailment

MAX_VARIATION_TRIES = 12
MAX_EDIT_TRIES = 6
PROPERTIES = (("colour", COLOURS), ("size", SIZES), ("part", PARTS))
OPPOSITE_WORDS = {"more": "fewer", "fewer": "more", LARGER: SMALLER, SMALLER: LARGER}


class IllustratedPrompt(NamedTuple):
    """A prompt, and a scene for which the prompt is true."""

    prompt: Prompt
    scene: Scene


def sample_illustrated_prompt(rng: Random, *, held_out: bool) -> IllustratedPrompt:
    """Sample a prompt of any skill, whose wording is held out if `held_out` is True."""
    while True:
        scene = sample_scene(rng)
        prompt = sample_prompt(rng, scene, rng.choice(SKILLS))
        if prompt is not None and is_held_out(prompt.text) == held_out:
            return IllustratedPrompt(prompt, scene)


def sample_entailed_claim(rng: Random, prompt: Prompt) -> Claim:
    """Return one of the prompt's requirements, sometimes with an adjective removed."""
    claim = rng.choice(prompt.requirements).claim
    if isinstance(claim, ExistenceClaim) and claim.what.colour and claim.what.size and rng.random() < 0.5:
        return ExistenceClaim(replace(claim.what, **{rng.choice(("colour", "size")): None}))
    return claim


def sample_unentailed_claim(rng: Random, illustrated: IllustratedPrompt) -> Claim | None:
    """Return a claim that may be false even if the prompt is true; return None if the draws fail."""
    for _ in range(MAX_VARIATION_TRIES):
        claim = _draw_claim_to_deny(rng, illustrated.prompt)
        if any(not claim.holds(scene) for scene in _draw_fitting_scenes(rng, illustrated)):
            return claim
    return None


def _draw_claim_to_deny(rng: Random, prompt: Prompt) -> Claim:
    if rng.random() < 0.2:
        return rng.choice(sample_illustrated_prompt(rng, held_out=False).prompt.requirements).claim
    return vary_claim(rng, rng.choice(prompt.requirements).claim)


def _draw_fitting_scenes(rng: Random, illustrated: IllustratedPrompt) -> list[Scene]:
    scenes = [illustrated.scene]
    for _ in range(MAX_EDIT_TRIES):
        edited = edit_scene(rng, rng.choice(scenes), Palette())
        if illustrated.prompt.holds(edited):
            scenes.append(edited)
    return scenes


def vary_claim(rng: Random, claim: Claim) -> Claim:
    """Return the claim with one property, relation or number changed, or a claim of another kind."""
    match claim:
        case ExistenceClaim(what):
            return rng.choice((ExistenceClaim(_vary_description(rng, what)), AbsenceClaim(what)))
        case AbsenceClaim(what):
            return rng.choice((AbsenceClaim(_vary_description(rng, what)), ExistenceClaim(what)))
        case CountClaim(what, number):
            other = rng.choice([count for count in range(1, 5) if count != number])
            return rng.choice((CountClaim(what, other), CountClaim(_vary_description(rng, what), number)))
        case PairClaim():
            return rng.choice((_vary_pair(rng, claim), _vary_described_thing(rng, claim)))
        case UniversalityClaim():
            return _vary_every_claim(rng, claim)
    raise TypeError(f"claim: expected a claim class from assets/making/claims.py, got {claim!r}")


def _vary_description(rng: Random, what: Description) -> Description:
    field, values = rng.choice((("shape", SHAPES), ("shape", SHAPES), *PROPERTIES))
    if field != "shape" and getattr(what, field) is None and rng.random() < 0.5:
        field, values = "shape", SHAPES
    return replace(what, **{field: _draw_other_value(rng, values, getattr(what, field))})


def _draw_other_value(rng: Random, values: tuple[str, ...], value: str | None) -> str:
    return rng.choice([other for other in values if other != value])


def _vary_pair(rng: Random, claim: PairClaim) -> Claim:
    if rng.random() < 0.5:
        return replace(claim, first=claim.second, second=claim.first)
    match claim:
        case RelationClaim(relation=relation) if relation in RELATIONS:
            return replace(claim, relation=_draw_other_value(rng, RELATIONS, relation))
        case RelationClaim(relation=relation):
            return replace(claim, relation=OPPOSITE_WORDS[relation])
        case OutnumberingClaim(amount=amount):
            return replace(claim, amount=OPPOSITE_WORDS[amount])
    raise TypeError(f"claim: expected a pair claim from assets/making/claims.py, got {claim!r}")


def _vary_described_thing(rng: Random, claim: PairClaim) -> Claim:
    if rng.random() < 0.5:
        return replace(claim, first=_vary_description(rng, claim.first))
    return replace(claim, second=_vary_description(rng, claim.second))


def _vary_every_claim(rng: Random, claim: UniversalityClaim) -> Claim:
    """Return the claim with another shape, or with a different property of the same kind or another kind."""
    if rng.random() < 0.4:
        return replace(claim, what=Description(shape=_draw_other_value(rng, SHAPES, claim.what.shape)))
    field, values = rng.choice(PROPERTIES)
    return replace(claim, field=field, value=_draw_other_value(rng, values, claim.value))


HYPOTHESIS_VOCABULARY_TEXT = (
    'The answer to the question "How many circles are there?" is two. It is not true that there is a circle. '
    "There are circles. A circle is above every circle. All circles are red. Every circle has a dot."
)
"""Sentences with the words that hypotheses use in addition to the words for shapes."""
DENIED_STATEMENT_SHARE = 0.15
PLAIN_STATEMENT_SHARE = 0.1


class TextPair(NamedTuple):
    """A prompt, and a statement that may or may not follow from it."""

    premise: str
    hypothesis: str
    entailed: bool


def sample_pair(rng: Random, *, held_out: bool) -> TextPair:
    """Sample a pair whose prompt has held-out wording if `held_out` is True; half of the pairs are entailed."""
    truth = rng.random() < 0.5
    while True:
        illustrated = sample_illustrated_prompt(rng, held_out=held_out)
        denied = not truth and rng.random() < DENIED_STATEMENT_SHARE
        claim = (
            sample_entailed_claim(rng, illustrated.prompt)
            if truth or denied
            else sample_unentailed_claim(rng, illustrated)
        )
        if claim is not None:
            statement = (
                make_hypothesis(make_yes_no_question(claim, truth=False)) if denied else _phrase_statement(rng, claim)
            )
            return TextPair(illustrated.prompt.text, statement, truth)


def _phrase_statement(rng: Random, claim: Claim) -> str:
    """Phrase the claim as a Gecko-style question and answer, or occasionally (at random) in the claim's own words."""
    if rng.random() < PLAIN_STATEMENT_SHARE:
        return claim.text[0].upper() + claim.text[1:] + "."
    return make_hypothesis(rng.choice((make_choice_question, make_yes_no_question))(claim))


def make_hypothesis(question: ChoiceQuestion) -> str:
    """Turn the question and its answer into the statement that Gecko checks for entailment."""
    return entailment.write_hypothesis(question.text, question.answer)


class EncodedPairs(NamedTuple):
    """Input and labels of one training step of the NLI model."""

    tokens: Mapping[str, torch.Tensor]
    """Input tensors of the network by name, each (n, tokens)."""
    labels: torch.Tensor
    """Labels (n,), as indices into NLI_LABELS."""


def make_nli_batch(tokenizer: PreTrainedTokenizerFast, rng: Random, size: int) -> EncodedPairs:
    """Sample pairs with training wording, and encode them."""
    pairs = [sample_pair(rng, held_out=False) for _ in range(size)]
    texts = [pair.premise for pair in pairs], [pair.hypothesis for pair in pairs]
    labels = torch.tensor([pair.entailed for pair in pairs]).long()
    return EncodedPairs(tokenizer(*texts, padding=True, return_tensors="pt"), labels)


def compute_nli_loss(model: BertForSequenceClassification, batch: EncodedPairs) -> torch.Tensor:
    """Return the mean cross-entropy of the pairs' labels."""
    return cross_entropy(model(**batch.tokens).logits, batch.labels)


IGNORED_LABEL = -100
TOKENIZER_PHRASES = (
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
"""Phrases that are repeated in the metrics' requests and replies. Each is a single token, so that a tiny model need not
spell it out.
"""
N_VOCABULARY_PROMPTS = 600
MAX_DENIED_QUESTIONS = 2
MAX_CHOICE_LESSONS = 3
"""Number of lessons about choosing an answer that are kept for each prompt."""
N_POOLED_BATCHES = 8


def make_writer_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Make the writer's tokenizer from the words of many lessons; each instruction of a metric is a single token."""
    rng = Random(f"writer words/{seed}")
    lessons = [lesson for _ in range(N_VOCABULARY_PROMPTS) for lesson in make_training_lessons(rng)]
    texts = {lesson.text.removeprefix(lesson.instruction) for lesson in lessons} | {lesson.reply for lesson in lessons}
    return build_writer_tokenizer(texts, instructions=list(REPLY_WRITERS), phrases=TOKENIZER_PHRASES)


def make_training_lessons(rng: Random) -> list[Lesson]:
    """Make the lessons for a prompt with training wording."""
    return make_lessons(rng, sample_illustrated_prompt(rng, held_out=False))


def make_lessons(rng: Random, illustrated: IllustratedPrompt) -> list[Lesson]:
    """Make the requests that each metric sends for the prompt, each with the correct reply.

    Some requests to choose an answer are about claims that the prompt does not entail.
    """
    writer = GoldWriter(illustrated.prompt)
    doubting = GoldWriter(illustrated.prompt, extra=_make_additional_questions(rng, illustrated))
    lessons = [
        lesson
        for metric in QUESTION_METRICS
        for lesson in writer.write(metric).lessons
        if not _is_choice_lesson(lesson)
    ]
    choices = [lesson for lesson in doubting.write("tifa").lessons if _is_choice_lesson(lesson)]
    return lessons + rng.sample(choices, min(MAX_CHOICE_LESSONS, len(choices)))


def _is_choice_lesson(lesson: Lesson) -> bool:
    return lesson.instruction == tifa.CHOICE_FORMS["text"].instructions


def _make_additional_questions(rng: Random, illustrated: IllustratedPrompt) -> list[ChoiceQuestion]:
    """Make questions about claims that the prompt does not entail (answered no), and one about an entailed claim."""
    claims = [sample_unentailed_claim(rng, illustrated) for _ in range(MAX_DENIED_QUESTIONS)]
    denied = [make_yes_no_question(claim, truth=False) for claim in claims if claim is not None]
    return [*denied, make_yes_no_question(sample_entailed_claim(rng, illustrated.prompt))]


class EncodedLessons(NamedTuple):
    """Input and labels of one training step of the question writer."""

    ids: torch.Tensor
    """Token ids (n, tokens), padded on the right."""
    labels: torch.Tensor
    """For each position of a reply, the token that follows; IGNORED_LABEL elsewhere. The shape is (n, tokens)."""


def make_lesson_batches(tokenizer: PreTrainedTokenizerFast, rng: Random, size: int) -> Iterator[EncodedLessons]:
    """Yield batches of `size` lessons indefinitely; lessons of similar length share a batch."""
    while True:
        lessons: list[Lesson] = []
        while len(lessons) < N_POOLED_BATCHES * size:
            lessons += make_training_lessons(rng)
        rows = sorted(_tokenize_lessons(tokenizer, lessons), key=lambda row: len(row[0]) + rng.random())
        batches = [rows[first : first + size] for first in range(0, len(rows), size)]
        rng.shuffle(batches)
        yield from (_pad_rows(batch, tokenizer.pad_token_id) for batch in batches)


LessonRow = tuple[torch.Tensor, torch.Tensor]
"""Tokens of a lesson, and its labels: the same tokens, but IGNORED_LABEL where the model only reads."""


def _tokenize_lessons(tokenizer: PreTrainedTokenizerFast, lessons: Sequence[Lesson]) -> list[LessonRow]:
    read = tokenizer([lesson.text for lesson in lessons]).input_ids
    written = tokenizer([lesson.reply + tokenizer.eos_token for lesson in lessons], add_special_tokens=False).input_ids
    return [
        (torch.tensor(before + after), torch.tensor([IGNORED_LABEL] * len(before) + after))
        for before, after in zip(read, written, strict=True)
    ]


def _pad_rows(rows: Sequence[LessonRow], pad: int) -> EncodedLessons:
    ids = pad_sequence([ids for ids, _ in rows], batch_first=True, padding_value=pad)
    labels = pad_sequence([labels for _, labels in rows], batch_first=True, padding_value=IGNORED_LABEL)
    return EncodedLessons(ids[:, :-1], labels[:, 1:])


def compute_reply_loss(model: LlamaForCausalLM, batch: EncodedLessons) -> torch.Tensor:
    """Return the mean cross-entropy over the tokens of the replies, including the end tokens."""
    hidden = model.model(input_ids=batch.ids).last_hidden_state
    labelled = batch.labels != IGNORED_LABEL
    return cross_entropy(model.lm_head(hidden[labelled]), batch.labels[labelled])
