"""Metrics that are one number of one model about an image and its prompt: PickScore, ITM, ImageReward and others.

The family of the model defines the number; `measure` selects one if a model has several. The named metrics are in
conf/metric, their scales in docs/conventions.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import ratings_by_name, read_ratings
from plumbline.operators.metrics.metric import SHARES, Evidence, Metric, Scored, ScoreRange, View
from plumbline.operators.models.calls import Compares, Measure, PixelRule

VIEWS: Mapping[Compares, tuple[View, ...]] = {
    "source": ("result", "source"),
    "change": ("result", "source"),
    "edit": ("edit",),
}
"""Views of the images if they are more than the scored image."""
CAPTIONS: Mapping[Compares, tuple[str, ...]] = {
    "caption": ("target_caption",),
    "change": ("target_caption", "source_caption"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SimilarityConfig(Metric):
    kind: Literal["similarity"] = "similarity"
    story: ClassVar[str] = "compares the image and the prompt as wholes, by one model that was trained on both"
    chain: ClassVar[tuple[str, ...]] = ("similarities", "scores")
    model: str
    """Role of the model."""
    measure: Measure = "cosine"
    """`cosine` of the two embeddings; `logit`, the cosine in the scale that the model learnt; `match`, the probability
    that the two belong together; `reward`, of a head trained on people's choices."""
    compares: Compares = "prompt"
    """Compared inputs: the image with its `prompt`, or with the `caption` of the intended edit; an edited image with
    its `source`; the `change` from source to image with the change from the source's caption to the target's; or an
    `edit`, source and image in one question, with the prompt."""
    pixels: PixelRule = "processor"
    """Preprocessing of images: `processor`, by the checkpoint's configuration; `padded`, whole on a black square, as
    HPSv2's code does it; `released`, as CLIP's first code did."""
    rating: str | None = None
    """Name of the rating that is the score, for models whose number combines several; null is the combined number."""
    about: str = ""
    """Description for newcomers in the report, instead of the kind's story; completes a sentence that begins with the
    metric's name."""

    def __post_init__(self) -> None:
        Metric.__post_init__(self)
        if self.compares in ("source", "change") and self.measure != "cosine":
            raise ConfigError(
                f"{self.key_of('measure')}: expected cosine with compares={self.compares}, got {self.measure}"
            )

    @property
    def views(self) -> tuple[View, ...]:
        return VIEWS.get(self.compares, ("result",))

    @property
    def captions(self) -> tuple[str, ...]:
        return CAPTIONS.get(self.compares, ())

    @property
    def ranks(self) -> bool:
        """False for comparisons with the source: an editor that changes nothing is nearest to its source."""
        return self.compares != "source"

    @property
    def score_range(self) -> ScoreRange | None:
        """The range of a probability, or None: cosines never come near their limits, and rewards have no limits."""
        return SHARES if self.measure == "match" else None

    def comparing(self) -> dict[str, str]:
        asked: dict[str, str] = {"measure": self.measure}
        if self.compares != "prompt":
            asked["compares"] = self.compares
        return asked if self.pixels == "processor" else {**asked, "pixels": self.pixels}

    def text(self, prompt: str) -> str:
        return self.apply_word_order(prompt)

    def scoring(self) -> dict[str, str]:
        return {} if self.rating is None else {"rating": self.rating}

    def score(self, evidence: Evidence) -> Scored:
        """Return the model's number or one of its ratings, with all ratings."""
        ratings = None if evidence.row.get("ratings") is None else read_ratings(evidence.row)
        number = evidence.row["similarity"] if self.rating is None else ratings_by_name(ratings or ())[self.rating]
        return Scored(number, truncated=evidence.row["truncated"], ratings=ratings)
