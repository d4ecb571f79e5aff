"""A checkpoint whose processor transformers 5 saved anew: the image processor stands within processor_config.json."""

from pathlib import Path

import pytest
import torch
from transformers import AutoProcessor

from plumbline.operators.models.families import FAMILIES, model_config
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators.models.alike import PICTURES, Answer, asked
from tests.operators.tiny.families import KINDS, Kind

SAVED = ("clip", "siglip2", "siglip2_naflex", "align", "blip_itm", "blip2_itm", "blip", "gemma3", "llava")


def answers(kind: Kind, folder: Path) -> list[Answer]:
    """What the model says of the first picture."""
    call = next(iter(FAMILIES[kind.family].loads))
    inputs, ask = asked(call, kind.measure)
    model = load(resolve_model(model_config(family=kind.family, checkpoint=str(folder)), on_gpu=False), call)
    return ask(model, PICTURES, [one for one in inputs if one.image == 0])


@pytest.mark.parametrize("name", SAVED)
def test_a_processor_saved_anew_scores_as_the_released_one(name: str, tmp_path: Path) -> None:
    torch.set_num_threads(1)
    folder = KINDS[name].save(tmp_path)
    released = answers(KINDS[name], folder)

    AutoProcessor.from_pretrained(folder).save_pretrained(folder)
    (folder / "preprocessor_config.json").unlink()

    assert answers(KINDS[name], folder) == released
