"""BLIP-2 with FlanT5 as a VQA model (Li et al. 2023)."""

from plumbline.operators.models.checkpoints.parts import Fields, subfields
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile, YesQuestion

BLIP2 = VqaProfile(
    name="blip2", asks=YesQuestion('Does this figure show "{}"? Please answer yes or no.', "yes", "mean")
)
"""As InstructBLIP, which has the same FlanT5; the `Question: ` is in the frame of all that BLIP-2 is asked."""


def has_t5(fields: Fields) -> bool:
    """Whether the language model of a config.json is a T5."""
    return subfields(fields, "text_config").get("model_type") == "t5"


FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.blip:Blip2Likelihood.load")},
    form="'blip-2' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "blip-2" and has_t5(fields),
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP2,
)
