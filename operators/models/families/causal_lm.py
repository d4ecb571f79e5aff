"""Decoder-only language models: what writes questions."""

from typing import TYPE_CHECKING, Any

from operators.errors import ModelError
from operators.models.family import Family
from operators.models.parts import architecture

if TYPE_CHECKING:
    from operators.models.calls import GenerateModel
    from operators.models.checkpoints import ResolvedModel


def _load(model: "ResolvedModel") -> "GenerateModel":
    from transformers import AutoModelForCausalLM

    from operators.models.causal_lm import CausalLM
    from operators.models.processing import load_chat_tokenizer, load_pretrained

    network = load_pretrained(AutoModelForCausalLM, model, attn_implementation="sdpa")
    tokenizer = load_chat_tokenizer(model)
    end_ids = _reply_ends(network, tokenizer)
    if not end_ids:
        raise ModelError(
            f"{model.folder('checkpoint')}: no token ends a reply; set eos_token_id in its generation_config.json"
        )
    return CausalLM(network, tokenizer, end_ids=end_ids, pair_batch=model.config.pair_batch)


def _reply_ends(network: Any, tokenizer: Any) -> list[int]:
    """The tokens that end a reply, by the checkpoint's generation settings and its tokenizer."""
    named = network.generation_config.eos_token_id
    listed = named if isinstance(named, list) else [named]
    return sorted({int(token) for token in [*listed, tokenizer.eos_token_id] if token is not None})


def _load_on_vllm(model: "ResolvedModel") -> "GenerateModel":
    from operators.models.processing import load_chat_tokenizer
    from operators.models.vllm_engine import start_engine
    from operators.models.vllm_generate import VllmGenerate

    return VllmGenerate(start_engine(model), load_chat_tokenizer(model))


FAMILY = Family(
    loads={"generate": _load},
    vllm={"generate": _load_on_vllm},
    form="a ...ForCausalLM",
    suits=lambda fields: architecture(fields).endswith(("ForCausalLM", "LMHeadModel")),
)
