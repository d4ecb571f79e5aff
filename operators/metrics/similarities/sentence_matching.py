"""CapCLIP, CapMETEOR, DescCLIP and DescMETEOR, which compare the prompt with a caption or description.

They are defined in llmscore.txt, sec. 4.3.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from plumbline.operators.base.errors import ConfigError
from plumbline.operators.base.extensions import require_extra
from plumbline.operators.metrics.judges.llmscore import DESCRIBE_TEMPLATE, DescriptionMetricConfig, LlmScoreRelease
from plumbline.operators.metrics.metric import SHARE_RANGE, Evidence, Scored, ScoreRange
from plumbline.operators.metrics.similarities.word_overlap import WordNet, find_wordnet
from plumbline.operators.metrics.wording import Release, WordedMetric

if TYPE_CHECKING:
    from plumbline.operators.models.vqa_profiles import VqaProfile


@dataclass(frozen=True, kw_only=True, slots=True)
class SentenceMatchingConfig(DescriptionMetricConfig):
    kind: Literal["sentence_matching"] = "sentence_matching"
    story: ClassVar[str] = "lets models describe the image in words, and compares this text with the prompt"
    embedder: str = "clip"
    """Role of the model whose text embeddings are compared; not used by METEOR."""
    text: Literal["caption", "description"] = "caption"
    """The text about the image: a caption, or a description that a language model writes from caption and regions."""
    measure: Literal["clip", "meteor"] = "clip"
    """`clip`: cosine of the text embeddings; `meteor`: METEOR with exact words and stems."""
    wordnet: str | None = None
    """Folder with the files of WordNet, such as nltk_data/corpora/wordnet. If set, METEOR also matches synonyms.
    Nothing is downloaded.
    """
    wordnet_digest: str | None = None
    """Digest of the WordNet files; the plan fills it in, and workers reject other files."""

    def __post_init__(self) -> None:
        WordedMetric.__post_init__(self)
        if self.wordnet is not None and self.measure != "meteor":
            raise ConfigError(f"{self.format_key('wordnet')}: only measure=meteor matches synonyms; leave it out")

    def complete_options(self, profile_of: "Callable[[str], VqaProfile]") -> Self:
        """Return the metric with its WordNet digest filled in; raise ConfigError if files are missing or changed.

        Raise MissingExtraError if METEOR is not installed.
        """
        metric = DescriptionMetricConfig.complete_options(self, profile_of)
        if metric.measure == "meteor":
            require_extra("captions", f"metric {self.kind} with measure=meteor")
        if metric.wordnet is None:
            return metric
        try:
            found = find_wordnet(metric.wordnet)
        except ConfigError as error:
            raise ConfigError(f"{self.format_key('wordnet')}: {error}") from error
        if metric.wordnet_digest not in (None, found.digest):
            raise ConfigError(
                f"{self.format_key('wordnet')}: the WordNet in {found.folder} does not match wordnet_digest; "
                f"restore its "
                "files, or leave wordnet_digest out"
            )
        return replace(metric, wordnet=found.folder, wordnet_digest=found.digest)

    @property
    def text_stage(self) -> str:
        """Name of the stage that writes the text."""
        return "captions" if self.text == "caption" else "descriptions"

    @property
    def chain(self) -> tuple[str, ...]:
        before = ("captions",) if self.text == "caption" else self.description_chain
        return (*before, "text_similarities", "scores")

    @property
    def releases(self) -> tuple[type[Release], ...]:
        return () if self.text == "caption" else (LlmScoreRelease,)

    @property
    def templates(self) -> tuple[str, ...]:
        return () if self.text == "caption" else (DESCRIBE_TEMPLATE,)

    @property
    def roles(self) -> dict[str, str]:
        roles = {"captioner": self.captioner} if self.text == "caption" else self.description_roles
        return {**roles, "embedder": self.embedder} if self.measure == "clip" else roles

    @property
    def score_range(self) -> ScoreRange | None:
        return SHARE_RANGE if self.measure == "meteor" else None

    def list_text_similarity_options(self) -> dict[str, Any]:
        """Return a mapping of the comparison's options, including WordNet's digest if synonyms count as matches."""
        synonyms = self.find_synonym_wordnet()
        return {"measure": self.measure} | ({} if synonyms is None else {"wordnet": synonyms.digest})

    def find_synonym_wordnet(self) -> WordNet | None:
        """Return the WordNet from which METEOR takes synonyms; None if synonyms do not count."""
        if self.wordnet is None:
            return None
        digest = self.wordnet_digest
        return find_wordnet(self.wordnet) if digest is None else WordNet(self.wordnet, digest)

    def list_score_options(self) -> dict[str, Any]:
        return {}

    def score(self, evidence: Evidence) -> Scored:
        return Scored(evidence.row["similarity"], truncated=evidence.row["truncated"])
