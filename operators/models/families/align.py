"""ALIGN: images by an EfficientNet and texts by a BERT, as points whose cosine is a score (Jia et al. 2021)."""

from typing import Any

from plumbline.operators.models.family import IMAGES, TOKENIZER, Family
from plumbline.operators.models.model import LocalModel
from plumbline.operators.models.networks.cosine_vqa import COSINE, dual_encoder
from plumbline.operators.models.networks.dual_encoder import COMPARES, Towers

CONTEXT = 64
"""Tokens of a text, as its processor has it; its positions would go further."""


class Align(Towers):
    """The `similarity` call served by an ALIGN checkpoint."""

    architecture = "AlignModel"

    def __init__(self, *parts: Any, **batches: int) -> None:
        super().__init__(*parts, **batches)
        self.context = min(CONTEXT, self.context)

    def learnt_scale(self) -> float:
        return float(1 / self.model.temperature.item())


FAMILY = Family(
    config=LocalModel,
    loads=dual_encoder(Align),
    form="'align'",
    suits=lambda fields: fields["model_type"] == "align",
    files=(TOKENIZER, IMAGES),
    profile=lambda config, fields: COSINE,
    measures=("cosine", "logit"),
    compares=COMPARES,
)
