"""BLIP for question answering (Li et al. 2022): a text encoder that attends to the image, and an answer decoder."""

from typing import TYPE_CHECKING

from plumbline.operators.models.checkpoints.parts import architecture
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile, YesQuestion

if TYPE_CHECKING:
    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.networks.blip import BlipVqaLikelihood

BLIP_VQA = VqaProfile(
    name="blip_vqa", asks=YesQuestion('Does this figure show "{}"? Please answer yes or no.', "yes", "product")
)
"""BLIP's released code ranks answers by the sum of their tokens' log-probabilities, their end included."""


def _load(model: "ResolvedModel") -> "BlipVqaLikelihood":
    from transformers import BlipForQuestionAnswering

    from plumbline.operators.models.networks.blip import BlipVqaLikelihood, load_blip
    from plumbline.operators.models.networks.encoder_decoder import check_entries
    from plumbline.operators.models.processing import load_image_processor, load_tokenizer

    network = load_blip(BlipForQuestionAnswering, model)
    tokenizer = load_tokenizer(model.folder("tokenizer"))
    check_entries(model.folder("tokenizer"), tokenizer, network.config.text_config.vocab_size)
    processor = load_image_processor(model.folder("checkpoint"))
    return BlipVqaLikelihood(network, tokenizer, processor, pair_batch=model.config.pair_batch)


FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": _load},
    form="a BlipForQuestionAnswering",
    suits=lambda fields: architecture(fields) == "BlipForQuestionAnswering",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP_VQA,
    version=lambda fields: 2,
)
