"""Decoder-only vision-language chat models, such as LLaVA-1.5 and Qwen-VL, as VQA models."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from operators.errors import ModelError
from operators.models.conversation import check_template
from operators.models.family import TOKENIZER, Family, Files
from operators.models.parts import Fields, Part, architecture, subfields
from operators.models.thinking import PROBLEM, TEMPLATE_FILES, file_thinks, named_thinking
from operators.models.vqa_kinds import FIRST_TOKEN, RELEASED, VICUNA_SYSTEM, VqaKind

if TYPE_CHECKING:
    from operators.models.calls import LikelihoodModel
    from operators.models.checkpoints import ModelConfig, ResolvedModel

LLAVA_1_5 = VqaKind(name="llava_1_5", asks=RELEASED, system=VICUNA_SYSTEM, pads=True, version=2)
LLAVA = VqaKind(name="llava", asks=FIRST_TOKEN, version=2)
"""LLaVA-shaped models with another tower or language model than LLaVA-1.5's."""
CHAT = VqaKind(name="chat", asks=FIRST_TOKEN)
VICUNA_ENTRIES = 40_000
"""More than Vicuna's vocabulary, which is Llama 2's, and less than Llama 3's."""
TYPES = ("llava", "qwen2_vl", "qwen2_5_vl", "qwen3_vl")
"""Those whose images the transformers engine knows how to place; vLLM knows more."""
CLASS_TOKENS = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""The towers of LLaVA-shaped models that the transformers engine reads, and how many tokens each puts before an image's
patches; others lay an image's tokens out in another way."""
ELSEWHERE = "choose another checkpoint, or engine=vllm if vLLM's list of supported models has this one"


def kind_of(fields: Fields) -> VqaKind:
    """The kind that a config.json tells."""
    if fields["model_type"] != "llava":
        return CHAT
    text = subfields(fields, "text_config")
    vicuna = text.get("model_type", "llama") == "llama" and text.get("vocab_size", 0) < VICUNA_ENTRIES
    return LLAVA_1_5 if vicuna and _tower(fields) == "clip_vision_model" else LLAVA


def _tower(fields: Fields) -> Any:
    return subfields(fields, "vision_config").get("model_type", "clip_vision_model")


def _suits(fields: Fields) -> bool:
    text = subfields(fields, "text_config")
    encoder = fields.get("is_encoder_decoder") or text.get("is_encoder_decoder") or "t5" in str(text.get("model_type"))
    return architecture(fields).endswith("ForConditionalGeneration") and "vision_config" in fields and not encoder


def _check(config: "ModelConfig", parts: Mapping[str, Part], fields: Fields) -> None:
    checkpoint = parts["checkpoint"]
    problem = _image_problem(fields) if config.engine == "transformers" else None
    problem = problem or (PROBLEM if _thinks(parts["tokenizer"], checkpoint) else None)
    if problem is not None:
        raise ModelError(f"{checkpoint.source}: {problem}")


def _image_problem(fields: Fields) -> str | None:
    """Why it is not known where the tokens of an image stand, if it is not."""
    if fields["model_type"] not in TYPES:
        return f"the transformers engine knows {', '.join(TYPES)}, not {fields['model_type']!r}; {ELSEWHERE}"
    if fields["model_type"] == "llava" and _tower(fields) not in CLASS_TOKENS:
        known = " or ".join(CLASS_TOKENS)
        return f"the transformers engine knows a llava with {known}, not {_tower(fields)!r}; {ELSEWHERE}"
    return None


def _thinks(*parts: Part) -> bool:
    """Whether a chat model thinks before it answers."""
    files = [part.file(name) for part in dict.fromkeys(parts) for name in TEMPLATE_FILES]
    return any(named_thinking(part.source) for part in parts) or any(file_thinks(file) for file in files if file)


def _load(model: "ResolvedModel") -> "LikelihoodModel":
    from transformers import AutoModelForImageTextToText

    from operators.models.processing import load_image_processor, load_pretrained, mean_colour
    from operators.models.vlm import VlmLikelihood

    assert model.kind is not None
    network = load_pretrained(AutoModelForImageTextToText, model, attn_implementation="sdpa")
    tokenizer, processor = _load_tokenizer(model), load_image_processor(model.folder("checkpoint"))
    _check_network(model, network, tokenizer)
    return VlmLikelihood(
        network,
        tokenizer,
        processor,
        system=model.kind.system,
        padding=mean_colour(processor) if model.pads else None,
        pair_batch=model.config.pair_batch,
    )


def _check_network(model: "ResolvedModel", network: Any, tokenizer: Any) -> None:
    """Raises ModelError for what would give wrong answers: no end of turn, or layers that do not see all before."""
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"{model.folder('checkpoint')}: the tokenizer has no eos_token, so it is not known what ends an answer; "
            "set it"
        )
    layers = getattr(network.config.get_text_config(), "layer_types", None) or ()
    if any(kind != "full_attention" for kind in layers):
        raise ModelError(
            f"{model.folder('checkpoint')}: its attention slides over the prompt, which the prefix cache cannot; "
            "set engine=vllm"
        )


def _load_on_vllm(model: "ResolvedModel") -> "LikelihoodModel":
    from operators.models.processing import load_image_processor, mean_colour
    from operators.models.vllm_engine import start_engine
    from operators.models.vllm_likelihood import ONE_IMAGE, VllmLikelihood

    assert model.kind is not None
    tokenizer = _load_tokenizer(model)
    padding = mean_colour(load_image_processor(model.folder("checkpoint"))) if model.pads else None
    engine = start_engine(model, defaults=ONE_IMAGE)
    return VllmLikelihood(engine, tokenizer, system=model.kind.system, padding=padding)


def _load_tokenizer(model: "ResolvedModel") -> Any:
    """The tokenizer, whose chat template must show an image and open no thought."""
    from operators.models.processing import load_chat_tokenizer

    assert model.kind is not None
    tokenizer = load_chat_tokenizer(model)
    check_template(tokenizer, system=model.kind.system)
    return tokenizer


FAMILY = Family(
    loads={"likelihood": _load},
    vllm={"likelihood": _load_on_vllm},
    options=frozenset({"tokenizer", "padding"}),
    form="a decoder-only ...ForConditionalGeneration with a vision_config",
    suits=_suits,
    files=(
        TOKENIZER,
        Files("checkpoint", ("preprocessor_config.json", "processor_config.json"), "download the checkpoint again"),
    ),
    check=_check,
    kind=kind_of,
)
