"""ALIGN: images by an EfficientNet and texts by a BERT, as points whose cosine is a score (Jia et al. 2021)."""

from typing import TYPE_CHECKING

from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.cosine_vqa import COSINE, CosineVqa
from plumbline.operators.models.networks.dual_encoder import Reading, Towers

if TYPE_CHECKING:
    from plumbline.operators.models.model import ResolvedModel

CONTEXT = 64
"""Tokens of a text, as its processor has it; its positions would go further."""


def _load(model: "ResolvedModel") -> Towers:
    from transformers import AlignModel

    from plumbline.operators.models.processing import load_image_processor, load_pretrained, load_tokenizer

    network = load_pretrained(AlignModel, model)
    processor = load_image_processor(model.folder("checkpoint"))
    return Towers(
        network,
        load_tokenizer(model.folder("tokenizer")),
        lambda image: processor(images=image, return_tensors="pt")["pixel_values"][0],
        width=int(network.config.projection_dim),
        reading=Reading(min(CONTEXT, int(network.config.text_config.max_position_embeddings))),
        pair_batch=model.config.pair_batch,
        scale=1 / network.temperature.item(),
    )


FAMILY = Family(
    config=LocalModel,
    loads={"similarity": _load, "embedding": _load, "likelihood": lambda model: CosineVqa(_load(model))},
    form="'align'",
    suits=lambda fields: fields["model_type"] == "align",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: COSINE,
    measures=("cosine", "logit"),
)
