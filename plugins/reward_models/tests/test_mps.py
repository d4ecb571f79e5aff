"""MPS scores an image under four conditions; a condition decides which words of the prompt the image attends to."""

import copy
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from plugins.reward_models.tests import mps_release, tiny_rewards
from plugins.reward_models.tests.references import load_released_mps, score_mps_condition
from plugins.reward_models.tests.test_conversion import CommandOnUnpickle, convert_release
from plumbline.operators.base.errors import ConfigError, ModelError
from plumbline.operators.models.calls import Pair
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
from plumbline.plugins.reward_models.mps import CONDITIONS
from tests.operators import tiny
from tests.operators.models.alike import IMAGES, TEXTS
from tests.operators.models.families.test_families import load_model
from tests.operators.tiny import rewards

PAIRS = [Pair(image, text) for image in range(len(IMAGES)) for text in TEXTS]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_rewards.save_mps(tmp_path_factory.mktemp("mps") / "mps")


def compare(folder: Path, **options: Any) -> Any:
    model = load_model("mps", folder, "similarity", **options)
    return model.compare(model.encode([model.preprocess(image) for image in IMAGES]), PAIRS, "reward")


@pytest.mark.parametrize("threshold", [0.3, 0.01])
def test_every_condition_has_the_score_of_the_release(folder: Path, threshold: float) -> None:
    found = compare(folder, mask_threshold=threshold)
    with torch.no_grad():
        for result, pair in zip(found, PAIRS, strict=True):
            expected = {name: score_mps_condition(folder, pair, text, threshold) for name, text in CONDITIONS.items()}
            assert result.ratings == pytest.approx(expected, abs=1e-3, rel=1e-4)
            assert result.similarity == result.ratings["overall"]
    if threshold == mps_release.THRESHOLD:
        assert any(len(set(result.ratings.values())) > 1 for result in found), "conditions select different words"


def test_the_threshold_is_a_fraction_and_is_in_the_key(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"mask_threshold: expected a fraction between 0 and 1, got 3"):
        make_model_config(family="mps", checkpoint="owner/name", mask_threshold=3)
    config = make_model_config(family="mps", checkpoint=str(folder), mask_threshold=0.01)
    assert resolve_model(config, on_gpu=False).options == {"mask_threshold": 0.01}


def test_a_prompt_beyond_the_context_is_marked(folder: Path) -> None:
    model = load_model("mps", folder, "similarity")
    features = model.encode([model.preprocess(IMAGES[0])])
    results = model.compare(features, [Pair(0, "a " * 75), Pair(0, "a " * 76)], "reward")
    assert [result.truncated for result in results] == [False, True]
    assert results[0].similarity == pytest.approx(results[1].similarity, abs=1e-4)


@pytest.mark.parametrize("pickled", [True, False], ids=["a pickled network", "safetensors"])
def test_a_converted_mps_has_the_scores_of_its_release(folder: Path, tmp_path: Path, pickled: bool) -> None:
    """The release is a pickled network; DiffSynth-Studio has its tensors in a .safetensors file."""
    network = load_released_mps(folder)
    if pickled:
        file = mps_release.save_pickled_network(network, tmp_path / "MPS_overall_checkpoint.pth")
    else:
        file = tmp_path / "MPS_overall_checkpoint.safetensors"
        save_file(network.state_dict(), file)
    made = convert_release(tmp_path / "made", release="mps", weights=file, base=save_clip_base(tmp_path / "base"))
    found, expected = ([result.similarity for result in compare(place)] for place in (made, folder))
    assert found == pytest.approx(expected, abs=1e-5)


def save_clip_base(folder: Path) -> Path:
    """Save the CLIP from which MPS was trained; its weights are not the ones in MPS."""
    tiny_rewards.save_mps(folder, seed=5)
    tiny.edit_json(folder / "config.json", cross_layers=None, cross_heads=None, architectures=["CLIPModel"])
    return folder


def test_nothing_in_a_pickled_network_runs(folder: Path, tmp_path: Path) -> None:
    network = load_released_mps(folder)
    ran = tmp_path / "ran"
    evil = copy.deepcopy(network)
    evil.callback = CommandOnUnpickle(ran)  # type: ignore[assignment]
    file = mps_release.save_pickled_network(evil, tmp_path / "MPS.pth")
    given = {"release": "mps", "weights": file, "base": save_clip_base(tmp_path / "base")}
    with pytest.raises(ModelError, match=r"found other objects .*none of its code was executed"):
        convert_release(tmp_path / "made", **given)
    evil.callback = CallOnUnpickle(ran)  # type: ignore[assignment]
    mps_release.save_pickled_network(evil, file)
    convert_release(tmp_path / "made", **given)
    assert not ran.exists(), "a placeholder was called in the function's place"


class CallOnUnpickle:
    """Object whose unpickling creates a file, by a call to a function from a module that torch does not block."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, tuple[str, str]]:
        return shutil.copyfile, ("/etc/hostname", str(self.file))


def test_a_base_without_clip_is_refused(folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "MPS.safetensors"
    save_file(load_released_mps(folder).state_dict(), file)
    base = rewards.save_blip_itm(tmp_path / "base")
    with pytest.raises(ModelError, match="expected a CLIP model in transformers' layout"):
        convert_release(tmp_path / "made", release="mps", weights=file, base=base)
