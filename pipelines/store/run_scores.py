"""The scores of a run, and its rows without a score: two folders of Parquet files, which are read one by one."""

from functools import partial

import numpy as np
import pyarrow as pa

from plumbline.operators.base.failures import count_failures, merge_failures
from plumbline.operators.base.ordered_maps import OrderedMap, map_sequentially
from plumbline.operators.results.run_scores import PromptTexts, RunScores
from plumbline.operators.statistics.poisson_bootstrap import hash_ids
from plumbline.pipelines.store.store import Store

TEXTS_SCHEMA = pa.schema([("prompt_id", pa.string()), ("text", pa.uint64())])
"""Columns of a run's prompt table; `text` is a hash of the prompt's text."""
DICTIONARY_COLUMNS = ("generator", "metric")
"""Columns with few distinct values, which are read as dictionary arrays."""


def list_score_parts(store: Store, run_id: str) -> list[str]:
    path = f"runs/{run_id}/scores.parquet"
    return store.files(path) or [path]


def read_run_scores(store: Store, run_id: str, each: OrderedMap = map_sequentially) -> RunScores:
    """Return a run's scores, which are loaded on demand, at most one metric and generator at a time."""
    parts = [partial(store.read_file, path, encoded=DICTIONARY_COLUMNS) for path in list_score_parts(store, run_id)]
    return RunScores(parts, each).with_texts(read_text_hashes(store, run_id))


def write_text_hashes(store: Store, run_id: str, prompts: pa.Table) -> None:
    """Write hashes of the texts of a run's prompts (schema PROMPTS) so that a later run can detect edited prompts."""
    texts = pa.array(hash_ids(prompts.column("text").fill_null("").to_pylist()))
    table = pa.table([prompts.column("prompt_id"), texts], schema=TEXTS_SCHEMA)
    store.write_table(_make_texts_path(run_id), table)


def read_text_hashes(store: Store, run_id: str) -> PromptTexts | None:
    """Return the hashes of a run's prompt texts, or None if the run did not record them."""
    path = _make_texts_path(run_id)
    if not store.exists(path):
        return None
    table = store.read_table(path)
    prompts = hash_ids(table.column("prompt_id").fill_null("").to_pylist())
    order = np.argsort(prompts)
    return PromptTexts(prompts[order], table.column("text").to_numpy()[order])


def _make_texts_path(run_id: str) -> str:
    return f"runs/{run_id}/prompt_texts.parquet"


def get_errors_path(run_folder: str) -> str:
    return f"{run_folder}/errors.parquet"


def read_failures(store: Store, run_folder: str) -> pa.Table:
    """Return a run's failures by kind (schema FAILURES); raise StoreError if a file is damaged or missing."""
    path = get_errors_path(run_folder)
    return merge_failures([count_failures(store.read_file(part)) for part in store.files(path) or [path]])
