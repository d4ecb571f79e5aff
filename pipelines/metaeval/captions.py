"""Scores captions against references: BLEU-4, METEOR, ROUGE-L, CIDEr, RefCLIPScore (VQAScore, table 18)."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import ConfigError, RowError, SourceError
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig
from plumbline.operators.metrics.similarities.word_overlap import (
    Cider,
    Words,
    compute_best_meteor,
    compute_bleu_4,
    compute_ref_clipscore,
    compute_rouge_l,
    split_words,
)
from plumbline.operators.models.calls import TextEmbedder
from plumbline.operators.models.families.any_model import AnyModel
from plumbline.operators.models.resolution import resolve_model
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.base.tables import require_object
from plumbline.pipelines.metaeval.releases.scores import read_scores
from plumbline.pipelines.metaeval.releases.sheets import (
    SEE_EXAMPLE_REMEDY,
    name_row,
    read_image_rows,
    read_objects,
    require_list,
    require_text,
)
from plumbline.pipelines.metaeval.scores_source import ScoresSource
from plumbline.pipelines.sources.input_columns import DEFAULT_COLUMN_NAMES
from plumbline.pipelines.sources.shards import hash_text

REF_CLIPSCORE_METRIC = "refclipscore"
MAX_TEXT_CHARACTERS = 2_000  # maximum length of a text, because METEOR and ROUGE-L compare every pair of words
MAX_REFERENCES = 100
TEXTS_PER_BATCH = 256  # number of texts that a model embeds at once
NO_CLIPSCORE_ERROR = RowError(
    "not_scored", "the scores have no CLIPScore for the image and caption; score the pair first"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CaptionsConfig(ScoresSource):
    captions: str
    """A table (.csv, .tsv, .jsonl or .parquet) with a row for each image and caption: image_id or the image's path,
    caption, references (a list, or strings separated by semicolons), and prompt_id if captions have ids. Or the file
    crowdflower_flickr8k.json of jmhessel/clipscore.
    """
    output: str
    """Parquet file for the scores."""
    metric: str = "clipscore"
    """Name of the original CLIPScore among the scores of `run` or `scores`; RefCLIPScore requires it."""
    models: Mapping[str, AnyModel]
    """Models by role; `clip` computes the text embeddings for RefCLIPScore."""


class Caption(NamedTuple):
    """A caption, with human-written captions of the same image as references."""

    image_id: str
    prompt_id: str
    text: str
    references: Sequence[str]

    @property
    def error(self) -> RowError | None:
        """The reason why the caption cannot be scored; None if it can."""
        if not split_words(self.text):
            return RowError("no_caption", "the caption contains no words; fill it in, or leave the row out")
        if not self.references or not all(map(split_words, self.references)):
            return RowError(
                "no_reference", "there is no reference, or one has no words; add references that describe the image"
            )
        if len(self.references) > MAX_REFERENCES or max(map(len, (self.text, *self.references))) > MAX_TEXT_CHARACTERS:
            expected = f"expected at most {MAX_REFERENCES} references, and {MAX_TEXT_CHARACTERS:,} characters of a text"
            return RowError("too_long", f"{expected}; leave some out")
        return None


def read_captions(place: Place) -> list[Caption]:
    """Read the captions and drop exact duplicates; raise SourceError naming the file and the first invalid row."""
    rows = _read_release(place) if place.path.lower().endswith(".json") else _read_table(place)
    found: dict[tuple[str, str], Caption] = {}
    for where, caption in rows:
        known = found.setdefault((caption.image_id, caption.prompt_id), caption)
        if known != caption:
            raise SourceError(
                f"{where}: image {caption.image_id!r} has another caption or other references with prompt_id "
                f"{caption.prompt_id!r} in an earlier row; give each its own prompt_id"
            )
    return list(found.values())


def _read_table(place: Place) -> Iterator[tuple[str, Caption]]:
    """Yield (location, caption) for each row; the location is for messages.

    A missing prompt id is replaced by a hash of the caption, as plumbline score does for the same table.
    """
    sheet, names, image = read_image_rows(place, ("references", "prompt_id", *DEFAULT_COLUMN_NAMES["prompt"]))
    caption = names.prompt or "caption"
    sheet.require([image, caption, "references"], SEE_EXAMPLE_REMEDY)
    columns = (sheet.ids(image), sheet.texts(names.prompt_id or ""), sheet.texts(caption), sheet.lists("references"))
    for row, (image_id, prompt_id, text, references) in enumerate(zip(*columns, strict=True)):
        yield sheet.where(row), Caption(image_id, prompt_id or hash_text(text or ""), text or "", references)


def _read_release(place: Place) -> Iterator[tuple[str, Caption]]:
    """Yield (location, caption) for each judged caption of every image; the location is for messages.

    A caption's id is its text, as in protocol=flickr8k_cf.
    """
    for row, (image_id, record) in enumerate(read_objects(place).items()):
        where = name_row(place.url, row, image_id)
        listed = require_list(record.get("ground_truth"), "references (ground_truth)", where)
        references = [require_text({"reference": text}, "reference", where) for text in listed]
        for number, judged in enumerate(
            require_list(record.get("human_judgement"), "captions (human_judgement)", where)
        ):
            at = f"{where}, caption {number}"
            text = require_text(require_object(judged, at), "caption", at)
            yield at, Caption(image_id, text, text, references)


def score_captions(config: CaptionsConfig) -> pa.Table:
    """Return the scores of all captions (schema SCORES), one measure after another.

    Raises SourceError naming the file and the first invalid row.
    """
    captions = read_captions(config.storage.locate(config.captions))
    table, clipscores = config.locate_scores(), None
    if table is not None:
        if "clip" not in config.models:
            raise ConfigError(
                "models.clip: RefCLIPScore requires a model that embeds texts; set model@models.clip=clip_vit_b32"
            )
        clipscores = _read_clipscores(table, config.metric)
    measures = make_text_measures([caption for caption in captions if caption.error is None])
    records = [
        _make_row(caption, name, caption.error or measure(caption))
        for name, measure in measures.items()
        for caption in captions
    ]
    if clipscores is not None:
        from plumbline.operators.models.loading import load  # imports torch

        embedder: TextEmbedder = load(resolve_model(config.models["clip"], on_gpu=False), "embedding")
        records += _compute_ref_clipscores(captions, clipscores, embedder)
    return rows.table(records, schemas.SCORES)


def make_text_measures(captions: Sequence[Caption]) -> Mapping[str, Callable[[Caption], float]]:
    """Return the measures that need no model, by name. CIDEr's weights depend on the references of all captions."""
    by_image: dict[str, dict[str, Words]] = {}
    for caption in captions:
        by_image.setdefault(caption.image_id, {}).update((text, split_words(text)) for text in caption.references)
    cider = Cider([[*words.values()] for words in by_image.values()])

    def apply_to_words(measure: Callable[[Words, Sequence[Words]], float]) -> Callable[[Caption], float]:
        return lambda caption: measure(
            split_words(caption.text), [by_image[caption.image_id][text] for text in caption.references]
        )

    return {
        "bleu_4": apply_to_words(compute_bleu_4),
        "meteor": lambda caption: compute_best_meteor(caption.text, caption.references),
        "rouge_l": apply_to_words(compute_rouge_l),
        "cider": apply_to_words(cider.score),
    }


def _make_row(caption: Caption, metric: str, found: float | RowError, truncated: bool | None = None) -> dict[str, Any]:
    error = found if isinstance(found, RowError) else None
    ids = {"image_id": caption.image_id, "prompt_id": caption.prompt_id, "metric": metric, "truncated": truncated}
    return {**ids, "score": None if error else found, "error": rows.error_to_dict(error)}


def _read_clipscores(table: Place, metric: str) -> dict[tuple[str, str], float]:
    """Return CLIPScores by image id and caption id; raise SourceError if they are not on the original scale."""
    scores = read_scores(table, [metric]).to_pandas().dropna(subset=["score", "image_id", "prompt_id"])
    if (scores["score"] < 0).any():
        raise SourceError(
            f"{table.url}: expected {metric} of 0 or more, like the original CLIPScore, found "
            f"{scores['score'].min():.3f}; score the images with metrics.{metric}.variant=original"
        )
    return dict(zip(zip(scores["image_id"], scores["prompt_id"], strict=True), scores["score"], strict=True))


def _compute_ref_clipscores(
    captions: Sequence[Caption], clipscores: Mapping[tuple[str, str], float], embedder: TextEmbedder
) -> Iterator[dict[str, Any]]:
    add_prefix = ClipScoreConfig(variant="original").text
    texts = sorted(
        {text for caption in captions if caption.error is None for text in (caption.text, *caption.references)}
    )
    features: dict[str, Any] = {}
    truncated: dict[str, bool] = {}
    for first in range(0, len(texts), TEXTS_PER_BATCH):
        batch = texts[first : first + TEXTS_PER_BATCH]
        encoded = embedder.encode_texts([add_prefix(text) for text in batch])
        features.update(zip(batch, encoded.features, strict=True))
        truncated.update(zip(batch, encoded.truncated, strict=True))
    for caption in captions:
        clipscore = clipscores.get((caption.image_id, caption.prompt_id))
        if caption.error is not None:
            yield _make_row(caption, REF_CLIPSCORE_METRIC, caption.error)
        elif clipscore is None:
            yield _make_row(caption, REF_CLIPSCORE_METRIC, NO_CLIPSCORE_ERROR)
        else:
            cosines = [float(features[caption.text] @ features[text]) for text in caption.references]
            is_truncated = any(truncated[text] for text in (caption.text, *caption.references))
            yield _make_row(caption, REF_CLIPSCORE_METRIC, compute_ref_clipscore(clipscore, cosines), is_truncated)


def write_captions(config: CaptionsConfig) -> pa.Table:
    """Score captions, write the scores to a file that jobs.metaeval can read, and return the scores."""
    scores = score_captions(config)
    config.storage.locate(config.output, writable=True).write_table(scores)
    return scores
