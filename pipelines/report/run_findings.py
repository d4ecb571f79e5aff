"""What was found out about a run's metrics, in the run's folder: their diagnosis and their agreement with people."""

import math
from typing import Any

from plumbline.operators.diagnosis.diagnosis import KEPT, Diagnosis, diagnosis_of, shown_tables
from plumbline.operators.judging.judgement import Comparison, Judgement
from plumbline.operators.report.agreement import Agreement
from plumbline.operators.report.rendering import diagnosis_markdown
from plumbline.operators.statistics.bootstrap import Interval
from plumbline.pipelines.cells.store import Store


def write_diagnosis(store: Store, run_id: str, diagnosis: Diagnosis) -> None:
    """Writes its tables as Parquet, and what a person reads as Markdown."""
    folder = _folder(run_id)
    for name, table in diagnosis.tables().items():
        store.write_table(f"{folder}/{name}.parquet", table)
    store.write_text(f"{folder}/diagnosis.md", diagnosis_markdown(shown_tables(diagnosis)))


def read_diagnosis(store: Store, run_id: str) -> Diagnosis | None:
    """What was written of a run, None where it was not diagnosed; diagnosis.md is written last."""
    folder = _folder(run_id)
    if not store.exists(f"{folder}/diagnosis.md"):
        return None
    return diagnosis_of({name: store.read_table(f"{folder}/{name}.parquet") for name in KEPT})


def _folder(run_id: str) -> str:
    return f"runs/{run_id}/diagnosis"


def read_agreement(store: Store, run_id: str) -> Agreement | None:
    """What was found of a run, None where nobody judged it."""
    folder = f"runs/{run_id}/metaeval"
    page = store.read_text(f"{folder}/judgements.md")
    if page is None:
        return None
    judgements, comparisons = (_rows(store, f"{folder}/{name}.parquet") for name in ("judgements", "comparisons"))
    return Agreement(
        judgements=[Judgement(**{"interval": Interval(row.pop("low"), row.pop("high")), **row}) for row in judgements],
        comparisons=[Comparison(**row) for row in comparisons],
        notes=[line.removeprefix("- ") for line in page.splitlines() if line.startswith("- ")],
    )


def _rows(store: Store, path: str) -> list[dict[str, Any]]:
    """A table's rows, with nan for what is undefined and empty text for what is not named."""
    table = store.read_table(path)
    texts = {name for name in table.column_names if str(table.schema.field(name).type) == "string"}
    return [
        {name: ("" if name in texts else math.nan) if value is None else value for name, value in row.items()}
        for row in table.to_pylist()
    ]
