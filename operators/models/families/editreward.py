"""EditReward: how people would like an edited image beside its source, by a Qwen2.5-VL with two heads (Wu et al. 2025).

Its release is weights alone, which `plumbline convert` makes a folder of (docs/models.md).
"""

from plumbline.operators.models.checkpoints.parts import INSTRUCTIONS, architecture
from plumbline.operators.models.families.hpsv3 import check_instruction, reward_files
from plumbline.operators.models.family import Family, lazily
from plumbline.operators.models.model import LocalModel

ARCHITECTURE = "EditReward"

FAMILY = Family(
    config=LocalModel,
    loads={"similarity": lazily("networks.editreward:EditRewardSimilarity.load")},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=reward_files(*INSTRUCTIONS),
    check=check_instruction,
    measures=("reward",),
    compares=("edit",),
    several=True,
    ratings=("instruction_following", "visual_quality"),
)
