"""The table of formats: each of ours is the FORMAT of the file of its name here."""

from plumbline.operators.extensions import Extensions, in_folder
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
FORMATS = Extensions[Format]("reward_formats", in_folder(__name__, NAMES, "FORMAT"), Format)
