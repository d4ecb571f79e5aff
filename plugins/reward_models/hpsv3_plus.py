"""Model family HPSv3++: a Qwen3-VL whose reward depends on the generator's capability and on the progress of RL."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pkgutil import resolve_name
from typing import Any

from plumbline.operators.base.bounds import Share
from plumbline.operators.models.checkpoints.parts import find_architecture
from plumbline.operators.models.model import LocalModel
from plumbline.plugins.reward_models.token_rewards import HPSV3


@dataclass(frozen=True, kw_only=True, slots=True)
class HpsV3PlusModel(LocalModel):
    """Options of an HPSv3++ model."""

    iteration: Share = 0.0
    """Progress of the generator's RL training: 0 to evaluate images, as by default in the release; its page recommends
    0.3 at the start of a training run that maximises this reward, and a linear rise to 1 at its end.
    """


def _select_cache_key_options(config: Any, profile: Any) -> Mapping[str, Any]:
    return {"iteration": config.iteration}


FAMILY = replace(
    HPSV3,
    config=HpsV3PlusModel,
    loads={
        "similarity": lambda model: resolve_name(f"{__package__}.hpsv3_plus_network:HpsV3PlusSimilarity.load")(model)
    },
    form="an HpsV3Plus folder from jobs.convert",
    suits=lambda fields: find_architecture(fields) == "HpsV3Plus",
    options_in_key=_select_cache_key_options,
)
"""HPSv3 on Qwen3-VL, modulated by a condition that is partly inferred from the image (Liu et al. 2026)."""
