"""Decoder-only language models: what writes questions, and a VQA model that never sees the image."""

from typing import TYPE_CHECKING

from plumbline.operators.errors import ModelError
from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.engines.engine_options import EngineModel, engine_in_key
from plumbline.operators.models.family import Family
from plumbline.operators.models.vqa_profiles import FIRST_TOKEN, VqaProfile

if TYPE_CHECKING:
    from plumbline.operators.models.calls import GenerateModel
    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.networks.causal_lm import CausalLM
    from plumbline.operators.models.networks.text_only import TextOnlyVqa

TEXT_ONLY = VqaProfile(name="text_only", asks=FIRST_TOKEN)


def _load(model: "ResolvedModel[EngineModel]") -> "CausalLM":
    from transformers import AutoModelForCausalLM

    from plumbline.operators.models.networks.causal_lm import CausalLM, reply_ends
    from plumbline.operators.models.processing import load_chat_tokenizer, load_pretrained

    network = load_pretrained(AutoModelForCausalLM, model, attn_implementation="sdpa")
    tokenizer = load_chat_tokenizer(model)
    end_ids = reply_ends(network, tokenizer)
    if not end_ids:
        raise ModelError(
            f"{model.folder('checkpoint')}: no token ends a reply; set eos_token_id in its generation_config.json"
        )
    return CausalLM(network, tokenizer, end_ids=end_ids, pair_batch=model.config.pair_batch)


def _load_text_only(model: "ResolvedModel[EngineModel]") -> "TextOnlyVqa":
    from plumbline.operators.models.networks.text_only import TextOnlyVqa

    language = _load(model)
    end = language.tokenizer.eos_token_id
    if end is None:
        raise ModelError(f"{model.folder('tokenizer')}: the tokenizer has no eos_token, which ends an answer; set it")
    return TextOnlyVqa(language, end=end)


def _load_on_vllm(model: "ResolvedModel[EngineModel]") -> "GenerateModel":
    from plumbline.operators.models.engines.vllm_calls import VllmGenerate
    from plumbline.operators.models.engines.vllm_engine import start_engine
    from plumbline.operators.models.processing import load_chat_tokenizer

    return VllmGenerate(start_engine(model), load_chat_tokenizer(model))


FAMILY = Family(
    config=EngineModel,
    loads={"generate": _load, "likelihood": _load_text_only},
    options_in_key=lambda config, profile: engine_in_key(config),
    vllm={"generate": _load_on_vllm},
    form="a ...ForCausalLM",
    suits=lambda fields: architecture(fields).endswith(("ForCausalLM", "LMHeadModel")),
    profile=lambda config, fields: TEXT_ONLY,
)
