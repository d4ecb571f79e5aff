"""The noise of a run's judges, read from the cells of metrics that ask their judge several times."""

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa

from plumbline.operators.base import rows, schemas
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.metrics.metric import Metric, repeats_of
from plumbline.operators.results.judge_noise import noise_by_generator
from plumbline.pipelines.plans.plan import Plan
from plumbline.pipelines.store.cells import Outcome, PlannedCell, is_draft
from plumbline.pipelines.store.store import Store

COLUMNS = ("generator", "score", "asks")


def measure_judge_noise(
    plan: Plan, metrics: Mapping[str, Metric], outcomes: Mapping[str, Outcome], store: Store
) -> pa.Table:
    """Return the noise by metric and generator (schema JUDGE_NOISE); no rows if every judge is asked once."""
    repeated = [name for name in plan.scores if repeats_of(metrics[name]) > 1]
    records = [
        record
        for name in repeated
        for record in noise_by_generator(name, pa.concat_tables(_read(plan.scores[name], outcomes, store)))
    ]
    return rows.table(records, schemas.JUDGE_NOISE)


def _read(cells: Sequence[PlannedCell], outcomes: Mapping[str, Outcome], store: Store) -> Iterator[pa.Table]:
    """Yield the cells that can be read; the run has an error for the rows of the others."""
    yield schemas.ELEMENT_SCORES.empty_table().select(COLUMNS)
    for cell in cells:
        try:
            yield store.read(cell.path, key=cell.key, draft=is_draft(cell.path, outcomes), columns=COLUMNS)
        except (OSError, PlumblineError):
            continue
