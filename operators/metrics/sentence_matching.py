"""CapCLIP, CapMETEOR, DescCLIP and DescMETEOR: the prompt beside a caption or description (llmscore.txt, 4.3)."""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from plumbline.operators.metrics.answered import Scored
from plumbline.operators.metrics.described import DESCRIBE, DescribedConfig
from plumbline.operators.metrics.metric import SHARES, Evidence, ScoreRange
from plumbline.operators.metrics.wordings.llmscore import LlmScoreRelease
from plumbline.operators.metrics.wordings.release import Release


@dataclass(frozen=True, kw_only=True, slots=True)
class SentenceMatchingConfig(DescribedConfig):
    """Which text is compared with the prompt, and how."""

    kind: Literal["sentence_matching"] = "sentence_matching"
    story: ClassVar[str] = "lets models say what an image shows, and compares that with the prompt as two sentences"
    embedder: str = "clip"
    """The role of the model whose text embeddings are compared; METEOR needs none."""
    text: Literal["caption", "description"] = "caption"
    """What is said of the image as a whole, or what a language model makes of that and of its regions."""
    measure: Literal["clip", "meteor"] = "clip"
    """`clip`: the cosine of the text embeddings; `meteor`: METEOR of exact words and stems."""

    @property
    def read_from(self) -> str:
        """The stage that says it."""
        return "captions" if self.text == "caption" else "descriptions"

    @property
    def chain(self) -> tuple[str, ...]:
        said = ("captions",) if self.text == "caption" else self.description_chain
        return (*said, "text_similarities", "scores")

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return () if self.text == "caption" else (LlmScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return () if self.text == "caption" else (DESCRIBE,)

    @property
    def roles(self) -> dict[str, str]:
        said = {"captioner": self.captioner} if self.text == "caption" else self.description_roles
        return {**said, "embedder": self.embedder} if self.measure == "clip" else said

    @property
    def score_range(self) -> ScoreRange | None:
        return SHARES if self.measure == "meteor" else None

    def matching(self) -> dict[str, Any]:
        """How the texts are compared."""
        return {"measure": self.measure}

    def scoring(self) -> dict[str, Any]:
        """Nothing: the similarity is the score."""
        return {}

    def score(self, evidence: Evidence) -> Scored:
        """The similarity."""
        return Scored(evidence.row["similarity"], truncated=evidence.row["truncated"])
