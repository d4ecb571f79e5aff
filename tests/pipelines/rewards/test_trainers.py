"""The trainers' own classes read our exports (`make trainers`); their packages cannot be installed next to ours.

test_consumers.py repeats the steps of these classes in every test run.
"""

import json
from importlib import import_module
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
import torch
from datasets import load_dataset
from PIL import Image

from tests.pipelines.rewards.conftest import Export, ScoredBenchmark
from tests.pipelines.rewards.test_consumers import index_scores_by_content

pytestmark = pytest.mark.elsewhere


def extract_pixels(image: Image.Image) -> torch.Tensor:
    """Return an image's pixels at a fixed size, in place of a trainer's preprocessing."""
    return torch.from_numpy(np.asarray(image.convert("RGB").resize((4, 4)), np.float32))


def test_ms_swifts_own_preprocessor_and_inputs_take_the_rows(export: Export, tmp_path: Path) -> None:
    preprocessor = import_module("swift.dataset.preprocessor")
    template_inputs = import_module("swift.template.template_inputs")
    export("ms_swift", reward="clipscore")
    rows = load_dataset("json", data_files=str(tmp_path / "out" / "train.jsonl"), cache_dir=str(tmp_path / "c"))[
        "train"
    ]
    taken = preprocessor.AutoPreprocessor()(rows, load_from_cache_file=False, strict=True)
    assert len(taken) == len(rows) > 0
    for row, source in zip(taken, rows, strict=True):
        inputs = template_inputs.TemplateInputs.from_dict(row)
        chosen, rejected = inputs.chosen, inputs.rejected
        assert chosen.messages == rejected.messages == source["messages"]
        assert [image["path"] for image in chosen.images] == source["images"]
        assert [image["path"] for image in rejected.images] == source["rejected_images"]
        assert row["margin"] == source["margin"] > 0


def test_hpsv2s_own_datasets_take_pairs_and_rankings(export: Export, scored: ScoredBenchmark, tmp_path: Path) -> None:
    """HPSv2's classes skip an unreadable item without an error, so every item is compared."""
    data = import_module("hpsv2.src.training.data")
    export("hpsv2", reward="clipscore")
    folder = str(tmp_path / "out" / "images")
    pairs = data.HPDDataset(str(tmp_path / "out" / "train.json"), folder, extract_pixels, str)
    rankings = data.RankingDataset(str(tmp_path / "out" / "test.json"), folder, extract_pixels, str)
    for dataset, name, files, label in (
        (pairs, "train", "file_path", "human_preference"),
        (rankings, "test", "image_path", "rank"),
    ):
        sources = json.loads((tmp_path / "out" / f"{name}.json").read_text())
        assert len(dataset) == len(sources) > 0
        for (images, given, prompt), source in zip((dataset[n] for n in range(len(sources))), sources, strict=True):
            shown = [extract_pixels(Image.open(Path(folder) / file)) for file in source[files]]
            assert all(torch.equal(*pair) for pair in zip(images, shown, strict=True))
            assert (given, prompt) == (source[label], source["prompt"])
    images, labels, _ = data.collate_HPD([(images, label, torch.zeros(1)) for images, label, _ in (pairs[0], pairs[1])])
    assert len(images) == len(labels) == 4 and labels.sum() == 2


def test_the_dataset_class_of_imagereward_in_hpsv2_takes_rankings(
    export: Export, scored: ScoredBenchmark, tmp_path: Path
) -> None:
    data = import_module("hpsv2.src.training.data")
    export("imagereward", reward="clipscore")
    folder = tmp_path / "out" / "images"
    dataset = data.ImageRewardDataset(str(tmp_path / "out" / "train.json"), str(folder), extract_pixels, str)
    by_content = index_scores_by_content(scored, "clipscore")
    items = json.loads((tmp_path / "out" / "train.json").read_text())
    assert len(dataset) == len(items) > 3
    for number, item in enumerate(items):
        images, ranks, prompt = dataset[number]
        scores = [by_content[(folder / name).read_bytes()] for name in item["generations"]]
        assert len(images) == len(ranks) == len(scores) and prompt == item["prompt"]
        for left, right in combinations(range(len(ranks)), 2):
            assert (ranks[left] < ranks[right]) == (scores[left] > scores[right])


def test_hpsv3s_own_dataset_takes_pairs(
    export: Export, scored: ScoredBenchmark, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HPSv3's class reads paths relative to the working directory.

    The test calls `get_single_item`, because `[]` replaces a failing row with another. The file with the class is
    loaded on its own, because the package imports names that transformers 5 no longer has.
    """
    package = find_spec("hpsv3")
    assert package is not None and package.submodule_search_locations is not None
    file = Path(package.submodule_search_locations[0]) / "dataset" / "pairwise_dataset.py"
    spec = spec_from_file_location("hpsv3_pairwise_dataset", file)
    assert spec is not None and spec.loader is not None
    dataset = module_from_spec(spec)
    spec.loader.exec_module(dataset)
    export("hpdv3", reward="clipscore")
    monkeypatch.chdir(tmp_path / "out")
    by_content = index_scores_by_content(scored, "clipscore")
    for threshold in (None, 0.9):
        pairs = dataset.PairwiseOriginalDataset(["train.json"], confidence_threshold=threshold)
        assert len(pairs) == len(json.loads(Path("train.json").read_text())) > 0
        for number in range(len(pairs)):
            pair = pairs.get_single_item(number)
            better, worse = (by_content[Path(pair[name]).read_bytes()] for name in ("image_1", "image_2"))
            assert better > worse and pair["label"] == 1 and pair["text_1"] == pair["text_2"]
