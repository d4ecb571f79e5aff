"""A VQA model's kind follows from its family and its config.json, and with it what VQAScore asks it."""

from typing import Any

import pytest

from plumbline.operators.models.families import FAMILIES
from plumbline.operators.models.families.blip2 import BLIP2
from plumbline.operators.models.families.blip_vqa import BLIP_VQA
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5
from plumbline.operators.models.families.instructblip import INSTRUCTBLIP
from plumbline.operators.models.families.vlm import CHAT, FILM, LLAVA, LLAVA_1_5, PALIGEMMA
from plumbline.operators.models.vqa_kinds import VICUNA_SYSTEM, VqaKind

CLIP_TOWER = {"model_type": "clip_vision_model", "image_size": 336}
VICUNA = {"model_type": "llama", "vocab_size": 32064}


@pytest.mark.parametrize(
    ("family", "fields", "kind"),
    [
        ("clip_flant5", {"model_type": "clip_t5"}, CLIP_FLANT5),
        ("vlm", {"model_type": "llava", "text_config": VICUNA, "vision_config": CLIP_TOWER}, LLAVA_1_5),
        ("vlm", {"model_type": "llava", "text_config": {}, "vision_config": {}}, LLAVA_1_5),
        ("vlm", {"model_type": "llava", "text_config": VICUNA, "vision_config": {"model_type": "pixtral"}}, LLAVA),
        ("vlm", {"model_type": "llava", "text_config": {"model_type": "mistral"}, "vision_config": CLIP_TOWER}, LLAVA),
        ("vlm", {"model_type": "llava", "text_config": {"vocab_size": 128320}, "vision_config": CLIP_TOWER}, LLAVA),
        ("vlm", {"model_type": "qwen2_5_vl"}, FILM),
        ("vlm", {"model_type": "qwen3_vl"}, CHAT),
        ("vlm", {"model_type": "gemma3"}, CHAT),
        ("vlm", {"model_type": "paligemma"}, PALIGEMMA),
        ("instructblip", {"model_type": "instructblip", "text_config": {"model_type": "t5"}}, INSTRUCTBLIP),
        ("blip2", {"model_type": "blip-2", "text_config": {"model_type": "t5"}}, BLIP2),
        ("blip_vqa", {"model_type": "blip", "architectures": ["BlipForQuestionAnswering"]}, BLIP_VQA),
    ],
)
def test_the_kind_follows_from_the_family_and_the_checkpoints_config(
    family: str, fields: dict[str, Any], kind: VqaKind
) -> None:
    tell = FAMILIES[family].kind
    assert tell is not None
    assert tell(fields) == kind


def test_every_family_that_answers_questions_tells_its_kind_and_no_other_does() -> None:
    for family in FAMILIES.values():
        assert (family.kind is not None) == ("likelihood" in family.calls)


@pytest.mark.parametrize("kind", [CLIP_FLANT5, LLAVA_1_5])
def test_the_papers_models_are_asked_as_released(kind: VqaKind) -> None:
    assert kind.asks == ('Does this figure show "{}"? Please answer yes or no.', "Yes", "mean")
    assert (kind.system, kind.pads) == (VICUNA_SYSTEM, True)


@pytest.mark.parametrize("kind", [LLAVA, CHAT])
def test_other_chat_models_are_asked_for_one_token(kind: VqaKind) -> None:
    assert kind.asks == ('Does this figure show "{}"? Please answer Yes or No.', "Yes", "first")
    assert (kind.system, kind.pads) == (None, False)


def test_a_paligemma_is_asked_as_the_later_release_asks_it() -> None:
    assert PALIGEMMA.asks == ('Does this figure show "{}"? Please answer yes or no.', "Yes", "first")
    assert (PALIGEMMA.system, PALIGEMMA.pads) == (None, False)
