"""An example format for training data: which generator made the better image for a prompt."""

from plumbline.extending import Format, Sample


def _make_rows(sample: Sample) -> list[dict[str, str]]:
    return [{"prompt": sample.prompt, "better": sample.best.generator, "worse": sample.worst.generator}]


FORMAT = Format(unit="pair", container="jsonl", images="none", rows=_make_rows)
