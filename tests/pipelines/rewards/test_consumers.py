"""Each format is read by the program that trains on it, or by a copy of the program's steps if it cannot be installed.

docs/rewards.md names, for every format, the program's source file that contains these steps.
"""

import io
import json
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
import webdataset
from datasets import Dataset, load_dataset
from PIL import Image

from plumbline.operators.rewards.formats.pair_formats import PAIRS_SCHEMA
from tests.operators.tiny import TRL_OPTIONS, save_llava_siglip
from tests.pipelines.rewards.conftest import GENERATORS, N_PROMPTS, Export, ScoredBenchmark

torch.set_num_threads(1)


def load_split(folder: Path, cache: Path, split: str = "train") -> Dataset:
    return load_dataset(str(folder), split=split, cache_dir=str(cache))


def open_image(content: bytes) -> Image.Image:
    return Image.open(io.BytesIO(content)).convert("RGB")


def normalise(image: Image.Image) -> torch.Tensor:
    pixels = torch.from_numpy(np.asarray(image.resize((16, 16)), np.float32))
    return pixels.permute(2, 0, 1) / 127.5 - 1


@pytest.mark.slow
def test_a_diffusion_dpo_step_learns_from_pairs(export: Export, scored: ScoredBenchmark, tmp_path: Path) -> None:
    """The test uses DiffusionDPO's loader and loss (Wallace et al. 2023, eq. 14), a tiny random UNet and no text."""
    from diffusers import DDPMScheduler, UNet2DConditionModel

    export("pairs", reward="clipscore")
    pairs = load_split(tmp_path / "out", tmp_path / "cache").with_format("python")
    assert pairs.column_names == PAIRS_SCHEMA.names
    batch = pairs[:8]
    assert set(batch["label_0"]) == {0.0, 1.0}, "the better image is sometimes first, sometimes second"
    wins, losses = [], []
    for first, second, label in zip(batch["jpg_0"], batch["jpg_1"], batch["label_0"], strict=True):
        ordered = (first, second) if label == 1 else (second, first)
        wins.append(normalise(open_image(ordered[0])))
        losses.append(normalise(open_image(ordered[1])))
    torch.manual_seed(0)
    unet = UNet2DConditionModel(
        sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16),
        norm_num_groups=4,
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"), up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        cross_attention_dim=8, attention_head_dim=4,
    )  # fmt: skip
    pixels = torch.cat([torch.stack(wins), torch.stack(losses)])
    noise = torch.randn(8, 3, 16, 16).repeat(2, 1, 1, 1)
    steps = torch.randint(0, 1000, (8,)).repeat(2)
    noisy = DDPMScheduler().add_noise(pixels, noise, steps)
    text = torch.zeros(16, 4, 8)

    def compute_gap() -> torch.Tensor:
        errors = (unet(noisy, steps, text).sample - noise).pow(2).mean(dim=(1, 2, 3))
        return errors[:8] - errors[8:]

    with torch.no_grad():
        reference = compute_gap()
    optimizer = torch.optim.SGD(unet.parameters(), lr=1e-3)
    seen = []
    for _ in range(2):
        loss = -torch.nn.functional.logsigmoid(-0.5 * 50 * (compute_gap() - reference)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seen.append(loss.item())
    assert seen[0] == pytest.approx(np.log(2), abs=1e-5) and seen[1] < seen[0]


@pytest.mark.parametrize("metric, sign", [("clipscore", 1), ("gecko", -1)])
def test_the_preferred_image_of_a_pair_has_the_better_score(
    metric: str, sign: int, export: Export, scored: ScoredBenchmark, tmp_path: Path
) -> None:
    """For a lower-is-better metric, the preferred image has the lower score."""
    export("pairs", reward=metric)
    table = pd.concat(pd.read_parquet(path) for path in sorted((tmp_path / "out" / "data").glob("*.parquet")))
    assert len(table) > N_PROMPTS
    for row in table.itertuples():
        better, worse = (0, 1) if row.label_0 else (1, 0)
        uids = (row.image_0_uid, row.image_1_uid)
        assert sign * (scored.score(metric, uids[better]) - scored.score(metric, uids[worse])) > 0
        assert row.best_image_uid == uids[better] and row.label_0 + row.label_1 == 1
        assert (row.model_0, row.model_1) == tuple(uid.split("/")[0] for uid in uids)
        assert row.are_different and row.has_label
    assert (table.num_example_per_prompt == table.groupby("caption").caption.transform("size")).all()
    assert table.ranking_id.is_unique and table.user_id.nunique() == 1


def test_a_dpo_trainer_prefers_the_first_image_of_a_tar_sample(export: Export, tmp_path: Path) -> None:
    """The trainer is diffusers' diffusion ORPO example; it compares a label, which is a string, with the number 0."""
    export("pairs_webdataset", reward="clipscore")
    tars = [str(path) for path in sorted((tmp_path / "out" / "data").glob("train-*.tar"))]
    samples = list(
        webdataset.WebDataset(tars, shardshuffle=False)
        .decode("pil")
        .rename(prompt="original_prompt.txt", jpg_0="jpg_0.jpg", jpg_1="jpg_1.jpg", label_0="label_0.txt")
    )
    manifest = json.loads((tmp_path / "out" / "manifest.json").read_text())
    assert len(samples) == manifest["splits"]["train"]["examples"] > 0
    for sample in samples:
        assert sample["label_0"] == "1" and sample["label_0"] != 0
        assert sample["jpg_0"].size == (96, 96) and sample["jpg_0"].tobytes() != sample["jpg_1"].tobytes()
        assert sample["json"]["best_image_uid"] == sample["json"]["image_0_uid"]
        assert sample["prompt"] == sample["json"]["caption"]
    streamed = load_dataset(str(tmp_path / "out"), split="train", streaming=True, cache_dir=str(tmp_path / "cache"))
    assert next(iter(streamed))["jpg_0.jpg"].size == (96, 96)


def test_a_row_of_verl_omni_never_has_the_loser_above_the_winner(export: Export, tmp_path: Path) -> None:
    """The test repeats the steps of OfflineDPODataset; verl-omni itself adds the missing latents and embeddings."""
    export("verl_omni", reward="gecko", shard_rows=1000)
    (data,) = (tmp_path / "out" / "data").glob("train-*.parquet")
    rows = pd.read_parquet(data)
    latents = {"img_win_latents", "img_lose_latents", "prompt_embeds", "prompt_embeds_mask", "pooled_prompt_embeds"}
    asked = {"prompt", "img_win", "img_lose"} | latents
    assert asked - set(rows.columns) == latents
    for row in rows.to_dict("records"):
        assert float(row["win_score"]) > float(row["lose_score"])
        assert isinstance(row["prompt"], str) and row["negative_prompt"] == " "
        assert row["extra_info"]["raw_prompt"] == row["prompt"]
        for name in ("img_win", "img_lose"):
            assert Image.open(data.parent / row[name]).size == (96, 96)


def test_ms_swift_gets_one_image_per_tag_in_both_answers(export: Export, tmp_path: Path) -> None:
    """RowPreprocessor and TemplateInputs require rejected_images whenever a row has rejected_messages."""
    export("ms_swift", reward="clipscore")
    rows = load_dataset("json", data_files=str(tmp_path / "out" / "train.jsonl"), cache_dir=str(tmp_path / "c"))[
        "train"
    ]
    for row in rows:
        assert row["messages"] == row["rejected_messages"] and row["images"] != row["rejected_images"]
        for messages, images in (("messages", "images"), ("rejected_messages", "rejected_images")):
            assert "".join(message["content"] for message in row[messages]).count("<image>") == len(row[images]) == 1
            assert Image.open(tmp_path / "out" / row[images][0]).size == (96, 96)
        assert row["margin"] > 0


def test_imagereward_prefers_the_lower_rank_of_a_pair(export: Export, scored: ScoredBenchmark, tmp_path: Path) -> None:
    """ImageReward's rank_pair_dataset prefers the image with the lower rank; the ranks of a prompt are unique."""
    export("imagereward", reward="clipscore")
    items = json.loads((tmp_path / "out" / "train.json").read_text())
    by_digest = index_scores_by_content(scored, "clipscore")
    assert len(items) > 3
    for item in items:
        assert set(item) == {"id", "prompt", "generations", "ranking"}
        scores = [by_digest[(tmp_path / "out" / "images" / name).read_bytes()] for name in item["generations"]]
        for left, right in combinations(range(len(scores)), 2):
            assert (item["ranking"][left] < item["ranking"][right]) == (scores[left] > scores[right])
            assert item["ranking"][left] != item["ranking"][right]


def test_hpsv2_trains_on_pairs_and_is_tested_by_ranks(export: Export, scored: ScoredBenchmark, tmp_path: Path) -> None:
    """HPDDataset and RankingDataset read a list loaded with json.load, with images in a separate folder."""
    export("hpsv2", reward="clipscore")
    by_digest = index_scores_by_content(scored, "clipscore")

    def list_scores(names: list[str]) -> list[float]:
        return [by_digest[(tmp_path / "out" / "images" / name).read_bytes()] for name in names]

    train, test = (
        pa.Table.from_pylist(json.loads((tmp_path / "out" / f"{name}.json").read_text())) for name in ("train", "test")
    )
    labels = train.column("human_preference").to_pylist()
    for label, names in zip(labels, train.column("file_path").to_pylist(), strict=True):
        first, second = list_scores(names)
        assert label == ([1, 0] if first > second else [0, 1])
    assert {tuple(label) for label in labels} == {(1, 0), (0, 1)}
    for rank, names in zip(test.column("rank").to_pylist(), test.column("image_path").to_pylist(), strict=True):
        of_images = list_scores(names)
        assert [of_images[place] for place in np.argsort(rank)] == sorted(of_images, reverse=True)


def test_hpdv3_prefers_the_first_path(export: Export, scored: ScoredBenchmark, tmp_path: Path) -> None:
    """HPDv3Handler resolves paths relative to the folder of the JSON file."""
    export("hpdv3", reward="clipscore")
    by_digest = index_scores_by_content(scored, "clipscore")
    for item in json.loads((tmp_path / "out" / "train.json").read_text()):
        better, worse = (by_digest[(tmp_path / "out" / item[name]).read_bytes()] for name in ("path1", "path2"))
        assert better > worse and item["prompt"] and item["source"]
        assert not {"confidence", "choice_dist"} & set(item), "HPSv3's own class would read these as numbers"
        assert {item["model1"], item["model2"]} <= set(GENERATORS)


def test_the_best_of_n_is_an_image_with_its_text(export: Export, scored: ScoredBenchmark, tmp_path: Path) -> None:
    """Each row has the columns `image` and `text`, which Diffusers' text-to-image training example reads."""
    export("best_of_n", reward="clipscore")
    best = load_split(tmp_path / "out", tmp_path / "cache")
    rows = scored.scores[scored.scores.metric == "clipscore"]
    for row in best:
        assert row["image"].convert("RGB").size == (96, 96) and row["text"]
        of_prompt = rows[rows.prompt_id == row["prompt_id"]].score.dropna()
        assert row["reward"] == of_prompt.max() and row["n"] == len(of_prompt)
        assert row["mean_reward"] == pytest.approx(of_prompt.mean())


def test_every_image_has_a_row_of_rewards_and_missing_rewards_stay_missing(
    export: Export, scored: ScoredBenchmark, tmp_path: Path
) -> None:
    export("rewards", reward="clipscore")
    rows = pd.concat(load_split(tmp_path / "out", tmp_path / "cache", split).to_pandas() for split in ("train", "test"))
    assert len(rows) == len(GENERATORS) * N_PROMPTS
    (bad,) = rows[rows.reward.isna()].to_dict("records")
    assert np.isnan(bad["z_score"]) and np.isnan(bad["rank_advantage"])
    assert bad["generator"] == "drift" and bad["raw"][0]["score"] is None
    assert bad["raw"][0]["error"].startswith("corrupt_image: expected an image")
    for row in rows[rows.reward.notna()].to_dict("records"):
        assert row["reward"] == scored.score("clipscore", f"{row['generator']}/{row['image_id']}")
        assert row["raw"][0]["error"] is None
    assert rows.groupby("prompt_id").z_score.mean().abs().max() < 1e-9
    assert set(rows.rank_advantage.dropna()) <= {-1.0, -0.5, 0.0, 0.5, 1.0}


def test_dense_rewards_are_the_metrics_own_scores_of_questions_and_words(export: Export, tmp_path: Path) -> None:
    export("dense", reward={"gecko": 1.0, "clipscore": 1.0})
    rows = [row for split in ("train", "test") for row in load_split(tmp_path / "out", tmp_path / "cache", split)]
    assert len(rows) == len(GENERATORS) * N_PROMPTS and {row["metric"] for row in rows} == {"gecko"}
    (bad,) = (row for row in rows if row["score"] is None)
    assert bad["questions"] == [] and bad["error"].startswith("corrupt_image")
    for row in rows:
        if row is bad:
            assert {word["score"] for word in row["words"]} == {None}
            continue
        scores = [question["score"] for question in row["questions"] if question["score"] is not None]
        assert row["score"] == pytest.approx(np.mean(scores))
        for word in row["words"]:
            assert row["prompt"][word["start"] : word["end"]] == word["text"]
            assert (word["score"] is None) == (word["n"] == 0)
    assert any(word["n"] for row in rows for word in row["words"])


def test_trl_shows_a_judge_both_images_and_has_it_choose(export: Export, tmp_path: Path) -> None:
    """TRL's own DPOTrainer trains a tiny LLaVA, with one list of images for the chosen and the rejected answer."""
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from trl import DPOConfig, DPOTrainer

    export("trl_vision_dpo", reward="clipscore")
    rows = load_split(tmp_path / "out", tmp_path / "cache")
    folder = str(save_llava_siglip(tmp_path / "judge"))
    judge, processor = AutoModelForImageTextToText.from_pretrained(folder), AutoProcessor.from_pretrained(folder)
    processor.patch_size = judge.config.vision_config.patch_size
    processor.vision_feature_select_strategy = judge.config.vision_feature_select_strategy
    options = {"max_steps": 8, "per_device_train_batch_size": 4, "learning_rate": 1e-2, "logging_steps": 1}
    trainer = DPOTrainer(
        model=judge,
        args=DPOConfig(output_dir=str(tmp_path / "trained"), max_length=None, **options, **TRL_OPTIONS),
        train_dataset=rows,
        processing_class=processor,
    )
    batch = next(iter(trainer.get_train_dataloader()))
    assert len(batch["pixel_values"]) == 4 * 2 * 2, "each row's two images, for the chosen and for the rejected"
    trainer.train()
    losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    assert losses[0] == pytest.approx(np.log(2), abs=1e-4) and min(losses[1:]) < losses[0]
    for row in rows:
        assert len(row["images"]) == 2 and all(image.size == (96, 96) for image in row["images"])
        answers = {row[name][0]["content"] for name in ("chosen", "rejected")}
        assert answers == {"1", "2"} and row["prompt"][0]["role"] == "user"


def index_scores_by_content(scored: ScoredBenchmark, metric: str) -> dict[bytes, float]:
    found: dict[bytes, Any] = {}
    for generator in GENERATORS:
        for row in pd.read_parquet(scored.folder / "images" / generator).to_dict("records"):
            found[row["image"]] = scored.score(metric, f"{generator}/{row['image_id']}")
    return found
