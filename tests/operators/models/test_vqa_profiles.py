"""A VQA model's profile follows from its family and config.json, and determines the question that VQAScore asks."""

from typing import Any

import pytest

from plumbline.operators.metrics.questions.vqascore import DEFAULT_QUESTIONS
from plumbline.operators.models.families import FAMILIES, make_model_config
from plumbline.operators.models.families.blip import BLIP2_PROFILE, BLIP_VQA_PROFILE, INSTRUCTBLIP_PROFILE
from plumbline.operators.models.families.clip_flant5 import CLIP_FLANT5_PROFILE
from plumbline.operators.models.families.vlm import (
    CHAT_PROFILE,
    FUYU_PROFILE,
    LLAVA_1_5_PROFILE,
    LLAVA_PROFILE,
    PALIGEMMA_PROFILE,
    VIDEO_CHAT_PROFILE,
)
from plumbline.operators.models.vqa_profiles import VICUNA_SYSTEM, VqaProfile

CLIP_TOWER_CONFIG = {"model_type": "clip_vision_model", "image_size": 336}
VICUNA_CONFIG = {"model_type": "llama", "vocab_size": 32064}


@pytest.mark.parametrize(
    ("family", "fields", "profile"),
    [
        ("clip_flant5", {"model_type": "clip_t5"}, CLIP_FLANT5_PROFILE),
        (
            "vlm",
            {"model_type": "llava", "text_config": VICUNA_CONFIG, "vision_config": CLIP_TOWER_CONFIG},
            LLAVA_1_5_PROFILE,
        ),
        ("vlm", {"model_type": "llava", "text_config": {}, "vision_config": {}}, LLAVA_1_5_PROFILE),
        (
            "vlm",
            {"model_type": "llava", "text_config": VICUNA_CONFIG, "vision_config": {"model_type": "pixtral"}},
            LLAVA_PROFILE,
        ),
        (
            "vlm",
            {"model_type": "llava", "text_config": {"model_type": "mistral"}, "vision_config": CLIP_TOWER_CONFIG},
            LLAVA_PROFILE,
        ),
        (
            "vlm",
            {"model_type": "llava", "text_config": {"vocab_size": 128320}, "vision_config": CLIP_TOWER_CONFIG},
            LLAVA_PROFILE,
        ),
        ("vlm", {"model_type": "qwen2_5_vl"}, VIDEO_CHAT_PROFILE),
        ("vlm", {"model_type": "qwen3_vl"}, CHAT_PROFILE),
        ("vlm", {"model_type": "gemma3"}, CHAT_PROFILE),
        ("vlm", {"model_type": "paligemma"}, PALIGEMMA_PROFILE),
        ("vlm", {"model_type": "fuyu"}, FUYU_PROFILE),
        ("instructblip", {"model_type": "instructblip", "text_config": {"model_type": "t5"}}, INSTRUCTBLIP_PROFILE),
        ("blip2", {"model_type": "blip-2", "text_config": {"model_type": "t5"}}, BLIP2_PROFILE),
        ("blip_vqa", {"model_type": "blip", "architectures": ["BlipForQuestionAnswering"]}, BLIP_VQA_PROFILE),
    ],
)
def test_the_profile_follows_from_the_family_and_the_checkpoints_config(
    family: str, fields: dict[str, Any], profile: VqaProfile
) -> None:
    tell = FAMILIES[family].profile
    assert tell is not None
    assert tell(make_model_config(family=family, checkpoint="x"), fields) == profile


def test_exactly_the_families_that_answer_questions_have_a_profile() -> None:
    for family in FAMILIES.values():
        assert (family.profile is not None) == ("likelihood" in family.calls)


@pytest.mark.parametrize("profile", [CLIP_FLANT5_PROFILE, LLAVA_1_5_PROFILE])
def test_the_papers_models_get_the_released_questions(profile: VqaProfile) -> None:
    assert DEFAULT_QUESTIONS[profile.question] == (
        'Does this figure show "{}"? Please answer yes or no.',
        "Yes",
        "mean",
    )
    assert (profile.system, profile.pads_images) == (VICUNA_SYSTEM, True)


@pytest.mark.parametrize("profile", [LLAVA_PROFILE, CHAT_PROFILE])
def test_other_chat_models_are_asked_for_one_token(profile: VqaProfile) -> None:
    assert DEFAULT_QUESTIONS[profile.question] == (
        'Does this figure show "{}"? Please answer Yes or No.',
        "Yes",
        "first",
    )
    assert (profile.system, profile.pads_images) == (None, False)


@pytest.mark.parametrize("profile", [PALIGEMMA_PROFILE, FUYU_PROFILE])
def test_a_model_that_only_reads_questions_gets_the_later_releases_question_for_paligemma(profile: VqaProfile) -> None:
    assert DEFAULT_QUESTIONS[profile.question] == (
        'Does this figure show "{}"? Please answer yes or no.',
        "Yes",
        "first",
    )
    assert (profile.system, profile.pads_images, profile.several_images) == (None, False, False)
