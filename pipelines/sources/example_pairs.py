"""Some images with their prompts, as a plan shows them before anything is computed.

They are read from the rows that will be scored. The first, the middle and the last are shown, because prompts that are
shifted against their images often agree at the start.
"""

from bisect import bisect_right
from collections.abc import Sequence
from contextlib import suppress
from itertools import accumulate
from typing import NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from plumbline.operators.base.errors import SourceError
from plumbline.operators.images.rows import id_text
from plumbline.pipelines.base.tables import printable
from plumbline.pipelines.sources.shards import read_shard, where
from plumbline.pipelines.store.cells import Shard

MAX_CHARACTERS = 100
"""Characters of a prompt that are shown."""


class ExamplePair(NamedTuple):
    """An image and the prompt that it is scored against."""

    image: str
    """Its path, id, or row in a file."""
    generator: str
    prompt_id: str
    prompt: str | None
    """None if the prompt's text is not known."""

    def __str__(self) -> str:
        """Return the pair as a line."""
        text = self.prompt or ""
        short = text if len(text) <= MAX_CHARACTERS else f"{text[:MAX_CHARACTERS]}..."
        prompt = f"prompt_id {self.prompt_id!r}, without a text" if self.prompt is None else repr(short)
        return printable(f"pair: {self.image} of {self.generator}: {prompt}")


def ends_and_middle(count: int) -> list[int]:
    """Return the numbers of the first, the middle and the last of `count` items, each once."""
    return sorted({0, count // 2, count - 1}) if count else []


def read_pairs(images: Sequence[Shard], prompts: pa.Table) -> list[ExamplePair]:
    """Read three of the images' rows, without the images; `prompts` has the schema PROMPTS.

    A file that cannot be read gives no pair: its rows fail, and the plan reports them.
    """
    ends = list(accumulate(shard.rows for shard in images))
    pairs: list[ExamplePair] = []
    for row in ends_and_middle(ends[-1] if ends else 0):
        shard = images[number := bisect_right(ends, row)]
        with suppress(SourceError):
            pairs.append(_read_pair(shard, row - ends[number] + shard.rows, prompts))
    return pairs


def _read_pair(shard: Shard, row: int, prompts: pa.Table) -> ExamplePair:
    table = read_shard(shard, ("image_id", "prompt_id", "uri")).slice(row, 1)
    found = {name: table.column(name)[0].as_py() for name in table.column_names}
    prompt_id = id_text(found["prompt_id"]) or ""
    known = pc.index(prompts.column("prompt_id"), prompt_id).as_py()
    text = prompts.column("text")[known].as_py() if known >= 0 else None
    image = id_text(found.get("image_id")) or found.get("uri") or where(shard, row)
    return ExamplePair(image, shard.group, prompt_id, text)
