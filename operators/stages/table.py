"""Every stage there is."""

from collections.abc import Mapping

from operators.stages.answers import AnswersStage
from operators.stages.captions import CaptionsStage
from operators.stages.descriptions import DescriptionsStage
from operators.stages.entailment import EntailmentStage
from operators.stages.image_statistics import ImageStatisticsStage
from operators.stages.inspections import InspectionsStage
from operators.stages.modules import ModulesStage
from operators.stages.priors import PriorsStage
from operators.stages.questions import QuestionsStage
from operators.stages.regions import RegionsStage
from operators.stages.scores import ScoresStage
from operators.stages.similarities import SimilaritiesStage
from operators.stages.stage import Stage
from operators.stages.text_similarities import TextSimilaritiesStage
from operators.stages.verdicts import VerdictsStage

STAGES: Mapping[str, type[Stage]] = {
    stage.name: stage
    for stage in (
        QuestionsStage,
        EntailmentStage,
        PriorsStage,
        AnswersStage,
        ModulesStage,
        SimilaritiesStage,
        CaptionsStage,
        RegionsStage,
        DescriptionsStage,
        TextSimilaritiesStage,
        VerdictsStage,
        InspectionsStage,
        ImageStatisticsStage,
        ScoresStage,
    )
}
"""By name, in the order data flows: a stage stands behind those that it reads."""
