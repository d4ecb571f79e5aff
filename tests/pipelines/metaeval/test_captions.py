"""Captions are scored against human captions of the same images, and human ratings are used to judge the scores."""

import io
import json
import random
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer, CLIPModel

from tests.commands import run_for_output, run_refused
from tests.environment import ROOT
from tests.pipelines.metaeval.releases.files import write_file

MEASURES = {"bleu_4", "meteor", "rouge_l", "cider"}
WORDS = ["a", "the", "red", "blue", "green", "cross", "star", "heart", "above", "below", "and"]


def draw_text(rng: random.Random) -> str:
    return " ".join(rng.choice(WORDS) for _ in range(rng.randint(3, 9)))


def test_scores_of_flickr8k_captions_agree_with_people(tmp_path: Path) -> None:
    """In the made-up ratings, people prefer captions that contain more of a reference's words."""
    rng, release = random.Random(1), {}
    for number in range(30):
        references = [draw_text(rng) for _ in range(3)]
        judged = [{"caption": references[0], "rating": 1.0}, {"caption": "Nothing of it, entirely !", "rating": 0.0}]
        words = references[1].split()
        judged += [{"caption": " ".join(words[:2]), "rating": 1 / 3}] * 2
        rng.shuffle(judged)
        release[f"{number}.jpg"] = {"image_path": "x", "ground_truth": references, "human_judgement": judged}
    path = write_file(tmp_path / "crowdflower_flickr8k.json", release)
    said = run_for_output("captions", f"captions={path}", f"output={tmp_path / 'scores.parquet'}")
    scores = pd.read_parquet(tmp_path / "scores.parquet")
    assert scores.groupby("metric").size().to_dict() == dict.fromkeys(MEASURES, 90) and "0 of them null" in said
    run_for_output("metaeval", "protocol=flickr8k_cf", f"protocol.path={path}", f"scores={tmp_path / 'scores.parquet'}",
            f"output={tmp_path / 'out'}", "sampling.resamples=20", "sampling.permutations=20")  # fmt: skip
    judged_by = pd.read_parquet(tmp_path / "out/judgements.parquet").query("subset == 'overall'")
    found = judged_by[judged_by["statistic"] == "kendall_b"].set_index("metric")["value"]
    assert set(found.index) == MEASURES and (found > 0.8).all()


def test_refclipscore_combines_clipscore_with_the_most_similar_reference(tmp_path: Path) -> None:
    """The text features come from transformers itself, for the cleaned texts with CLIPScore's prefix."""
    rng, pixels = random.Random(2), np.random.default_rng(2)
    rows = []
    for number in range(6):
        stream = io.BytesIO()
        Image.fromarray(pixels.integers(0, 256, (40, 40, 3), np.uint8)).save(stream, "PNG")
        references = [draw_text(rng) for _ in range(rng.randint(1, 4))]
        rows += [
            {
                "image_id": f"{number}.png",
                "image": stream.getvalue(),
                "caption": draw_text(rng),
                "references": references,
            }
            for _ in range(2)
        ]
    rng.shuffle(rows)
    table, store = write_file(tmp_path / "pairs.parquet", rows), f"store={tmp_path / 'store'}"
    asked = ["metrics=[clipscore]", "metrics.clipscore.variant=original", "models=shapes", "cluster=here"]
    run_for_output("score", f"images={table}", *asked, store)
    output = tmp_path / "scores.parquet"
    run_for_output(
        "captions", f"captions={table}", f"output={output}", "run=latest", store, "model@models.clip=clip_shapes"
    )
    run = pd.read_parquet(next((tmp_path / "store/runs").glob("*/scores.parquet")))
    clipscores = {(row.image_id, row.prompt_id): row.score for row in run.itertuples()}
    found = pd.read_parquet(output).query("metric == 'refclipscore'")
    features = {text: embed(text) for row in rows for text in (row["caption"], *row["references"])}
    assert len(found) == len(rows) == 12
    for row, score in zip(rows, found.itertuples(), strict=True):
        best = max(float(features[row["caption"]] @ features[text]) for text in row["references"])
        image = clipscores[score.image_id, score.prompt_id]
        expected = 2 * image * max(best, 0) / (image + max(best, 0)) if image + max(best, 0) else 0.0
        assert score.score == pytest.approx(expected, abs=1e-5)


CLIP_FOLDER = ROOT / "assets/clip-shapes"


def embed(text: str) -> torch.Tensor:
    model, tokenizer = CLIPModel.from_pretrained(CLIP_FOLDER), AutoTokenizer.from_pretrained(CLIP_FOLDER)
    given = tokenizer([f"A photo depicts {text}".lower()], return_tensors="pt", truncation=True, max_length=77)
    with torch.no_grad():
        features = model.text_projection(model.text_model(**given).pooler_output)[0]
    return features / features.norm()


def test_a_caption_that_cannot_be_compared_keeps_its_row_with_the_reason(tmp_path: Path) -> None:
    rows = [
        {"image_id": "a", "caption": "a star", "references": ["a star", "the star"]},
        {"image_id": "b", "caption": "?!", "references": ["a star"]},
        {"image_id": "c", "caption": "a star", "references": []},
        {"image_id": "d", "caption": "a " * 2000, "references": ["a star"]},
        {"image_id": "e", "caption": "a heart", "references": ["a heart", "a star below a heart"]},
        {"image_id": "e", "caption": "a cross", "references": ["a green cross above a star"]},
    ]
    table = write_file(tmp_path / "c.jsonl", rows)
    told = run_for_output("captions", f"captions={table}", f"output={tmp_path / 's.parquet'}", code=2)
    assert "4 scores null (no_reference), such as image 'c': there is no reference" in told
    assert told.count(" null (") == 3
    scores = pd.read_parquet(tmp_path / "s.parquet")
    for _, found in scores.groupby("metric"):
        kinds = [None if error is None else error["kind"] for error in found["error"]]
        assert list(found["image_id"]) == list("abcdee")
        assert kinds == [None, "no_caption", "no_reference", "too_long", None, None]
        assert found["score"].notna().tolist() == [True, False, False, False, True, True]
        assert found["score"].iloc[4] > found["score"].iloc[5] > 0


def test_invalid_captions_are_an_error_of_one_line(tmp_path: Path) -> None:
    def refuse(rows: list[dict[str, object]] | dict[str, object], *words: str, name: str = "c.jsonl") -> str:
        file = write_file(tmp_path / name, json.dumps(rows) if isinstance(rows, dict) else rows)
        return run_refused("captions", f"captions={file}", f"output={tmp_path / 's.parquet'}", *words)

    row: dict[str, object] = {"image_id": "a", "prompt_id": "p", "caption": "a star", "references": ["a star"]}
    assert "row 1: image 'a' has another caption or other references" in refuse([row, {**row, "caption": "a heart"}])
    assert "expected column(s) references, found image_id, caption" in refuse([{"image_id": "a", "caption": "b"}])
    no_references = {"1.jpg": {"human_judgement": [{"caption": "x"}]}}
    assert "row 0 ('1.jpg'): expected a list of references" in refuse(no_references, name="f.json")
    scores = write_file(tmp_path / "scores.csv", "image_id,prompt_id,clipscore\na,p,-0.2\n")
    assert "found -0.200; score the images with metrics.clipscore.variant=original" in refuse([row], f"scores={scores}")
