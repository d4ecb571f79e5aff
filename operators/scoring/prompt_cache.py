"""Caches texts that models write about prompts, so that a training step with known prompts only processes images."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Any

import pyarrow as pa

from plumbline.operators.base import rows

DEFAULT_KEPT_PROMPTS = 20_000
"""Default number of cached prompts. GenEval2 has this many training prompts."""
Rows = Sequence[Mapping[str, Any]]
MakeTables = Callable[[Sequence[str]], Mapping[str, pa.Table]]
"""Function that returns a stage's table for each metric, given the ids of prompts."""


class PromptCache:
    """Cache of one stage's most recent rows, by metric and prompt_id.

    Two threads never compute the same prompt at the same time. Prompts with a retryable error are not cached.
    """

    def __init__(self, schema: pa.Schema, max_prompts: int) -> None:
        """Create an empty cache for tables of this schema, for up to `max_prompts` prompts per metric."""
        self.schema, self.max_prompts = schema, max_prompts
        self.kept: dict[str, OrderedDict[str, Rows]] = defaultdict(OrderedDict)
        self.making: set[str] = set()
        self.changed = Condition()

    def make_tables(self, prompts: Sequence[str], metrics: Sequence[str], make: MakeTables) -> dict[str, pa.Table]:
        """Return one table per metric with the rows about these prompts, in order; `make` computes missing rows."""
        found: dict[tuple[str, str], Rows] = {}
        while missing := self._claim_missing(prompts, metrics, found):
            try:
                made = {name: group_by_prompt(table.to_pylist(), missing) for name, table in make(missing).items()}
                found |= {(name, prompt): about for name in metrics for prompt, about in made[name].items()}
                self.add(made)
            finally:
                with self.changed:
                    self.making -= set(missing)
                    self.changed.notify_all()
        return {
            name: rows.table([row for prompt in prompts for row in found[name, prompt]], self.schema)
            for name in metrics
        }

    def add(self, made: Mapping[str, Mapping[str, Rows]]) -> None:
        with self.changed:
            for name, rows_by_prompt in made.items():
                kept = self.kept[name]
                for prompt, about in rows_by_prompt.items():
                    if not any(map(rows.is_retryable, about)):
                        kept[prompt] = about
                while len(kept) > self.max_prompts:
                    kept.popitem(last=False)

    def find(self, metric: str, prompts: Sequence[str]) -> dict[str, Rows]:
        with self.changed:
            return {prompt: self.kept[metric][prompt] for prompt in prompts if prompt in self.kept[metric]}

    def _claim_missing(
        self, prompts: Sequence[str], metrics: Sequence[str], found: dict[tuple[str, str], Rows]
    ) -> list[str]:
        """Add cached rows to `found`. Return the prompts that the caller must compute; empty if no rows are missing.

        Prompts that other threads are computing are not returned. If only such prompts are missing, wait for them.
        """
        with self.changed:
            while True:
                for name in metrics:
                    for prompt in prompts:
                        if (name, prompt) not in found and prompt in self.kept[name]:
                            self.kept[name].move_to_end(prompt)
                            found[name, prompt] = self.kept[name][prompt]
                missing = [prompt for prompt in prompts if any((name, prompt) not in found for name in metrics)]
                free = [prompt for prompt in missing if prompt not in self.making]
                if free or not missing:
                    self.making |= set(free)
                    return free
                self.changed.wait()


def group_by_prompt(records: Rows, prompts: Sequence[str]) -> Mapping[str, Rows]:
    about: dict[str, list[Mapping[str, Any]]] = {prompt: [] for prompt in prompts}
    for record in records:
        about[record["prompt_id"]].append(record)
    return about
