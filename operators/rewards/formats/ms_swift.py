"""ms-swift's preference rows of one question about two images, in the form with messages: for reward models."""

from typing import Any

from plumbline.operators.rewards.formats.format import Format, Sample

IMAGE_TAG = "<image>"
QUESTION = 'Does this image show "{}"? Please answer yes or no.'
ANSWER = "Yes"


def _rows(sample: Sample) -> list[dict[str, Any]]:
    """One row; none for a prompt that holds the tag which stands for an image."""
    if IMAGE_TAG in sample.prompt:
        return []
    messages = [
        {"role": "user", "content": IMAGE_TAG + QUESTION.format(sample.prompt)},
        {"role": "assistant", "content": ANSWER},
    ]
    return [
        {
            "messages": messages,
            "images": [sample.best.path],
            "rejected_messages": messages,
            "rejected_images": [sample.worst.path],
            "margin": (sample.best.reward or 0.0) - (sample.worst.reward or 0.0),
        }
    ]


FORMAT = Format(unit="pair", container="jsonl", images="files", rows=_rows)
