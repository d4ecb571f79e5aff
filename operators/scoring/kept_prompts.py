"""What models made of prompts, kept: a step of training with prompts of an earlier one pays for its images alone."""

from collections import OrderedDict, defaultdict
from collections.abc import Callable, Mapping, Sequence
from threading import Condition
from typing import Any

import pyarrow as pa

from plumbline.operators.base import rows

KEPT_PROMPTS = 20_000
"""By default; as many as GenEval2's training prompts."""
Rows = Sequence[Mapping[str, Any]]
Make = Callable[[Sequence[str]], Mapping[str, pa.Table]]
"""By metric a stage's table about the prompts of these ids."""


class KeptPrompts:
    """The rows of one stage over prompts by metric and prompt_id: the newest, and none with an error that may pass.

    Several threads may ask at once: what one of them is making, the others wait for.
    """

    def __init__(self, schema: pa.Schema, most: int) -> None:
        """`most` prompts are kept for each metric."""
        self.schema, self.most = schema, most
        self.kept: dict[str, OrderedDict[str, Rows]] = defaultdict(OrderedDict)
        self.making: set[str] = set()
        self.changed = Condition()

    def of(self, prompts: Sequence[str], metrics: Sequence[str], make: Make) -> dict[str, pa.Table]:
        """By metric the table about the prompts, in their order; `make` gives what is not kept."""
        found: dict[tuple[str, str], Rows] = {}
        while missing := self._claim(prompts, metrics, found):
            try:
                made = {name: by_prompt(table.to_pylist(), missing) for name, table in make(missing).items()}
                found |= {(name, prompt): about for name in metrics for prompt, about in made[name].items()}
                self.keep(made)
            finally:
                with self.changed:
                    self.making -= set(missing)
                    self.changed.notify_all()
        return {
            name: rows.table([row for prompt in prompts for row in found[name, prompt]], self.schema)
            for name in metrics
        }

    def keep(self, made: Mapping[str, Mapping[str, Rows]]) -> None:
        """Keeps rows, by metric and prompt."""
        with self.changed:
            for name, of_prompts in made.items():
                kept = self.kept[name]
                for prompt, about in of_prompts.items():
                    if not any(map(rows.may_pass, about)):
                        kept[prompt] = about
                while len(kept) > self.most:
                    kept.popitem(last=False)

    def known(self, metric: str, prompts: Sequence[str]) -> dict[str, Rows]:
        """The rows that are kept of a metric about these prompts."""
        with self.changed:
            return {prompt: self.kept[metric][prompt] for prompt in prompts if prompt in self.kept[metric]}

    def _claim(self, prompts: Sequence[str], metrics: Sequence[str], found: dict[tuple[str, str], Rows]) -> list[str]:
        """Prompts that the caller is to make, after what is kept has been added to what it found; none at the end."""
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


def by_prompt(records: Rows, prompts: Sequence[str]) -> Mapping[str, Rows]:
    """The rows about each of these prompts, in their order."""
    about: dict[str, list[Mapping[str, Any]]] = {prompt: [] for prompt in prompts}
    for record in records:
        about[record["prompt_id"]].append(record)
    return about
