"""All formats of training data, by name."""

from plumbline.operators.base.extensions import Extensions
from plumbline.operators.rewards.formats.format import Format

FORMATS = Extensions[Format](
    "reward_formats",
    {
        "pairs": f"{__name__}.pair_formats:PAIRS",
        "pairs_webdataset": f"{__name__}.pair_formats:PAIRS_WEBDATASET",
        "verl_omni": f"{__name__}.pair_formats:VERL_OMNI",
        "ms_swift": f"{__name__}.pair_formats:MS_SWIFT",
        "imagereward": f"{__name__}.pair_formats:IMAGEREWARD",
        "hpsv2": f"{__name__}.pair_formats:HPSV2",
        "hpdv3": f"{__name__}.pair_formats:HPDV3",
        "editreward": f"{__name__}.pair_formats:EDITREWARD",
        "best_of_n": f"{__name__}.image_formats:BEST_OF_N",
        "instruct_pix2pix": f"{__name__}.image_formats:INSTRUCT_PIX2PIX",
        "rewards": f"{__name__}.image_formats:REWARDS",
        "dense": f"{__name__}.image_formats:DENSE",
        "trl_vision_dpo": f"{__name__}.pair_formats:TRL_VISION_DPO",
    },
    Format,
)
