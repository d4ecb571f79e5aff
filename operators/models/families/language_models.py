"""Language models: authors of questions, and VQA models that never see the image."""

from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.engines.engine_options import EngineModel, engine_in_key
from plumbline.operators.models.families.blip import BLIP2
from plumbline.operators.models.family import Family, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile

TEXT_ONLY = VqaProfile(name="text_only")

CAUSAL_LM = Family(
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
"""Decoder-only models."""


TEXT_ONLY_T5 = VqaProfile(name="text_only_t5", question=BLIP2.question)
"""Asks BLIP-2's question, because BLIP-2's language model is a FlanT5."""

T5 = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.text_only:TextOnlyT5.load")},
    form="a T5ForConditionalGeneration",
    suits=lambda fields: architecture(fields) == "T5ForConditionalGeneration",
    profile=lambda config, fields: TEXT_ONLY_T5,
)
"""Encoder-decoder models such as Flan-T5 ("What makes a good metric?", ablation 4)."""
