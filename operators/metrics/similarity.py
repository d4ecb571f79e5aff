"""Every metric that is one number of one model about an image and its prompt: PickScore, ITM, ImageReward and others.

What the number is, is said by the family of the model; which of its numbers a metric takes, by `measure`. The named
ones are in conf/metric, their scales in docs/conventions.md.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.metrics.answered import Rating, Scored
from plumbline.operators.metrics.judged import values
from plumbline.operators.metrics.metric import SHARES, Evidence, Metric, ScoreRange, View
from plumbline.operators.models.calls import Compares, Measure, PixelRule

VIEWS: Mapping[Compares, tuple[View, ...]] = {
    "source": ("result", "source"),
    "change": ("result", "source"),
    "edit": ("edit",),
}
"""What is looked at where it is more than the image."""
CAPTIONS: Mapping[Compares, tuple[str, ...]] = {
    "caption": ("target_caption",),
    "change": ("target_caption", "source_caption"),
}


@dataclass(frozen=True, kw_only=True, slots=True)
class SimilarityConfig(Metric):
    """Which number of which model."""

    kind: Literal["similarity"] = "similarity"
    story: ClassVar[str] = "compares the image and the prompt as wholes, by one model that was trained on both"
    chain: ClassVar[tuple[str, ...]] = ("similarities", "scores")
    model: str
    """The role, among the sweep's models, of the model."""
    measure: Measure = "cosine"
    """`cosine` of the two embeddings; `logit`, the cosine in the scale that the model learnt; `match`, the probability
    that the two belong together; `reward`, of a head trained on people's choices."""
    compares: Compares = "prompt"
    """What is compared: the image with its `prompt`, or with the `caption` of what an edit was to make; an edited image
    with its `source`; the `change` from source to image with that from the source's caption to the target's; or an
    `edit`, source and image in one question, with the prompt."""
    pixels: PixelRule = "processor"
    """How images are made the model's input: `processor`, as its checkpoint says; `padded`, whole on a black square, as
    HPSv2's code does it; `released`, as CLIP's first code did."""
    rating: str | None = None
    """Which of the numbers that the model's number is made of is the score; null takes the whole."""
    about: str = ""
    """What the report tells a newcomer of it, in place of the kind's story; completes a sentence that begins with its
    name."""

    def __post_init__(self) -> None:
        Metric.__post_init__(self)
        if self.compares in ("source", "change") and self.measure != "cosine":
            raise ConfigError(
                f"{self.key_of('measure')}: expected cosine where compares={self.compares}, got {self.measure}"
            )

    @property
    def views(self) -> tuple[View, ...]:
        """What it looks at."""
        return VIEWS.get(self.compares, ("result",))

    @property
    def captions(self) -> tuple[str, ...]:
        """Which captions of the edit it reads."""
        return CAPTIONS.get(self.compares, ())

    @property
    def ranks(self) -> bool:
        """Whether one score is better than another: an editor that changes nothing is nearest to its source."""
        return self.compares != "source"

    @property
    def score_range(self) -> ScoreRange | None:
        """The range of a probability, or None: cosines come nowhere near their limits, and rewards have no limits."""
        return SHARES if self.measure == "match" else None

    def comparing(self) -> dict[str, str]:
        """All that decides what the model compares, and how it is put as a number."""
        asked: dict[str, str] = {"measure": self.measure}
        if self.compares != "prompt":
            asked["compares"] = self.compares
        return asked if self.pixels == "processor" else {**asked, "pixels": self.pixels}

    def text(self, prompt: str) -> str:
        """The text that images of a prompt, or of a caption, are compared with: that text."""
        return self.worded(prompt)

    def scoring(self) -> dict[str, str]:
        """Nothing where the model's number is the score."""
        return {} if self.rating is None else {"rating": self.rating}

    def score(self, evidence: Evidence) -> Scored:
        """The model's number, or one of those that it is made of, with all of them."""
        parts = evidence.row.get("ratings")
        ratings = None if parts is None else tuple(Rating(**part) for part in parts)
        number = evidence.row["similarity"] if self.rating is None else values(ratings or ())[self.rating]
        return Scored(number, truncated=evidence.row["truncated"], ratings=ratings)
