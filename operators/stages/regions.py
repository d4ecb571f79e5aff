"""The regions stage: what a model sees at which places of every image."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from plumbline.operators import schemas
from plumbline.operators.batches import isolate
from plumbline.operators.errors import RowError
from plumbline.operators.metrics.metric import Metric
from plumbline.operators.models.calls import Region, Usage
from plumbline.operators.stages.captions import AnyPrompt
from plumbline.operators.stages.programs import Ran
from plumbline.operators.stages.seeing import Encoded, SeeingStage, Seen, Shown
from plumbline.operators.stages.stage import Inputs


class RegionsStage(SeeingStage):
    """Images to regions (schema REGIONS), whatever their prompts."""

    name = "regions"
    version = 1
    schema = schemas.REGIONS
    needs = Metric
    calls: ClassVar = {"grounder": "regions"}

    @classmethod
    def calls_of_row(cls, metric: Any, words: float) -> float:
        return 1.0

    def asked(self, inputs: Inputs) -> Mapping[str, AnyPrompt]:
        return dict.fromkeys(inputs.metrics, AnyPrompt())

    def say(self, encoded: Encoded, seen: Sequence[Seen]) -> Ran[list[Region]]:
        told: list[list[Region] | RowError] = isolate(self.model.regions, encoded.features)
        return Ran([told[encoded.places[one.image]] for one in seen], Usage(calls=len(told)))

    def columns(self, said: Sequence[list[Region]], shown: Sequence[Shown]) -> dict[str, Any]:
        return {"regions": [[region._asdict() for region in regions] for regions in said]}
