"""Reads tables and JSON files; errors name the file and the row, and say what to do."""

import io
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from plumbline.operators.base.errors import SourceError
from plumbline.operators.base.rows import require_unique_columns
from plumbline.pipelines.base import tables
from plumbline.pipelines.base.arrow_views import remove_views
from plumbline.pipelines.base.storage import Place, convert_read_errors, get_first_line
from plumbline.pipelines.base.tables import (
    DOWNLOAD_AGAIN_REMEDY,
    JSON_LINES_SUFFIXES,
    SEPARATORS_BY_SUFFIX,
    WORKBOOK_SUFFIXES,
    require_object,
)
from plumbline.pipelines.sources.input_columns import DEFAULT_COLUMN_NAMES, InputColumnsConfig, find_column_names
from plumbline.pipelines.store.checksums import DamagedError, check_table

MAX_EXACT_INTEGER = 2.0**53  # integers below this are exact as floats
MAX_COUNT_DIGITS = 6  # maximum digits of a count
CORRECT_NUMBER_REMEDY = "correct it, or leave it empty if there was no answer"
SEE_EXAMPLE_REMEDY = "docs/metaeval.md has an example"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sheet:
    """A table with at least one row. CSV columns are strings; columns of other formats keep their types.

    Rows are numbered from 0, without the header.
    """

    url: str
    names: Sequence[str]  # all columns of the file, including columns that were not read
    table: pa.Table

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def where(self, row: int) -> str:
        """Return the name of a row for messages."""
        return f"{self.url}, row {row}"

    def require(self, names: Collection[str], remedy: str) -> "Sheet":
        """Return this table; raise SourceError if it lacks any of the given columns."""
        if missing := [name for name in names if name not in self.names]:
            found = ", ".join(self.names) or "none"
            raise SourceError(f"{self.url}: expected column(s) {', '.join(missing)}, found {found}; {remedy}")
        return self

    def texts(self, name: str) -> list[str | None]:
        """Return a column as strings, with integers written without a decimal point.

        An empty cell becomes None. If the table does not have the column, all values are None.
        """
        if name not in self.table.column_names:
            return [None] * len(self)
        column = _convert_to_text(self.table.column(name).combine_chunks(), f"{self.url}: column {name!r}")
        return [text or None for text in column.to_pylist()]

    def ids(self, name: str) -> list[str]:
        """Return a column as strings; raise SourceError naming the first empty cell."""
        texts = self.texts(name)
        if None in texts:
            where = self.where(texts.index(None))
            raise SourceError(f"{where}: expected a {name}, found none; fill it in or remove the row")
        return [text for text in texts if text is not None]

    def lists(self, name: str) -> list[list[str]]:
        """Return a column as lists of strings; cells are lists, or strings separated by semicolons, or empty."""
        column = self.table.column(name)
        is_list = pa.types.is_list(column.type) or pa.types.is_large_list(column.type)
        cells = column.to_pylist() if is_list else map(tables.convert_to_list, self.texts(name))
        return [[str(part) for part in cell or () if part is not None] for cell in cells]

    def integers(self, name: str, remedy: str = CORRECT_NUMBER_REMEDY) -> list[int | None]:
        """Return a column as integers, None for empty cells; raise SourceError naming the first invalid cell.

        Numbers must be whole and at least 0.
        """
        texts = self.texts(name)
        for row, text in enumerate(texts):
            if text is not None and not (text.isdecimal() and len(text) <= MAX_COUNT_DIGITS):
                raise SourceError(f"{self.where(row)}: expected a whole number as {name}, found {text!r}; {remedy}")
        return [None if text is None else int(text) for text in texts]

    def numbers(self, name: str, remedy: str = CORRECT_NUMBER_REMEDY) -> pa.Array:
        """Return a column as float64, with null for empty cells; NaN and infinities are kept.

        Raises SourceError naming the first cell that is not a number.
        """
        column = self.table.column(name).combine_chunks()
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type):
            return column.cast(pa.float64(), safe=False)
        texts = pc.utf8_trim_whitespace(_convert_to_text(column, f"{self.url}: column {name!r}"))
        filled = pc.if_else(pc.equal(texts, ""), pa.scalar(None, pa.string()), texts)
        try:
            return filled.cast(pa.float64())
        except pa.ArrowInvalid as error:
            for row, cell in enumerate(filled):  # the error does not say which cell it is about
                try:
                    cell.cast(pa.float64())
                except pa.ArrowInvalid:
                    raise SourceError(
                        f"{self.where(row)}: expected a number for {name}, found {cell.as_py()!r}; {remedy}"
                    ) from error
            raise


def exists(place: Place) -> bool:
    with convert_read_errors(place, "file"):
        return place.exists()


def is_folder(place: Place) -> bool:
    with convert_read_errors(place, "file"):
        return place.is_folder()


def find_first_file(folder: Place, names: Sequence[str]) -> Place | None:
    """Return the first of the given files that exists in a folder, or None."""
    return next((file for file in (folder / name for name in names) if exists(file)), None)


def list_files(folder: Place, suffix: str) -> list[Place]:
    """Return a folder's files with the given suffix, sorted by name; empty if the folder does not exist."""
    if not is_folder(folder):
        return []
    with convert_read_errors(folder, "release"):
        names = sorted(folder.list())
    return [folder / name for name in names if name.endswith(suffix) and not name.startswith(".")]


def find_required_file(folder: Place, names: Sequence[str]) -> Place:
    """Return the first of the given files that exists in a folder; raise SourceError if none exists."""
    file = find_first_file(folder, names)
    if file is None:
        raise SourceError(f"{folder.url}: expected a folder with {' or '.join(names)}, found none; check the path")
    return file


@contextmanager
def _explain_file_errors(place: Place) -> Iterator[None]:
    with convert_read_errors(place, "file"):
        try:
            yield
        except IsADirectoryError as error:
            raise SourceError(f"{place.url}: expected a file, found a folder; give the file's own path") from error


def read_content(place: Place) -> bytes:
    with _explain_file_errors(place):
        return place.read()


def read_text(place: Place) -> str:
    """Read a UTF-8 file; raise SourceError if it is empty or not UTF-8."""
    return tables.read_text(read_content(place), place.url)


def read_json(place: Place) -> Any:
    """Read a JSON file; raise SourceError if it is not JSON."""
    return tables.read_json(read_content(place), place.url)


def read_list(place: Place, what: str) -> list[tuple[str, Mapping[str, Any]]]:
    """Read a JSON list of objects; return each object with its file and row, for use in messages.

    Raise SourceError naming an element that is not an object. `what` describes the list in messages.
    """
    listed = enumerate(require_list(read_json(place), what, place.url))
    return [(where, require_object(value, where)) for row, value in listed for where in [f"{place.url}, row {row}"]]


def read_objects(place: Place) -> dict[str, Mapping[str, Any]]:
    """Read a JSON object whose values are objects, keyed by id.

    Raises SourceError if the object is empty or a value is not an object.
    """
    records = read_json(place)
    if not isinstance(records, dict):
        raise SourceError(
            f"{place.url}: expected an object that maps ids to records, found {type(records).__name__}; "
            f"{DOWNLOAD_AGAIN_REMEDY}"
        )
    if not records:
        raise SourceError(f"{place.url}: expected rows, found none; {DOWNLOAD_AGAIN_REMEDY}")
    return {
        key: require_object(value, name_row(place.url, row, key)) for row, (key, value) in enumerate(records.items())
    }


def require_list(value: Any, what: str, where: str) -> list[Any]:
    """Return the value if it is a non-empty list; raise SourceError otherwise."""
    if not isinstance(value, list) or not value:
        found = "an empty list" if value == [] else type(value).__name__
        raise SourceError(f"{where}: expected a list of {what}, found {found}; check that this is the released file")
    return value


def require_text(record: Mapping[str, Any], name: str, where: str) -> str:
    """Return a field of a record as a string; raise SourceError if it is missing."""
    value = record.get(name)
    if isinstance(value, bool) or not isinstance(value, str | int) or value == "":
        keys = ", ".join(record)
        found = f"{value!r} (among the fields {keys})"
        raise SourceError(f"{where}: expected text in {name}, found {found}; check that this is the released file")
    return str(value)


def name_row(url: str, row: int, key: str) -> str:
    """Return the name of a record in a JSON object, for messages."""
    return f"{url}, row {row} ({key!r})"


def read_sheet(place: Place, only: Collection[str] | None = None) -> Sheet:
    """Read a table (.parquet, .csv, .tsv, .jsonl or a .json list of objects), or just the columns in `only`.

    If none of the columns exists, the first column is read to get the number of rows. From Parquet only the given
    columns are fetched, because others may contain images. `name.field` is a field in a column of structs. Raises
    SourceError if the file has another format, is truncated, or has no rows.
    """
    for suffix, reader in _READERS_BY_SUFFIX.items():
        if place.path.lower().endswith(suffix):
            sheet = reader(place, only)
            if len(sheet) == 0:
                raise SourceError(f"{place.url}: expected rows, found none; {DOWNLOAD_AGAIN_REMEDY}")
            return sheet
    if is_folder(place):
        raise SourceError(f"{place.url}: expected a file, found a folder; give the file's own path")
    remedy = "save the sheet as .csv" if place.path.lower().endswith(WORKBOOK_SUFFIXES) else "correct its ending"
    raise SourceError(f"{place.url}: expected a {', '.join(_READERS_BY_SUFFIX)} file; {remedy}")


def read_image_rows(place: Place, columns: Sequence[str]) -> tuple[Sheet, InputColumnsConfig, str]:
    """Read a table with a row per image, in the format that plumbline score reads, but without the images.

    Returns:
        The table with the given columns, the names of the columns that plumbline score recognises, and the column with
        the images' ids or paths.
    """
    sheet = read_sheet(place, (*columns, *DEFAULT_COLUMN_NAMES["image_id"]))
    names = find_column_names(sheet.names, InputColumnsConfig())
    if names.image_id is None and names.image is not None:
        sheet = read_sheet(place, (*columns, names.image))
    return sheet, names, names.image_id or names.image or "image_id"


def _read_parquet(place: Place, only: Collection[str] | None) -> Sheet:
    with _explain_file_errors(place), _open_for_columns(place, only) as stream:
        try:
            file = pq.ParquetFile(stream, pre_buffer=False, page_checksum_verification=True)
            names = file.schema_arrow.names
            require_unique_columns(names, names, place.url)
            columns = _select_columns(file.schema_arrow, only) if only is not None else None
            table = file.read(columns=columns, use_threads=False)
            table.validate(full=True)
            table = remove_views(table)
        except (pa.ArrowException, OSError, UnicodeDecodeError) as error:
            raise SourceError(
                f"{place.url}: not readable as Parquet ({get_first_line(error)}); {DOWNLOAD_AGAIN_REMEDY}"
            ) from error
    return Sheet(url=place.url, names=names, table=table)


def _open_for_columns(place: Place, only: Collection[str] | None) -> IO[bytes]:
    """Open a file to read columns; if all columns are read, first verify the file's checksum, if it has one."""
    if only is not None:
        return place.open()
    content = read_content(place)
    try:
        check_table(content)
    except DamagedError as error:
        raise SourceError(f"{place.url}: the table is damaged ({error}); run the sweep again") from error
    return io.BytesIO(content)


def _select_columns(schema: pa.Schema, names: Collection[str]) -> list[str]:
    """Return the columns that exist, or the first column of the schema if none exists.

    `name.field` selects the whole column `name` if the column lacks this field.
    """
    columns = []
    for name in names:
        column, _, field = name.partition(".")
        if column in schema.names:
            dtype = schema.field(column).type
            columns.append(
                name if not field or (pa.types.is_struct(dtype) and dtype.get_field_index(field) >= 0) else column
            )
    return columns or schema.names[:1]


def _read_records(place: Place, only: Collection[str] | None) -> Sheet:
    with _explain_file_errors(place), place.open() as stream:
        records = tables.read_records(stream, place.url)
    return make_sheet(place.url, records.names, records.rows, only)


def _read_json_list(place: Place, only: Collection[str] | None) -> Sheet:
    values = read_json(place)
    if not isinstance(values, list):
        raise SourceError(f"{place.url}: expected a list of objects, found {type(values).__name__}; correct the file")
    records = [require_object(value, f"{place.url}, row {row}") for row, value in enumerate(values)]
    names = list(dict.fromkeys(name for record in records for name in record))
    return make_sheet(place.url, names, records, only)


def make_sheet(
    url: str, names: Sequence[str], records: Collection[Mapping[str, Any]], only: Collection[str] | None
) -> Sheet:
    """Return records as a table, or just the columns in `only`; values of mixed types become strings."""
    selected = [name for name in names if only is None or name in only] or names[:1]
    columns = []
    for name in selected:
        values = [record.get(name) for record in records]
        try:
            columns.append(pa.array(values, from_pandas=False))
        except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
            columns.append(pa.array([None if value is None else str(value) for value in values], pa.string()))
    return Sheet(url=url, names=names, table=pa.table(columns, names=selected))


def _convert_to_text(column: pa.Array, what: str) -> pa.Array:
    """Convert a column to strings; `7.0` becomes `7`, because pandas writes integers as floats if a cell is empty."""
    try:
        if pa.types.is_floating(column.type) and pc.all(pc.less(pc.abs(column), MAX_EXACT_INTEGER)).as_py():
            whole = column.cast(pa.int64(), safe=False)
            column = whole if pc.all(pc.equal(whole, column)).as_py() else column
        return column.cast(pa.string())
    except pa.ArrowException as error:
        raise SourceError(
            f"{what}: expected text or numbers, found {column.type}; leave it out, or convert it to text"
        ) from error


_READERS_BY_SUFFIX: Mapping[str, Callable[[Place, Collection[str] | None], Sheet]] = {
    ".parquet": _read_parquet,
    **dict.fromkeys((*SEPARATORS_BY_SUFFIX, *JSON_LINES_SUFFIXES), _read_records),
    ".json": _read_json_list,
}
