"""Decoder-only language models: what writes questions, and a VQA model that never sees the image."""

from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.engines.engine_options import EngineModel, engine_in_key
from plumbline.operators.models.family import Family, lazily
from plumbline.operators.models.vqa_profiles import FIRST_TOKEN, VqaProfile

TEXT_ONLY = VqaProfile(name="text_only", asks=FIRST_TOKEN)

FAMILY = Family(
    config=EngineModel,
    loads={
        "generate": lazily("networks.causal_lm:CausalLM.load"),
        "likelihood": lazily("networks.text_only:TextOnlyVqa.load"),
    },
    options_in_key=lambda config, profile: engine_in_key(config),
    vllm={"generate": lazily("engines.vllm_calls:VllmGenerate.load")},
    form="a ...ForCausalLM",
    suits=lambda fields: (
        architecture(fields).endswith(("ForCausalLM", "LMHeadModel")) and fields["model_type"] != "fuyu"
    ),
    profile=lambda config, fields: TEXT_ONLY,
)
