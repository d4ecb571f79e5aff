"""The model family lpips: the distance between two images' features in an image classifier (Zhang et al. 2018)."""

from collections.abc import Mapping
from typing import Any

from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.checkpoints.parts import Fields, Part
from plumbline.operators.models.family import Family
from plumbline.operators.models.model import LocalModel, ResolvedModel
from plumbline.plugins.edits.lpips_trunks import TRUNKS


def _check_trunk(config: LocalModel, parts: Mapping[str, Part], fields: Fields) -> None:
    if fields.get("net") not in TRUNKS:
        raise ModelError(
            f"{parts['checkpoint'].source}: `net` in config.json is {fields.get('net')!r}; only "
            f"{' and '.join(TRUNKS)} are supported (plugins/edits/README.md)"
        )


def _load_lpips(model: ResolvedModel[Any]) -> Any:
    from plumbline.plugins.edits.lpips_network import Lpips  # imports torch

    return Lpips.load(model)


FAMILY = Family(
    loads={"similarity": _load_lpips},
    form="'lpips'",
    suits=lambda fields: fields["model_type"] == "lpips",
    files=(),
    check=_check_trunk,
    measures=("distance",),
    compares=("source",),
    float32_on_gpu=True,
)
