"""HPD v3's pairs: `path1` is preferred over `path2`."""

from typing import Any

from plumbline.operators.rewards.formats.format import Format, Sample


def _rows(sample: Sample) -> list[dict[str, Any]]:
    """Without `confidence` and `choice_dist`, which count annotators: HPSv3's own class takes a null for a number."""
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


FORMAT = Format(unit="pair", container="json", images="files", rows=_rows)
