"""Captions and regions are the library's own, whatever the batch."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import (
    Blip2ForConditionalGeneration,
    BlipForConditionalGeneration,
    BlipImageProcessor,
    CLIPImageProcessor,
    Florence2ForConditionalGeneration,
    Florence2Processor,
    GitForCausalLM,
    PreTrainedTokenizerFast,
)

from plumbline.operators.errors import ModelError
from plumbline.operators.models.calls import ImageRequest, Message, Region, Request
from plumbline.operators.models.families import model_config
from plumbline.operators.models.families.florence2 import REGION_TOKENS, read_regions
from plumbline.operators.models.loading import load
from plumbline.operators.models.resolution import resolve_model
from tests.operators import tiny
from tests.operators.models import alike
from tests.operators.tiny import captioners

SAVED: dict[str, tuple[str, Callable[[Path], Path]]] = {
    "blip": ("captioner", captioners.save_blip),
    "git": ("captioner", captioners.save_git),
    "blip2": ("captioner", captioners.save_blip2_opt),
    "florence2": ("florence2", captioners.save_florence2),
}
TOKENS = 16


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    torch.set_num_threads(1)
    return {name: save(tmp_path_factory.mktemp(name)) for name, (_, save) in SAVED.items()}


def loaded(folders: dict[str, Path], name: str, call: Any = "generate_from_images", **options: Any) -> Any:
    config = model_config(family=SAVED[name][0], checkpoint=str(folders[name]), **options)
    return load(resolve_model(config, on_gpu=False), call)


def captions(model: Any) -> list[str]:
    asked = [ImageRequest(image, Request((Message("user", "Describe it."),), TOKENS)) for image in range(4)]
    return [reply.text for reply in alike.replies(model, alike.PICTURES, asked)]


def blip_caption(folder: Path, picture: Any) -> str:
    model, processor = BlipForConditionalGeneration.from_pretrained(folder), BlipImageProcessor.from_pretrained(folder)
    ids = model.generate(pixel_values=processor(picture, return_tensors="pt").pixel_values, max_new_tokens=TOKENS)[0]
    return str(PreTrainedTokenizerFast.from_pretrained(folder).decode(ids, skip_special_tokens=True)).strip()


def git_caption(folder: Path, picture: Any) -> str:
    model, processor = GitForCausalLM.from_pretrained(folder), CLIPImageProcessor.from_pretrained(folder)
    ids = model.generate(pixel_values=processor(picture, return_tensors="pt").pixel_values, max_new_tokens=TOKENS)[0]
    return str(PreTrainedTokenizerFast.from_pretrained(folder).decode(ids, skip_special_tokens=True)).strip()


def blip2_caption(folder: Path, picture: Any) -> str:
    model, processor = Blip2ForConditionalGeneration.from_pretrained(folder), BlipImageProcessor.from_pretrained(folder)
    ids = model.generate(pixel_values=processor(picture, return_tensors="pt").pixel_values, max_new_tokens=TOKENS)[0]
    end = model.config.text_config.eos_token_id
    kept = [token for token in ids.tolist() if token != end]
    return str(PreTrainedTokenizerFast.from_pretrained(folder).decode(kept, skip_special_tokens=True)).strip()


def florence2_text(folder: Path, picture: Any, task: str, tokens: int) -> tuple[Florence2Processor, str]:
    """The library's processor and whole model, and what they say."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folder)
    images = CLIPImageProcessor.from_pretrained(folder, image_seq_length=17)
    rules = {"description_with_bboxes": {}, "pure_text": {}}
    processor = Florence2Processor(images, tokenizer, post_processor_config=rules)
    inputs = processor(text=task, images=picture, return_tensors="pt")
    ids = Florence2ForConditionalGeneration.from_pretrained(folder).generate(**inputs, max_new_tokens=tokens)[0]
    return processor, tokenizer.decode(ids, skip_special_tokens=task in ("<CAPTION>", "<OCR>"))


def florence2_caption(folder: Path, picture: Any) -> str:
    return florence2_text(folder, picture, "<CAPTION>", TOKENS)[1].strip()


CAPTION = {"blip": blip_caption, "git": git_caption, "blip2": blip2_caption, "florence2": florence2_caption}


@pytest.mark.parametrize("name", SAVED)
def test_a_caption_is_the_librarys_own(name: str, folders: dict[str, Path]) -> None:
    expected = [CAPTION[name](folders[name], picture) for picture in alike.PICTURES]
    assert captions(loaded(folders, name)) == expected and len(set(expected)) > 1


def test_a_caption_that_runs_on_behind_its_end_would_be_seen(folders: dict[str, Path]) -> None:
    """In a batch the shorter captions are padded."""
    model = loaded(folders, "git")
    model.end_id = -1
    with pytest.raises(AssertionError):
        alike.require_alike(model, "generate_from_images")


def test_an_image_that_is_another_ones_place_would_be_seen(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = loaded(folders, "florence2")
    encode = model._encode
    monkeypatch.setattr(model, "_encode", lambda pixels: encode(pixels)[::-1])
    with pytest.raises(AssertionError):
        alike.require_alike(model, "generate_from_images")


def regions_of(model: Any, pictures: Sequence[Any]) -> list[list[Region]]:
    return list(model.regions(model.encode([model.preprocess(picture) for picture in pictures])))


def test_regions_are_the_librarys_own_in_pixels_of_the_image(folders: dict[str, Path]) -> None:
    model = loaded(folders, "florence2", "regions")
    told = regions_of(model, alike.PICTURES)
    assert sum(map(len, told)) > 4 and len(set(map(tuple, told))) > 1
    for picture, regions in zip(alike.PICTURES, told, strict=True):
        longest = min(REGION_TOKENS, model.longest)
        processor, text = florence2_text(folders["florence2"], picture, "<DENSE_REGION_CAPTION>", longest)
        task = "<DENSE_REGION_CAPTION>"
        expected = processor.post_process_generation(text=text, task=task, image_size=picture.size)[task]
        # the library has the rest of a place before the words, and places without words
        words = [label.rpartition(">")[2].strip() for label in expected["labels"]]
        assert regions == [Region(label, *box) for label, box in zip(words, expected["bboxes"], strict=True) if label]
        assert all(0 <= region.x1 < picture.width and 0 <= region.y2 < picture.height for region in regions)


def test_the_text_in_an_image_is_the_librarys_own_alone_and_in_any_batch(folders: dict[str, Path]) -> None:
    model = loaded(folders, "florence2", "ocr", image_batch=3)
    features = model.encode([model.preprocess(picture) for picture in alike.PICTURES])
    longest = min(REGION_TOKENS, model.longest)
    texts = [florence2_text(folders["florence2"], picture, "<OCR>", longest)[1] for picture in alike.PICTURES]
    expected = [text.strip() for text in texts]
    assert len(set(expected)) > 1
    assert model.ocr(features) == expected
    assert model.ocr(features[::-1]) == expected[::-1]
    assert [model.ocr([feature])[0] for feature in features] == expected


def test_regions_are_read_with_every_box_of_their_words() -> None:
    reply = "</s><s>a red car<loc_0><loc_500><loc_999><loc_999><loc_1><loc_2><loc_3><loc_4>sky <loc_9><loc_9></s><pad>"
    assert read_regions(reply, 100, 200) == [Region("a red car", 0, 100, 99, 199), Region("a red car", 0, 0, 0, 0)]
    assert read_regions("nothing", 10, 10) == read_regions("", 10, 10) == []


def test_a_checkpoint_of_another_layout_is_refused_in_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    tiny.save_clip(tmp_path / "clip")
    with pytest.raises(ModelError, match="a GitForCausalLM or a BLIP-2 with an OPT"):
        resolve_model(model_config(family="captioner", checkpoint=str(tmp_path / "clip")), on_gpu=False)
    (folder := tmp_path / "remote").mkdir()
    for file in folders["florence2"].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tiny.edit_json(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_florence2.Florence2"})
    with pytest.raises(ModelError, match="florence-community"):
        resolve_model(model_config(family="florence2", checkpoint=str(folder)), on_gpu=False)
