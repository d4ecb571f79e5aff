"""The text_similarities stage, which compares each image's caption or description with its prompt."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators.base import schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.similarities.word_overlap import WordNet, compute_meteor
from plumbline.operators.models.calls import ComparisonResult, TextEmbedder
from plumbline.operators.stages.derived import DerivedStage
from plumbline.operators.stages.programs import ProgramResults
from plumbline.operators.stages.similarities import make_similarity_columns, require_finite_similarity


@runtime_checkable
class TextSimilarityMetric(Protocol):
    """Protocol for metrics that compare prompts with texts about their images."""

    @property
    def text_stage(self) -> str:
        """Stage that writes the text: `captions` or `descriptions`."""

    def find_synonym_wordnet(self) -> WordNet | None: ...

    def list_text_similarity_options(self) -> dict[str, Any]:
        """Return the options of the comparison; METEOR is used if the metric has no `embedder` role."""


class TextSimilaritiesStage(DerivedStage):
    """Stage that compares captions or descriptions with prompts by cosine or METEOR (schema SIMILARITIES)."""

    name = "text_similarities"
    version = 1
    schema = schemas.SIMILARITIES
    metric_type = TextSimilarityMetric
    calls: ClassVar = {"embedder": "embedding"}
    optional_calls = frozenset({"embedder"})

    @classmethod
    def list_input_stages(cls, metric: Any) -> tuple[str, ...]:
        return (metric.text_stage,)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.list_text_similarity_options()}

    def make_image_inputs(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        if isinstance(text, RowError):
            return text
        (row,) = read.values()
        texts = row["descriptions"] if "descriptions" in row else [caption["text"] for caption in row["captions"]]
        return [(text, one) for one in texts]

    def run_images(self, images: Sequence[tuple[Any, tuple[str, str]]]) -> ProgramResults[ComparisonResult]:
        if "embedder" not in self.models:
            scores = [
                compute_meteor(about, prompt, metric.find_synonym_wordnet()) for metric, (prompt, about) in images
            ]
            return ProgramResults([ComparisonResult(score, False) for score in scores], Usage())
        embedder: TextEmbedder = self.models["embedder"]

        def embed_batch(batch: Sequence[str]) -> list[EmbeddedText]:
            encoded = embedder.encode_texts(batch)
            return list(zip(encoded.features, encoded.truncated, strict=True))

        texts = list(dict.fromkeys(text for _, pair in images for text in pair))
        embedded = dict(zip(texts, isolate(embed_batch, texts), strict=True))
        results = [_compare_embeddings(embedded[prompt], embedded[about]) for _, (prompt, about) in images]
        return ProgramResults(results, Usage(calls=len(texts)))

    def columns(self, results: Sequence[ComparisonResult]) -> dict[str, Any]:
        return make_similarity_columns(results)


EmbeddedText = tuple[Any, bool]
"""A unit-length embedding, and whether the text was truncated."""


def _compare_embeddings(first: EmbeddedText | RowError, second: EmbeddedText | RowError) -> ComparisonResult | RowError:
    if isinstance(first, RowError):
        return first
    if isinstance(second, RowError):
        return second
    return require_finite_similarity(ComparisonResult(float(first[0] @ second[0]), first[1] or second[1]))
