"""Ablations use images for other prompts, blank images or shuffled words, and are deterministic."""

import io
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from PIL import Image

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metrics.ablation import make_blank_image, replace_images, shuffle_words
from plumbline.operators.metrics.questions.dsg import DsgConfig
from plumbline.operators.metrics.questions.vqascore import VqaScoreConfig
from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig


def make_shard(*prompts: str) -> pa.Table:
    places = range(len(prompts))
    images = [None if place == 1 else f"{prompt}/{place}".encode() for place, prompt in enumerate(prompts)]
    columns = {"image_id": [f"i{place}" for place in places], "prompt_id": prompts, "image": images}
    return pa.table({**columns, "uri": [None if image else "there.png" for image in images]})


@pytest.mark.parametrize("prompts", ["abcdefgh", "aabbccdd", "aaabbbc", "ab", "aabb"])
def test_every_row_gets_the_image_of_another_prompt_and_every_image_is_used_once(prompts: str) -> None:
    rows = make_shard(*prompts)
    shown = replace_images(rows, "shuffled_images")
    for name in ("image_id", "prompt_id"):
        assert shown.column(name).equals(rows.column(name))
    taken = [(row["image"], row["uri"]) for row in shown.to_pylist()]
    assert sorted(taken, key=str) == sorted(((row["image"], row["uri"]) for row in rows.to_pylist()), key=str)
    places = {(row["image"], row["uri"]): row["prompt_id"] for row in rows.to_pylist()}
    assert all(places[image] != prompt for image, prompt in zip(taken, prompts, strict=True))
    assert replace_images(rows, "shuffled_images").equals(shown)


def test_a_shard_of_one_prompt_has_no_other_image() -> None:
    with pytest.raises(SourceError, match="found 2 of 3; raise shard_rows"):
        replace_images(make_shard("a", "a", "b"), "shuffled_images")
    assert len(replace_images(make_shard(), "shuffled_images")) == 0


def test_a_blank_image_is_grey_for_every_row() -> None:
    shown = replace_images(make_shard("a", "b", "c"), "blank_images")
    assert shown.column_names == ["image_id", "prompt_id", "image"]
    (one,) = set(shown.column("image").to_pylist())
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(one))), np.asarray(make_blank_image()))
    assert np.ptp(np.asarray(make_blank_image())) == 0


def test_a_metric_without_ablation_sees_the_rows_unchanged() -> None:
    rows = make_shard("a", "b")
    assert replace_images(rows, None) is rows and replace_images(rows, "shuffled_words") is rows


@pytest.mark.parametrize("text", ["is the dog to the left of the cat?", "a b", "b a", "is it is"])
def test_shuffling_keeps_the_words(text: str) -> None:
    assert shuffle_words(text) == shuffle_words(text) != text
    assert sorted(shuffle_words(text).split()) == sorted(text.split())


def test_shuffling_a_single_word_changes_nothing() -> None:
    assert [shuffle_words(text) for text in ("dog", "", "dog dog")] == ["dog", "", "dog dog"]


def test_choices_and_template_of_a_question_keep_their_order() -> None:
    put = DsgConfig(ablation="shuffled_words", template="Q: {} A:").make_vqa_prompt("is the dog red?", ("yes", "no"))
    assert put.text == f"Q: {shuffle_words('is the dog red?')} A:" and put.choices == ("Yes", "No")


def test_only_the_prompt_within_vqascores_question_or_a_prefix_is_shuffled() -> None:
    prompt = "a red cube on a blue ball"
    metric = VqaScoreConfig(template='Does this show "{}"? Answer.', answer="Yes", reduction="first")
    asked = metric.question(prompt)
    assert metric.make_vqa_prompt(asked, ("Yes",)).text == asked
    put = replace(metric, ablation="shuffled_words").make_vqa_prompt(asked, ("Yes",))
    assert put.text == f'Does this show "{shuffle_words(prompt)}"? Answer.'
    compared = ClipScoreConfig(variant="original", ablation="shuffled_words").text(prompt)
    assert compared == f"a photo depicts {shuffle_words(prompt)}"
