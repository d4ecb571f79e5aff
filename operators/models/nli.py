"""Natural-language inference: the `entailment` call, by a T5 that says 1 or 0 or by a cross-encoder with labels.

Gecko paper, section 5: a generated question is kept where the prompt entails it with its answer.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM, AutoModelForSequenceClassification

from operators.errors import ModelError
from operators.models.encoders import context_of, in_batches
from operators.models.families.nli import entailment_label
from operators.models.processing import load_pretrained, load_tokenizer, readable_load

Pair = tuple[str, str]
"""A premise and a hypothesis."""


class CrossEncoderNli:
    """Entailment by a sequence classifier with an entailment label, such as those trained on MNLI."""

    def __init__(self, model: Any, tokenizer: Any, *, label: int, pair_batch: int) -> None:
        """`label` is the index of entailment among the classifier's labels."""
        self.model = model
        self.tokenizer = tokenizer
        self.label = label
        self.pair_batch = pair_batch
        self.context = context_of(model.config, tokenizer)

    @torch.inference_mode()
    def entailment(self, pairs: Sequence[Pair]) -> list[float]:
        """The softmax over the labels at entailment; the longer text of a pair beyond the context is cut."""
        return in_batches(self._classify, pairs, [len(p) + len(h) for p, h in pairs], size=self.pair_batch)

    def _classify(self, pairs: Sequence[Pair]) -> list[float]:
        premises, hypotheses = zip(*pairs, strict=True)
        inputs = self.tokenizer(
            list(premises),
            list(hypotheses),
            padding=True,
            truncation="longest_first" if self.context else False,
            max_length=self.context,
            return_tensors="pt",
        ).to(self.model.device)
        probabilities: list[float] = self.model(**inputs).logits.float().softmax(-1)[:, self.label].tolist()
        return probabilities


class Seq2SeqNli:
    """Entailment by a T5 trained to say `1` or `0`, as on the TRUE mixture."""

    def __init__(self, model: Any, tokenizer: Any, *, pair_batch: int) -> None:
        self.model = model
        self.tokenizer = tokenizer
        self.pair_batch = pair_batch
        self.context = context_of(model.config, tokenizer)
        self.yes = _first_token_of_one(tokenizer)

    @torch.inference_mode()
    def entailment(self, pairs: Sequence[Pair]) -> list[float]:
        """The probability of `1` under the full vocabulary; a premise is cut where a pair is beyond the context."""
        texts = [self._text(premise, hypothesis) for premise, hypothesis in pairs]
        return in_batches(self._answer, texts, [len(text) for text in texts], size=self.pair_batch)

    def _text(self, premise: str, hypothesis: str) -> str:
        text = f"premise: {premise} hypothesis: {hypothesis}"
        over = 0 if self.context is None else len(self.tokenizer(text).input_ids) - self.context
        if over <= 0:
            return text
        kept = self.tokenizer(premise, add_special_tokens=False).input_ids[:-over]
        return f"premise: {self.tokenizer.decode(kept)} hypothesis: {hypothesis}"

    def _answer(self, texts: Sequence[str]) -> list[float]:
        inputs = self.tokenizer(
            list(texts), padding=True, truncation=self.context is not None, max_length=self.context, return_tensors="pt"
        ).to(self.model.device)
        start = torch.full((len(texts), 1), self.model.config.decoder_start_token_id, device=self.model.device)
        logits = self.model(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, decoder_input_ids=start
        ).logits[:, 0]
        probabilities: list[float] = logits.float().softmax(-1)[:, self.yes].tolist()
        return probabilities


def _first_token_of_one(tokenizer: Any) -> int:
    """The first token of `1`, which must tell it from `0`."""
    one, zero = (tokenizer(digit, add_special_tokens=False).input_ids[0] for digit in ("1", "0"))
    if one == zero:
        raise ModelError(
            f"{tokenizer.name_or_path}: the tokenizer does not tell `1` from `0` by their first token, so it is not "
            "that of a TRUE-style entailment model; use a ...ForSequenceClassification checkpoint"
        )
    return int(one)


def load_nli(
    checkpoint: Path, *, tokenizer: Path, device: str, dtype: torch.dtype, pair_batch: int
) -> CrossEncoderNli | Seq2SeqNli:
    """The model of a checkpoint folder (safetensors only); raises ModelError where a weight is missing."""
    tokens = load_tokenizer(tokenizer)
    with readable_load(checkpoint, "config.json"):
        config = AutoConfig.from_pretrained(checkpoint, trust_remote_code=False)
    if config.architectures == ["T5ForConditionalGeneration"]:
        model = load_pretrained(AutoModelForSeq2SeqLM, checkpoint, dtype).to(device).eval()
        return Seq2SeqNli(model, tokens, pair_batch=pair_batch)
    label = entailment_label(config.id2label)
    if label is None:
        raise ModelError(f"{checkpoint}: none of the labels {list(config.id2label.values())} is entailment")
    model = load_pretrained(AutoModelForSequenceClassification, checkpoint, dtype).to(device).eval()
    return CrossEncoderNli(model, tokens, label=label, pair_batch=pair_batch)
