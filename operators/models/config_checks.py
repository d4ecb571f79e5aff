"""Whether a checkpoint's config.json is of the form that its model family needs; no weight and no library is read."""

from collections.abc import Callable, Mapping
from typing import Any

VLM_TYPES = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Vision-language models whose images the transformers engine knows how to place; vLLM knows more."""
ENTAILMENT = ("entailment", "entail", "entails", "entailed")


def find_problem(fields: Mapping[str, Any], family: str, *, own_images: bool) -> str | None:
    """Why a config.json cannot be served as `family`, with the remedy, or None.

    `own_images` says that this package itself places images among the tokens, and so has to know the model's type.
    """
    problem = PROBLEMS[family](fields)
    if problem is None and family == "vlm" and own_images and fields["model_type"] not in VLM_TYPES:
        return f"the transformers engine knows {', '.join(VLM_TYPES)}, not {fields['model_type']!r}; set engine=vllm"
    return problem


def _architecture(fields: Mapping[str, Any]) -> str:
    named = fields.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "none"


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a config that is itself a mapping; empty where it is anything else."""
    part = fields.get(name)
    return part if isinstance(part, Mapping) else {}


def _not(family: str, expected: str, fields: Mapping[str, Any]) -> str:
    return (
        f"config.json names the architecture {_architecture(fields)}, and a {family} model is {expected}; "
        "choose the model family that serves this checkpoint"
    )


def _causal_lm_problem(fields: Mapping[str, Any]) -> str | None:
    """Why a config is not one of a text generator, if it is not."""
    suits = _architecture(fields).endswith(("ForCausalLM", "LMHeadModel"))
    return None if suits else _not("causal_lm", "a ...ForCausalLM", fields)


def _vlm_problem(fields: Mapping[str, Any]) -> str | None:
    """Why a config is not one of a decoder-only vision-language model, if it is not."""
    text = _mapping(fields, "text_config")
    encoder = fields.get("is_encoder_decoder") or text.get("is_encoder_decoder") or "t5" in str(text.get("model_type"))
    suits = _architecture(fields).endswith("ForConditionalGeneration") and "vision_config" in fields and not encoder
    return None if suits else _not("vlm", "a decoder-only ...ForConditionalGeneration with a vision_config", fields)


def _nli_problem(fields: Mapping[str, Any]) -> str | None:
    """Why a config is not one of an entailment model, if it is not."""
    architecture = _architecture(fields)
    if architecture == "T5ForConditionalGeneration":
        return None
    if not architecture.endswith("ForSequenceClassification"):
        return _not("nli", "a ...ForSequenceClassification or a T5ForConditionalGeneration", fields)
    labels = _mapping(fields, "id2label")
    if len(labels) < 2 or entailment_label(labels) is None:
        return f"config.json has the labels {list(labels.values())}, none of which is entailment; name it in id2label"
    return None


def _sentences_problem(fields: Mapping[str, Any]) -> str | None:
    """Why a config is not one of a sentence encoder, if it is not."""
    suits = _architecture(fields).endswith("Model") and not fields.get("is_encoder_decoder")
    return None if suits else _not("sentences", "an encoder such as BertModel", fields)


PROBLEMS: Mapping[str, Callable[[Mapping[str, Any]], str | None]] = {
    "causal_lm": _causal_lm_problem,
    "vlm": _vlm_problem,
    "nli": _nli_problem,
    "sentences": _sentences_problem,
}


def entailment_label(id2label: Mapping[Any, str]) -> int | None:
    """The index of the entailment label in a config's id2label; None where no label or more than one is named so.

    `not_entailment`, `non-entailment` and the like are the opposite.
    """
    named = [index for index, label in id2label.items() if str(label).strip().lower() in ENTAILMENT]
    return int(named[0]) if len(named) == 1 and str(named[0]).isdecimal() else None
