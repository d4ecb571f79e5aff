"""ImageReward's rankings: the images of a prompt with their ranks, lower being better, and no two alike."""

from typing import Any

from plumbline.operators.rewards.formats.format import Format, Sample


def _rows(sample: Sample) -> list[dict[str, Any]]:
    return [
        {
            "id": sample.prompt_id,
            "prompt": sample.prompt,
            "generations": [picture.path.removeprefix("images/") for picture in sample.pictures],
            "ranking": list(range(1, len(sample.pictures) + 1)),
        }
    ]


FORMAT = Format(unit="ranking", container="json", images="files", rows=_rows)
