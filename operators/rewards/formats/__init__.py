"""Table of all formats of training data, by name."""

from plumbline.operators.base.extensions import Extensions
from plumbline.operators.rewards.formats.format import Format

FORMATS = Extensions[Format](
    "reward_formats",
    {
        "pairs": f"{__name__}.pair_formats:PAIRS_FORMAT",
        "pairs_webdataset": f"{__name__}.pair_formats:PAIRS_WEBDATASET_FORMAT",
        "verl_omni": f"{__name__}.pair_formats:VERL_OMNI_FORMAT",
        "ms_swift": f"{__name__}.pair_formats:MS_SWIFT_FORMAT",
        "imagereward": f"{__name__}.pair_formats:IMAGEREWARD_FORMAT",
        "hpsv2": f"{__name__}.pair_formats:HPSV2_FORMAT",
        "hpdv3": f"{__name__}.pair_formats:HPDV3_FORMAT",
        "editreward": f"{__name__}.pair_formats:EDITREWARD_FORMAT",
        "best_of_n": f"{__name__}.image_formats:BEST_OF_N_FORMAT",
        "instruct_pix2pix": f"{__name__}.image_formats:INSTRUCT_PIX2PIX_FORMAT",
        "rewards": f"{__name__}.image_formats:REWARDS_FORMAT",
        "dense": f"{__name__}.image_formats:DENSE_FORMAT",
        "trl_vision_dpo": f"{__name__}.pair_formats:TRL_VISION_DPO_FORMAT",
    },
    Format,
)
