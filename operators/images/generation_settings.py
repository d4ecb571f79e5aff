"""Settings that images were generated with: reading them from columns, counting their values, describing differences.

Settings map names to strings, such as `cfg` to `7.5`. If the two sides of a comparison differ in a setting, no
difference between their scores is reported as clear, because the setting may be the cause.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.sentences import format_names

SETTING_NAMES = ("cfg", "steps", "size", "seed", "sampler")
"""Names of the usual settings."""
SETTINGS_COLUMN = "settings"
"""Column of a run's scores that contains the settings. An ingest fills the column with settings found in the image
files.
"""
ColumnAlternatives = tuple[tuple[str, ...], ...]
"""Alternative columns for a setting; the first that a table has is used. An alternative is a tuple of columns, because
width and height may be in two columns.
"""
USUAL_COLUMNS: Mapping[str, ColumnAlternatives] = {
    "cfg": (("cfg",), ("guidance_scale",), ("cfg_scale",)),
    "steps": (("steps",), ("num_inference_steps",)),
    "size": (("size",), ("resolution",), ("width", "height")),
    "seed": (("seed",),),
    "sampler": (("sampler",), ("scheduler",)),
}
REPEAT_SETTING = "seed"
"""Setting that may differ between the sides of a comparison, because images of a prompt with different seeds count as
repeats.
"""
SettingsPolicy = Literal["compare", "ignore"]
"""Treatment of settings: with `compare`, no difference between two sides with different settings is called clear;
`ignore` disregards settings.
"""
COMPARE: SettingsPolicy = "compare"
MAX_COUNTED_VALUES = 16
"""Maximum number of distinct values of a setting that are counted separately."""
MAX_LISTED_VALUES = 3
"""Maximum number of values or differences listed in a text."""
MAX_VALUE_LENGTH = 80
MAX_SIDE_PIXELS = 1 << 16
MIN_DIFFERENT_FRACTION = 0.05
"""Minimum fraction of one side's images whose value would have to change for both sides to have the same values. Below
this fraction, the sides count as equal.
"""
WHOLE_NUMBER, ANY_NUMBER = (
    re.compile(r"[+-]?\d{1,40}"),
    re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})(e[+-]?\d{1,3})?", re.I),
)
IMAGE_SIZE_PATTERN = re.compile(r"[(\[]?\s*(\d{1,6})\s*(?:[x×*,]\s*(\d{1,6}))?\s*[)\]]?", re.I)

ValueCounts = Mapping[str, int]
"""Number of images by value of a setting."""
SettingCounts = Mapping[str, ValueCounts | int]
"""Number of images by setting and value. If a setting has more than MAX_COUNTED_VALUES values, only the total number of
images is kept.
"""


def list_setting_columns(configured: Sequence[str] | Mapping[str, str] | None = None) -> dict[str, ColumnAlternatives]:
    """Return, for each setting, the columns that may contain it: the configured columns, or else the usual columns.

    The configured columns may be a mapping from setting to column, or a list of columns. A listed column that is one of
    the usual columns for a setting, such as for `cfg`, is read as this setting. Any other listed column becomes a
    setting with the column's own name.
    """
    if configured is None:
        return dict(USUAL_COLUMNS)
    if isinstance(configured, Mapping):
        return {name: ((column,),) for name, column in configured.items()}
    usual = {name: tuple(way for way in ways if set(way) <= set(configured)) for name, ways in USUAL_COLUMNS.items()}
    known = {column for ways in usual.values() for way in ways for column in way}
    return {name: ways for name, ways in usual.items() if ways} | {
        column: ((column,),) for column in configured if column not in known
    }


def find_setting_columns(
    available: Iterable[str], alternatives: Mapping[str, ColumnAlternatives]
) -> dict[str, tuple[str, ...]]:
    """Return, for each setting, the first of its alternatives whose columns are all available.

    Settings without such an alternative are left out.
    """
    have = set(available)
    found = {name: next((way for way in ways if set(way) <= have), ()) for name, ways in alternatives.items()}
    return {name: columns for name, columns in found.items() if columns}


def list_source_columns(ways: Mapping[str, ColumnAlternatives]) -> list[str]:
    """Return all columns that may contain a setting, including SETTINGS_COLUMN; if `ways` is empty, return none."""
    return (
        [*dict.fromkeys(column for of in ways.values() for way in of for column in way), SETTINGS_COLUMN]
        if ways
        else []
    )


def format_value(name: str, value: Any) -> str | None:
    """Return a setting's value as text, the same for 7.5, "7.50" and 7.5e0; None if it is missing or invalid.

    A size is formatted as WIDTHxHEIGHT; a single number means a square.
    """
    if name == "size":
        text = " x ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)
        if isinstance(value, float) and value.is_integer():
            text = str(int(value))
        found = IMAGE_SIZE_PATTERN.fullmatch(text.strip()) if len(text) <= MAX_VALUE_LENGTH else None
        if found is None:
            return None
        width, height = int(found[1]), int(found[2] or found[1])
        return f"{width}x{height}" if min(width, height) > 0 and max(width, height) <= MAX_SIDE_PIXELS else None
    if isinstance(value, bool):
        return str(value).lower()
    if rows.is_missing(value) or not isinstance(value, (str, int, float)):
        return None
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)[:1000]).split())
    if WHOLE_NUMBER.fullmatch(text):
        return str(int(text))
    if ANY_NUMBER.fullmatch(text):
        number = float(text)
        return f"{number:.10g}" if abs(number) < 1e15 else text
    return text[:MAX_VALUE_LENGTH] or None


def read_field_settings(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return a mapping of a row's settings, such as `cfg`; each is read from its usual columns."""
    found = find_setting_columns(fields, USUAL_COLUMNS)
    texts = {name: _join_cells(name, [fields[column] for column in columns]) for name, columns in found.items()}
    return {name: text for name, text in texts.items() if text}


def _join_cells(name: str, cells: Sequence[Any]) -> str | None:
    return format_value(name, cells if len(cells) > 1 else cells[0])


def make_settings_type(names: Iterable[str]) -> pa.StructType:
    """Return the Arrow type of a column that contains settings with these names."""
    return pa.struct([(name, pa.string()) for name in names])


def read_settings(table: pa.Table, ways: Mapping[str, ColumnAlternatives]) -> pa.StructArray:
    """Return the settings of each row, read from the table's columns; null for a row without settings.

    Settings that are not in their own columns are read from the column `settings`, if the table has one.
    """
    columns = find_setting_columns(table.column_names, ways)
    kept = table.column(SETTINGS_COLUMN).to_pylist() if has_settings(table.schema) else [None] * len(table)
    fields: dict[str, list[str | None]] = {}
    for name in ways:
        cells = [table.column(column).to_pylist() for column in columns.get(name, ())]
        texts = [_join_cells(name, row) for row in zip(*cells, strict=True)] if cells else [None] * len(table)
        fields[name] = [
            text or (format_value(name, row[name]) if row and name in row else None)
            for text, row in zip(texts, kept, strict=True)
        ]
    missing = [not any(values) for values in zip(*fields.values(), strict=True)]
    arrays = [pa.array(values, pa.string()) for values in fields.values()]
    return pa.StructArray.from_arrays(arrays, list(fields), mask=pa.array(missing, pa.bool_()))


def has_settings(schema: pa.Schema) -> bool:
    """Return True if a table with this schema has the column `settings`."""
    return SETTINGS_COLUMN in schema.names and pa.types.is_struct(schema.field(SETTINGS_COLUMN).type)


def count_settings(column: pa.Array | pa.ChunkedArray) -> dict[str, ValueCounts | int]:
    """Return the number of rows with each value of each setting; settings without any value are left out.

    A setting with more than MAX_COUNTED_VALUES values gets the number of rows with any value instead.
    """
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    counted = {}
    for field, values in zip(combined.type, combined.flatten(), strict=True):
        counts = values.drop_null().value_counts()
        if len(counts):
            pairs = zip(counts.field("values").to_pylist(), counts.field("counts").to_pylist(), strict=True)
            counted[field.name] = _limit_values(dict(pairs))
    return counted


def _limit_values(values: ValueCounts) -> ValueCounts | int:
    return dict(values) if len(values) <= MAX_COUNTED_VALUES else sum(values.values())


def add_settings(known: SettingCounts, more: SettingCounts) -> dict[str, ValueCounts | int]:
    """Return the combined counts of two disjoint sets of images, by setting and value."""
    added: dict[str, ValueCounts | int] = {}
    for name in dict.fromkeys([*known, *more]):
        ours, theirs = known.get(name, {}), more.get(name, {})
        if isinstance(ours, int) or isinstance(theirs, int):
            added[name] = _count_images(ours) + _count_images(theirs)
        else:
            added[name] = _limit_values(Counter(ours) + Counter(theirs))
    return added


def _count_images(values: ValueCounts | int) -> int:
    return values if isinstance(values, int) else sum(values.values())


class Difference(NamedTuple):
    """A setting with different values in the two sets of images that are compared."""

    name: str
    ours: str
    """Values on the first side of the comparison, as text with percentages if there are several."""
    theirs: str

    def swap_sides(self) -> "Difference":
        """Return the same difference with `ours` and `theirs` exchanged."""
        return self._replace(ours=self.theirs, theirs=self.ours)


def compare_settings(ours: SettingCounts, theirs: SettingCounts) -> list[Difference]:
    """Return the settings, except seeds, that are known on both sides but have different values."""
    found = []
    for name, values in ours.items():
        others = theirs.get(name)
        if name == REPEAT_SETTING or others is None:
            continue
        if isinstance(values, int) or isinstance(others, int):
            different = isinstance(values, int) != isinstance(others, int)
        else:
            # The fraction of images that would have to change their value to give both sides the same frequencies.
            n_ours, n_theirs = max(_count_images(values), 1), max(_count_images(others), 1)
            gaps = (abs(values.get(each, 0) / n_ours - others.get(each, 0) / n_theirs) for each in {*values, *others})
            different = math.fsum(gaps) / 2 >= MIN_DIFFERENT_FRACTION
        if different:
            found.append(Difference(name, _describe_values(values), _describe_values(others)))
    return found


def _describe_values(values: ValueCounts | int) -> str:
    """Return a setting's only value, or text with its most frequent values and their percentages.

    If the values were not counted because there are too many, the text says only that there are more than the limit.
    """
    if isinstance(values, int):
        return f"more than {MAX_COUNTED_VALUES} values"
    if len(values) == 1:
        return next(iter(values))
    most = sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))
    return format_names([f"{value} ({n / _count_images(values):.0%})" for value, n in most], MAX_LISTED_VALUES)


def describe_differences(found: Sequence[Difference], run_id: str | None = None) -> str:
    """Return text that lists differences in settings; empty if there are none.

    The text is about two generators, as in `cfg 4 against 7.5`. With the `run_id` of an earlier run, it is about one
    generator in two runs, as in `cfg 4 here, 7.5 in RUN`.
    """
    texts = [
        f"{name} {ours} against {theirs}" if run_id is None else f"{name} {ours} here, {theirs} in {run_id}"
        for name, ours, theirs in found
    ]
    return format_names(texts, MAX_LISTED_VALUES) if texts else ""


def describe_changed_settings(before: Mapping[str, Any], after: Mapping[str, Any], generator: str) -> str:
    """Return text that lists how a generator's settings differ between two runs' manifests; empty if they do not."""
    ours, theirs = (read_all_settings(manifest).get(generator, {}) for manifest in (after, before))
    return describe_differences(compare_settings(ours, theirs), str(before.get("run_id", "")))


def read_all_settings(manifest: Mapping[str, Any], choice: SettingsPolicy = COMPARE) -> dict[str, SettingCounts]:
    """Return the settings of each generator in a run's manifest; none if `choice` is `ignore`."""
    known: Mapping[str, SettingCounts] = manifest.get(SETTINGS_COLUMN) or {}
    return dict(known) if choice == COMPARE else {}


def make_setting_notes(manifest: Mapping[str, Any], generators: Sequence[str]) -> list[str]:
    """Return notes on the generators whose settings have several values or are unknown."""
    settings = read_all_settings(manifest)
    notes = []
    for generator in generators:
        mixed = [
            f"{name} {_describe_values(values)}"
            for name, values in settings.get(generator, {}).items()
            if name != REPEAT_SETTING and (isinstance(values, int) or len(values) > 1)
        ]
        if mixed:
            notes.append(
                f"The images of {generator} were made with several settings: {format_names(mixed, MAX_LISTED_VALUES)}."
            )
    if settings and (unknown := [name for name in generators if name not in settings]):
        notes.append(f"No settings are known for {format_names(unknown)}.")
    return notes


def describe_settings(known: SettingCounts) -> str:
    """Return text that lists a generator's settings with their values, such as `cfg 4, steps 20`."""
    return ", ".join(f"{name} {_describe_values(values)}" for name, values in known.items())
