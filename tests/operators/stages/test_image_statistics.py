"""Image statistics follow their definitions, decode each image once, and do not rank generators."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from plumbline.operators.images import decoding
from plumbline.operators.metrics.image_statistic import ImageStatisticConfig
from plumbline.operators.scoring.scorer import Scorer, ScorerConfig
from plumbline.operators.stages.image_statistics import MAX_SIDE_PIXELS, measure_pixels
from tests.bench_of import read_image_rows, read_prompt_rows

STATISTICS = ("edge_density", "entropy", "saturation")


def open_statistics_scorer() -> Scorer:
    return Scorer(ScorerConfig(models={}, metrics={name: ImageStatisticConfig(statistic=name) for name in STATISTICS}))


def make_halves(left: tuple[int, int, int], right: tuple[int, int, int]) -> Image.Image:
    image = Image.new("RGB", (64, 32), left)
    image.paste(right, (32, 0, 64, 32))
    return image


@pytest.mark.parametrize(
    ("image", "expected"),
    [
        (Image.new("RGB", (7, 5), (255, 0, 0)), (0, 0, 1)),
        (make_halves((0, 0, 0), (255, 255, 255)), (2 / 64, 1, 0)),
        (make_halves((0, 0, 0), (25, 25, 25)), (0, 1, 0)),
        (make_halves((0, 0, 0), (26, 26, 26)), (2 / 64, 1, 0)),
        (make_halves((200, 100, 100), (100, 100, 100)), (2 / 64, 1, 0.25)),
        (Image.new("RGB", (1, 1)), (0, 0, 0)),
    ],
)
def test_a_statistic_follows_its_definition(image: Image.Image, expected: tuple[float, float, float]) -> None:
    assert measure_pixels(image) == pytest.approx(expected, abs=0.002)


@given(st.integers(0, 2**32 - 1), st.integers(1, 40), st.integers(1, 40))
def test_statistics_equal_those_of_another_implementation(seed: int, width: int, height: int) -> None:
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)
    found = measure_pixels(Image.fromarray(pixels))
    luma = np.asarray(Image.fromarray(pixels).convert("L"), float)
    shares = np.unique(luma, return_counts=True)[1] / luma.size
    assert found.entropy == pytest.approx(-(shares * np.log2(shares)).sum(), abs=1e-5)
    most, least = pixels.max(axis=2).astype(float), pixels.min(axis=2)
    saturations = np.divide(most - least, most, out=np.zeros_like(most), where=most > 0)
    assert found.saturation == pytest.approx(saturations.mean(), abs=1 / 255)
    assert 0 <= found.edge_density <= 1


def test_enlarging_an_image_does_not_change_its_statistics() -> None:
    small = Image.fromarray(np.random.default_rng(0).integers(0, 2, (64, 64), dtype=np.uint8) * 255).convert("RGB")
    at_size = small.resize((MAX_SIDE_PIXELS, MAX_SIDE_PIXELS), Image.Resampling.NEAREST)
    larger = small.resize((2 * MAX_SIDE_PIXELS, 2 * MAX_SIDE_PIXELS), Image.Resampling.NEAREST)
    assert measure_pixels(larger) == pytest.approx(measure_pixels(at_size), abs=1e-6)


def test_all_statistics_of_an_image_take_one_decoding_and_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: list[bytes] = []
    decode = decoding.decode_bytes

    def decode_counted(encoded: bytes, limits: decoding.ImageLimits) -> object:
        decoded.append(encoded)
        return decode(encoded, limits)

    monkeypatch.setattr(decoding, "decode_bytes", decode_counted)
    shown, texts = [row["image"] for row in read_image_rows("atlas", 4)], [row["text"] for row in read_prompt_rows(4)]
    table = open_statistics_scorer().score_table(
        [image["bytes"] if isinstance(image, dict) else image for image in shown], texts
    )
    assert len(decoded) == 4 and table.column("score").null_count == 0
    assert table.column("metric").unique().to_pylist() == list(STATISTICS)


def test_an_unreadable_image_has_no_statistics_and_frames_have_the_mean() -> None:
    black, white = (Image.new("RGB", (8, 8), (level,) * 3) for level in (0, 255))
    red = Image.new("RGB", (8, 8), (255, 0, 0))
    table = open_statistics_scorer().score_table([b"no image", [black, white, red, red]], ["a", "b"], ["saturation"])
    assert [error and error["kind"] for error in table.column("error").to_pylist()] == ["corrupt_image", None]
    assert table.column("score").to_pylist() == [None, 0.5]
