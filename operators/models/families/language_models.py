"""Language models that write questions, answer them without seeing the image, or perform natural-language inference."""

from collections.abc import Mapping, Sequence
from typing import Any

from plumbline.operators.base.batches import call_in_batches
from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import Fields, Part, find_architecture, read_fields, read_subfields
from plumbline.operators.models.engines.engine_options import EngineModel, select_engine_key_options
from plumbline.operators.models.families.blip import BLIP2_PROFILE
from plumbline.operators.models.family import Family, defer_import
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.loaded import LoadedModel
from plumbline.operators.models.vqa_profiles import VqaProfile

TEXT_ONLY_PROFILE = VqaProfile(name="text_only")
CAUSAL_LM_FAMILY = Family(
    config=EngineModel,
    loads={
        "generate": defer_import("networks.causal_lm:CausalLM.load"),
        "likelihood": defer_import("networks.text_only:TextOnlyVqa.load"),
    },
    options_in_key=lambda config, profile: select_engine_key_options(config),
    vllm={"generate": defer_import("engines.vllm_calls:VllmGenerate.load")},
    form="a ...ForCausalLM",
    suits=lambda fields: (
        find_architecture(fields).endswith(("ForCausalLM", "LMHeadModel")) and fields["model_type"] != "fuyu"
    ),
    profile=lambda config, fields: TEXT_ONLY_PROFILE,
)
"""Decoder-only language models."""


def _is_t5(fields: Fields) -> bool:
    return find_architecture(fields) == "T5ForConditionalGeneration"


TEXT_ONLY_T5_PROFILE = VqaProfile(name="text_only_t5", question=BLIP2_PROFILE.question)
"""Profile of a T5 that sees no image. It uses BLIP-2's question, because BLIP-2's language model is a FlanT5."""
T5_FAMILY = Family(
    loads={"likelihood": defer_import("networks.text_only:TextOnlyT5.load")},
    form="a T5ForConditionalGeneration",
    suits=_is_t5,
    profile=lambda config, fields: TEXT_ONLY_T5_PROFILE,
)
"""Encoder-decoder models such as Flan-T5 ("What makes a good metric?", ablation 4)."""


ENTAILMENT_LABELS = ("entailment", "entail", "entails", "entailed")
"""Names that classifiers use for the entailment label."""


class CrossEncoderNli(LoadedModel):
    """Entailment model: a sequence classifier with a label for entailment, such as one trained on MNLI."""

    architecture = "AutoModelForSequenceClassification"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.label = find_entailment_label(self.model.config.id2label)
        self.context = self.find_context_limit()

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the softmax probability of entailment; if a pair exceeds the context, its longer text is truncated."""

        def classify_batch(batch: Sequence[tuple[str, str]]) -> list[float]:
            inputs = self.tokenize(*zip(*batch, strict=True), context=self.context)
            probabilities: list[float] = self.model(**inputs).logits.float().softmax(-1)[:, self.label].tolist()
            return probabilities

        return call_in_batches(classify_batch, pairs, [len(p) + len(h) for p, h in pairs], size=self.pair_batch)


class Seq2SeqNli(LoadedModel):
    """Entailment model: a T5 that was trained to answer `1` or `0`, such as one trained on the TRUE mixture."""

    architecture = "AutoModelForSeq2SeqLM"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.context = self.find_context_limit()
        one, zero = (self.tokenizer(digit, add_special_tokens=False).input_ids[0] for digit in ("1", "0"))
        if one == zero:
            raise ModelError(
                f"{self.tokenizer.name_or_path}: the tokenizer's `1` and `0` begin with the same token, so it does "
                "not belong to a TRUE-style entailment model; use a ...ForSequenceClassification checkpoint"
            )
        self.yes = int(one)

    def entailment(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Return the probability of `1` over the full vocabulary.

        If a pair exceeds the context, its premise is truncated.
        """
        texts = [self._join_pair(premise, hypothesis) for premise, hypothesis in pairs]
        return call_in_batches(self._compute_probabilities, texts, [len(text) for text in texts], size=self.pair_batch)

    def _join_pair(self, premise: str, hypothesis: str) -> str:
        text = f"premise: {premise} hypothesis: {hypothesis}"
        excess = 0 if self.context is None else len(self.tokenizer(text).input_ids) - self.context
        if excess <= 0:
            return text
        kept = self.tokenizer(premise, add_special_tokens=False).input_ids[:-excess]
        return f"premise: {self.tokenizer.decode(kept)} hypothesis: {hypothesis}"

    def _compute_probabilities(self, texts: Sequence[str]) -> list[float]:
        inputs = self.tokenize(texts, context=self.context)
        start = inputs.input_ids.new_full((len(texts), 1), self.model.config.decoder_start_token_id)
        logits = self.model(
            input_ids=inputs.input_ids, attention_mask=inputs.attention_mask, decoder_input_ids=start
        ).logits[:, 0]
        probabilities: list[float] = logits.float().softmax(-1)[:, self.yes].tolist()
        return probabilities


def _check_labels(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    """Raise ModelError if it is unclear which of a classifier's labels means entailment."""
    labels = read_subfields(fields, "id2label")
    if not _is_t5(fields) and (len(labels) < 2 or find_entailment_label(labels) is None):
        raise ModelError(
            f"{parts['checkpoint'].source}: config.json has the labels {list(labels.values())}, but none for "
            "entailment; name it in id2label"
        )


def find_entailment_label(id2label: Mapping[Any, str]) -> int | None:
    """Return the index of the entailment label in a config's id2label, or None if it is missing or ambiguous.

    Labels such as `not_entailment` and `non-entailment` mean the opposite.
    """
    named = [index for index, label in id2label.items() if str(label).strip().lower() in ENTAILMENT_LABELS]
    return int(named[0]) if len(named) == 1 and str(named[0]).isdecimal() else None


NLI_FAMILY = Family(
    loads={
        "entailment": lambda model: (
            Seq2SeqNli if _is_t5(read_fields(model.parts["checkpoint"])) else CrossEncoderNli
        ).load(model)
    },
    form="a ...ForSequenceClassification or a T5ForConditionalGeneration",
    suits=lambda fields: _is_t5(fields) or find_architecture(fields).endswith("ForSequenceClassification"),
    check=_check_labels,
    float32_on_gpu=True,
)
"""Natural-language inference. A generated question is kept if the prompt entails its answer (Gecko paper, section 5).
"""
