"""Sources of an adaptive sweep in rounds of prompts; a shard of a round has part of the rows of a file's shard."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.statistics.options import Adaptive
from plumbline.operators.statistics.sequential import NOBODY, PER_LOOK, Places, balanced_order
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.file_memory import FileMemory
from plumbline.pipelines.sources.picked_shards import split_images, split_prompts
from plumbline.pipelines.sources.sources import Sources, with_prompts
from plumbline.pipelines.sources.uris import Uris
from plumbline.pipelines.store.cells import Shard

FIRST_PROMPTS = 64
"""Number of prompts in the first round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rounds:
    """A benchmark's prompts in random order, and its shards divided by the round of their prompts."""

    order: Places
    """(looks, per_look): places in `prompt_ids`."""
    ends: Sequence[int]
    """Number of looks after which each round ends."""
    prompt_ids: Sequence[str]
    sources: Sources
    """All rounds."""
    round_of: Mapping[tuple[str, str], int]
    """Round of each shard, by its group and name."""
    round_of_prompt: NDArray[np.int64]
    """Round of each row of the sources' prompts."""

    def up_to(self, round: int) -> Sources:
        """Return the sources as if there were only the prompts of the first rounds, up to `round`."""
        whole = self.sources

        def is_in(shard: Shard) -> bool:
            return self.round_of.get((shard.group, shard.name), 0) <= round

        prompts_of = {shard: prompts for shard, prompts in whole.prompts_of.items() if is_in(shard)}
        read = {shard for prompts in prompts_of.values() for shard in prompts}
        return whole._replace(
            prompts=whole.prompts.filter(pa.array(self.round_of_prompt <= round)),
            prompt_shards=[shard for shard in whole.prompt_shards if shard in read],
            prompts_of=prompts_of,
            named={shard: rows for shard, rows in whole.named.items() if is_in(shard)},
        )

    def round_with(self, prompts: int) -> int:
        """Return the first round after which this number of prompts is included."""
        came = [int((self.order[:end] != NOBODY).sum()) for end in self.ends]
        return int(np.searchsorted(came, min(prompts, came[-1])))


def split_rounds(
    sources: Sources, benchmark: BenchmarkConfig, uris: Uris, options: Adaptive, memory: FileMemory
) -> Rounds:
    """Draw the order, and divide every shard by it; this reads the prompt ids of the images again and no image."""
    ids = sorted(sources.prompts.column("prompt_id").to_pylist())
    order = balanced_order(_labels(sources, ids), options.seed)
    ends = list(_ends(len(order), options.growth))
    round_of_id = {ids[place]: round for round, place in _list_places(order, ends)}
    last = len(ends) - 1  # in which images come of prompts that the benchmark has not
    pieces = list(split_images(sources.image_shards, lambda prompt_id: round_of_id.get(prompt_id, last), memory))
    prompts = (
        split_prompts(sources.prompts, sources.prompt_shards, round_of_id.__getitem__)
        if benchmark.prompts is not None
        else None
    )
    prompted = with_prompts([piece for piece, _ in pieces], prompts, benchmark.name, uris, memory)
    table = prompted.prompts.table
    return Rounds(
        order=order,
        ends=ends,
        prompt_ids=ids,
        sources=sources._replace(
            prompts=table,
            prompt_shards=prompted.prompts.shards,
            prompts_of=prompted.images,
            named=prompted.named,
            broken=sources.broken + prompted.broken,
        ),
        round_of={(piece.group, piece.name): round for piece, round in pieces},
        round_of_prompt=np.array([round_of_id[prompt_id] for prompt_id in table.column("prompt_id").to_pylist()]),
    )


def _labels(sources: Sources, ids: Sequence[str]) -> list[str]:
    """Return the skills of each prompt as one text."""
    skills = sources.skills
    return ["\0".join(sorted(skills.find(prompt_id))) for prompt_id in ids]


def _ends(looks: int, growth: float) -> Iterator[int]:
    """Yield the number of looks after which each round ends; each adds the fraction `growth` of the rounds before."""
    end = min(looks, -(-FIRST_PROMPTS // PER_LOOK))
    while end < looks:
        yield end
        end = min(looks, end + max(1, round(growth * end)))
    yield looks


def _list_places(order: Places, ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield every round with each of its positions in the order."""
    for round, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        yield from ((round, int(place)) for place in order[first:end].ravel() if place != NOBODY)
