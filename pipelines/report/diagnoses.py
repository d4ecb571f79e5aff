"""The diagnosis of a run's metrics, in the run's folder: written, and read again."""

from plumbline.operators.diagnosis.diagnosis import KEPT, Diagnosis, diagnosis_of, shown_tables
from plumbline.operators.report.rendering import diagnosis_markdown
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
