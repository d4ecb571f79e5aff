"""A checkpoint whose processor transformers 5 saved anew: the image processor stands within processor_config.json."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoProcessor

from plumbline.operators.models.calls import ImageRequest, Message, Pair, Question, Request
from plumbline.operators.models.families import model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models.alike import PICTURES
from tests.operators.tiny import captioners, chat_vlms, rewards

SAVED: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "clip": ("clip", tiny.save_clip),
    "siglip2": ("siglip", rewards.save_siglip2),
    "naflex": ("siglip", rewards.save_siglip2_naflex),
    "align": ("align", rewards.save_align),
    "blip_itm": ("blip_itm", rewards.save_blip_itm),
    "blip2_itm": ("blip_itm", rewards.save_blip2_itm),
    "captioner": ("captioner", captioners.save_blip),
    "gemma3": ("vlm", chat_vlms.save_gemma3),
    "llava": ("vlm", tiny.save_llava),
}

MEASURE = {"blip_itm": "match"}


def said(family: str, folder: Path) -> list[Any]:
    """What the model says of the first picture."""
    call = {"captioner": "generate_from_images", "vlm": "likelihood"}.get(family, "similarity")
    model: Any = load(resolve_model(model_config(family=family, checkpoint=str(folder)), on_gpu=False), call)  # type: ignore[call-overload]
    features = model.encode([model.preprocess(PICTURES[0])])
    if call == "similarity":
        return [
            pair.similarity for pair in model.compare(features, [Pair(0, "two cats")], MEASURE.get(family, "cosine"))
        ]
    if call == "likelihood":
        return list(model.likelihood(features, [Question(0, "Two cats?", ("Yes",))]))
    asked = ImageRequest(0, Request((Message("user", "What is it?"),), max_tokens=8))
    return [reply.text for reply in model.generate_from_images(features, [asked])]


@pytest.mark.parametrize("name", SAVED)
def test_a_processor_saved_anew_scores_as_the_released_one(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    family, save = SAVED[name]
    folder = save(tmp_path)
    released = said(family, folder)

    AutoProcessor.from_pretrained(folder).save_pretrained(folder)
    (folder / "preprocessor_config.json").unlink()

    assert said(family, folder) == released
