"""Lists and reads the files of a training set."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from plumbline.operators.base.errors import ConfigError, SourceError
from plumbline.pipelines.base.arrow_views import remove_views
from plumbline.pipelines.base.storage import Place, StorageConfig, convert_read_errors, get_first_line
from plumbline.pipelines.base.tables import BLOCK_BYTES, Rejection
from plumbline.pipelines.ingest.sample_files import SampleFile
from plumbline.pipelines.ingest.tars import DamagedTarError, TarMember, read_members

Row = TypeVar("Row")


class TrainingFile(NamedTuple):
    """A file of a training set."""

    place: Place
    size: int
    etag: str
    column: str | None
    """Name of the column or field to read, or None to try the common names."""


@dataclass(frozen=True, kw_only=True, slots=True)
class TrainingReader(Generic[Row]):
    """Reader for the captions or images of a training set."""

    key: str
    """Configuration key that gives the path of the files."""
    readers: Mapping[str, Callable[[TrainingFile], Iterator[Row | Rejection]]]
    """Readers by file suffix."""

    def list_files(self, storage: StorageConfig, url: str | None, column: str | None) -> list[TrainingFile]:
        """List a single file, the files in a folder, or the matches of a pattern; raise ConfigError if none exist."""
        place = storage.locate(url or "")
        with convert_read_errors(place, self.key):
            if "*" in place.path:
                entries = dict(place.glob())
            else:
                entries = {place / path if path else place: entry for path, entry in place.files()}
        found = [
            TrainingFile(file, entry.size, entry.etag, column)
            for file, entry in entries.items()
            if entry.type == "file" and file.name.lower().endswith(tuple(self.readers)) and file.name[0] not in "._"
        ]
        if not found:
            raise ConfigError(
                f"{self.key}={place}: expected files that end in {', '.join(self.readers)}; correct the path"
            )
        return sorted(found, key=lambda file: file.place.url)

    def read(self, file: TrainingFile) -> Iterator[Row | Rejection]:
        """Yield the rows and rejections of a file in order; raise ConfigError if the file lacks the column."""
        ending = next(ending for ending in self.readers if file.place.name.lower().endswith(ending))
        with convert_read_errors(file.place, self.key):
            try:
                yield from self.readers[ending](file)
            except (pa.ArrowException, SourceError, UnicodeDecodeError, OSError) as error:
                if isinstance(error, OSError) and error.errno is not None:  # Arrow's own errors have no errno
                    raise
                message = f"{get_first_line(error)}; write or download it again"
                yield Rejection(file.place.url, None, "damaged_table", message)


def choose_column(names: Sequence[str], file: TrainingFile, common: Sequence[str], key: str) -> str:
    """Return the configured column, or the first common name that exists; raise ConfigError otherwise."""
    accepted = (file.column,) if file.column else common
    column = next((name for name in accepted if name in names), None)
    if column is None:
        expected = " or ".join(accepted)
        raise ConfigError(f"{file.place}: expected a column {expected}, found {', '.join(names)}; set {key}=NAME")
    return column


def read_parquet(
    file: TrainingFile, columns: Callable[[Sequence[str]], Sequence[str]], max_rows: int
) -> Iterator[pa.Table]:
    """Yield the columns that `columns` selects from a file's column names, as tables of at most `max_rows` rows."""
    with file.place.open(size=file.size, block_size=BLOCK_BYTES) as stream, pq.ParquetFile(stream) as table:
        chosen = list(columns(table.schema_arrow.names))
        for batch in table.iter_batches(max_rows, columns=chosen, use_threads=False):
            yield remove_views(pa.Table.from_batches([batch]))


def read_tar(file: TrainingFile, max_bytes: int) -> Iterator[TarMember | Rejection]:
    """Yield the files in a WebDataset tar in order, without reading images larger than `max_bytes`."""
    tar = SampleFile(place=file.place, size=file.size, etag=file.etag, name=file.place.name)
    try:
        yield from read_members(tar, max_bytes)
    except DamagedTarError as damage:
        yield damage.to_rejection(file.place.url)
