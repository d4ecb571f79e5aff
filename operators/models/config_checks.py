"""Whether a checkpoint's config.json is of the form that its model family needs; no weight and no library is read."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

VLM_TYPES = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Vision-language models whose images the transformers engine knows how to place; vLLM knows more."""
CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""The towers of LLaVA-shaped models that the transformers engine reads, and how many tokens each puts before an image's
patches; others lay an image's tokens out in another way."""
ELSEWHERE = "choose another checkpoint, or engine=vllm if vLLM's list of supported models has this one"
ENTAILMENT = ("entailment", "entail", "entails", "entailed")


class Form(NamedTuple):
    """What a family's config.json looks like."""

    expected: str
    suits: Callable[[Mapping[str, Any]], bool]


def find_problem(fields: Mapping[str, Any], family: str, *, own_images: bool) -> str | None:
    """Why a config.json cannot be served as `family`, with the remedy, or None.

    `own_images` says that this package itself places images among the tokens, and so has to know the model's type.
    """
    if not FORMS[family].suits(fields):
        return _form_problem(fields, family)
    if family == "nli":
        return _label_problem(fields)
    return _image_problem(fields) if family == "vlm" and own_images else None


def _form_problem(fields: Mapping[str, Any], family: str) -> str:
    serving = " or ".join(name for name, form in FORMS.items() if form.suits(fields))
    remedy = f"such a checkpoint is served by family {serving}" if serving else "no model family serves such a one"
    return (
        f"config.json names the architecture {_architecture(fields)} and model_type {fields.get('model_type')!r}, "
        f"expected {FORMS[family].expected} for family {family}; {remedy}"
    )


def _image_problem(fields: Mapping[str, Any]) -> str | None:
    """Why it is not known where the tokens of an image stand, if it is not."""
    if fields["model_type"] not in VLM_TYPES:
        return f"the transformers engine knows {', '.join(VLM_TYPES)}, not {fields['model_type']!r}; {ELSEWHERE}"
    tower = _mapping(fields, "vision_config").get("model_type", "clip_vision_model")
    if fields["model_type"] == "llava" and tower not in CLASS_TOKENS:
        return f"the transformers engine knows a llava with {' or '.join(CLASS_TOKENS)}, not {tower!r}; {ELSEWHERE}"
    return None


def _label_problem(fields: Mapping[str, Any]) -> str | None:
    """Why it is not known which of a classifier's labels is entailment, if it is not."""
    labels = _mapping(fields, "id2label")
    if _is_t5(fields) or (len(labels) > 1 and entailment_label(labels) is not None):
        return None
    return f"config.json has the labels {list(labels.values())}, none of which is entailment; name it in id2label"


def _architecture(fields: Mapping[str, Any]) -> str:
    named = fields.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else "none"


def _mapping(fields: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """A part of a config that is itself a mapping; empty where it is anything else."""
    part = fields.get(name)
    return part if isinstance(part, Mapping) else {}


def _is_vlm(fields: Mapping[str, Any]) -> bool:
    text = _mapping(fields, "text_config")
    encoder = fields.get("is_encoder_decoder") or text.get("is_encoder_decoder") or "t5" in str(text.get("model_type"))
    return _architecture(fields).endswith("ForConditionalGeneration") and "vision_config" in fields and not encoder


def _is_t5(fields: Mapping[str, Any]) -> bool:
    return _architecture(fields) == "T5ForConditionalGeneration"


def _is_encoder(fields: Mapping[str, Any]) -> bool:
    whole = fields.get("is_encoder_decoder") or "vision_config" in fields
    return _architecture(fields).endswith("Model") and not whole


FORMS: Mapping[str, Form] = {
    "clip_flant5": Form("'clip_t5'", lambda fields: fields["model_type"] == "clip_t5"),
    "clip": Form("'clip'", lambda fields: fields["model_type"] == "clip"),
    "causal_lm": Form(
        "a ...ForCausalLM", lambda fields: _architecture(fields).endswith(("ForCausalLM", "LMHeadModel"))
    ),
    "vlm": Form("a decoder-only ...ForConditionalGeneration with a vision_config", _is_vlm),
    "nli": Form(
        "a ...ForSequenceClassification or a T5ForConditionalGeneration",
        lambda fields: _is_t5(fields) or _architecture(fields).endswith("ForSequenceClassification"),
    ),
    "sentences": Form("an encoder such as BertModel", _is_encoder),
}


def entailment_label(id2label: Mapping[Any, str]) -> int | None:
    """The index of the entailment label in a config's id2label; None where no label or more than one is named so.

    `not_entailment`, `non-entailment` and the like are the opposite.
    """
    named = [index for index, label in id2label.items() if str(label).strip().lower() in ENTAILMENT]
    return int(named[0]) if len(named) == 1 and str(named[0]).isdecimal() else None
