"""Decoder-only chat models that see images, such as LLaVA-1.5 and Qwen-VL."""

import json
from collections.abc import Iterator, Mapping
from copy import copy
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

from plumbline.operators.base.bounds import Positive, at_least
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.models.calls import Message
from plumbline.operators.models.checkpoints.parts import Fields, Part, find_architecture, read_fields, read_subfields
from plumbline.operators.models.engines.conversation import (
    THINKING_PROBLEM,
    find_thinking,
    find_turn_end,
    is_thinking_checkpoint,
    opens_thought,
    render_image_conversation,
)
from plumbline.operators.models.engines.engine_options import EngineModel, select_engine_key_options
from plumbline.operators.models.engines.reading import (
    DEFAULT_READING_INSTRUCTION,
    DEFAULT_READING_TOKENS,
    make_reader,
    select_reading_key_options,
)
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, defer_import
from plumbline.operators.models.model import ResolvedModel
from plumbline.operators.models.vqa_profiles import VICUNA_SYSTEM, VqaProfile

if TYPE_CHECKING:
    from plumbline.operators.models.engines.vllm_calls import VllmLikelihood
    from plumbline.operators.models.networks.causal_lm import CausalLM
    from plumbline.operators.models.networks.vlm import ChatVlm

LLAVA_1_5_PROFILE = VqaProfile(
    name="llava_1_5", question="released", system=VICUNA_SYSTEM, pads_images=True, several_images=True
)
LLAVA_PROFILE = VqaProfile(name="llava", several_images=True)
"""Profile of LLaVA-shaped models whose tower or language model differs from LLaVA-1.5's."""
CHAT_PROFILE = VqaProfile(name="chat", several_images=True)
VIDEO_CHAT_PROFILE = replace(CHAT_PROFILE, reads_videos=True)
"""Profile of chat models that also read videos."""
PALIGEMMA_PROFILE = VqaProfile(name="paligemma", question="released_first_token")
"""Profile of PaliGemma, with the question from later code by the authors of VQAScore."""
FUYU_PROFILE = VqaProfile(name="fuyu", question="released_first_token")
QUESTION_PROFILES = {profile.name: profile for profile in (PALIGEMMA_PROFILE, FUYU_PROFILE)}
"""Profiles, by model_type, of models that read a single question instead of a conversation."""
_TEMPLATE_WITH_MARK = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{{ MARK if part['type'] == 'image' else part['text'] }}{% endfor %}{% endfor %}{{ END }}"
)
CHAT_TEMPLATES: Mapping[str, str] = {
    "paligemma": _TEMPLATE_WITH_MARK.replace("MARK", "'<image>' + bos_token").replace("END", r"'\n'"),
    "fuyu": _TEMPLATE_WITH_MARK.replace("MARK", "'|SPEAKER|'").replace("END", r"'\n<0x04>'"),
}
"""Chat templates, by model type, for tokenizers that have none. Each formats a question as the type's processor does.
"""
FUYU_END_TOKEN = "|ENDOFTEXT|"
"""The token that ends a reply from Fuyu; its tokenizer files may name another token."""
MAX_VICUNA_VOCABULARY = 40_000
"""Vocabulary size that separates Vicuna, which has the smaller vocabulary of Llama 2, from models based on Llama 3."""


class ChatType(NamedTuple):
    """Properties of a type of chat model (`model_type` in config.json) that the transformers engine needs."""

    reader: str = "ImageReader"
    """Name of the class in networks/image_reader.py that reads prompts of this type."""
    pixel_counts: int = 0
    """Number of times that the processor counts each pixel towards its limits on image size; 0 if it has no limits and
    resizes every image by its own rules.
    """
    reads_videos: bool = False
    """True if the tokens of a video are arranged like those of an image. Later model types write the time between
    frames.
    """


CHAT_TYPES: Mapping[str, ChatType] = {
    "llava": ChatType(),
    "llava_next": ChatType(),
    "llava_onevision": ChatType(),
    "qwen2_vl": ChatType(pixel_counts=1, reads_videos=True),
    "qwen2_5_vl": ChatType(pixel_counts=1, reads_videos=True),
    "qwen3_vl": ChatType(pixel_counts=1),
    "qwen3_vl_moe": ChatType(pixel_counts=1),
    "qwen3_5": ChatType(pixel_counts=1),
    "qwen3_5_moe": ChatType(pixel_counts=1),
    "glm4v": ChatType(pixel_counts=2),
    "glm4v_moe": ChatType(pixel_counts=2),
    "glm46v": ChatType(pixel_counts=2),
    "internvl": ChatType(),
    "idefics3": ChatType(),
    "smolvlm": ChatType(),
    "gemma3": ChatType(),
    "gemma4": ChatType(reader="CappedReader"),
    "paligemma": ChatType(reader="PrefixLmReader"),
    "fuyu": ChatType(),
}
"""Types that are tested on the transformers engine; vLLM supports more."""
N_CLASS_TOKENS_BY_TOWER = {"clip_vision_model": 1, "siglip_vision_model": 0}
"""Vision towers of LLaVA-shaped models that the transformers engine supports, with the number of tokens before an
image's patches. Other towers arrange image tokens differently.
"""
MIN_PIXELS = 3136
"""Minimum number of pixels of an image in Qwen-VL's processors: 56 x 56."""
GENERATION_SETTINGS_FILE = "generation_config.json"
TYPE_REMEDY = "choose another checkpoint, or set engine=vllm if vLLM supports it"


@dataclass(frozen=True, kw_only=True, slots=True)
class ChatModel(EngineModel):
    family: Literal["vlm"] = "vlm"
    padding: Literal["released", "processor"] = "released"
    """For LLaVA-1.5: `released` centres an image on a square of the mean colour, as the released VQAScore does;
    `processor` crops the centre, as the checkpoint's processor does. Other models only support `processor`.
    """
    max_pixels: Annotated[int, at_least(MIN_PIXELS)] | None = None
    """Maximum number of pixels per image for Qwen-VL and GLM-V, whose processors shrink larger images. 262144 (512 x
    512) takes a quarter of the tokens of 1024 x 1024. The default is the checkpoint's own limit.
    """
    repetition_penalty: Literal["ignored", "released"] = "ignored"
    """For likelihoods: `released` applies the repetition_penalty of the checkpoint's generation_config.json to tokens
    of the prompt, as in the released VQAScore for Qwen2.5-VL, which uses `generate`.
    """
    system: str | None = None
    """System message before every question about an image. The default is Vicuna's for LLaVA-1.5, and that of the chat
    template for other models. An empty string means none.
    """
    reading: str = DEFAULT_READING_INSTRUCTION
    """Instruction for reading the text in images (`ocr`)."""
    reading_tokens: Positive = DEFAULT_READING_TOKENS
    """Maximum length, in tokens, of the text read from an image; longer texts are cut."""

    def __post_init__(self) -> None:
        EngineModel.__post_init__(self)
        if self.max_pixels is not None and "mm_processor_kwargs" in self.engine_options:
            raise ConfigError("max_pixels: engine_options.mm_processor_kwargs is set too; set max_pixels only there")


def find_profile(config: ChatModel, fields: Fields) -> VqaProfile:
    """Return the VQA profile of a checkpoint, given the content of its config.json (`fields`)."""
    model_type = fields["model_type"]
    if model_type == "llava":
        text = read_subfields(fields, "text_config")
        vicuna = text.get("model_type", "llama") == "llama" and text.get("vocab_size", 0) < MAX_VICUNA_VOCABULARY
        profile = LLAVA_1_5_PROFILE if vicuna and _read_tower_type(fields) == "clip_vision_model" else LLAVA_PROFILE
    else:
        # only the transformers engine shows videos
        reads_videos = config.engine == "transformers" and CHAT_TYPES.get(model_type, ChatType()).reads_videos
        profile = QUESTION_PROFILES.get(model_type, VIDEO_CHAT_PROFILE if reads_videos else CHAT_PROFILE)
    return profile.with_system(config.system)


def _read_tower_type(fields: Fields) -> Any:
    return read_subfields(fields, "vision_config").get("model_type", "clip_vision_model")


def _is_supported(fields: Fields) -> bool:
    text = read_subfields(fields, "text_config")
    if find_architecture(fields) == "FuyuForCausalLM":  # has no vision_config, because its patches are tokens
        return True
    encoder = fields.get("is_encoder_decoder") or text.get("is_encoder_decoder") or "t5" in str(text.get("model_type"))
    return find_architecture(fields).endswith("ForConditionalGeneration") and "vision_config" in fields and not encoder


def _check_chat_model(config: ChatModel, parts: Mapping[str, Part], fields: Fields) -> None:
    problem = next(_find_problems(config, parts, fields), None)
    if problem is not None:
        raise ModelError(f"{parts['checkpoint'].source}: {problem}")


def _find_problems(config: ChatModel, parts: Mapping[str, Part], fields: Fields) -> Iterator[str]:
    """Yield the reasons why the checkpoint would not load, or would load but give wrong answers, with these options."""
    model_type, checkpoint, on_vllm = fields["model_type"], parts["checkpoint"], config.engine == "vllm"
    if on_vllm and model_type in CHAT_TEMPLATES:
        yield "vLLM expects the image at a position that does not occur in conversations; set engine=transformers"
    if not on_vllm and model_type not in CHAT_TYPES:
        yield f"the transformers engine supports {', '.join(CHAT_TYPES)}, but not {model_type!r}; {TYPE_REMEDY}"
    if (
        not on_vllm
        and model_type in ("llava", "llava_next")
        and _read_tower_type(fields) not in N_CLASS_TOKENS_BY_TOWER
    ):
        known = " or ".join(N_CLASS_TOKENS_BY_TOWER)
        yield f"the transformers engine supports LLaVA with {known}, not {_read_tower_type(fields)!r}; {TYPE_REMEDY}"
    if config.repetition_penalty == "released" and on_vllm:
        yield "vLLM's likelihoods have no repetition penalty; set engine=transformers, or repetition_penalty=ignored"
    if config.repetition_penalty == "released" and _read_penalty(checkpoint) == 1:
        yield "its generation_config.json has no repetition_penalty; set repetition_penalty=ignored"
    counts = CHAT_TYPES.get(model_type, ChatType()).pixel_counts
    if config.max_pixels is not None and counts == 0:
        sized = ", ".join(name for name, chat_type in CHAT_TYPES.items() if chat_type.pixel_counts)
        yield f"its processor sizes images by its own rules; max_pixels is only for {sized}; set max_pixels=null"
    if config.max_pixels is not None and counts > 1 and on_vllm:
        yield "vLLM applies a different pixel limit to this model; set engine=transformers, or max_pixels=null"
    if config.system is not None and model_type in CHAT_TEMPLATES:
        yield "it reads a question instead of a conversation; set system=null"
    if config.thinking == "refused" and is_thinking_checkpoint(parts["tokenizer"], checkpoint):
        yield THINKING_PROBLEM


def _read_penalty(checkpoint: Part) -> float:
    file = checkpoint.find_file(GENERATION_SETTINGS_FILE)
    return float((json.loads(file.read_text()).get("repetition_penalty") or 1) if file is not None else 1)


def _load_model(model: ResolvedModel[ChatModel]) -> "ChatVlm":
    return make_chat_vlm(model, _load_network(model))


def _load_writer(model: ResolvedModel[ChatModel]) -> "CausalLM":
    """Return the model's language half, for conversations without images; raise ModelError if it needs images."""
    from plumbline.operators.models.networks.causal_lm import CausalLM

    if model.profile is not None and model.profile.name in CHAT_TEMPLATES:
        raise ModelError(f"{model.config.checkpoint}: the model only answers questions about images; use another model")
    return CausalLM.load(model, _load_network(model))


def _load_network(model: ResolvedModel[ChatModel]) -> Any:
    from transformers import AutoModelForImageTextToText

    from plumbline.operators.models.processing import load_pretrained

    text = read_subfields(read_fields(model.parts["checkpoint"]), "text_config")
    # only the eager implementation of attention can cap its scores
    bounded = text.get("model_type") == "gemma2" and text.get("attn_logit_softcapping", 1) is not None
    attention = "eager" if bounded else "sdpa"
    return load_pretrained(AutoModelForImageTextToText, model, attn_implementation=attention)


def make_chat_vlm(model: ResolvedModel[ChatModel], network: Any) -> "ChatVlm":
    """Return a model that serves the calls of chat models with this network, which is already on its device.

    Raises ModelError if the tokenizer or processor does not load, or if the network would give wrong answers.
    """
    from plumbline.operators.models.networks import image_reader
    from plumbline.operators.models.networks.causal_lm import find_reply_ends
    from plumbline.operators.models.networks.image_prompts import ImagePromptBuilder, load_processor
    from plumbline.operators.models.networks.vlm import ChatVlm
    from plumbline.operators.models.pixels import make_pixel_input
    from plumbline.operators.models.processing import compute_mean_colour

    assert model.profile is not None
    processor = load_processor(
        model.folder("checkpoint"), network.config, _load_tokenizer(model), N_CLASS_TOKENS_BY_TOWER
    )
    _check_network(model, network, processor.tokenizer)
    chat_type = CHAT_TYPES[network.config.model_type]
    if model.config.max_pixels is not None:
        size, limit = processor.image_processor.size, model.config.max_pixels * chat_type.pixel_counts
        size["longest_edge"], size["shortest_edge"] = limit, min(limit, size["shortest_edge"])
    ends = find_reply_ends(network, processor.tokenizer)
    image_id = int(network.config.image_token_id)
    multi_image_processor = copy(processor)
    multi_image_processor.image_processor = copy(processor.image_processor)  # before its last steps are removed below
    pixels = make_pixel_input(processor, device=network.device, dtype=network.dtype)
    prompts = ImagePromptBuilder(
        processor,
        pixels.pin,
        multi_image_processor=multi_image_processor,
        image_id=image_id,
        system=model.profile.system,
        padding=compute_mean_colour(processor.image_processor) if _pads_images(model) else None,
        ends=ends,
        video_id=int(network.config.video_token_id) if model.profile.reads_videos else None,
        thinks=model.config.thinking == "allowed",
    )
    thinking = find_thinking(model.config, processor.tokenizer, lambda: prompts.render([Message("user", "")]))
    reader = getattr(image_reader, chat_type.reader)(network, pixels, image_id=image_id)
    penalty = 1.0 if model.config.repetition_penalty == "ignored" else _read_penalty(model.parts["checkpoint"])
    return ChatVlm(reader, prompts, ends=ends, pair_batch=model.config.pair_batch, penalty=penalty, thinking=thinking)


def _check_network(model: ResolvedModel[ChatModel], network: Any, tokenizer: Any) -> None:
    """Raise ModelError if no token ends a turn in this network, or if some layers do not see all earlier tokens."""
    if tokenizer.eos_token_id is None:
        raise ModelError(
            f"{model.folder('checkpoint')}: the tokenizer has no eos_token, which is needed to end an answer; "
            "set it in tokenizer_config.json"
        )
    layers = getattr(network.config.get_text_config(), "layer_types", None) or ()
    others = set(layers) - {"full_attention", "sliding_attention", "linear_attention"}
    if others:
        raise ModelError(
            f"{model.folder('checkpoint')}: the network has {min(others)} layers, so questions cannot continue from an "
            "image's prefix; set engine=vllm"
        )


def _pads_images(model: ResolvedModel[ChatModel]) -> bool:
    """Return True if images are centred on a square of the mean colour before the checkpoint's own preprocessing."""
    return model.profile is not None and model.profile.pads_images and model.config.padding == "released"


def _load_on_vllm(model: ResolvedModel[ChatModel]) -> "VllmLikelihood":
    from plumbline.operators.models.engines.vllm_calls import TWO_IMAGES_OPTIONS, VllmLikelihood
    from plumbline.operators.models.engines.vllm_engine import start_engine
    from plumbline.operators.models.processing import compute_mean_colour, load_image_processor

    assert model.profile is not None
    tokenizer, system = _load_tokenizer(model), model.profile.system
    padding = compute_mean_colour(load_image_processor(model.folder("checkpoint"))) if _pads_images(model) else None
    checkpoint = model.parts["checkpoint"]
    file = checkpoint.find_file(GENERATION_SETTINGS_FILE) or checkpoint.find_file("config.json")
    named = json.loads(file.read_text()).get("eos_token_id") if file is not None else None
    ends: list[Any] = named if isinstance(named, list) else [named]
    end = find_turn_end(tokenizer, ends, system=system)
    max_pixels = model.config.max_pixels
    sized = {} if max_pixels is None else {"mm_processor_kwargs": {"max_pixels": max_pixels}}
    engine = start_engine(model, defaults={**TWO_IMAGES_OPTIONS, **sized})
    messages = [Message("user", "")]
    thinking = find_thinking(
        model.config, tokenizer, lambda: render_image_conversation(tokenizer, messages, system=system, thinks=True)
    )
    return VllmLikelihood(engine, tokenizer, system=system, padding=padding, end=end, thinking=thinking)


def _load_tokenizer(model: ResolvedModel[ChatModel]) -> Any:
    """Return the tokenizer; raise ModelError if its chat template cannot render the conversations that are needed."""
    from plumbline.operators.models.processing import load_chat_tokenizer

    assert model.profile is not None
    tokenizer, messages, system = load_chat_tokenizer(model), [Message("user", "")], model.profile.system
    if model.profile.name in CHAT_TEMPLATES:
        tokenizer.chat_template = CHAT_TEMPLATES[model.profile.name]
    if model.profile == FUYU_PROFILE:
        tokenizer.eos_token = FUYU_END_TOKEN
    if model.config.thinking == "refused" and opens_thought(
        render_image_conversation(tokenizer, messages, system=system)
    ):
        raise ModelError(f"{tokenizer.name_or_path}: {THINKING_PROBLEM}")
    configured = model.config.system
    if configured and configured.strip() not in render_image_conversation(tokenizer, messages, system=configured):
        raise ModelError(
            f"{tokenizer.name_or_path}: the chat template leaves out the system message; set the model's system=null"
        )
    return tokenizer


def _select_key_options(config: ChatModel, profile: VqaProfile | None) -> dict[str, Any]:
    padding = {"padding": config.padding} if profile is not None and profile.pads_images else {}
    others = {name: getattr(config, name) for name in ("repetition_penalty", "max_pixels", "system")}
    return padding | others | select_reading_key_options(config) | select_engine_key_options(config)


FAMILY = Family(
    oldest_transformers="5.16",
    config=ChatModel,
    loads={
        "likelihood": _load_model,
        "generate_from_images": _load_model,
        "generate": _load_writer,
        "ocr": make_reader(_load_model),
    },
    vllm={
        "likelihood": _load_on_vllm,
        "generate_from_images": _load_on_vllm,
        "generate": defer_import("engines.vllm_calls:VllmGenerate.load"),
        "ocr": make_reader(_load_on_vllm),
    },
    form="a decoder-only ...ForConditionalGeneration with a vision_config, or a FuyuForCausalLM",
    suits=_is_supported,
    files=(TOKENIZER, IMAGES),
    check=_check_chat_model,
    profile=find_profile,
    version=2,
    options_in_key=_select_key_options,
)
