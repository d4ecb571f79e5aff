"""WeGenBench-Consistency-COT: a judge that takes points off for each fault of an image (Liang et al. 2026)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import ScoreRange
from plumbline.operators.metrics.wording import Release
from plumbline.plugins.released_judges.judges.released_judge import ReleasedJudgeConfig
from plumbline.plugins.released_judges.wordings.wegenbench import MAX_SCORE, MIN_SCORE, ConsistencyRating


@dataclass(frozen=True, kw_only=True, slots=True)
class WeGenBenchCotConfig(ReleasedJudgeConfig):
    """Options of WeGenBench-Consistency-COT."""

    kind: Literal["wegenbench_cot"] = "wegenbench_cot"
    story: ClassVar[str] = (
        "shows the image to a model that was trained to compare it with the prompt, and to take points off for each "
        "fault"
    )
    score_range: ClassVar[ScoreRange] = (MIN_SCORE, MAX_SCORE)
    releases: ClassVar[tuple[type[Release], ...]] = (ConsistencyRating,)
