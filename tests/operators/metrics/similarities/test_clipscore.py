"""The variants of CLIPScore differ only in scale, clamping and text prefix."""

import pytest

from plumbline.operators.metrics.similarities.clipscore import ClipScoreConfig, Variant, scale_cosine


@pytest.mark.parametrize(
    ("variant", "positive", "negative"), [("cosine", 0.3, -0.3), ("original", 0.75, 0.0), ("torchmetrics", 30.0, 0.0)]
)
def test_the_scale_and_the_clamp_follow_the_variant(variant: Variant, positive: float, negative: float) -> None:
    assert scale_cosine(0.3, variant) == pytest.approx(positive)
    assert scale_cosine(-0.3, variant) == negative


@pytest.mark.parametrize(
    ("variant", "text"),
    [("cosine", "a {} Cat"), ("original", "a photo depicts a {} cat"), ("torchmetrics", "a {} Cat")],
)
def test_only_the_original_puts_its_prefix_before_the_text(variant: Variant, text: str) -> None:
    assert ClipScoreConfig(variant=variant).text("a {} Cat") == text


@pytest.mark.parametrize(
    ("prompt", "read"),
    [
        ("the Mona Lisa\u2019s smile", "the mona lisa's smile"),
        ("a cafÃ© in \u201cParis\u201d", 'a café in "paris"'),
        ("art &amp;amp; craft, l&#39;art ", "art & craft, l'art"),
        ("ﬁne ＡＢＣ", "fine abc"),
    ],
)
def test_the_original_cleans_a_text_like_the_released_tokenizer(prompt: str, read: str) -> None:
    assert ClipScoreConfig(variant="original").text(prompt) == "a photo depicts " + read
    assert ClipScoreConfig().text(prompt) == prompt


def test_the_raw_cosine_is_the_default() -> None:
    assert ClipScoreConfig().variant == "cosine"
