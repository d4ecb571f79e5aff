"""Every stage there is."""

from collections.abc import Mapping

from operators.stages.answers import AnswersStage
from operators.stages.entailment import EntailmentStage
from operators.stages.questions import QuestionsStage
from operators.stages.scores import ScoresStage
from operators.stages.similarities import SimilaritiesStage
from operators.stages.stage import Stage

STAGES: Mapping[str, type[Stage]] = {
    stage.name: stage for stage in (QuestionsStage, EntailmentStage, AnswersStage, SimilaritiesStage, ScoresStage)
}
"""By name, in the order data flows: a stage stands behind those that it reads."""
