"""A high-quality JPEG changes scores little: the embedded benchmark is scored as PNG and as JPEG."""

import io
from itertools import combinations

import numpy as np
from PIL import Image

from plumbline.jobs.scorer import open_scorer
from tests.benchmarks.size import choose_size, expect
from tests.serving import select_first_pairs

GENERATORS = ("atlas", "borealis", "cobalt", "drift", "ember", "flint", "garnet")
METRICS = ("vqascore", "clipscore")
JPEG_QUALITIES = (75, 90, 95)
"""JPEG qualities; flow_grpo and LightRFT send images with 75, PIL's default."""
N_PROMPTS = choose_size(256, 4)


def encode_jpeg(image: bytes, quality: int) -> bytes:
    file = io.BytesIO()
    Image.open(io.BytesIO(image)).convert("RGB").save(file, "JPEG", quality=quality)
    return file.getvalue()


def compute_reversed_fraction(before: np.ndarray, after: np.ndarray) -> float:
    """Return the fraction of same-prompt image pairs that change order; the arrays have shape (generators, prompts)."""
    pairs = [(before[a] - before[b]) * (after[a] - after[b]) < 0 for a, b in combinations(range(len(before)), 2)]
    return float(np.mean(pairs))


def test_a_high_quality_jpeg_changes_scores_little() -> None:
    pairs, scorer = (
        select_first_pairs(N_PROMPTS, GENERATORS),
        open_scorer(f"metric=[{','.join(METRICS)}]", "models=shapes"),
    )

    def score_images(images: list[bytes]) -> dict[str, np.ndarray]:
        table = scorer.score_table(images, [pair.prompt for pair in pairs])
        each = table.column("score").to_numpy().reshape(len(METRICS), len(GENERATORS), -1)
        return dict(zip(METRICS, each, strict=True))

    png = score_images([pair.image for pair in pairs])
    for quality in JPEG_QUALITIES:
        jpeg = score_images([encode_jpeg(pair.image, quality) for pair in pairs])
        for metric in METRICS:
            apart, turned = np.abs(jpeg[metric] - png[metric]), compute_reversed_fraction(png[metric], jpeg[metric])
            print(
                f"\n{metric}, JPEG {quality}: mean difference {apart.mean():.4f}, 99% of them below "
                f"{np.quantile(apart, 0.99):.3f}, largest {apart.max():.3f}; the order changes in "
                f"{turned:.1%} of the pairs"
            )
            expect(apart.mean() < 0.05)
