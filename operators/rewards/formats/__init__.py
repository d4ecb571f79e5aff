"""The table of formats: each is the FORMAT of the file of its name here."""

from collections.abc import Mapping
from importlib import import_module

from plumbline.operators.rewards.formats.format import Format

NAMES = (
    "pairs",
    "pairs_webdataset",
    "verl_omni",
    "ms_swift",
    "imagereward",
    "hpsv2",
    "hpdv3",
    "best_of_n",
    "rewards",
    "dense",
    "trl_vision_dpo",
)
FORMATS: Mapping[str, Format] = {name: import_module(f"{__name__}.{name}").FORMAT for name in NAMES}
