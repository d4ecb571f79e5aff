"""Encoder-decoder language models, such as Flan-T5: a VQA model that never sees the image ("What makes a good metric?",
ablation 4).
"""

from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.families.blip2 import BLIP2
from plumbline.operators.models.family import Family, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile

TEXT_ONLY_T5 = VqaProfile(name="text_only_t5", asks=BLIP2.asks)
"""Asks the question of BLIP-2, whose language model is a FlanT5."""

FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.text_only:TextOnlyT5.load")},
    form="a T5ForConditionalGeneration",
    suits=lambda fields: architecture(fields) == "T5ForConditionalGeneration",
    profile=lambda config, fields: TEXT_ONLY_T5,
)
