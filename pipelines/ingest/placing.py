"""Places drafts in an output in order, and decides which shards stay, and which rows of a draft are duplicates."""

from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from plumbline.operators.base.errors import ConfigError
from plumbline.pipelines.base.storage import readable_errors
from plumbline.pipelines.base.tables import Refused, Rejection
from plumbline.pipelines.ingest.ingest_output import (
    Footer,
    OutputShard,
    Records,
    other_generators,
    read_columns,
    read_output_shards,
    read_prompts,
    report_damage,
)
from plumbline.pipelines.ingest.input_rows import digest
from plumbline.pipelines.ingest.shards import Drafted, DraftedShard, Placement, ShardRecord
from plumbline.pipelines.ingest.taken_ids import Ledger


class Shards:
    """All shards of one ingest in an output, and the ids and prompts of their rows.

    The key of a shard contains its content and the keys before it, because the rows before decide which of its ids are
    duplicates. So shards are placed in the order of the input, in whatever order they were drafted.
    """

    def __init__(self, records: Records, on_change: str) -> None:
        self.output = records.output
        self.source = records.source
        self.forget = records.forget
        self.on_change = on_change
        self.standing = read_output_shards(self.output)
        self.others = other_generators(self.standing, self.source)
        self.ledger = Ledger()
        self._add_others()
        self.records: list[ShardRecord] = []
        self.rejected: list[Rejection] = []
        self._numbers: Counter[str] = Counter()
        self._chain = ""

    def _add_others(self) -> None:
        for path, prompts in read_prompts(self.output, list(self._select_others(self.standing))):
            self.ledger.add_others(path, prompts)

    def next_is_taken(self, generator: str) -> bool:
        """Return True if the output already has a shard with the path of the generator's next one."""
        return _path(generator, self._numbers[generator]) in self.standing

    def restore(self, outline: Drafted) -> list[ShardRecord] | None:
        """Keep the shards of a unit that are in the output; return None if any is missing or follows other shards."""
        chain, numbers = self._chain, Counter(self._numbers)
        for generator, content, _ in outline.shards:
            chain = digest([chain, content])
            path = _path(generator, numbers[generator])
            if path not in self.standing or self.standing[path].footer.key != chain:
                return None
            numbers[generator] += 1
        self.rejected += outline.rejected
        return [self._restore(generator, *self._next(generator, content)) for generator, content, _ in outline.shards]

    def place(self, draft: DraftedShard) -> Placement | ShardRecord:
        """Return the place of the next draft, or the record of the same shard if it is in the output already.

        Raises ConfigError if another shard has its path and `on_change` is not `replace`, or if the generator belongs
        to another ingest.
        """
        path, key = self._next(draft.generator, draft.content)
        if path in self.standing and self.standing[path].footer.key == key:
            return self._restore(draft.generator, path, key)
        if path in self.standing and self.on_change != "replace":
            raise ConfigError(
                f"{self.output / path}: this shard was made from other input or by other options; "
                "on_change=replace replaces it, or choose another output"
            )
        if path in self.standing:
            self.forget()
        rejected, refused = self._take(draft)
        self.rejected += rejected
        return Placement(path, draft.content, Footer(key, rejected, self.source), refused, path in self.standing)

    def _next(self, generator: str, content: str) -> tuple[str, str]:
        """Return the path and the key of the generator's next shard, and count it."""
        if generator in self.others:
            raise ConfigError(
                f"{self.output / generator}: holds the images of another ingest ({self.others[generator]}); "
                "rename the generator of this ingest, or choose another output"
            )
        path = _path(generator, self._numbers[generator])
        self._numbers[generator] += 1
        self._chain = digest([self._chain, content])
        return path, self._chain

    def _take(self, draft: DraftedShard) -> tuple[list[Rejection], set[int]]:
        """Record the ids and prompts of a draft; return its rejections, and the numbers of drafted rows among them."""
        rejected: list[Rejection] = []
        refused: set[int] = set()
        drafted = 0
        for row in draft.rows:
            if isinstance(row, Rejection):
                rejected.append(row)
                continue
            try:
                self.ledger.take(draft.generator, row.image_id, row.prompt_id, row.prompt, row.skills)
            except Refused as error:
                rejected.append(row.reject(error))
                refused.add(drafted)
            drafted += 1
        return rejected, refused

    def _restore(self, generator: str, path: str, key: str) -> ShardRecord:
        """Record the ids and prompts of a shard in the output, without reading its images."""
        rows = read_columns(self.output, path, ["image_id", "prompt_id", "prompt", "skills"])
        with report_damage(self.output, path):
            for row in rows:
                self.ledger.take(generator, **row)
        rejected = self.standing[path].footer.rejected
        self.rejected += [each._replace(generator=each.generator or generator) for each in rejected]
        record = ShardRecord(path, generator, len(rows), self.standing[path].size, key, False)
        self.records.append(record)
        return record

    def committed(self, draft: DraftedShard, placement: Placement, size: int) -> ShardRecord:
        rows = sum(not isinstance(row, Rejection) for row in draft.rows) - len(placement.refused)
        record = ShardRecord(placement.path, draft.generator, rows, size, placement.footer.key, True)
        self.records.append(record)
        return record

    def finish(self) -> None:
        """Remove this ingest's shards that its input no longer fills, and nothing that another ingest made.

        Raises ConfigError unless `on_change` is `replace`.
        """
        known = {record.path for record in self.records}
        for path in sorted(self.standing):
            generator = path.partition("/")[0]
            if path in known or generator in self.others:
                continue
            if self.on_change != "replace":
                raise ConfigError(
                    f"{self.output / path}: the input has fewer rows of {generator!r} than before; "
                    "on_change=replace removes this shard, or choose another output"
                )
            self.forget()
            with readable_errors(self.output, "output"):
                (self.output / path).remove()
            if self.output.is_local:  # an empty folder would be a generator without images
                with suppress(OSError):
                    Path(self.output.path, generator).rmdir()

    def refresh(self) -> None:
        """Read again which shards are in the output.

        Raises ConfigError if an ingest that ran at the same time gives a prompt_id another text.
        """
        before, self.standing = self.standing, read_output_shards(self.output, self.standing)
        if self._select_others(before) != self._select_others(self.standing):
            self.ledger.forget_others()
            self._add_others()

    def _select_others(self, standing: Mapping[str, OutputShard]) -> dict[str, OutputShard]:
        return {path: shard for path, shard in standing.items() if shard.footer.source != self.source}


def _path(generator: str, number: int) -> str:
    return f"{generator}/{number:05d}.parquet"
