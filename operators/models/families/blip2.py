"""BLIP-2 with FlanT5 as a VQA model (Li et al. 2023)."""

from typing import TYPE_CHECKING

from plumbline.operators.models.checkpoints.parts import Fields, subfields
from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.vqa_profiles import VqaProfile, YesQuestion

if TYPE_CHECKING:
    from plumbline.operators.models.model import ResolvedModel
    from plumbline.operators.models.networks.blip import Blip2Likelihood

BLIP2 = VqaProfile(
    name="blip2", asks=YesQuestion('Does this figure show "{}"? Please answer yes or no.', "yes", "mean")
)
"""As InstructBLIP, which has the same FlanT5; the `Question: ` is in the frame of all that BLIP-2 is asked."""


def has_t5(fields: Fields) -> bool:
    """Whether the language model of a config.json is a T5."""
    return subfields(fields, "text_config").get("model_type") == "t5"


def _load(model: "ResolvedModel") -> "Blip2Likelihood":
    from transformers import Blip2ForConditionalGeneration

    from plumbline.operators.models.networks.blip import Blip2Likelihood
    from plumbline.operators.models.networks.encoder_decoder import check_entries
    from plumbline.operators.models.processing import load_image_processor, load_pretrained, load_tokenizer

    network = load_pretrained(Blip2ForConditionalGeneration, model)
    tokenizer = load_tokenizer(model.folder("tokenizer"))
    check_entries(model.folder("tokenizer"), tokenizer, network.language_model.shared.num_embeddings)
    processor = load_image_processor(model.folder("checkpoint"))
    return Blip2Likelihood(network, tokenizer, processor, pair_batch=model.config.pair_batch)


FAMILY = Family(
    config=LocalModel,
    loads={"likelihood": _load},
    form="'blip-2' with a T5 as its language model",
    suits=lambda fields: fields["model_type"] == "blip-2" and has_t5(fields),
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: BLIP2,
)
