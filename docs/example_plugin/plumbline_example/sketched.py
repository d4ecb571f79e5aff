"""Sketched, an example metric: the probability that a model's description of an image entails the prompt."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from plumbline.extending import Evidence, Metric, Scored


@dataclass(frozen=True, kw_only=True, slots=True)
class SketchedConfig(Metric):
    """Options of Sketched: the roles of the models that describe the image and judge the description."""

    kind: Literal["sketched"] = "sketched"
    model: str = "vqa"
    nli: str = "nli"

    @property
    def chain(self) -> tuple[str, ...]:
        return "sketches", "opinions", "scores"

    @property
    def roles(self) -> dict[str, str]:
        return {"model": self.model, "nli": self.nli}

    def description_request(self) -> str:
        return "What does this image show?"

    def list_score_options(self) -> Mapping[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row["p_entail"])
