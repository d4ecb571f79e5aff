"""Table of all stages by name, in the order of the data flow."""

from collections.abc import Mapping

from plumbline.operators.base.extensions import Extensions
from plumbline.operators.stages.stage import Stage

CORE_STAGES = {
    "questions": "plumbline.operators.stages.questions:QuestionsStage",
    "entailment": "plumbline.operators.stages.entailment:EntailmentStage",
    "priors": "plumbline.operators.stages.answers:PriorsStage",
    "answers": "plumbline.operators.stages.answers:AnswersStage",
    "modules": "plumbline.operators.stages.modules:ModulesStage",
    "similarities": "plumbline.operators.stages.similarities:SimilaritiesStage",
    "captions": "plumbline.operators.stages.captions:CaptionsStage",
    "regions": "plumbline.operators.stages.captions:RegionsStage",
    "descriptions": "plumbline.operators.stages.captions:DescriptionsStage",
    "text_similarities": "plumbline.operators.stages.text_similarities:TextSimilaritiesStage",
    "verdicts": "plumbline.operators.stages.verdicts:VerdictsStage",
    "inspections": "plumbline.operators.stages.verdicts:InspectionsStage",
    "image_statistics": "plumbline.operators.stages.image_statistics:ImageStatisticsStage",
    "function_values": "plumbline.operators.stages.function_values:FunctionValuesStage",
    "comparisons": "plumbline.operators.stages.comparisons:ComparisonsStage",
    "win_rates": "plumbline.operators.stages.comparisons:WinRatesStage",
    "scores": "plumbline.operators.stages.scores:ScoresStage",
}
"""The core's stages in the order of the data flow."""
KNOWN_STAGES = Extensions[type[Stage]]("stages", CORE_STAGES, Stage)

PLUGIN_STAGES = ("pictures",)
"""Stages of our plugins for which the core's clusters have pools even if the plugin is missing."""


def _order_stages() -> list[str]:
    """Return the stages' names in the order of the data flow, inserting stages of plugins and other packages."""
    order = list(CORE_STAGES)
    others = [name for name in KNOWN_STAGES if name not in order]
    while others:
        name = next((name for name in others if KNOWN_STAGES[name].previous_stage in (None, *order)), others[0])
        others.remove(name)
        previous = KNOWN_STAGES[name].previous_stage
        order.insert(order.index(previous) + 1 if previous in order else -1, name)
    return order


STAGES: Mapping[str, type[Stage]] = {name: KNOWN_STAGES[name] for name in _order_stages()}
"""Stages by name in the order of the data flow: each stage comes after the stages that it reads, and the scores come
last.
"""
