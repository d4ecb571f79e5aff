"""Question pack from a column of the prompts file: the text that should be written in each prompt's images."""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from plumbline.operators.base.errors import SourceError
from plumbline.operators.metrics.questions.question_list import make_text_question
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.sources.benchmark import PROMPT_COLUMNS, BenchmarkConfig
from plumbline.pipelines.sources.prompts import (
    list_prompt_files,
    list_prompt_shards,
    locate_skills,
    make_prompts_table,
    read_prompt_records,
)
from plumbline.pipelines.sources.question_packs import PackFile
from plumbline.pipelines.sources.question_packs.pack import PackRow, PackRows, convert_refusal_to_error_row, get_texts
from plumbline.pipelines.sources.shards import ShardSize, describe_row

READ_SHARD_SIZE = ShardSize(10_000)
"""Number of prompts that are read at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class WordsColumn(PackFile):
    """The prompts file with its column of texts that should be written in the images."""

    by_prompt: ClassVar[bool] = True
    benchmark: BenchmarkConfig

    def rows(self) -> PackRows:
        """Yield a row for each text that images should contain. Raise SourceError if no prompt has such a text."""
        column, has_texts = str(self.benchmark.columns.words), False
        files = list_prompt_files(self.place, self.benchmark.name)
        skills = locate_skills(self.place, self.benchmark)
        for shard in [
            shard for file in files for shard in list_prompt_shards(file, self.benchmark, READ_SHARD_SIZE, skills)
        ]:
            records = read_prompt_records(
                replace(shard, columns=(*shard.columns, ("words", column))), (*PROMPT_COLUMNS, "words")
            )
            prompts = make_prompts_table(records, shard).to_pylist()
            for row, (record, prompt) in enumerate(zip(records, prompts, strict=True)):
                blank = PackRow(describe_row(shard, row), prompt["prompt_id"], prompt["text"] or "")
                texts = _make_text_questions(blank, column, record.get("words"))
                for question in convert_refusal_to_error_row(blank.where, blank.prompt_id, blank.text, texts):
                    has_texts = True
                    yield question
        if not has_texts:
            raise SourceError(f"{self.place}: no prompt has a text in the column {column!r}; correct the name")


def find_words_column(benchmark: BenchmarkConfig, storage: StorageConfig) -> WordsColumn | None:
    """Return the column of texts to be written in images; None if benchmark.columns.words is null."""
    if benchmark.columns.words is None:
        return None
    place = storage.locate(str(benchmark.prompts))
    return WordsColumn(pack="words", place=place, key="benchmark.columns.words", benchmark=benchmark)


def _make_text_questions(row: PackRow, column: str, words: Any) -> Iterator[PackRow]:
    texts = [words] if isinstance(words, str) else words
    for number, wanted in enumerate(get_texts(texts or (), column)):
        if wanted.strip():
            yield row._replace(question=make_text_question(number, wanted))
