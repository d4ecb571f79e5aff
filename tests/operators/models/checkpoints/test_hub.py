"""Hub models are pinned to a commit, read from the cache if the hub is unreachable, or refused with a reason."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from plumbline.operators.models.calls import Question
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models.hub_server import COMMIT, Hub, serve_hub
from tests.operators.tiny.rewards import save_open_clip

ROOT = Path(__file__).parents[4]
OLDER_COMMIT, TOWER_COMMIT = "0123456789abcdef" * 2 + "01234567", "2" * 40
CLIP_REPOSITORY, FLANT5_REPOSITORY, OPEN_CLIP_REPOSITORY = "acme/tiny-clip", "acme/tiny-flant5", "acme/tiny-open-clip"
WEIGHTLESS_REPOSITORY = "acme/weightless"

RESOLVE_SCRIPT = """
import json, sys
from plumbline.operators.base.errors import ModelError
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.resolution import resolve_model
def tell(config):
    try:
        model = resolve_model(make_model_config(**config), on_gpu=False)
    except ModelError as error:
        return {"error": str(error)}
    commits = {role: part.commit for role, part in model.parts.items()}
    return {"semantic": model.list_key_properties(), "commits": commits}
told = [tell(config) for config in json.loads(sys.argv[1])]
print(json.dumps({"told": told, "torch": "torch" in sys.modules}))
"""
ANSWER_SCRIPT = """
import json, sys
from plumbline.operators.models.calls import Question
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.models.families import make_model_config
from plumbline.operators.models.loading import load
from tests.operators.tiny import draw_image
import torch
torch.set_num_threads(1)
model = load(resolve_model(make_model_config(**json.loads(sys.argv[1])), on_gpu=False), "likelihood")
features = model.encode([model.preprocess(draw_image(0))])
print(json.dumps(model.likelihood(features, [Question(0, "a red circle ?", ("Yes", "No"))])))
"""


def resolve(environment: dict[str, str], *configs: dict[str, Any]) -> list[dict[str, Any]]:
    """Resolve each config in a subprocess with these hub settings; return the results or errors."""
    answer = run_script(RESOLVE_SCRIPT, environment, configs)
    assert not answer["torch"]
    told: list[dict[str, Any]] = answer["told"]
    return told


def run_script(script: str, environment: dict[str, str], config: Any) -> Any:
    """Run a script with a model config as argument and only these hub settings; return its output."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(("HF_", "HUGGING"))}
    done = subprocess.run(
        [sys.executable, "-c", script, json.dumps(config)],
        cwd=ROOT,
        env=inherited | {"NO_PROXY": "127.0.0.1"} | environment,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


def fill_cache(home: Path, repo: str, folder: Path, commit: str, *, revision: str | None = "main") -> None:
    """Copy a folder into the hub's cache as `hf download` does."""
    entry = home / "hub" / f"models--{repo.replace('/', '--')}"
    shutil.copytree(folder, entry / "snapshots" / commit)
    if revision is not None:
        (entry / "refs" / revision).parent.mkdir(parents=True, exist_ok=True)
        (entry / "refs" / revision).write_text(commit)


@pytest.fixture(scope="module")
def offline_environment(checkpoints: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return offline hub settings; the model cache has a CLIP-FlanT5 whose config names its tower by hub id."""
    folder = tmp_path_factory.mktemp("offline")
    shutil.copytree(checkpoints / "flant5", folder / "flant5")
    tiny.edit_json(folder / "flant5" / "config.json", mm_vision_tower=CLIP_REPOSITORY)
    shutil.copytree(checkpoints / "clip", folder / "weightless")
    (folder / "weightless" / "model.safetensors").unlink()
    fill_cache(folder / "hf", CLIP_REPOSITORY, checkpoints / "clip", TOWER_COMMIT)
    fill_cache(folder / "hf", WEIGHTLESS_REPOSITORY, folder / "weightless", COMMIT)
    fill_cache(folder / "hf", FLANT5_REPOSITORY, folder / "flant5", COMMIT)
    fill_cache(folder / "hf", FLANT5_REPOSITORY, folder / "flant5", OLDER_COMMIT, revision="refs/pr/3")
    return {"HF_HOME": str(folder / "hf"), "HF_HUB_OFFLINE": "1"}


# Without a hub

OUT_OF_REACH_MESSAGE = (
    "model 'acme/unknown': not a local folder, not in the hub's cache, and the hub cannot be reached; "
    "give a folder, or download it first (`hf download`)"
)


def test_offline_cached_models_are_pinned_and_missing_models_are_named(
    offline_environment: dict[str, str], checkpoints: Path
) -> None:
    flant5, local = {"family": "clip_flant5", "checkpoint": FLANT5_REPOSITORY}, str(checkpoints / "clip")
    main, branch, commit, folder, *errors = resolve(
        offline_environment,
        flant5,
        flant5 | {"revision": "refs/pr/3"},
        flant5 | {"revision": OLDER_COMMIT},
        {"family": "clip", "checkpoint": local},
        {"family": "clip", "checkpoint": "acme/unknown"},
        {"family": "clip", "checkpoint": "acme/unknown", "revision": "v9"},
        {"family": "clip", "checkpoint": CLIP_REPOSITORY, "revision": "9" * 40},
        {"family": "clip", "checkpoint": WEIGHTLESS_REPOSITORY},
    )
    assert main["commits"] == {"checkpoint": COMMIT, "tokenizer": COMMIT, "vision_tower": TOWER_COMMIT}
    ids = {"checkpoint": FLANT5_REPOSITORY, "tokenizer": FLANT5_REPOSITORY, "vision_tower": CLIP_REPOSITORY}
    assert main["semantic"]["parts"] == {role: f"{ids[role]}@{pinned}" for role, pinned in main["commits"].items()}
    for told in (branch, commit):
        assert told["commits"]["checkpoint"] == OLDER_COMMIT
        assert told["semantic"]["label"] is None, "the commit identifies the model; labels are for local folders"
    own = resolve_model(make_model_config(family="clip", checkpoint=local), on_gpu=False)
    assert folder["semantic"] == own.list_key_properties(), "a local folder takes precedence over the hub"
    assert set(folder["commits"].values()) == {None}
    unknown, unknown_branch, unknown_commit, weightless = (told["error"] for told in errors)
    assert unknown == unknown_branch == OUT_OF_REACH_MESSAGE
    assert "and the hub cannot be reached" in unknown_commit and "not a checkpoint" not in unknown_commit
    assert f"{WEIGHTLESS_REPOSITORY}@{COMMIT}" in weightless and "safetensors" in weightless


def test_a_model_from_the_cache_answers_like_one_from_a_folder(
    offline_environment: dict[str, str], likelihood: ClipFlanT5Likelihood
) -> None:
    told = run_script(ANSWER_SCRIPT, offline_environment, {"family": "clip_flant5", "checkpoint": FLANT5_REPOSITORY})
    features = likelihood.encode([likelihood.preprocess(tiny.draw_image(0))])
    assert told == likelihood.likelihood(features, [Question(0, "a red circle ?", ("Yes", "No"))])


# With a hub


@pytest.fixture
def hub(checkpoints: Path) -> Iterator[Hub]:
    with serve_hub({CLIP_REPOSITORY: checkpoints / "clip"}) as served:
        yield served


def test_a_branch_is_pinned_to_the_commit_the_hub_names_and_planning_fetches_no_weights(
    hub: Hub, checkpoints: Path, tmp_path: Path
) -> None:
    (told,) = resolve(hub.environment(tmp_path), {"family": "clip", "checkpoint": CLIP_REPOSITORY})
    assert told["commits"] == {"checkpoint": COMMIT, "tokenizer": COMMIT}
    assert hub.served["config.json"] > 0
    size = (checkpoints / "clip" / "model.safetensors").stat().st_size
    assert hub.served.get("model.safetensors", 0) < size / 2, "at most a header was read"


FETCH_SCRIPT = """
import json, sys
from plumbline.operators.models.resolution import resolve_model
from plumbline.operators.models.families import make_model_config
model = resolve_model(make_model_config(**json.loads(sys.argv[1])), on_gpu=False)
print(json.dumps({role: sorted(file.name for file in model.folder(role).iterdir()) for role in model.parts}))
"""


def test_only_the_weights_that_are_loaded_are_fetched(hub: Hub, checkpoints: Path, tmp_path: Path) -> None:
    """No weights are fetched from the tokenizer's repository.

    If a repository has weights in two layouts, only one layout is fetched.
    """
    shutil.copytree(checkpoints / "clip", tmp_path / "words")
    (tmp_path / "words" / "model.safetensors").rename(tmp_path / "words" / "large.safetensors")
    hub.repositories["acme/words"] = tmp_path / "words"
    hub.repositories[OPEN_CLIP_REPOSITORY] = save_open_clip(tmp_path / "open_clip")
    shutil.copy(checkpoints / "clip" / "model.safetensors", tmp_path / "open_clip" / "other.safetensors")
    clip = {"family": "clip", "checkpoint": CLIP_REPOSITORY, "tokenizer": "acme/words"}
    files = run_script(FETCH_SCRIPT, hub.environment(tmp_path / "hf"), clip)
    assert "model.safetensors" in files["checkpoint"] and "tokenizer.json" in files["tokenizer"]
    files = run_script(
        FETCH_SCRIPT, hub.environment(tmp_path / "hf"), {"family": "open_clip", "checkpoint": OPEN_CLIP_REPOSITORY}
    )
    assert "open_clip_model.safetensors" in files["checkpoint"]
    assert not {"large.safetensors", "other.safetensors"} & set(hub.served)


PLAN_SCRIPT = """
import json, sys
from tests.commands import run_for_output
words = json.loads(sys.argv[1])
print(json.dumps(run_for_output("score", *words).split("runs here")[1]))
"""


def test_a_plan_names_the_downloads_and_their_sizes(hub: Hub, checkpoints: Path, tmp_path: Path) -> None:
    for name in ("a red circle", "two blue squares"):
        (tmp_path / "mine").mkdir(exist_ok=True)
        tiny.draw_image(0).save(tmp_path / f"mine/{name}.png")
    words = [
        f"images={tmp_path}/mine",
        "metric=[clipscore]",
        f"models.clip.checkpoint={CLIP_REPOSITORY}",
        "cluster=here",
    ]
    words += [f"store={tmp_path}/store", "dry_run=true"]
    before = run_script(PLAN_SCRIPT, hub.environment(tmp_path / "hf"), words)
    size = int(re.findall(rf"^downloads {CLIP_REPOSITORY}: (\d+) bytes$", before, re.MULTILINE)[0])
    weights = (checkpoints / "clip/model.safetensors").stat().st_size
    everything = sum(file.stat().st_size for file in (checkpoints / "clip").iterdir())
    assert weights < size <= everything
    run_script(FETCH_SCRIPT, hub.environment(tmp_path / "hf"), {"family": "clip", "checkpoint": CLIP_REPOSITORY})
    after = run_script(PLAN_SCRIPT, hub.environment(tmp_path / "hf"), words)
    assert "downloads" not in after


def test_a_repository_with_only_open_clips_layout_is_recognised_by_its_files(hub: Hub, tmp_path: Path) -> None:
    hub.repositories[OPEN_CLIP_REPOSITORY] = save_open_clip(tmp_path / "open_clip")
    config = {"family": "open_clip", "checkpoint": OPEN_CLIP_REPOSITORY}
    told = resolve(hub.environment(tmp_path / "hf"), config)
    assert told[0]["commits"] == {"checkpoint": COMMIT, "tokenizer": COMMIT}
    fill_cache(tmp_path / "cache", OPEN_CLIP_REPOSITORY, tmp_path / "open_clip", COMMIT)
    assert resolve({"HF_HOME": str(tmp_path / "cache"), "HF_HUB_OFFLINE": "1"}, config) == told


def test_a_hub_model_without_safetensors_is_refused_with_the_remedy(hub: Hub, tmp_path: Path) -> None:
    shutil.copytree(hub.repositories[CLIP_REPOSITORY], tmp_path / "pickled")
    hub.repositories[CLIP_REPOSITORY] = tmp_path / "pickled"
    (tmp_path / "pickled" / "model.safetensors").rename(tmp_path / "pickled" / "pytorch_model.bin")
    (told,) = resolve(hub.environment(tmp_path / "hf"), {"family": "clip", "checkpoint": CLIP_REPOSITORY})
    assert f"{CLIP_REPOSITORY}@{COMMIT}: expected safetensors weights, found none; convert it" in told["error"]
    assert "pytorch_model.bin" not in hub.served


def test_a_repository_that_the_hub_refuses_is_named_with_the_hubs_answer(hub: Hub, tmp_path: Path) -> None:
    refusals = {"acme/unknown": 404, "acme/gated": 403}
    hub.refusals["acme/gated"] = 403
    answers = resolve(hub.environment(tmp_path), *({"family": "clip", "checkpoint": repo} for repo in refusals))
    for (repo, status), told in zip(refusals.items(), answers, strict=True):
        assert f"model {repo!r} at revision 'main': the hub answered {status}" in told["error"]
        assert "hf auth login" in told["error"]


def test_an_unreachable_hub_is_replaced_by_the_cache(offline_environment: dict[str, str]) -> None:
    unreachable = {"HF_HOME": offline_environment["HF_HOME"], "HF_ENDPOINT": "http://127.0.0.1:9"}
    (told,) = resolve(unreachable, {"family": "clip", "checkpoint": CLIP_REPOSITORY})
    assert told["commits"]["checkpoint"] == TOWER_COMMIT
