"""VideoAlign's VideoReward: how people would rate a video for its prompt, by a Qwen2-VL (Liu et al. 2025).

Its release is a pickle of weights with an adapter, which `plumbline convert` makes a folder of (docs/models.md).
"""

from plumbline.operators.models.checkpoints.parts import INSTRUCTION, architecture
from plumbline.operators.models.families.hpsv3 import check_instruction, reward_files
from plumbline.operators.models.family import Family, lazily
from plumbline.operators.models.model import LocalModel

ARCHITECTURE = "VideoReward"

FAMILY = Family(
    config=LocalModel,
    loads={"similarity": lazily("networks.videoalign:VideoRewardSimilarity.load")},
    form=f"{ARCHITECTURE}'s, as jobs.convert makes it",
    suits=lambda fields: architecture(fields) == ARCHITECTURE,
    files=reward_files(INSTRUCTION),
    check=check_instruction,
    measures=("reward",),
    ratings=("visual_quality", "motion_quality", "text_alignment"),
    films=True,
)
