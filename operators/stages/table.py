"""Every stage there is."""

from collections.abc import Mapping

from plumbline.operators.stages.answers import AnswersStage
from plumbline.operators.stages.captions import CaptionsStage
from plumbline.operators.stages.descriptions import DescriptionsStage
from plumbline.operators.stages.entailment import EntailmentStage
from plumbline.operators.stages.image_statistics import ImageStatisticsStage
from plumbline.operators.stages.inspections import InspectionsStage
from plumbline.operators.stages.modules import ModulesStage
from plumbline.operators.stages.priors import PriorsStage
from plumbline.operators.stages.questions import QuestionsStage
from plumbline.operators.stages.regions import RegionsStage
from plumbline.operators.stages.scores import ScoresStage
from plumbline.operators.stages.similarities import SimilaritiesStage
from plumbline.operators.stages.stage import Stage
from plumbline.operators.stages.text_similarities import TextSimilaritiesStage
from plumbline.operators.stages.verdicts import VerdictsStage

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
