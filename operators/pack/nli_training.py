"""Training of the entailment model: prompts with statements that they entail or do not, as Gecko puts them."""

from collections.abc import Sequence
from random import Random
from typing import NamedTuple

import torch
from torch.nn.functional import cross_entropy
from transformers import BertForSequenceClassification, PreTrainedTokenizerFast

from operators.pack.claims import Claim
from operators.pack.networks import NLI_LABELS
from operators.pack.nli_claims import entailed, not_entailed, sample_told
from operators.pack.schedule import Report, Stage, optimise
from operators.pack.tokens import bert_tokenizer, world_sentences
from operators.pack.writer_gold import Asked, asked, yes_no
from operators.stages import entailment

HYPOTHESIS_WORDS = (
    'The answer to the question "How many circles are there?" is two. It is not true that there is a circle. '
    "There are circles. A circle is above every circle. All circles are red. Every circle has a dot."
)
DENIED_SHARE = 0.15
PLAIN_SHARE = 0.1


class Pair(NamedTuple):
    """A prompt with a statement about what an image of it shows."""

    premise: str
    hypothesis: str
    entailed: bool


def make_nli_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """The entailment model's tokenizer, which knows every word of the world and of the hypotheses."""
    return bert_tokenizer([*world_sentences(seed), HYPOTHESIS_WORDS])


def sample_pair(rng: Random, *, held_out: bool) -> Pair:
    """A pair on a prompt whose wording is, or is not, among the held-out ones; half of them are entailed."""
    truth = rng.random() < 0.5
    while True:
        told = sample_told(rng, held_out=held_out)
        denied = not truth and rng.random() < DENIED_SHARE
        claim = entailed(rng, told) if truth or denied else not_entailed(rng, told)
        if claim is not None:
            return Pair(told.prompt.text, _denial(claim) if denied else _statement(rng, claim), truth)


def _denial(claim: Claim) -> str:
    return hypothesis(yes_no(claim, truth=False))


def _statement(rng: Random, claim: Claim) -> str:
    """The claim as Gecko puts its question and answer; seldom in its own words."""
    if rng.random() < PLAIN_SHARE:
        return claim.text[0].upper() + claim.text[1:] + "."
    return hypothesis(rng.choice((asked, yes_no))(claim))


def hypothesis(one: Asked) -> str:
    """The question with its answer as the statement that Gecko has checked."""
    return entailment.hypothesis(one.text, one.answer)


def nli_loss(
    model: BertForSequenceClassification, tokens: PreTrainedTokenizerFast, pairs: Sequence[Pair]
) -> torch.Tensor:
    """Mean cross-entropy of the pairs' labels; in single precision, faster this small."""
    texts = [pair.premise for pair in pairs], [pair.hypothesis for pair in pairs]
    labels = torch.tensor([NLI_LABELS.index("entailment" if pair.entailed else "not_entailment") for pair in pairs])
    with torch.autocast("cpu", enabled=False):
        return cross_entropy(model(**tokens(*texts, padding=True, return_tensors="pt")).logits, labels)


def train_nli(
    model: BertForSequenceClassification, stage: Stage, tokenizer: PreTrainedTokenizerFast, rng: Random, report: Report
) -> None:
    """Trains all of the model on fresh pairs of training wording."""
    model.train()

    def loss_of(step: int) -> torch.Tensor:
        return nli_loss(model, tokenizer, [sample_pair(rng, held_out=False) for _ in range(stage.each)])

    optimise(list(model.parameters()), stage, loss_of, report, name="nli")
