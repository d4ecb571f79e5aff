"""The model family inception: the InceptionV3 whose features FID compares (Heusel et al. 2017)."""

from dataclasses import dataclass
from typing import Any, Literal

from plumbline.operators.models.family import Family
from plumbline.operators.models.model import LocalModel, ResolvedModel


@dataclass(frozen=True, kw_only=True, slots=True)
class InceptionModel(LocalModel):
    """Options of FID's InceptionV3."""

    resizing: Literal["pytorch_fid", "clean"] = "pytorch_fid"
    """Method of resizing an image to 299 x 299 pixels. `pytorch_fid`: bilinear, without antialiasing
    (mseitzer/pytorch-fid, inception.py); `clean`: bicubic, with antialiasing (Parmar et al. 2022, GaParmar/clean-fid,
    resize.py). The two give different numbers.
    """


def _load_inception(model: ResolvedModel[Any]) -> Any:
    from plumbline.plugins.distances.inception_network import Inception  # imports torch

    return Inception.load(model)


FAMILY = Family(
    config=InceptionModel,
    loads={"similarity": _load_inception},
    form="'fid_inception'",
    suits=lambda fields: fields["model_type"] == "fid_inception",
    files=(),
    compares=("source",),
    float32_on_gpu=True,
    options_in_key=lambda config, profile: {"resizing": config.resizing},
)
