"""OneIG-Bench's alignment, in English (Chang et al. 2025): yes/no questions that depend on each other.

Source: OneIG-Bench/OneIG-Benchmark, its folder with `OneIG-Bench.csv` and
`scripts/alignment/Q_D/{anime,human,object}.json`; `scripts/alignment/alignment_score.py` counts a yes where the answers
of its parents are yes. Both conventions read it alike.
"""

from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.sources.question_packs.alignment_questions import read_alignment
from plumbline.pipelines.sources.question_packs.pack import Convention, PackRows


def read(place: Place, convention: Convention) -> PackRows:
    """The questions about the English prompts."""
    return read_alignment(place, ("anime", "human", "object"), csv="OneIG-Bench.csv", prompt="prompt_en")
