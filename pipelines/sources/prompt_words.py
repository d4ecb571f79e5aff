"""Texts that are wanted in the images of each prompt, from a column of the prompts file, as a question pack."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any, ClassVar

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metrics.questions.question_list import ask_for_text
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.prompts import (
    list_prompt_files,
    locate_skills,
    prompt_records,
    prompt_shards,
    prompts_table,
)
from plumbline.pipelines.sources.question_packs import PackFile
from plumbline.pipelines.sources.question_packs.pack import PackRow, PackRows, questions_or_error, the_texts
from plumbline.pipelines.sources.shards import ShardSize, where
from plumbline.pipelines.store.cells import Shard

AT_ONCE = ShardSize(10_000)
"""Number of prompts that are read at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WordsColumn(PackFile):
    """The prompts file with its column of wanted texts."""

    by_prompt: ClassVar[bool] = True
    benchmark: BenchmarkConfig

    def rows(self) -> PackRows:
        """Yield a row for each text; raises SourceError if no prompt has a text."""
        column = str(self.benchmark.columns.words)
        files = list_prompt_files(self.place, self.benchmark.name)
        skills = locate_skills(self.place, self.benchmark)
        shards = [shard for file in files for shard in prompt_shards(file, self.benchmark, AT_ONCE, skills)]
        row = None
        for row in chain.from_iterable(_read_words(shard, column) for shard in shards):
            yield row
        if row is None:
            raise SourceError(f"{self.place}: no prompt has a text in the column {column!r}; correct the name")


def words_of(benchmark: BenchmarkConfig, storage: StorageConfig) -> WordsColumn | None:
    """Return the column of wanted texts; None if benchmark.columns.words is null."""
    if benchmark.columns.words is None:
        return None
    place = storage.locate(str(benchmark.prompts))
    return WordsColumn(pack="words", place=place, key="benchmark.columns.words", benchmark=benchmark)


def _read_words(shard: Shard, column: str) -> PackRows:
    """Yield a row for each wanted text; prompts with an empty column have none."""
    named = replace(shard, columns=(*shard.columns, ("words", column)))
    records = prompt_records(named, (*PROMPT_COLUMNS, "words"))
    prompts = prompts_table(records, shard).to_pylist()
    for row, (record, prompt) in enumerate(zip(records, prompts, strict=True)):
        place, prompt_id, text = where(shard, row), prompt["prompt_id"], prompt["text"] or ""
        texts = _texts(PackRow(place, prompt_id, text), column, record.get("words"))
        yield from questions_or_error(place, prompt_id, text, texts)


def _texts(row: PackRow, column: str, words: Any) -> Iterator[PackRow]:
    listed = [words] if isinstance(words, str) else words
    for number, wanted in enumerate(the_texts(listed or (), column)):
        if wanted.strip():
            yield row._replace(question=ask_for_text(number, wanted))
