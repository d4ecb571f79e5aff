"""Decoder-only language models: what writes questions."""

from typing import TYPE_CHECKING

from operators.models.family import Family
from operators.models.parts import architecture

if TYPE_CHECKING:
    from operators.models.calls import GenerateModel
    from operators.models.checkpoints import ResolvedModel


def _load(model: "ResolvedModel") -> "GenerateModel":
    from operators.models.causal_lm import load_causal_lm
    from operators.models.processing import torch_arguments

    return load_causal_lm(model.folder("checkpoint"), **torch_arguments(model))


def _load_on_vllm(model: "ResolvedModel") -> "GenerateModel":
    from operators.models.vllm_engine import engine_arguments_of
    from operators.models.vllm_generate import load_vllm_generate

    return load_vllm_generate(model.folder("checkpoint"), **engine_arguments_of(model))


FAMILY = Family(
    name="causal_lm",
    loads={"generate": _load},
    vllm={"generate": _load_on_vllm},
    form="a ...ForCausalLM",
    suits=lambda fields: architecture(fields).endswith(("ForCausalLM", "LMHeadModel")),
)
