"""OneIG-Bench's alignment, in Chinese (Chang et al. 2025): as the English one, with the class of multilingualism.

Source: OneIG-Bench/OneIG-Benchmark, its folder with `OneIG-Bench-ZH.csv` and `scripts/alignment/Q_D/*_zh.json`; the
questions are Chinese too, and answered Yes or No. Both conventions read it alike.
"""

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.sources.question_packs.alignment_questions import CATEGORIES, read_alignment
from plumbline.pipelines.sources.question_packs.pack import Convention, PackRows


def read(place: Place, convention: Convention) -> PackRows:
    """The questions about the Chinese prompts."""
    return read_alignment(place, tuple(CATEGORIES), csv="OneIG-Bench-ZH.csv", prompt="prompt_cn", suffix="_zh")
