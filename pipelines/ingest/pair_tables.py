"""Tables with two images and two captions in a row, such as Winoground's and EqBen's.

Each image is paired with each caption. Sample 7 has the images `7_i0` and `7_i1` and the prompts `7_c0` and `7_c1`, and
the protocols `winoground` and `eqben` judge scores by these ids. The generator `matched` has each image with its own
caption, and `swapped` with the other: each of them has an image's id once.
"""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import PurePosixPath
from typing import Any

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.tables import Refused, Rejection, Row, Values
from plumbline.pipelines.ingest.ingest_config import IngestConfig
from plumbline.pipelines.ingest.typed_tables import Table, read_rows
from plumbline.pipelines.sources.input_columns import InputColumnsConfig
from plumbline.pipelines.sources.origins import Origins

COLUMNS = ("image_{}", "caption_{}"), ("image{}", "caption{}")
"""Names of a row's images and captions, which are numbered 0 and 1: Winoground's and EqBen's."""
LABELLED = ("image", "caption", "private_info")
"""Columns of EqBen's labelled annotation, which has a row for each pairing."""
TYPES = dict.fromkeys(("image", "prompt", "image_id", "prompt_id", "generator"), "text")


def holds_pairs(columns: Collection[str]) -> bool:
    """Return True if a table with these columns is one of pairs."""
    numbered = ({name.format(number) for name in names for number in (0, 1)} for names in COLUMNS)
    return any(names <= {*columns} for names in (*numbered, {*LABELLED}))


def open_pairs(table: Table) -> Table:
    """Return the table; a table of pairs gets a row for each image under each caption."""
    return PairTable(place=table.place, types=TYPES) if holds_pairs(table.types) else table


def unfold(values: Values, place: int) -> Iterator[dict[str, Any]]:
    """Yield a row for each image under each caption of a sample; raise Refused if one of them is missing.

    A sample without an id is named by its row number in the table, from 0. An image's name without an ending, as in
    Winoground's examples.jsonl, is that of a .png.
    """
    if "private_info" in values:
        yield _read_label(values)
        return
    names = next((names for names in COLUMNS if names[0].format(0) in values), COLUMNS[0])
    sample = values.get("id")
    sample = place if sample in (None, "") else sample
    for caption, image in product((0, 1), (0, 1)):
        shown, said = (name.format(number) for name, number in zip(names, (image, caption), strict=True))
        if missing := [name for name in (shown, said) if not values.get(name)]:
            raise Refused("bad_value", f"the sample {sample} has no {missing[0]}; fill it in or remove the row")
        yield _pairing(str(sample), values[shown], values[said], image, caption)


def _read_label(values: Values) -> dict[str, Any]:
    """Return the pairing of a row that names it: `c0i1` is caption 0 with image 1."""
    label = values["private_info"]
    if not isinstance(label, dict):
        raise Refused("bad_value", f"private_info: expected an object, found {type(label).__name__}; correct it")
    name = str(label.get("name"))
    if len(name) != len("c0i1") or name[::2] != "ci" or not {*name[1::2]} <= {"0", "1"}:
        raise Refused("bad_value", f"private_info.name: expected a name such as c0i1, found {name!r}; correct it")
    sample = f"{label.get('dataset')}/{label.get('sample_cnt')}"
    return _pairing(sample, values.get("image"), values.get("caption"), int(name[3]), int(name[1]))


def _pairing(sample: str, image: Any, text: Any, image_number: int, caption_number: int) -> dict[str, Any]:
    named = isinstance(image, str) and not PurePosixPath(image).suffix
    return {
        "image": f"{image}.png" if named else image,
        "prompt": text,
        "image_id": f"{sample}_i{image_number}",
        "prompt_id": f"{sample}_c{caption_number}",
        "generator": "matched" if image_number == caption_number else "swapped",
    }


@dataclass(frozen=True, kw_only=True, slots=True)
class PairTable(Table):
    """A CSV or JSON file of pairs, as a table with a row for each image under each caption."""

    def names(self, config: IngestConfig) -> InputColumnsConfig:
        """Return the names of the values of `rows`; raise ConfigError if all rows were to have one generator."""
        if config.generator is not None:
            raise ConfigError(
                f"generator: a table of pairs has the generators matched and swapped, got {config.generator!r} for "
                f"{self.url}; leave it out"
            )
        return Table.names(self, config)

    def origins(self, config: IngestConfig) -> Origins:
        return Origins(f"the captions of {self.url}", "whether an image's caption is its own")

    def rows(self, image: str) -> Iterator[Row | Rejection]:
        for place, row in enumerate(read_rows(self.place)):
            if isinstance(row, Rejection):
                yield row
                continue
            try:
                yield from [Row(row.line, values) for values in unfold(row.values, place)]
            except Refused as refused:
                yield refused.at(self.url, row.line)
