"""Formats whose examples are a better and a worse image for the same prompt, or rankings of a prompt's images."""

import hashlib
import json
from itertools import combinations
from typing import Any

import pyarrow as pa

from plumbline.operators.base.schemas import floats, longs, texts
from plumbline.operators.rewards.formats.format import (
    IMAGE_TYPE,
    Format,
    Sample,
    ScoredImage,
    embed_image,
    mark_image_columns,
)

PAIRS_SCHEMA = pa.schema(
    [
        ("are_different", pa.bool_()),
        *texts("best_image_uid", "caption"),
        ("created_at", pa.timestamp("ns")),
        ("has_label", pa.bool_()),
        *texts("image_0_uid", "image_0_url", "image_1_uid", "image_1_url"),
        ("jpg_0", pa.binary()),
        ("jpg_1", pa.binary()),
        *floats("label_0", "label_1"),
        *texts("model_0", "model_1"),
        *longs("ranking_id", "user_id", "num_example_per_prompt", "__index_level_0__"),
    ]
)
"""Columns and types as on the dataset's card (yuvalkirstain/pickapic_v2).

`jpg_*` contain the unchanged source images; readers detect the format from the content, so PNG works too. A label is 1
or 0. A label is never 0.5, which means a tie, because trainers would read that as a win. `user_id` identifies the
scorer.
"""


def make_pair_row(sample: Sample, *, swapped: bool) -> dict[str, Any]:
    """Return a pair's values by column. If `swapped`, the better image is the second."""
    first, second = (sample.worst, sample.best) if swapped else (sample.best, sample.worst)
    columns: dict[str, Any] = {
        "are_different": first.digest != second.digest,
        "best_image_uid": sample.best.uid,
        "caption": sample.prompt,
        "created_at": sample.run_ended,
        "has_label": True,
        "ranking_id": _hash_to_number(f"{sample.best.uid}\0{sample.worst.uid}"),
        "user_id": _hash_to_number(sample.scorer),
        "num_example_per_prompt": sample.n_of_prompt,
        "__index_level_0__": sample.number,
    }
    for index, image in enumerate((first, second)):
        columns[f"image_{index}_uid"] = image.uid
        columns[f"image_{index}_url"] = image.uri
        columns[f"jpg_{index}"] = image.content
        columns[f"label_{index}"] = float(image is sample.best)
        columns[f"model_{index}"] = image.generator
    return columns


def _is_swapped(sample: Sample) -> bool:
    """Return True if the better image is the second. A hash decides, so that the order reveals nothing."""
    return bool(_hash_to_number(f"{sample.best.uid}\0{sample.worst.uid}") & 1)


def _hash_to_number(text: str) -> int:
    """Return a 63-bit hash of a string, which fits into an int64."""
    return int.from_bytes(hashlib.sha256(text.encode(errors="replace")).digest()[:8], "big") >> 1


PAIRS_FORMAT = Format(
    unit="pair",
    container="parquet",
    images="embedded",
    rows=lambda sample: [make_pair_row(sample, swapped=_is_swapped(sample))],
    schema=PAIRS_SCHEMA,
)
"""Pick-a-Pic v2 with all columns, for trainers of diffusion DPO and PickScore."""


def _make_pairs_webdataset_rows(sample: Sample) -> list[dict[str, Any]]:
    # The trainer compares a label, which it has read as text, with a number, and so always prefers jpg_0.
    columns = make_pair_row(sample, swapped=False)
    other = {name: value for name, value in columns.items() if not name.startswith("jpg_")}
    return [
        {
            "jpg_0.jpg": columns["jpg_0"],
            "jpg_1.jpg": columns["jpg_1"],
            "label_0.txt": b"1",
            "label_1.txt": b"0",
            "original_prompt.txt": sample.prompt.encode(errors="replace"),
            "json": json.dumps({**other, "created_at": other["created_at"].isoformat()}).encode(),
        }
    ]


PAIRS_WEBDATASET_FORMAT = Format(unit="pair", container="tar", images="embedded", rows=_make_pairs_webdataset_rows)
"""Pick-a-Pic v2 as WebDataset tars, for the diffusion ORPO example in diffusers."""


EMPTY_NEGATIVE_PROMPT = " "
"""Negative prompt that verl-omni's own script uses by default."""
VERL_OMNI_SCHEMA = pa.schema(
    [
        *texts("data_source", "prompt", "negative_prompt", "img_win", "img_lose"),
        *floats("win_score", "lose_score"),
        ("uid", pa.string()),
        ("reward_model", pa.struct([("style", pa.string()), ("ground_truth", pa.string())])),
        (
            "extra_info",
            pa.struct([("split", pa.string()), ("index", pa.int64()), *texts("raw_prompt", "raw_negative_prompt")]),
        ),
    ]
)
"""Columns of the format. Image paths are relative to the table's folder, because verl-omni's dataset class resolves
them relative to that folder when it loads a single file.

The prompt is plain text, because pandas reads a list of messages as an array, which the class does not accept.
"""


def _make_verl_omni_rows(sample: Sample) -> list[dict[str, Any]]:
    return [
        {
            "data_source": "plumbline",
            "prompt": sample.prompt,
            "negative_prompt": EMPTY_NEGATIVE_PROMPT,
            "img_win": f"../{sample.best.path}",
            "img_lose": f"../{sample.worst.path}",
            "win_score": sample.best.reward,
            "lose_score": sample.worst.reward,
            "uid": f"{sample.best.uid}|{sample.worst.uid}",
            "reward_model": {"style": "model", "ground_truth": sample.prompt},
            "extra_info": {
                "split": sample.split,
                "index": sample.number,
                "raw_prompt": sample.prompt,
                "raw_negative_prompt": EMPTY_NEGATIVE_PROMPT,
            },
        }
    ]


VERL_OMNI_FORMAT = Format(
    unit="pair", container="parquet", images="files", rows=_make_verl_omni_rows, schema=VERL_OMNI_SCHEMA
)
"""verl-omni's table for offline DPO. The table lacks the latents and embeddings that verl-omni's own model computes
from images.
"""


IMAGE_TAG = "<image>"
IMAGE_QUESTION = 'Does this image show "{}"? Please answer yes or no.'
EDIT_QUESTION = (
    'The last image was edited from what is before it, by the instruction "{}". Was it followed, and all else kept? '
    "Please answer yes or no."
)
YES_ANSWER = "Yes"


def _make_ms_swift_rows(sample: Sample) -> list[dict[str, Any]]:
    if IMAGE_TAG in sample.prompt:
        return []
    sources = [source.path for source in sample.sources]
    question = (EDIT_QUESTION if sources else IMAGE_QUESTION).format(sample.prompt)
    messages = [
        {"role": "user", "content": IMAGE_TAG * (len(sources) + 1) + question},
        {"role": "assistant", "content": YES_ANSWER},
    ]
    return [
        {
            "messages": messages,
            "images": [*sources, sample.best.path],
            "rejected_messages": messages,
            "rejected_images": [*sources, sample.worst.path],
            "margin": (sample.best.reward or 0.0) - (sample.worst.reward or 0.0),
        }
    ]


MS_SWIFT_FORMAT = Format(unit="pair", container="jsonl", images="files", edits="too", rows=_make_ms_swift_rows)
"""ms-swift's preference rows with messages, for reward models: the same question about two images. For edits, both
sides show the source images first, then the edited image.
"""


def _make_hpdv3_rows(sample: Sample) -> list[dict[str, Any]]:
    # `confidence` and `choice_dist` count annotators and are omitted: HPSv3's own class reads null as a number.
    return [
        {
            "prompt": sample.prompt,
            "path1": sample.best.path,
            "path2": sample.worst.path,
            "model1": sample.best.generator,
            "model2": sample.worst.generator,
            "source": "plumbline",
        }
    ]


HPDV3_FORMAT = Format(unit="pair", container="json", images="files", rows=_make_hpdv3_rows)
"""HPD v3's pairs; `path1` is the better image."""


def _make_editreward_rows(sample: Sample) -> list[dict[str, Any]]:
    if len(sample.sources) != 1:
        return []
    (row,) = _make_hpdv3_rows(sample)
    rewards = {"model1": sample.best.reward, "model2": sample.worst.reward}  # for lack of scores by dimension
    scores = {f"{model}_{kind}_score": reward for model, reward in rewards.items() for kind in ("dim1", "overall")}
    return [{**row, "path_src": sample.sources[0].path, **scores}]


EDITREWARD_FORMAT = Format(unit="pair", container="json", images="files", edits="only", rows=_make_editreward_rows)
"""EditReward's pairs of edits: like HPD v3's pairs, with the source image added."""


MESSAGES_TYPE = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
TRL_VISION_DPO_SCHEMA = mark_image_columns(
    pa.schema(
        [
            ("prompt", MESSAGES_TYPE),
            ("chosen", MESSAGES_TYPE),
            ("rejected", MESSAGES_TYPE),
            ("images", pa.list_(IMAGE_TYPE)),
        ]
    ),
    "images",
)
COMPARISON_QUESTION = 'Which of the two images shows "{}" better? Please answer 1 or 2.'
EDIT_COMPARISON_QUESTION = (
    'The last two images were edited from what is before them, by the instruction "{}". Which of the two follows it '
    "better and keeps all else? Please answer 1 or 2."
)


def _make_trl_vision_dpo_rows(sample: Sample) -> list[dict[str, Any]]:
    swapped = _is_swapped(sample)
    images = (sample.worst, sample.best) if swapped else (sample.best, sample.worst)
    right, wrong = ("2", "1") if swapped else ("1", "2")
    question = EDIT_COMPARISON_QUESTION if sample.sources else COMPARISON_QUESTION
    return [
        {
            "prompt": [{"role": "user", "content": question.format(sample.prompt)}],
            "chosen": [{"role": "assistant", "content": right}],
            "rejected": [{"role": "assistant", "content": wrong}],
            "images": [*map(embed_image, sample.sources), *map(embed_image, images)],
        }
    ]


TRL_VISION_DPO_FORMAT = Format(
    unit="pair",
    container="parquet",
    images="embedded",
    edits="too",
    rows=_make_trl_vision_dpo_rows,
    schema=TRL_VISION_DPO_SCHEMA,
)
"""TRL's vision DPO, only for training judges: the correct and the wrong verdict on the same two images.

In TRL, the chosen and the rejected text share one list of images, so they cannot refer to different images. The source
images of edits come first.
"""


def _make_imagereward_rows(sample: Sample) -> list[dict[str, Any]]:
    return [
        {
            "id": sample.prompt_id,
            "prompt": sample.prompt,
            "generations": [_make_file_name(image) for image in sample.images],
            "ranking": list(range(1, len(sample.images) + 1)),
        }
    ]


IMAGEREWARD_FORMAT = Format(unit="ranking", container="json", images="files", rows=_make_imagereward_rows)
"""ImageReward's rankings: the images of a prompt with their ranks, counted from 1 for the best, without ties."""


def _make_hpsv2_rows(sample: Sample) -> list[dict[str, Any]]:
    """Return all pairs of images in a ranking. The better image is first in one pair and second in the next."""
    rows = []
    for number, (better, worse) in enumerate(combinations(sample.images, 2), sample.number):
        images = (worse, better) if number % 2 else (better, worse)
        rows.append(
            {
                "human_preference": [int(image is better) for image in images],
                "prompt": sample.prompt,
                "file_path": [_make_file_name(image) for image in images],
            }
        )
    return rows


def _make_hpsv2_held_out_rows(sample: Sample) -> list[dict[str, Any]]:
    ranks = list(range(1, len(sample.images) + 1))
    names = [_make_file_name(image) for image in sample.images]
    return [{"prompt": sample.prompt, "image_path": names, "rank": ranks, "raw_annotations": []}]


def _make_file_name(image: ScoredImage) -> str:
    """Return the image's path within the image folder, which trainers take as an argument."""
    return image.path.removeprefix("images/")


HPSV2_FORMAT = Format(
    unit="ranking", container="json", images="files", rows=_make_hpsv2_rows, held_out_rows=_make_hpsv2_held_out_rows
)
"""HPD v2's annotations: pairs for training (human_preference), and rankings for testing (rank)."""
