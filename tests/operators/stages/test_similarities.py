"""Every image gets its cosine similarity to the prompt's text, or an error instead."""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, get_args

import numpy as np
import pyarrow as pa
import pytest
import torch
from PIL import Image

from plumbline.operators.base import schemas
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig, Variant
from plumbline.operators.models.calls import ComparisonResult, Measure, Pair, PixelRule, SimilarityModel, TextFeatures
from plumbline.operators.models.families.dual_encoders import ClipSimilarity
from plumbline.operators.models.networks import similarity as similarity_module
from plumbline.operators.models.networks.similarity import DualEncoder
from plumbline.operators.stages.similarities import PromptTexts, SimilaritiesStage
from tests.operators.stages.given import decode, make_options
from tests.operators.tiny import CONTEXT_TOKENS, draw_image, encode_image, make_image_table

FITTING_TEXT = " ".join(["star"] * (CONTEXT_TOKENS - 2))
"""A text that fills the context exactly, including the first and last token."""
PROMPTS = {"p0": "a red circle", "p1": "two blue star", "p2": FITTING_TEXT, "p3": FITTING_TEXT + " left"}
PNG_IMAGES = [encode_image(draw_image(number)) for number in range(6)]
PROMPT_IDS = ["p0", "p1", "p2", "p3", "p0", "p1"]
COSINE_METRICS = {"clipscore": ClipScoreConfig()}


class CountingModel(DualEncoder):
    """A real model that records texts, counts images, and fails on selected images."""

    def __init__(self, model: ClipSimilarity) -> None:
        super().__init__()
        self.model = model
        self.images = 0
        self.texts: list[str] = []
        self.failing: set[str] = set()

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> torch.Tensor:
        return self.model.preprocess(image, rule)

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.images += len(pixels)
        return self.model.encode(pixels)

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        if self.failing & set(texts):
            raise RuntimeError("CUDA out of memory")
        self.texts += texts
        return self.model.encode_texts(texts)


class ScriptedModel(DualEncoder):
    """A model that embeds every image as (1, 0) and every text as scripted."""

    def __init__(self, text: Sequence[float]) -> None:
        super().__init__()
        self.text = torch.tensor(text)

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> torch.Tensor:
        return torch.tensor([float(image.width)])

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        if any(pixel.item() == 13 for pixel in pixels):
            raise ValueError("the image is 13 pixels wide")
        return [torch.tensor([1.0, 0.0]) for _ in pixels]

    def encode_texts(self, texts: Sequence[str]) -> TextFeatures:
        return TextFeatures(self.text.repeat(len(texts), 1), [False] * len(texts))


def make_stage(model: SimilarityModel, *, image_batch: int = 100) -> SimilaritiesStage:
    every_rule = {variant: ClipScoreConfig(variant=variant) for variant in get_args(Variant)}
    return SimilaritiesStage(every_rule, {"model": model}, make_options(image_batch=image_batch))


def compare(
    operator: SimilaritiesStage,
    images: pa.Table,
    prompts: Mapping[str, str] = PROMPTS,
    metrics: Mapping[str, ClipScoreConfig] = COSINE_METRICS,
) -> dict[str, pa.Table]:
    texts = {name: PromptTexts(prompts, metric) for name, metric in metrics.items()}
    return dict(operator.measure(decode(operator, images), texts))


def list_error_kinds(table: pa.Table) -> list[str | None]:
    return [error and error["kind"] for error in table["error"].to_pylist()]


def compute_cosine(model: ClipSimilarity, seed: int, text: str) -> float:
    """Return the cosine of the transformers model's own embeddings, computed unbatched in float64."""
    pixels = model.batch([model.preprocess(draw_image(seed))])
    tokens = model.tokenizer([text], truncation=True, max_length=CONTEXT_TOKENS, return_tensors="pt")
    with torch.inference_mode():
        image = model.model.get_image_features(pixel_values=pixels).pooler_output[0].double().numpy()
        words = model.model.get_text_features(input_ids=tokens.input_ids).pooler_output[0].double().numpy()
    return float(image @ words / np.linalg.norm(image) / np.linalg.norm(words))


@pytest.mark.parametrize("image_batch", [1, 4, 100])
def test_the_similarity_is_the_cosine_of_image_and_text(similarity: ClipSimilarity, image_batch: int) -> None:
    operator = make_stage(similarity, image_batch=image_batch)
    table = compare(operator, make_image_table(PNG_IMAGES, PROMPT_IDS))["clipscore"]
    expected = [compute_cosine(similarity, seed, PROMPTS[name]) for seed, name in enumerate(PROMPT_IDS)]
    assert np.ptp(expected) > 0.1, "the pairs must differ, or the test would prove nothing"
    assert table["similarity"].to_pylist() == pytest.approx(expected, abs=1e-5)


def test_the_prefix_of_the_variant_is_embedded_with_the_text(similarity: ClipSimilarity) -> None:
    metrics = {"original": ClipScoreConfig(variant="original"), "torchmetrics": ClipScoreConfig(variant="torchmetrics")}
    tables = compare(make_stage(similarity), make_image_table(PNG_IMAGES[:1], ["p0"]), metrics=metrics)
    with_prefix = compute_cosine(similarity, 0, "a photo depicts a red circle")
    without = compute_cosine(similarity, 0, "a red circle")
    assert abs(with_prefix - without) > 0.01
    assert tables["original"]["similarity"].to_pylist() == pytest.approx([with_prefix], abs=1e-5)
    assert tables["torchmetrics"]["similarity"].to_pylist() == pytest.approx([without], abs=1e-5)


def test_the_original_reads_a_palette_image_as_released_and_the_others_by_their_processor(
    similarity: ClipSimilarity,
) -> None:
    stored = draw_image(0, width=70, height=48).convert("P")
    metrics = {variant: ClipScoreConfig(variant=variant) for variant in get_args(Variant)}
    tables = compare(make_stage(similarity), make_image_table([encode_image(stored)], ["p0"]), metrics=metrics)
    rgb, text = stored.convert("RGB"), similarity.encode_texts
    nearest = similarity.preprocess(rgb.resize((46, 32), Image.Resampling.NEAREST).crop((7, 0, 39, 32)))
    released = similarity.encode([nearest])[0] @ text(["a photo depicts a red circle"]).features[0]
    processed = similarity.encode([similarity.preprocess(rgb)])[0] @ text(["a red circle"]).features[0]
    found = {name: table["similarity"][0].as_py() for name, table in tables.items()}
    assert found["original"] == pytest.approx(float(released), abs=1e-5)
    assert found["cosine"] == found["torchmetrics"] == pytest.approx(float(processed), abs=1e-5)


def test_a_text_beyond_the_context_is_truncated_and_reported(similarity: ClipSimilarity) -> None:
    table = compare(make_stage(similarity), make_image_table([PNG_IMAGES[0]] * 4, ["p0", "p1", "p2", "p3"]))[
        "clipscore"
    ]
    assert table["truncated"].to_pylist() == [False, False, False, True]
    _, _, fitting, cut = table["similarity"].to_pylist()
    assert cut == pytest.approx(fitting, abs=1e-6), "the only different word was cut off"


def test_a_text_that_fits_only_without_the_prefix_is_truncated_with_it(similarity: ClipSimilarity) -> None:
    metrics = {"cosine": ClipScoreConfig(), "original": ClipScoreConfig(variant="original")}
    tables = compare(make_stage(similarity), make_image_table(PNG_IMAGES[:1], ["p2"]), metrics=metrics)
    assert [tables[name]["truncated"].to_pylist() for name in metrics] == [[False], [True]]


def test_each_text_is_embedded_once_across_metrics_and_shards(similarity: ClipSimilarity) -> None:
    model = CountingModel(similarity)
    operator = make_stage(model)
    metrics = {variant: ClipScoreConfig(variant=variant) for variant in ("cosine", "torchmetrics", "original")}
    first = compare(operator, make_image_table(PNG_IMAGES, PROMPT_IDS), metrics=metrics)
    second = compare(operator, make_image_table(PNG_IMAGES[:3], ["p1", "p1", "p0"]), metrics=metrics)
    texts = list(PROMPTS.values())
    assert sorted(model.texts) == sorted(texts + ["a photo depicts " + text for text in texts])
    assert model.images == 2 * (6 + 3), "once with the processor's pixels and once with the released ones"
    assert second["cosine"]["similarity"][2] != first["cosine"]["similarity"][0], "another image, the same text"
    remembered = second["cosine"]["similarity"][1].as_py()
    assert remembered == pytest.approx(compute_cosine(similarity, 1, PROMPTS["p1"]), abs=1e-5)


@pytest.mark.parametrize("decoders", [1, 2])
def test_rows_with_the_same_image_encode_it_once(similarity: ClipSimilarity, decoders: int) -> None:
    model, seeds = CountingModel(similarity), [1, 0, 1, 1, 0, 2]
    stage = make_stage(model)
    images = make_image_table([PNG_IMAGES[seed] for seed in seeds], PROMPT_IDS)
    prepared = decode(stage, images, decoders=decoders)
    (table,) = stage.measure(prepared, {"clipscore": PromptTexts(PROMPTS, ClipScoreConfig())}).values()
    expected = [compute_cosine(similarity, seed, PROMPTS[name]) for seed, name in zip(seeds, PROMPT_IDS, strict=True)]
    assert table["similarity"].to_pylist() == pytest.approx(expected, abs=1e-5)
    assert model.images == 3


def test_forgetting_old_texts_changes_no_result(similarity: ClipSimilarity, monkeypatch: pytest.MonkeyPatch) -> None:
    shards = [
        make_image_table(PNG_IMAGES[:2], ["p0", "p1"]),
        make_image_table(PNG_IMAGES[2:4], ["p2", "p3"]),
    ] * 2
    remembering = make_stage(CountingModel(similarity))
    expected = [compare(remembering, shard)["clipscore"] for shard in shards]
    monkeypatch.setattr(similarity_module, "MAX_REMEMBERED_TEXTS", 1)
    model = CountingModel(similarity)
    forgetting = make_stage(model)
    assert [compare(forgetting, shard)["clipscore"] for shard in shards] == expected
    assert len(model.texts) == 8
    assert len(model.embedded) == 2


def test_a_text_that_failed_is_tried_again_with_the_next_shard(similarity: ClipSimilarity) -> None:
    model = CountingModel(similarity)
    operator = make_stage(model)
    images = make_image_table(PNG_IMAGES[:2], ["p0", "p1"])
    model.failing = {PROMPTS["p0"]}
    failed = compare(operator, images)["clipscore"]
    assert list_error_kinds(failed) == ["model_failed", None]
    assert failed["error"][0]["retryable"].as_py()
    model.failing = set()
    assert list_error_kinds(compare(operator, images)["clipscore"]) == [None, None]


@pytest.mark.parametrize("image_batch", [1, 2, 100])
def test_bad_images_keep_their_rows_and_do_not_affect_the_others(image_batch: int) -> None:
    wide = [encode_image(draw_image(0, width=width)) for width in (10, 13, 11)]
    images = make_image_table(
        [b"broken", wide[0], None, wide[1], wide[2], *[wide[2]] * 4], ["p0"] * 5 + [None, "p99", "none", "blank"]
    )
    metrics = {variant: ClipScoreConfig(variant=variant) for variant in ("cosine", "original")}
    operator = make_stage(ScriptedModel([0.6, 0.8]), image_batch=image_batch)
    expected = ["corrupt_image", None, "missing_image", "model_failed", None, "missing_prompt_id", "unknown_prompt"]
    expected += ["empty_prompt"] * 2  # even for the variant with a prefix
    for table in compare(operator, images, {**PROMPTS, "none": "", "blank": " \n"}, metrics).values():
        assert table["image_id"].to_pylist() == [f"i{number}" for number in range(9)]
        assert list_error_kinds(table) == expected and "'p99'" in table["error"][6]["message"].as_py()
        similarities = [number and round(number, 6) for number in table["similarity"].to_pylist()]
        assert similarities == [None if kind else 0.6 for kind in expected]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_a_cosine_that_is_not_a_number_is_an_error_and_never_stored(number: float) -> None:
    table = compare(make_stage(ScriptedModel([number, 0.0])), make_image_table(PNG_IMAGES[:1], ["p0"]))["clipscore"]
    assert list_error_kinds(table) == ["not_finite"]
    assert table["similarity"].to_pylist() == [None]


def test_the_table_has_exactly_the_similarities_schema() -> None:
    operator = make_stage(ScriptedModel([1.0, 0.0]))
    full = compare(operator, make_image_table(PNG_IMAGES[:1], ["p0"]))["clipscore"]
    empty = compare(operator, make_image_table([], []))["clipscore"]
    assert full.schema == empty.schema == schemas.SIMILARITIES
    assert empty.num_rows == 0
    expected: dict[str, Any] = {"image_id": "i0", "prompt_id": "p0", "generator": "gen", "similarity": 1.0}
    basis = full.column("basis").to_pylist()[0]
    digest = hashlib.sha256(PNG_IMAGES[0]).hexdigest()[:16]
    expected |= {
        "truncated": False,
        "error": None,
        "image_digest": digest,
        "basis": basis,
        "images": None,
        "ratings": None,
    }
    assert full.to_pylist() == [expected]
    again, other = (compare(operator, make_image_table(PNG_IMAGES[:1], [one]))["clipscore"] for one in ("p0", "p1"))
    assert again.column("basis").to_pylist() == [basis] != other.column("basis").to_pylist()


class JointModel:
    """A reward model that reads image and text together, records them, and returns a number that is not a cosine."""

    def __init__(self) -> None:
        self.encoded = 0

    def preprocess(self, image: Image.Image, rule: PixelRule = "processor") -> torch.Tensor:
        return torch.tensor([float(image.width)])

    def encode(self, pixels: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
        self.encoded += len(pixels)
        return pixels

    def compare(
        self, features: Sequence[torch.Tensor], pairs: Sequence[Pair], measure: Measure = "cosine"
    ) -> list[ComparisonResult]:
        if any("thirteen" in pair.text for pair in pairs):
            raise ValueError("the text contains thirteen")
        return [ComparisonResult(float(features[pair.image]) + len(pair.text), len(pair.text) > 12) for pair in pairs]


def test_a_model_that_reads_image_and_text_together_works_like_a_dual_encoder() -> None:
    model = JointModel()
    images = [encode_image(draw_image(number, width=60 + number)) for number in range(3)]
    prompts = {"p": "a cat", "q": "a longer text", "r": "thirteen"}
    table = compare(make_stage(model), make_image_table(images, ["p", "q", "r"]), prompts)["clipscore"]
    assert table["similarity"].to_pylist() == [60 + 5, 61 + 13, None]
    assert table["truncated"].to_pylist() == [False, True, None]
    assert list_error_kinds(table) == [None, None, "model_failed"]
    assert model.encoded == 3, "each image once, with the only rule that is requested"
