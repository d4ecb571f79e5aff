"""The settings that images were generated with: their columns, the counts of their values, and differences in words.

A setting's values are texts by name, such as `cfg: 7.5`. Two sides that differ in a setting are not compared clearly:
the setting may cause the difference.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators.base import rows
from plumbline.operators.base.sentences import names

SETTINGS = ("cfg", "steps", "size", "seed", "sampler")
"""The names of the usual settings."""
COLUMN = "settings"
"""Column of a run's scores with the settings; an ingest writes the settings in images' own texts to it."""
Ways = tuple[tuple[str, ...], ...]
"""Columns that may contain a setting, the first one that a table has; a size may be in two columns."""
USUAL: Mapping[str, Ways] = {
    "cfg": (("cfg",), ("guidance_scale",), ("cfg_scale",)),
    "steps": (("steps",), ("num_inference_steps",)),
    "size": (("size",), ("resolution",), ("width", "height")),
    "seed": (("seed",),),
    "sampler": (("sampler",), ("scheduler",)),
}
REPEATS = "seed"
"""Setting that may differ between two sides: several seeds of a prompt are repeats."""
Choice = Literal["compare", "ignore"]
"""`compare` never calls a difference clear between sides with different settings; `ignore` compares them anyway."""
COMPARE: Choice = "compare"
MAX_VALUES = 16
"""Maximum number of values of a setting that are counted one by one."""
MAX_SHOWN = 3
MAX_VALUE_LENGTH = 80
MAX_SIDE = 1 << 16
SAME = 0.05
"""Two sides differ in a setting if at least this fraction of one side's images would have to change its value."""
WHOLE, NUMBER = re.compile(r"[+-]?\d{1,40}"), re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})(e[+-]?\d{1,3})?", re.I)
SIZE = re.compile(r"[(\[]?\s*(\d{1,6})\s*(?:[x×*,]\s*(\d{1,6}))?\s*[)\]]?", re.I)

Values = Mapping[str, int]
"""Number of images with each value of a setting."""
Known = Mapping[str, Values | int]
"""Values of each setting; if it has more than MAX_VALUES, only the number of images."""


def setting_ways(asked: Sequence[str] | Mapping[str, str] | None = None) -> dict[str, Ways]:
    """Return the columns to look for each setting in: the configured ones, or the usual ones.

    Configured columns may be a list, whose usual columns contain their usual settings, or columns by setting.
    """
    if asked is None:
        return dict(USUAL)
    if isinstance(asked, Mapping):
        return {name: ((column,),) for name, column in asked.items()}
    usual = {name: tuple(way for way in ways if set(way) <= set(asked)) for name, ways in USUAL.items()}
    known = {column for ways in usual.values() for way in ways for column in way}
    return {name: ways for name, ways in usual.items() if ways} | {
        column: ((column,),) for column in asked if column not in known
    }


def columns_in(available: Iterable[str], ways: Mapping[str, Ways]) -> dict[str, tuple[str, ...]]:
    """Return the columns of a table that contain each setting."""
    have = set(available)
    found = {name: next((way for way in of if set(way) <= have), ()) for name, of in ways.items()}
    return {name: columns for name, columns in found.items() if columns}


def columns_of(ways: Mapping[str, Ways]) -> list[str]:
    """Return all columns that may contain one of the settings, and the column of an ingest."""
    return [*dict.fromkeys(column for of in ways.values() for way in of for column in way), COLUMN] if ways else []


def value_text(name: str, value: Any) -> str | None:
    """Return a value as text, the same for 7.5, "7.50" and 7.5e0; None if it is missing or cannot be a setting."""
    if name == "size":
        return _size_text(value)
    if isinstance(value, bool):
        return str(value).lower()
    if rows.is_missing(value) or not isinstance(value, (str, int, float)):
        return None
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in str(value)[:1000]).split())
    if WHOLE.fullmatch(text):
        return str(int(text))
    if NUMBER.fullmatch(text):
        number = float(text)
        return f"{number:.10g}" if abs(number) < 1e15 else text
    return text[:MAX_VALUE_LENGTH] or None


def _size_text(value: Any) -> str | None:
    """Return width x height; a single number means a square."""
    text = " x ".join(str(side) for side in value) if isinstance(value, (list, tuple)) else str(value)
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    found = SIZE.fullmatch(text.strip()) if len(text) <= MAX_VALUE_LENGTH else None
    if found is None:
        return None
    width, height = int(found[1]), int(found[2] or found[1])
    return f"{width}x{height}" if min(width, height) > 0 and max(width, height) <= MAX_SIDE else None


def field_settings(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the settings in the usual fields of one row."""
    found = columns_in(fields, USUAL)
    texts = {
        name: value_text(name, [fields[column] for column in columns] if len(columns) > 1 else fields[columns[0]])
        for name, columns in found.items()
    }
    return {name: text for name, text in texts.items() if text}


def settings_type(names: Iterable[str]) -> pa.StructType:
    """Return the type of a column with these settings."""
    return pa.struct([(name, pa.string()) for name in names])


def read_settings(table: pa.Table, ways: Mapping[str, Ways]) -> pa.StructArray:
    """Return the settings of each row, from the table's columns; null for a row without settings.

    Settings that are missing in the columns come from the column `settings`, if the table has it.
    """
    kept, columns = _kept_values(table), columns_in(table.column_names, ways)
    fields = {name: _fill_gaps(_texts(table, name, columns.get(name, ())), kept.get(name)) for name in ways}
    valid = [any(values) for values in zip(*fields.values(), strict=True)]
    arrays = [pa.array(values, pa.string()) for values in fields.values()]
    return pa.StructArray.from_arrays(arrays, list(fields), mask=pa.array([not each for each in valid], pa.bool_()))


def is_kept(schema: pa.Schema) -> bool:
    """Return True if a table has a column of settings."""
    return COLUMN in schema.names and pa.types.is_struct(schema.field(COLUMN).type)


def _kept_values(table: pa.Table) -> dict[str, list[str | None]]:
    """Return the values of that column by setting."""
    if not is_kept(table.schema):
        return {}
    rows_of = [value or {} for value in table.column(COLUMN).to_pylist()]
    return {
        field.name: [value_text(field.name, value.get(field.name)) for value in rows_of]
        for field in table.schema.field(COLUMN).type
    }


def _texts(table: pa.Table, name: str, columns: tuple[str, ...]) -> list[str | None]:
    if not columns:
        return [None] * len(table)
    values = [table.column(column).to_pylist() for column in columns]
    if len(values) == 1:
        return [value_text(name, value) for value in values[0]]
    return [
        None if any(map(rows.is_missing, sides)) else value_text(name, sides) for sides in zip(*values, strict=True)
    ]


def _fill_gaps(texts: list[str | None], other: Sequence[str | None] | None) -> list[str | None]:
    return texts if other is None else [text or kept for text, kept in zip(texts, other, strict=True)]


def count_settings(column: pa.Array | pa.ChunkedArray) -> dict[str, Values | int]:
    """Return the number of rows with each value of each setting; settings without any value are left out."""
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    counted = {}
    for place, field in enumerate(combined.type):
        values = combined.flatten()[place].drop_null().value_counts()
        pairs = zip(*(values.field(part).to_pylist() for part in ("values", "counts")), strict=True)
        if len(values):
            counted[field.name] = _limit_values(dict(pairs))
    return counted


def _limit_values(values: Values) -> Values | int:
    return dict(values) if len(values) <= MAX_VALUES else sum(values.values())


def add_settings(known: Known, more: Known) -> dict[str, Values | int]:
    """Add the counts of two disjoint sets of images."""
    return {name: _add_counts(known.get(name, {}), more.get(name, {})) for name in dict.fromkeys([*known, *more])}


def _add_counts(values: Values | int, more: Values | int) -> Values | int:
    if isinstance(values, int) or isinstance(more, int):
        return _count_images(values) + _count_images(more)
    return _limit_values(Counter(values) + Counter(more))


def _count_images(values: Values | int) -> int:
    return values if isinstance(values, int) else sum(values.values())


class Difference(NamedTuple):
    """A setting that differs between two sides."""

    name: str
    ours: str
    """Values of one side, in words."""
    theirs: str

    @property
    def against(self) -> str:
        """The difference of two generators in words: cfg 4 against 7.5."""
        return f"{self.name} {self.ours} against {self.theirs}"

    def turned(self) -> "Difference":
        """Return the difference seen from the other side."""
        return self._replace(ours=self.theirs, theirs=self.ours)

    def between(self, run_id: str) -> str:
        """Return the difference of two runs in words: cfg 4 here, 7.5 in RUN."""
        return f"{self.name} {self.ours} here, {self.theirs} in {run_id}"


def differences(ours: Known, theirs: Known) -> list[Difference]:
    """Return the settings that both sides know and that differ between them, except seeds."""
    return [
        Difference(name, in_words(values), in_words(theirs[name]))
        for name, values in ours.items()
        if name != REPEATS and name in theirs and _distance(values, theirs[name]) >= SAME
    ]


def _distance(values: Values | int, others: Values | int) -> float:
    """Return the fraction of images that would have to change their value to give both sides the same frequencies."""
    if isinstance(values, int) or isinstance(others, int):
        return float(isinstance(values, int) != isinstance(others, int))
    shares, of_others = ({value: n / _count_images(each) for value, n in each.items()} for each in (values, others))
    apart = (abs(shares.get(value, 0) - of_others.get(value, 0)) for value in {*shares, *of_others})
    return math.fsum(apart) / 2


def in_words(values: Values | int) -> str:
    """Return a single value unchanged; several with their fractions, the most frequent first."""
    if isinstance(values, int):
        return f"more than {MAX_VALUES} values"
    if len(values) == 1:
        return next(iter(values))
    most = sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))
    return names([f"{value} ({n / _count_images(values):.0%})" for value, n in most], MAX_SHOWN)


def against(found: Sequence[Difference]) -> str:
    """Describe how two generators' settings differ, such as `cfg 4 against 7.5`."""
    return names([difference.against for difference in found], MAX_SHOWN)


def between(found: Sequence[Difference], run_id: str) -> str:
    """Describe how a generator's settings differ from those in an earlier run, such as `cfg 4 here, 7.5 in RUN`."""
    return names([difference.between(run_id) for difference in found], MAX_SHOWN)


def differ(ours: Known, theirs: Known) -> str:
    """Describe how two generators' settings differ; empty if they do not."""
    return against(found) if (found := differences(ours, theirs)) else ""


def differ_from_run(before: Mapping[str, Any], after: Mapping[str, Any], generator: str) -> str:
    """Describe how a generator's settings differ between two manifests; empty if they do not."""
    ours, theirs = (known_settings(manifest, generator) for manifest in (after, before))
    return between(found, str(before.get("run_id", ""))) if (found := differences(ours, theirs)) else ""


def known_settings(manifest: Mapping[str, Any], generator: str) -> Known:
    """Return the settings of a generator in a run's manifest."""
    return all_settings(manifest, COMPARE).get(generator, {})


def all_settings(manifest: Mapping[str, Any], choice: Choice) -> dict[str, Known]:
    """Return the settings of each generator of a run; none if `choice` ignores settings."""
    known: Mapping[str, Known] = manifest.get(COLUMN) or {}
    return dict(known) if choice == COMPARE else {}


def mixed(known: Known) -> str:
    """Describe the settings that differ among one generator's images; empty if none does."""
    several = [f"{name} {in_words(values)}" for name, values in known.items()
               if name != REPEATS and (isinstance(values, int) or len(values) > 1)]  # fmt: skip
    return names(several, MAX_SHOWN) if several else ""


def setting_notes(manifest: Mapping[str, Any], generators: Sequence[str]) -> list[str]:
    """Return notes on the settings of a run's generators: which are mixed, and for which generators none are known."""
    settings = all_settings(manifest, COMPARE)
    notes = [
        f"The images of {name} were made with several settings: {several}."
        for name in generators
        if (several := mixed(settings.get(name, {})))
    ]
    if settings and (unknown := [name for name in generators if name not in settings]):
        notes.append(f"No settings are known of {names(unknown)}.")
    return notes


def settings_in_words(known: Known) -> str:
    """Describe all settings of a generator: cfg 4, steps 20."""
    return ", ".join(f"{name} {in_words(values)}" for name, values in known.items())
