"""Training of the entailment model: prompts with statements that they entail or do not, as Gecko puts them."""

from collections.abc import Mapping
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

from plumbline.assets.making.claims import Claim
from plumbline.assets.making.entailment import entailed, not_entailed, sample_illustrated
from plumbline.assets.making.writer_gold import ChoiceQuestion, choice_question, yes_no_question
from plumbline.operators.stages import entailment

HYPOTHESIS_WORDS = (
    'The answer to the question "How many circles are there?" is two. It is not true that there is a circle. '
    "There are circles. A circle is above every circle. All circles are red. Every circle has a dot."
)
"""What the hypotheses say beside the words of the world."""
DENIED_SHARE = 0.15
PLAIN_SHARE = 0.1


class Pair(NamedTuple):
    """A prompt with a statement about what an image of it shows."""

    premise: str
    hypothesis: str
    entailed: bool


def sample_pair(rng: Random, *, held_out: bool) -> Pair:
    """A pair on a prompt whose wording is, or is not, among the held-out ones; half of them are entailed."""
    truth = rng.random() < 0.5
    while True:
        illustrated = sample_illustrated(rng, held_out=held_out)
        denied = not truth and rng.random() < DENIED_SHARE
        claim = entailed(rng, illustrated.prompt) if truth or denied else not_entailed(rng, illustrated)
        if claim is not None:
            statement = hypothesis(yes_no_question(claim, truth=False)) if denied else _statement(rng, claim)
            return Pair(illustrated.prompt.text, statement, truth)


def _statement(rng: Random, claim: Claim) -> str:
    """The claim as Gecko puts its question and answer; seldom in its own words."""
    if rng.random() < PLAIN_SHARE:
        return claim.text[0].upper() + claim.text[1:] + "."
    return hypothesis(rng.choice((choice_question, yes_no_question))(claim))


def hypothesis(question: ChoiceQuestion) -> str:
    """The question with its answer as the statement that Gecko has checked."""
    return entailment.hypothesis(question.text, question.answer)


class EncodedPairs(NamedTuple):
    """One training step's input."""

    tokens: Mapping[str, torch.Tensor]
    """What the network reads by name, each (n, tokens)."""
    labels: torch.Tensor
    """(n,), an index into NLI_LABELS."""


def nli_batch(tokenizer: PreTrainedTokenizerFast, rng: Random, size: int) -> EncodedPairs:
    """Fresh pairs of training wording."""
    pairs = [sample_pair(rng, held_out=False) for _ in range(size)]
    texts = [pair.premise for pair in pairs], [pair.hypothesis for pair in pairs]
    labels = torch.tensor([pair.entailed for pair in pairs]).long()
    return EncodedPairs(tokenizer(*texts, padding=True, return_tensors="pt"), labels)


def nli_loss(model: BertForSequenceClassification, batch: EncodedPairs) -> torch.Tensor:
    """Mean cross-entropy of the pairs' labels."""
    return cross_entropy(model(**batch.tokens).logits, batch.labels)
