"""Metrics whose score is one number that a model returns for an image and its prompt: PickScore, ITM, ImageReward etc.

The model's family defines the number; if a model has several, `measure` selects one. The named metrics are in
conf/metric, and their scales in docs/conventions.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.judges.judge import map_ratings, read_ratings
from plumbline.operators.metrics.metric import SHARE_RANGE, Evidence, Metric, Scored, ScoreRange, View
from plumbline.operators.models.calls import ComparisonTarget, Measure, PixelRule

VIEWS_BY_COMPARISON: Mapping[ComparisonTarget, tuple[View, ...]] = {
    "source": ("result", "source"),
    "change": ("result", "source"),
    "edit": ("edit",),
}
"""Views of the images, for comparisons that involve more than the scored image."""
CAPTIONS_BY_COMPARISON: Mapping[ComparisonTarget, tuple[str, ...]] = {
    "caption": ("target_caption",),
    "change": ("target_caption", "source_caption"),
}
MEASURES_OF_TEXTS: tuple[Measure, ...] = ("cosine", "logit", "match", "reward")
"""Measures of an image and a text."""
MEASURES_BY_COMPARISON: Mapping[ComparisonTarget, tuple[Measure, ...]] = {
    "source": ("cosine", "distance"),
    "change": ("cosine",),
}
"""Measures for comparisons that involve two images; all other comparisons have MEASURES_OF_TEXTS."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SimilarityConfig(Metric):
    kind: Literal["similarity"] = "similarity"
    story: ClassVar[str] = "compares the whole image with the whole prompt, using one model that was trained on both"
    chain: ClassVar[tuple[str, ...]] = ("similarities", "scores")
    model: str
    """Role of the model."""
    measure: Measure = "cosine"
    """`cosine`: cosine of the two embeddings; `logit`: the cosine multiplied by the model's learned scale; `match`: the
    probability that image and text belong together; `reward`: output of a head trained on human preferences;
    `distance`: how much two images differ, 0 for equal ones (only with compares=source).
    """
    compares: ComparisonTarget = "prompt"
    """Inputs of the comparison. `prompt`: the image and its prompt; `caption`: the image and the caption of the
    intended edit; `source`: an edited image and its source; `change`: the change from source to image and the change
    from the source's caption to the target's; `edit`: source and image together, in one question, and the prompt;
    `image`: the image alone, without its prompt.
    """
    pixels: PixelRule = "processor"
    """Preprocessing of the images. `processor`: as configured in the checkpoint; `padded`: the whole image on a black
    square, as in HPSv2's code; `released`: as in CLIP's original code.
    """
    rating: str | None = None
    """Name of the rating to use as the score, for models that combine several; null uses the combined number."""
    about: str = ""
    """Description for newcomers in the report, replacing the default story of this kind of metric. It completes a
    sentence that begins with the metric's name.
    """

    def __post_init__(self) -> None:
        Metric.__post_init__(self)
        allowed = MEASURES_BY_COMPARISON.get(self.compares, MEASURES_OF_TEXTS)
        if self.measure not in allowed:
            raise ConfigError(
                f"{self.format_key('measure')}: expected {' or '.join(allowed)} with compares={self.compares}, got "
                f"{self.measure}"
            )

    @property
    def views(self) -> tuple[View, ...]:
        return VIEWS_BY_COMPARISON.get(self.compares, ("result",))

    @property
    def captions(self) -> tuple[str, ...]:
        return CAPTIONS_BY_COMPARISON.get(self.compares, ())

    @property
    def ranks(self) -> bool:
        """Return False for comparisons with the source, because an editor that changes nothing would score best."""
        return self.compares != "source"

    @property
    def reads_prompt(self) -> bool:
        return self.compares not in ("image", "source")

    @property
    def score_range(self) -> ScoreRange | None:
        """Range of a probability; None for cosines, which stay far from their bounds, and for unbounded rewards."""
        return SHARE_RANGE if self.measure == "match" else None

    def list_similarity_options(self) -> dict[str, str]:
        asked: dict[str, str] = {"measure": self.measure}
        if self.compares != "prompt":
            asked["compares"] = self.compares
        return asked if self.pixels == "processor" else {**asked, "pixels": self.pixels}

    def text(self, prompt: str) -> str:
        return self.apply_word_order(prompt)

    def list_score_options(self) -> dict[str, str]:
        return {} if self.rating is None else {"rating": self.rating}

    def score(self, evidence: Evidence) -> Scored:
        """Return the similarity or, if the `rating` option is set, that rating, with all ratings as details."""
        ratings = None if evidence.row.get("ratings") is None else read_ratings(evidence.row)
        number = evidence.row["similarity"] if self.rating is None else map_ratings(ratings or ())[self.rating]
        return Scored(number, truncated=evidence.row["truncated"], ratings=ratings)
