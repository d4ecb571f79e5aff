"""The record of a run's report: the run that it was compared with, and its leaderboard for the terminal."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass

from pydantic import TypeAdapter, ValidationError

from plumbline.pipelines.store.store import Store


@dataclass(frozen=True, kw_only=True, slots=True)
class ReportRecord:
    """The file report.json in a run's folder."""

    compared_with: str | None
    title: str
    leaderboard: Mapping[str, Mapping[str, str]]
    """Cells of the leaderboard as text, by generator and column."""


_RECORD_ADAPTER = TypeAdapter(ReportRecord)


def read_report_record(store: Store, run_id: str) -> ReportRecord | None:
    """Return the record of a run's report; None if it is missing or unreadable."""
    content = store.read_json(_make_record_path(run_id))
    try:
        return None if content is None else _RECORD_ADAPTER.validate_python(content)
    except ValidationError:
        return None


def write_report_record(store: Store, run_id: str, record: ReportRecord) -> None:
    store.write_json(_make_record_path(run_id), asdict(record))


def _make_record_path(run_id: str) -> str:
    return f"runs/{run_id}/report.json"
