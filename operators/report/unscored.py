"""Finds prompts that fail with every generator, so that the report names each of them once."""

from collections.abc import Mapping
from functools import reduce
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from plumbline.operators.base.sentences import MAX_NAMES, Sentence, names, plural
from plumbline.operators.base.spilled import Spilled
from plumbline.operators.results.run_scores import Hashes, RunScores, ScoreColumns, find_sorted

Counts = NDArray[np.int64]


class Unscored(NamedTuple):
    """Prompts without any score by a metric, although several generators have rows by it."""

    prompts: Hashes
    """Hashes of the ids, ascending."""
    n_rows: Counts
    """Number of rows of each prompt, over all generators."""
    row: Counts
    """Number of one of the rows of each prompt in the run's scores."""
    by_generator: Mapping[str, int]
    """Number of rows of all these prompts."""


NOTHING_UNSCORED = Unscored(np.zeros(0, np.uint64), np.zeros(0, np.int64), np.zeros(0, np.int64), {})


class UnscoredRows:
    """Collects a metric's rows without a score, one generator after another."""

    def __init__(self, prompts: Hashes) -> None:
        """Collect rows about `prompts`, the ascending hashes of their ids."""
        self._prompts = prompts
        self._has_score = np.zeros(len(prompts), np.bool_)
        self._generators: list[str] = []
        self._missing = Spilled()
        """Two columns for each generator: indices of prompts, and numbers of rows."""

    def add(self, generator: str, columns: ScoreColumns) -> None:
        if not len(columns.row):
            return
        prompt = find_sorted(columns.prompt, self._prompts)
        missing = np.isnan(columns.score)
        self._has_score[prompt[~missing & (prompt >= 0)]] = True
        missing &= prompt >= 0
        self._generators.append(generator)
        self._missing.append(prompt[missing].astype(np.float64))
        self._missing.append(columns.row[missing].astype(np.float64))

    def collect(self) -> Unscored:
        """Return the prompts without any score; none for a single generator."""
        if len(self._generators) < 2:
            return NOTHING_UNSCORED
        n_rows, row = np.zeros(len(self._prompts), np.int64), np.zeros(len(self._prompts), np.int64)
        by_generator = {}
        for number, generator in enumerate(self._generators):
            prompt, own_row = (self._missing.read(2 * number + which).astype(np.int64) for which in (0, 1))
            everywhere = ~self._has_score[prompt]
            by_generator[generator] = int(everywhere.sum())
            n_rows += np.bincount(prompt[everywhere], minlength=len(self._prompts))
            row[prompt[everywhere]] = own_row[everywhere]
        found = n_rows > 0
        return Unscored(self._prompts[found], n_rows[found], row[found], by_generator)


def unscored_sentences(unscored: Mapping[str, Unscored], scores: RunScores) -> list[Sentence]:
    """Return a sentence about the prompts without a score by any metric, and one for each metric that has further ones.

    `unscored` has every metric of the run.
    """
    if not unscored:
        return []
    common = reduce(np.intersect1d, [of_metric.prompts for of_metric in unscored.values()])
    by_any = f"by {next(iter(unscored))}" if len(unscored) == 1 else "by any metric"
    sentences = [_sentence(by_any, common, unscored, scores)]
    for metric, of_metric in unscored.items():
        own = np.setdiff1d(of_metric.prompts, common)
        sentences.append(_sentence(f"by {metric}", own, {metric: of_metric}, scores))
    return [sentence for sentence in sentences if str(sentence)]


def _sentence(by: str, prompts: Hashes, unscored: Mapping[str, Unscored], scores: RunScores) -> Sentence:
    if not len(prompts):
        return Sentence("", "")
    n_rows = sum(int(one.n_rows[np.isin(one.prompts, prompts)].sum()) for one in unscored.values())
    first = next(iter(unscored.values()))
    row = np.sort(first.row[np.isin(first.prompts, prompts)])[: MAX_NAMES + 1]
    ids = [str(whose.prompt_id) for whose in scores.ids(row.tolist())]
    have = "has" if len(prompts) == 1 else "have"
    lead = f"{plural(len(prompts), 'prompt')} {have} no score {by}, whatever the generator:"
    unread = [""] * (len(prompts) - len(ids))  # of prompts that are counted and not named
    return Sentence(lead, f"{names([*ids, *unread])} ({plural(n_rows, 'row')}).")
