"""BLIP for question answering (Li et al. 2022): a text encoder that attends to the image, and an answer decoder."""

from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family, lazily
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile, YesQuestion

BLIP_VQA = VqaProfile(
    name="blip_vqa", asks=YesQuestion('Does this figure show "{}"? Please answer yes or no.', "yes", "product")
)
"""BLIP's released code ranks answers by the sum of their tokens' log-probabilities, their end included."""

FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": lazily("networks.blip:BlipVqaLikelihood.load")},
    form="a BlipForQuestionAnswering",
    suits=lambda fields: architecture(fields) == "BlipForQuestionAnswering",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP_VQA,
)
