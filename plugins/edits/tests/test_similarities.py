"""Embeddings compare edits with their sources, with captions, or with both, without calling a judge."""

import io
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torch.nn.functional import cosine_similarity
from transformers import AutoTokenizer, CLIPImageProcessor, CLIPModel

from plugins.edits.tests import references, tiny_lpips
from plugins.edits.tests.test_source_comparisons import SOURCE_OPTION, draw_noise, encode_png, pivot_scores, write_edits
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.metrics.similarities.similarity import SimilarityConfig
from plumbline.operators.models.families import make_model_config
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from tests.bench_of import plan_bench, read_image_rows, read_prompt_rows, read_run_tables, run_bench, write_rows
from tests.environment import ROOT
from tests.operators import tiny
from tests.operators.tiny import rewards

METRICS_OPTION = "metric=[clip_i,clip_t,clip_direction]"
CAPTION_OPTIONS = ("benchmark.columns.source_caption=was", "benchmark.columns.target_caption=wanted")
CLIP_FOLDER = ROOT / "assets/clip-shapes"
EDITED_IMAGES = [row["image"] for row in read_image_rows("atlas", 4)]
SOURCE_IMAGES = [row["image"] for row in read_image_rows("flint", 5)][1:]
TARGET_CAPTIONS = [row["text"] for row in read_prompt_rows(4)]
SOURCE_CAPTIONS = [row["text"] for row in read_prompt_rows(5)][1:]


def compute_scores(folder: Path, store: Path, *more: str) -> Any:
    return pivot_scores(
        read_run_tables(run_bench(folder, store, METRICS_OPTION, SOURCE_OPTION, *CAPTION_OPTIONS, *more))
    )


def compute_released_scores() -> list[list[float]]:
    """Compute CLIP-I, CLIP-T and the directional similarity as upstream's code does, with the CLIP in transformers.

    CLIP-I and CLIP-T come from MagicBrush (OSU-NLP-Group/MagicBrush fcfc892, evaluation/image_eval.py), and the
    directional similarity comes from InstructPix2Pix (timothybrooks/instruct-pix2pix 0dffd1e,
    metrics/clip_similarity.py).
    """
    model, words = CLIPModel.from_pretrained(CLIP_FOLDER).eval(), AutoTokenizer.from_pretrained(CLIP_FOLDER)
    processor = CLIPImageProcessor.from_pretrained(CLIP_FOLDER)

    def embed_image(encoded: bytes) -> torch.Tensor:
        pixels = processor(images=open_image(encoded), return_tensors="pt")["pixel_values"]
        return model.get_image_features(pixel_values=pixels).pooler_output

    def embed_text(text: str) -> torch.Tensor:
        return model.get_text_features(**words([text], return_tensors="pt")).pooler_output

    found = []
    with torch.inference_mode():
        for edited, before, wanted, was in zip(
            EDITED_IMAGES, SOURCE_IMAGES, TARGET_CAPTIONS, SOURCE_CAPTIONS, strict=True
        ):
            both, texts = [embed_image(before), embed_image(edited)], [embed_text(was), embed_text(wanted)]
            kept, fit = cosine_similarity(*both), cosine_similarity(both[1], texts[1])
            units = [[one / one.norm(dim=1, keepdim=True) for one in pair] for pair in (both, texts)]
            direction = cosine_similarity(units[0][1] - units[0][0], units[1][1] - units[1][0])
            found.append([float(kept), float(fit), float(direction)])
    return found


def open_image(encoded: bytes) -> Image.Image:
    return Image.open(io.BytesIO(encoded)).convert("RGB")


@pytest.mark.parametrize("of_prompts", [False, True])
def test_similarities_equal_those_of_magicbrush_and_instructpix2pix(tmp_path: Path, of_prompts: bool) -> None:
    """The result is the same whether captions are stored with the images or once in the prompts file."""
    folder = write_edits(
        tmp_path / "bench", SOURCE_IMAGES, **({} if of_prompts else {"was": SOURCE_CAPTIONS, "wanted": TARGET_CAPTIONS})
    )
    if of_prompts:
        rows = zip(read_prompt_rows(4), SOURCE_CAPTIONS, TARGET_CAPTIONS, strict=True)
        write_rows(folder / "prompts.parquet", [{**row, "was": was, "wanted": wanted} for row, was, wanted in rows])
    found = compute_scores(folder, tmp_path / "store")[["clip_i", "clip_t", "clip_direction"]]
    for row, expected in zip(found.to_numpy().tolist(), compute_released_scores(), strict=True):
        assert row == pytest.approx(expected, abs=1e-5)
    assert found.to_numpy().std(axis=0).min() > 0.01


def test_a_changed_caption_or_source_only_changes_the_metrics_that_read_it(tmp_path: Path) -> None:
    folder = write_edits(tmp_path / "bench", SOURCE_IMAGES, was=SOURCE_CAPTIONS, wanted=TARGET_CAPTIONS)
    first = compute_scores(folder, tmp_path / "store")
    write_edits(
        folder,
        [*SOURCE_IMAGES[:3], EDITED_IMAGES[3]],
        was=[TARGET_CAPTIONS[3], *SOURCE_CAPTIONS[1:]],
        wanted=[TARGET_CAPTIONS[0], SOURCE_CAPTIONS[3], *TARGET_CAPTIONS[2:]],
    )
    second = compute_scores(folder, tmp_path / "store")
    same = (first == second)[["clip_i", "clip_t", "clip_direction"]]
    assert same.to_numpy().tolist() == [
        [True, True, False],
        [True, False, False],
        [True, True, True],
        [False, True, False],
    ]
    assert second.iloc[3][["clip_i", "clip_direction"]].tolist() == pytest.approx([1, 0], abs=1e-6)


def test_a_missing_caption_or_source_only_fails_the_metrics_that_read_it(tmp_path: Path) -> None:
    was, wanted = (
        ["", SOURCE_CAPTIONS[1], SOURCE_CAPTIONS[2], SOURCE_CAPTIONS[3]],
        [TARGET_CAPTIONS[0], None, SOURCE_CAPTIONS[2], TARGET_CAPTIONS[3]],
    )
    folder = write_edits(tmp_path / "bench", [*SOURCE_IMAGES[:3], b"nonsense"], was=was, wanted=wanted)
    finished = run_bench(folder, tmp_path / "store", METRICS_OPTION, SOURCE_OPTION, *CAPTION_OPTIONS)
    tables = read_run_tables(finished)
    scores = pivot_scores(tables)
    assert scores["clip_i"].isna().tolist() == [False, False, False, True]
    assert scores["clip_t"].isna().tolist() == [False, True, False, False]
    assert scores["clip_direction"].isna().tolist() == [True] * 4
    kinds = tables["errors"].sort_values(["metric", "row"])[["metric", "kind"]].to_numpy().tolist()
    assert kinds == [
        *(["clip_direction", kind] for kind in ("no_caption", "no_caption", "no_caption", "corrupt_image")),
        ["clip_i", "corrupt_image"],
        ["clip_t", "no_caption"],
    ]


def test_missing_sources_and_captions_are_refused_before_anything_runs(tmp_path: Path) -> None:
    folder = write_edits(tmp_path / "bench", SOURCE_IMAGES, was=SOURCE_CAPTIONS, wanted=TARGET_CAPTIONS)
    with pytest.raises(ConfigError, match=r"metrics\.clip_i: .* benchmark\.columns\.source to"):
        plan_bench(folder, tmp_path / "store", "metric=[clip_i]")
    named = r"metrics\.clip_direction: .* benchmark\.columns\.target_caption and benchmark\.columns\.source_caption "
    with pytest.raises(ConfigError, match=named):
        plan_bench(folder, tmp_path / "store", "metric=[clip_direction]", SOURCE_OPTION)
    with pytest.raises(ConfigError, match=r"metrics\.clip_t: .* with benchmark\.columns\.target_caption "):
        plan_bench(folder, tmp_path / "store", "metric=[clip_t]", CAPTION_OPTIONS[0])
    with pytest.raises(ConfigError, match="supports compares=prompt or caption, not source"):
        model = f"+models.m={{family: blip_itm, checkpoint: {folder}}}"
        plan_bench(folder, tmp_path / "store", "metric=[clip_i]", SOURCE_OPTION, "metrics.clip_i.model=m", model)
    with pytest.raises(ConfigError, match="measure: expected cosine or distance with compares=source, got logit"):
        SimilarityConfig(model="clip", compares="source", measure="logit")


def test_a_scorer_accepts_captions_with_its_images(tmp_path: Path) -> None:
    models = {
        "clip": make_model_config(family="clip", checkpoint=str(CLIP_FOLDER)),
        "dino": make_model_config(family="dino", checkpoint=str(rewards.save_dino(tmp_path / "dino"))),
    }
    metrics = {
        "kept": SimilarityConfig(model="dino", compares="source", pixels="released"),
        "change": SimilarityConfig(model="clip", compares="change"),
    }
    scorer = Scorer(ScorerConfig(models=models, metrics=metrics))
    both = list(zip(SOURCE_CAPTIONS, TARGET_CAPTIONS, strict=True))
    table = scorer.score_table(EDITED_IMAGES, "", sources=SOURCE_IMAGES, captions=both).to_pylist()
    assert [row["score"] for row in table[4:]] == pytest.approx([row[2] for row in compute_released_scores()], abs=1e-5)
    assert len({row["score"] for row in table[:4]}) == 4
    assert scorer.score_table(draw_noise(1), "", "kept", sources=encode_png(draw_noise(1)))[
        "score"
    ].to_pylist() == pytest.approx([1])
    with pytest.raises(ConfigError, match="captions: required by change; pass a description of each source"):
        scorer.score_table(EDITED_IMAGES, "", sources=SOURCE_IMAGES)
    with pytest.raises(ConfigError, match="captions: kept would ignore them"):
        scorer.score_table(EDITED_IMAGES, "", "kept", sources=SOURCE_IMAGES, captions=both)
    with pytest.raises(ConfigError, match="got 4 images and 3 entries"):
        scorer.score_table(EDITED_IMAGES, "", sources=SOURCE_IMAGES, captions=both[:3])
    with pytest.raises(ConfigError, match=r"captions\[0\]: expected two texts"):
        scorer.score_table(EDITED_IMAGES, "", sources=SOURCE_IMAGES, captions=["ab", *both[1:]])


def test_lpips_compares_an_edit_with_its_source_at_the_size_of_the_source(tmp_path: Path) -> None:
    folder = write_edits(tmp_path / "bench", [EDITED_IMAGES[0], *SOURCE_IMAGES[1:3], encode_png(draw_noise(1, 31, 64))])
    checkpoint = tiny_lpips.save_lpips(tmp_path / "lpips_alex")
    given = (SOURCE_OPTION, f"+models.lpips={{family: lpips, checkpoint: '{checkpoint}'}}")
    tables = read_run_tables(run_bench(folder, tmp_path / "store", "metric=[lpips]", *given))
    scores = pivot_scores(tables)["lpips"].tolist()
    weights = tiny_lpips.make_weights("alex")
    expected = [
        references.measure_lpips(weights, "alex", open_image(edited).resize(before.size), before)
        for edited, before in zip(EDITED_IMAGES[1:3], map(open_image, SOURCE_IMAGES[1:3]), strict=True)
    ]
    assert scores[0] == 0 and scores[1:3] == pytest.approx(expected, rel=1e-4) and all(expected)
    (error,) = tables["errors"].to_dict("records")
    assert error["kind"] == "image_too_small"
    assert error["message"].startswith("the source of the edit: 31x64 pixels, but LPIPS needs at least 32 per side")


def test_a_distance_is_only_measured_between_images(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="expected cosine or logit or match or reward with compares=prompt"):
        SimilarityConfig(model="lpips", measure="distance")
    folder = tmp_path / "lpips_alex"
    tiny_lpips.save_lpips(folder)
    tiny.write_json(folder / "config.json", {"model_type": "lpips", "net": "squeeze"})
    metrics = {"lpips": SimilarityConfig(model="lpips", measure="distance", compares="source")}
    models = {"lpips": make_model_config(family="lpips", checkpoint=str(folder))}
    with pytest.raises(ModelError, match=r"`net` in config\.json is 'squeeze'; only alex and vgg are supported"):
        Scorer(ScorerConfig(models=models, metrics=metrics))
    models = {"lpips": make_model_config(family="clip", checkpoint=str(CLIP_FOLDER))}
    with pytest.raises(ConfigError, match="returns cosine or logit, not distance"):
        Scorer(ScorerConfig(models=models, metrics=metrics))
