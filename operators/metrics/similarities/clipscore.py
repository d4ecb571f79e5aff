"""CLIPScore: the cosine of a dual encoder's image and text embeddings, on several scales (docs/conventions.md)."""

from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.metrics.metric import Evidence, Metric, Scored
from plumbline.operators.models.calls import ComparisonTarget, Measure, PixelRule
from plumbline.operators.models.networks.similarity import clean_text

Variant = Literal["cosine", "original", "torchmetrics"]

PROMPT_PREFIXES: dict[Variant, str] = {"cosine": "", "original": "A photo depicts ", "torchmetrics": ""}


@dataclass(frozen=True, kw_only=True, slots=True)
class ClipScoreConfig(Metric):
    kind: Literal["clipscore"] = "clipscore"
    story: ClassVar[str] = (
        "compares the whole image with the whole prompt, using CLIP, a model trained on captioned images; it often "
        "misses counts, positions and negations"
    )
    chain: ClassVar[tuple[str, ...]] = ("similarities", "scores")
    compares: ClassVar[ComparisonTarget] = "prompt"
    measure: ClassVar[Measure] = "cosine"
    model: str = "clip"
    """Role of the dual encoder."""
    variant: Variant = "cosine"
    """`cosine`: the raw cosine; `original`: 2.5 max(cos, 0) with the text prefix "A photo depicts ", with texts cleaned
    and images cropped as in the released code (Hessel et al. 2021); `torchmetrics`: 100 max(cos, 0).
    """

    def list_similarity_options(self) -> dict[str, str]:
        """Return a mapping of all options that determine the comparison; the scale is applied afterwards."""
        asked = {"prefix": PROMPT_PREFIXES[self.variant]}
        return asked | {"text": "ftfy", "pixels": self.pixels} if self.variant == "original" else asked

    @property
    def pixels(self) -> PixelRule:
        return "released" if self.variant == "original" else "processor"

    def list_score_options(self) -> dict[str, str]:
        return {"reduction": self.variant}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(scale_cosine(evidence.row["similarity"], self.variant), truncated=evidence.row["truncated"])

    def text(self, prompt: str) -> str:
        """Return the text to compare with the prompt's images."""
        text = PROMPT_PREFIXES[self.variant] + self.apply_word_order(prompt)
        return clean_text(text) if self.variant == "original" else text


def scale_cosine(cosine: float, variant: Variant) -> float:
    """Return the variant's score for a cosine in [-1, 1], such as 2.5 max(cosine, 0) for `original`."""
    if variant == "cosine":
        return cosine
    return (2.5 if variant == "original" else 100.0) * max(cosine, 0.0)
