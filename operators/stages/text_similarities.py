"""The text_similarities stage: similarity of each image's caption or description to its prompt."""

import math
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, ClassVar, Protocol, runtime_checkable

from plumbline.operators.base import schemas
from plumbline.operators.base.batches import isolate
from plumbline.operators.base.errors import RowError
from plumbline.operators.base.usage import Usage
from plumbline.operators.metrics.similarities.meteor import WordNet, meteor
from plumbline.operators.models.calls import Compared, TextEmbedder
from plumbline.operators.stages.derived import DerivedStage, ImageMaterial
from plumbline.operators.stages.programs import ProgramResults


@runtime_checkable
class MatchingMetric(Protocol):
    """A metric that compares prompts with texts about their images."""

    @property
    def read_from(self) -> str:
        """Stage that writes the text: `captions` or `descriptions`."""

    def find_synonyms(self) -> WordNet | None: ...

    def matching(self) -> dict[str, Any]:
        """Return how the texts are compared; without an embedder, by METEOR."""


class TextSimilaritiesStage(DerivedStage):
    """Captions or descriptions and prompts to similarities (schema SIMILARITIES): cosines of embeddings, or METEOR."""

    name = "text_similarities"
    version = 1
    schema = schemas.SIMILARITIES
    needs = MatchingMetric
    calls: ClassVar = {"embedder": "embedding"}
    optional = frozenset({"embedder"})

    @classmethod
    def reads(cls, metric: Any) -> tuple[str, ...]:
        return (metric.read_from,)

    @classmethod
    def recipe(cls, name: str, metric: Any) -> dict[str, Any]:
        return {"asking": metric.matching()}

    def materials(
        self, metric: Any, read: Mapping[str, Mapping[str, Any]], text: str | RowError
    ) -> list[Any] | RowError:
        if isinstance(text, RowError):
            return text
        (row,) = read.values()
        texts = row["descriptions"] if "descriptions" in row else [caption["text"] for caption in row["captions"]]
        return [(text, one) for one in texts]

    def make(self, wanted: Sequence[ImageMaterial]) -> ProgramResults[Compared]:
        pairs = [one.material for one in wanted]
        if "embedder" not in self.models:
            synonyms = [self.metrics[one.metric].find_synonyms() for one in wanted]
            pairs_and_synonyms = zip(pairs, synonyms, strict=True)
            return ProgramResults(
                [Compared(meteor(about, text, own), False) for (text, about), own in pairs_and_synonyms], Usage()
            )
        embedded = _embed(self.models["embedder"], list(dict.fromkeys(text for pair in pairs for text in pair)))
        return ProgramResults(
            [_compare(embedded[text], embedded[about]) for text, about in pairs], Usage(calls=len(embedded))
        )

    def columns(self, made: Sequence[Compared]) -> dict[str, Any]:
        similarities = [one.similarity for one in made]
        columns = {"similarity": fmean(similarities), "truncated": any(one.truncated for one in made)}
        return columns if len(made) == 1 else {**columns, "images": similarities}


Embedded = tuple[Any, bool]
"""A unit-length embedding, and whether the text was cut."""


def _embed(embedder: TextEmbedder, texts: Sequence[str]) -> dict[str, Embedded | RowError]:
    """Return every text's embedding, or its error."""

    def embed(batch: Sequence[str]) -> list[Embedded]:
        encoded = embedder.encode_texts(batch)
        return list(zip(encoded.features, encoded.truncated, strict=True))

    return dict(zip(texts, isolate(embed, texts), strict=True))


def _compare(first: Embedded | RowError, second: Embedded | RowError) -> Compared | RowError:
    if isinstance(first, RowError):
        return first
    if isinstance(second, RowError):
        return second
    cosine = float(first[0] @ second[0])
    if not math.isfinite(cosine):
        return RowError("not_finite", f"the similarity is {cosine}; try dtype=float32")
    return Compared(cosine, first[1] or second[1])
