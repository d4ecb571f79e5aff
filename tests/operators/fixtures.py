"""Fixtures: tiny checkpoints (built once per session), the models loaded from them, and a chat endpoint."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from plumbline.operators.models.families import make_model_config
from tests.operators.models.endpoint import KEY, KEY_VARIABLE, Server

if TYPE_CHECKING:
    from plumbline.operators.models.families.dual_encoders import ClipSimilarity
    from plumbline.operators.models.networks.clip_flant5 import ClipFlanT5Likelihood


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    """Yield a chat endpoint on localhost, whose API key is set in the environment."""
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    started = Server()
    yield started
    started.close()


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the checkpoints `clip` and `flant5`; flant5's config names `../clip` as its vision tower."""
    import torch

    from tests.operators import tiny

    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("checkpoints")
    tiny.save_clip(folder / "clip")
    tiny.save_flant5(folder / "flant5", tiny.make_flant5_weights())
    return folder


@pytest.fixture(scope="session")
def likelihood(checkpoints: Path) -> "ClipFlanT5Likelihood":
    from plumbline.operators.models.loading import load
    from plumbline.operators.models.resolution import resolve_model

    config = make_model_config(family="clip_flant5", checkpoint=str(checkpoints / "flant5"))
    return load(resolve_model(config, on_gpu=False), "likelihood")


@pytest.fixture(scope="session")
def similarity(checkpoints: Path) -> "ClipSimilarity":
    from plumbline.operators.models.loading import load
    from plumbline.operators.models.resolution import resolve_model

    config = make_model_config(family="clip", checkpoint=str(checkpoints / "clip"))
    return load(resolve_model(config, on_gpu=False), "similarity")
