"""Pick-a-Pic: people's choices between two images of a prompt that they wrote themselves.

Source: yuvalkirstain/pickapic_v1 and pickapic_v2, data/test_unique-*.parquet (500 choices) or test-*.parquet, and their
`_no_images` copies: caption, image_0_uid, image_1_uid, label_0 and label_1 (1 and 0, 0 and 1, or .5 each for a tie),
has_label, model_0, model_1, user_id, ranking_id and others. The columns jpg_0 and jpg_1 are not read. The caption has
no id, so it is its own.
"""

from typing import Any

from plumbline.operators.errors import SourceError
from plumbline.pipelines.base.storage import Place
from plumbline.pipelines.judging.releases.release import Release, released
from plumbline.pipelines.judging.releases.sheets import Sheet, files_in, is_folder, read_sheet

COLUMNS = ("caption", "image_0_uid", "image_1_uid", "label_0", "label_1")
OTHERS = ("has_label", "model_0", "model_1", "user_id", "ranking_id")
CHOICES = {(1.0, 0.0): "a", (0.0, 1.0): "b", (0.5, 0.5): "unsure"}
IDENTITY = ("image_a", "image_b", "rater", "ranking_id")
"""What makes a choice one's own; without a ranking_id, people may meet the same pair again."""


def read(place: Place) -> Release:
    """The choices of a Parquet file, or of all those in a folder; image 0 is `a`, and a tie is `unsure`.

    Where `has_label` is false nothing was chosen: `preferred` is null.
    """
    sheets = [read_sheet(file, [*COLUMNS, *OTHERS]) for file in _files(place)]
    choices = [choice for sheet in sheets for choice in _choices(sheet)]
    counts = {
        f"of {len(choices)} pairs have no label": sum(choice["preferred"] is None for choice in choices),
        "choices are of a ranking, images and rater that stand there before: all are kept": (
            len(choices) - len({tuple(choice[name] for name in IDENTITY) for choice in choices})
        ),
    }
    return released(preferences=choices, notes=[f"{count} {what}" for what, count in counts.items() if count])


def _files(place: Place) -> list[Place]:
    if not is_folder(place):
        return [place]
    files = files_in(place, ".parquet")
    if not files:
        raise SourceError(f"{place.url}: expected Parquet files in this folder, found none; check the path")
    return files


def _choices(sheet: Sheet) -> list[dict[str, Any]]:
    sheet.require(COLUMNS, "is this a file of yuvalkirstain/pickapic_v1 or _v2?")
    columns = {
        "prompt_id": sheet.ids("caption"),
        "image_a": sheet.ids("image_0_uid"),
        "image_b": sheet.ids("image_1_uid"),
        "generator_a": sheet.texts("model_0"),
        "generator_b": sheet.texts("model_1"),
        "rater": sheet.texts("user_id"),
        "preferred": _preferred(sheet),
        "ranking_id": sheet.texts("ranking_id"),
    }
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _preferred(sheet: Sheet) -> list[str | None]:
    labels = zip(sheet.numbers("label_0").to_pylist(), sheet.numbers("label_1").to_pylist(), strict=True)
    labelled = [(text or "").lower() not in ("false", "0") for text in sheet.texts("has_label")]
    return [
        _choice(label, sheet.where(row)) if has_label else None
        for row, (has_label, label) in enumerate(zip(labelled, labels, strict=True))
    ]


def _choice(label: tuple[float | None, float | None], where: str) -> str:
    if label not in CHOICES:
        raise SourceError(
            f"{where}: expected label_0 and label_1 of 1 and 0, 0 and 1, or .5 and .5, found {label[0]} and {label[1]}"
            "; correct them, or set has_label to false"
        )
    return CHOICES[label]
