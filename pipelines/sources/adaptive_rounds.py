"""Sources of an adaptive sweep, divided into rounds of prompts. Every shard is split into one shard per round."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from plumbline.operators.statistics.options import AdaptiveConfig
from plumbline.operators.statistics.sequential import NO_PROMPT_INDEX, PROMPTS_PER_LOOK, Indices, draw_balanced_order
from plumbline.pipelines.sources.benchmark import BenchmarkConfig
from plumbline.pipelines.sources.image_file_cache import ImageFileCache
from plumbline.pipelines.sources.prompts import PromptTables, match_prompts, split_images, split_prompts
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.sources.uris import UriReader
from plumbline.pipelines.store.cells import Shard

N_FIRST_PROMPTS = 64
"""Number of prompts in the first round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PromptRounds:
    """A benchmark's prompts in random order, and its shards, which are split so that each belongs to one round."""

    order: Indices
    """Indices into `prompt_ids`, of shape (looks, per_look). A look is an interim analysis after `per_look` prompts."""
    ends: Sequence[int]
    """Number of looks up to the end of each round."""
    prompt_ids: Sequence[str]
    sources: Sources
    """The sources of all rounds."""
    round_of: Mapping[tuple[str, str], int]
    """Round of each shard, by the shard's group and name."""
    round_of_prompt: NDArray[np.int64]
    """Round of each row in the table of prompts."""

    def select_rounds_up_to(self, round: int, last_rounds: Mapping[tuple[str, str], int] | None = None) -> Sources:
        """Return the sources restricted to the prompts of all rounds up to `round`.

        `last_rounds` contains the last round of each pair of generators (in alphabetical order) that is not compared
        any more. A generator that is not compared with any other generator has no images in later rounds, and its
        missing images there do not count as failed rows.
        """
        whole, last = self.sources, last_rounds or {}
        ends: dict[str, int] = {}
        for generator in {generator for both in last for generator in both}:
            own = [last.get(both, round) for both in whole.pair_counts if generator in both]
            ends[generator] = max(own)

        def is_in(shard: Shard, end: int = round) -> bool:
            return self.round_of.get((shard.group, shard.name), 0) <= end

        def is_compared(first: Shard, second: Shard) -> bool:
            return is_in(second, last.get((first.group, second.group), round))

        prompts_of = {
            shard: prompts for shard, prompts in whole.prompts_of.items() if is_in(shard, ends.get(shard.group, round))
        }
        read = {shard for prompts in prompts_of.values() for shard in prompts}
        return whole._replace(
            prompts=whole.prompts.filter(pa.array(self.round_of_prompt <= round)),
            prompt_shards=[shard for shard in whole.prompt_shards if shard in read],
            prompts_of=prompts_of,
            prompt_rows={shard: rows for shard, rows in whole.prompt_rows.items() if is_in(shard)},
            pairs={pair: images for pair, images in whole.pairs.items() if is_compared(*images)},
        )

    def find_round(self, prompts: int) -> int:
        """Return the first round that, together with all earlier rounds, has at least this number of prompts."""
        included = [int((self.order[:end] != NO_PROMPT_INDEX).sum()) for end in self.ends]
        return int(np.searchsorted(included, min(prompts, included[-1])))


def split_rounds(
    sources: Sources, benchmark: BenchmarkConfig, uris: UriReader, options: AdaptiveConfig, cache: ImageFileCache
) -> PromptRounds:
    """Draw a random order of the prompts, divide them into rounds, and split every shard by round.

    The prompt ids of the images are read again, but not the images themselves.
    """
    ids = sorted(sources.prompts.column("prompt_id").to_pylist())
    skills = sources.skills
    order = draw_balanced_order(["\0".join(sorted(skills.find(prompt_id))) for prompt_id in ids], options.seed)
    ends = [min(len(order), -(-N_FIRST_PROMPTS // PROMPTS_PER_LOOK))]
    while ends[-1] < len(order):  # each round adds the fraction `growth` of the rounds before
        ends.append(min(len(order), ends[-1] + max(1, round(options.growth * ends[-1]))))
    round_of_id: dict[str, int] = {}
    for number, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        round_of_id |= {ids[index]: number for index in order[first:end].ravel() if index != NO_PROMPT_INDEX}
    last = len(ends) - 1  # images whose prompts are not in the benchmark are in the last round
    pieces = list(split_images(sources.image_shards, lambda prompt_id: round_of_id.get(prompt_id, last), cache))
    prompts = None
    if benchmark.prompts is not None:
        prompts = split_prompts(PromptTables(sources.prompts, sources.prompt_shards), round_of_id.__getitem__)
    matched = match_prompts([piece for piece, _ in pieces], prompts, benchmark.name, uris.locate, cache)
    table = matched.prompts.table
    return PromptRounds(
        order=order,
        ends=ends,
        prompt_ids=ids,
        sources=sources._replace(
            prompts=table,
            prompt_shards=matched.prompts.shards,
            prompts_of=matched.images,
            prompt_rows=matched.prompt_rows,
            broken=sources.broken + matched.broken,
        ),
        round_of={(piece.group, piece.name): number for piece, number in pieces},
        round_of_prompt=np.array([round_of_id[prompt_id] for prompt_id in table.column("prompt_id").to_pylist()]),
    )
