"""The sources of an adaptive sweep: cut into waves of prompts, whose shards hold a part of the rows of a file's."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from operators.errors import SourceError
from operators.images import ImageLimits, id_text
from operators.statistics.options import Adaptive
from operators.statistics.sequential import NOBODY, PER_LOOK, Places, balanced_order
from pipelines.cells.cells import Shard, digest
from pipelines.sources.benchmark import BenchmarkConfig
from pipelines.sources.prompts import Prompts, gather_prompts, match_prompts, pairs_of, read_files
from pipelines.sources.sources import Sources
from pipelines.sources.uris import benchmark_uris
from pipelines.storage import StorageConfig

FIRST_PROMPTS = 64
"""Of the first wave."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Waves:
    """A benchmark's prompts in their random order, and its shards cut by the wave in which their prompts come."""

    order: Places
    """(looks, per_look): places in `prompt_ids`."""
    ends: Sequence[int]
    """By wave, the looks that it ends after."""
    prompt_ids: Sequence[str]
    sources: Sources
    """All waves."""
    wave_of: Mapping[tuple[str, str], int]
    """By group and name of a shard."""
    wave_of_prompt: NDArray[np.int64]
    """By row of the sources' prompts."""

    def up_to(self, wave: int) -> Sources:
        """The sources as if there were no prompts but those of the waves to this one."""
        whole = self.sources

        def is_in(shard: Shard) -> bool:
            return self.wave_of.get((shard.group, shard.name), 0) <= wave

        prompts_of = {shard: prompts for shard, prompts in whole.prompts_of.items() if is_in(shard)}
        read = {shard for prompts in prompts_of.values() for shard in prompts}
        return whole._replace(
            prompts=whole.prompts.filter(pa.array(self.wave_of_prompt <= wave)),
            prompt_shards=[shard for shard in whole.prompt_shards if shard in read],
            prompts_of=prompts_of,
            named={shard: rows for shard, rows in whole.named.items() if is_in(shard)},
        )

    def wave_with(self, prompts: int) -> int:
        """The wave after which so many prompts have come."""
        came = [int((self.order[:end] != NOBODY).sum()) for end in self.ends]
        return int(np.searchsorted(came, min(prompts, came[-1])))


def cut_waves(sources: Sources, benchmark: BenchmarkConfig, storage: StorageConfig, options: Adaptive) -> Waves:
    """Draws the order, and cuts every shard by it; reads the prompts' ids of the images again and no image."""
    ids = sorted(sources.prompts.column("prompt_id").to_pylist())
    order = balanced_order(_labels(sources, ids), options.seed)
    ends = list(_ends(len(order), options.growth))
    wave_of_id = {ids[place]: wave for wave, place in _by_wave(order, ends)}
    pieces = list(_cut_images(sources.image_shards, storage, wave_of_id, len(ends) - 1))
    locate_image = benchmark_uris(benchmark, storage, ImageLimits()).locate
    images = [piece for piece, _ in pieces]
    prompted = (
        gather_prompts(images, benchmark.name, storage, locate_image)
        if benchmark.prompts is None
        else match_prompts(images, _cut_prompts(sources, wave_of_id, len(ends)), storage, locate_image)
    )
    table = prompted.prompts.table
    return Waves(
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
        wave_of={(piece.group, piece.name): wave for piece, wave in pieces},
        wave_of_prompt=np.array([wave_of_id[prompt_id] for prompt_id in table.column("prompt_id").to_pylist()]),
    )


def _labels(sources: Sources, ids: Sequence[str]) -> list[str]:
    """The skills of each prompt, as one text."""
    skills = sources.skills
    return ["\0".join(sorted(skills.of(prompt_id))) for prompt_id in ids]


def _ends(looks: int, growth: float) -> Iterator[int]:
    """The looks that each wave ends after: the first's, and a share more each time."""
    end = min(looks, -(-FIRST_PROMPTS // PER_LOOK))
    while end < looks:
        yield end
        end = min(looks, end + max(1, round(growth * end)))
    yield looks


def _by_wave(order: Places, ends: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Every wave with each of its places."""
    for wave, (first, end) in enumerate(zip([0, *ends], ends, strict=False)):
        yield from ((wave, int(place)) for place in order[first:end].ravel() if place != NOBODY)


def _cut_images(
    shards: Sequence[Shard], storage: StorageConfig, wave_of_id: Mapping[str, int], last: int
) -> Iterator[tuple[Shard, int]]:
    """The shards' pieces, each with its wave; images of prompts that the benchmark has not come in the last."""
    for shard, table in read_files(shards, storage, ("prompt_id",)):
        if isinstance(table, SourceError):
            yield shard, 0
            continue
        ids = [id_text(value) or "" for value in table.column("prompt_id").to_pylist()]
        yield from _cut(shard, [wave_of_id.get(prompt_id, last) for prompt_id in ids])


def _cut(shard: Shard, waves: Sequence[int]) -> Iterator[tuple[Shard, int]]:
    """The shard's rows of each wave as a shard; one that is all in one wave stays as it is."""
    of_row = np.asarray(waves)
    for wave in np.unique(of_row):
        rows = np.flatnonzero(of_row == wave)
        whole = len(rows) == len(of_row)
        picked = () if whole else tuple(rows.tolist())
        name = shard.name if whole else f"{shard.name}+w{wave:02d}"
        yield replace(shard, name=name, rows=len(rows), picked=picked), int(wave)


def _cut_prompts(sources: Sources, wave_of_id: Mapping[str, int], waves: int) -> Prompts:
    """The prompts shards' pieces, wave after wave."""
    pieces: list[list[tuple[Shard, pa.Table]]] = [[] for _ in range(waves)]
    starts = accumulate((shard.rows for shard in sources.prompt_shards), initial=0)
    for shard, start in zip(sources.prompt_shards, starts, strict=False):
        table = sources.prompts.slice(start, shard.rows)
        for piece, wave in _cut(shard, [wave_of_id[one] for one in table.column("prompt_id").to_pylist()]):
            rows = table.take(pa.array(piece.picked)) if piece.picked else table
            pieces[wave].append((replace(piece, prompts=digest(sorted(pairs_of(rows)))), rows))
    flat = [piece for of_wave in pieces for piece in of_wave]
    tables = [table for _, table in flat]
    return Prompts(pa.concat_tables(tables), [shard for shard, _ in flat], tables)
