"""The tables that a sweep's cells hold, of those that have one."""

from collections.abc import Mapping, Sequence
from functools import partial

import pyarrow as pa

from plumbline.operators.run_scores import RunScores
from plumbline.pipelines.cells.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.cells.store import Store
from plumbline.pipelines.plans.plan import Plan


class CellTables:
    """The cells of a plan that hold a table: not those that failed, nor those that were left out."""

    def __init__(self, plan: Plan, store: Store, outcomes: Mapping[str, Outcome]) -> None:
        self.plan, self.store, self.outcomes = plan, store, outcomes
        self._failed = {path for path, outcome in outcomes.items() if outcome.state == "failed"}

    def of(self, cells: Sequence[PlannedCell]) -> list[str]:
        """The paths of those of the cells."""
        return [cell.path for cell in cells if cell.path not in self._failed and cell not in self.plan.left]

    def read(self, path: str, columns: Sequence[str] | None = None) -> pa.Table:
        """A cell's rows; raises BrokenCell where it is damaged."""
        return self.store.read(path, draft=is_draft(path, self.outcomes), columns=columns)

    def scores(self) -> RunScores:
        """All scores."""
        paths = [path for cells in self.plan.scores.values() for path in self.of(cells)]
        return RunScores([partial(self.read, path) for path in paths])
