"""plumbline score gives images T2I-CompBench's scores, with tiny detectors of true architecture."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from plugins.detected_objects.tests.geneval_reference import Boxes
from plugins.detected_objects.tests.reference_detectors import KINDS
from plugins.detected_objects.tests.test_compbench_rules import compute_released_count, compute_released_relation
from tests.commands import find_newest_run_folder, run_for_output
from tests.operators.tiny import draw_image

SPATIAL_PROMPTS = {
    "a horse on the right of a car": ("horse", "on the right of", "car"),
    "a girl near a frog": ("person", "near", "frog"),
    "a cat on the top of a sofa": ("cat", "on the top of", "sofa"),
}
"""Names that the detector is asked for, and the relation, by prompt."""
COUNTED_PROMPTS = {"two boys": [("person", 2)], "three mice and one ship": [("mouse", 3), ("boat", 1)]}
"""Names and numbers by prompt."""
N_SAMPLES = 4


def resize_boxes(boxes: Boxes, width: int, height: int) -> Boxes:
    """Return the boxes in the pixels of the image that UniDet reads, the best box first."""
    scale = min(479 / min(width, height), 480 / max(width, height))
    return np.column_stack([boxes[:, :4] * scale, boxes[:, 4]])[np.argsort(-boxes[:, 4])]


@pytest.mark.parametrize("family", KINDS)
def test_relations_and_numbers_are_scored_by_the_releases_rules_with_a_detectors_boxes(
    family: str, tmp_path: Path
) -> None:
    kind = KINDS[family]
    folder, images, threshold = kind.save(tmp_path / "detector"), tmp_path / "images/sdxl", kind.threshold - 0.2
    images.mkdir(parents=True)
    drawn = {
        f"{prompt}_{sample:06}.png": draw_image(10 * number + sample, width=64 + 8 * sample, height=56)
        for number, prompt in enumerate([*SPATIAL_PROMPTS, *COUNTED_PROMPTS])
        for sample in range(N_SAMPLES)
    }
    for name, image in drawn.items():
        image.save(images / name)
    metrics = ["compbench_spatial", "compbench_numeracy"]
    run_for_output(
        "score", f"images={images.parent}", f"metric=[{','.join(metrics)}]", f"store={tmp_path}/store", "cluster=here",
        f"+models.detector={{family: {family}, checkpoint: '{folder}'}}", "max_failed=1",
        *(f"metrics.{name}.threshold={threshold}" for name in metrics), code=2,
    )  # fmt: skip
    rows = pd.read_parquet(find_newest_run_folder(tmp_path / "store") / "scores.parquet")
    by_metric = {name: table.set_index("image_id") for name, table in rows.groupby("metric")}
    kinds = {
        name: {error["kind"] for error in table["error"] if error is not None} for name, table in by_metric.items()
    }
    assert kinds == {"compbench_spatial": {"no_relation"}, "compbench_numeracy": set()}, "a horse counts as one horse"
    scores = []
    for name, image in drawn.items():
        prompt = name.partition("_")[0]

        def detect(phrase: str, image=image) -> Boxes:  # type: ignore[no-untyped-def]
            boxes = resize_boxes(kind.detect(folder, image, phrase), *image.size)
            return boxes[boxes[:, 4] > threshold]

        if prompt in SPATIAL_PROMPTS:
            first, relation, second = SPATIAL_PROMPTS[prompt]
            metric, expected = metrics[0], compute_released_relation(relation, detect(first), detect(second))
        else:
            found = [(compute_released_count(detect(name)), number) for name, number in COUNTED_PROMPTS[prompt]]
            metric, expected = metrics[1], np.mean([0.5 * (n > 0) + 0.5 * (n == number) for n, number in found])
        scores.append(by_metric[metric].loc[f"sdxl/{name}", "score"])
        assert scores[-1] == pytest.approx(expected, abs=1e-3), name
    assert len(set(scores)) > 4
