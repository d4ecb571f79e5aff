"""The settings that images were generated with: which columns hold them, how often each value is, and what differs
between two sides in words.

A setting's values are texts by name, such as `cfg: 7.5`. Two sides that differ in a setting are not compared clearly:
the difference may be that of the setting.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import pyarrow as pa

from plumbline.operators import rows
from plumbline.operators.sentences import names, plural

SETTINGS = ("cfg", "steps", "size", "seed", "sampler")
"""The names of the usual settings."""
COLUMN = "settings"
"""The column of a run's scores that holds them; an ingest keeps in it what pictures say of themselves."""
USUAL = {
    "cfg": ("cfg", "guidance_scale", "cfg_scale"),
    "steps": ("steps", "num_inference_steps"),
    "size": ("size", "resolution"),
    "seed": ("seed",),
    "sampler": ("sampler", "scheduler"),
}
"""What their columns are called."""
SIDES = ("width", "height")
"""The two columns that hold a size, where none has it whole."""
REPEATS = "seed"
"""The setting in which two sides may differ: several seeds of a prompt are repeats."""
COMPARE, IGNORE = CHOICES = ("compare", "ignore")
Choice = Literal["compare", "ignore"]
"""Whether sides with different settings are refused a clear difference, or compared all the same."""
MOST_VALUES = 16
"""Values of a setting that are counted one by one."""
MOST_SHOWN = 3
LONGEST_VALUE = 80
LARGEST_SIDE = 1 << 16
SAME = 0.05
"""Two sides differ in a setting where at least this share of one side's images would have to change its value."""
WHOLE, NUMBER = re.compile(r"[+-]?\d{1,40}"), re.compile(r"[+-]?(\d{1,40}\.?\d{0,40}|\.\d{1,40})(e[+-]?\d{1,3})?", re.I)
SIZE = re.compile(r"[(\[]?\s*(\d{1,6})\s*(?:[x×*,]\s*(\d{1,6}))?\s*[)\]]?", re.I)

Values = Mapping[str, int]
"""How many images have each value of a setting."""
Known = Mapping[str, Values | int]
"""By name of a setting, its values; of more than MOST_VALUES the number of the images alone."""


def setting_columns(
    available: Iterable[str], asked: Sequence[str] | Mapping[str, str] | None = None
) -> dict[str, tuple[str, ...]]:
    """By setting, the column that holds it, or the two of a size's sides.

    `asked` are columns, which may be called as usual, or any names with their columns; None looks for the usual ones.
    """
    if isinstance(asked, Mapping):
        return {name: (column,) for name, column in asked.items()}
    have = dict.fromkeys(available) if asked is None else dict.fromkeys(asked)
    found: dict[str, tuple[str, ...]] = {
        name: (column,) for name, usual in USUAL.items() if (column := next((c for c in usual if c in have), ""))
    }
    if "size" not in found and set(SIDES) <= have.keys():
        found["size"] = SIDES
    if asked is not None:
        known = {column for usual in (*USUAL.values(), SIDES) for column in usual}
        found |= {column: (column,) for column in have if column not in known}
    return found


def value_text(name: str, value: Any) -> str | None:
    """A value as text, the same for 7.5, "7.50" and 7.5e0; None where it is none, or nothing a setting can be."""
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
    return text[:LONGEST_VALUE] or None


def _size_text(value: Any) -> str | None:
    """Width x height; of one number, those of a square."""
    text = " x ".join(str(side) for side in value) if isinstance(value, (list, tuple)) else str(value)[:100].strip()
    if isinstance(value, float) and value.is_integer():
        text = str(int(value))
    found = SIZE.fullmatch(text)
    if found is None:
        return None
    width, height = int(found[1]), int(found[2] or found[1])
    return f"{width}x{height}" if min(width, height) > 0 and max(width, height) <= LARGEST_SIDE else None


def settings_type(names: Iterable[str]) -> pa.StructType:
    """That of the column with these settings."""
    return pa.struct([(name, pa.string()) for name in names])


def read_settings(table: pa.Table, columns: Mapping[str, tuple[str, ...]]) -> pa.StructArray:
    """The settings of each row, of the columns that the table has; null for a row that has none.

    What its columns do not say is taken from its column `settings`, where it has one.
    """
    own = _kept(table)
    fields = {name: _filled(_texts(table, name, of), own.get(name)) for name, of in columns.items()}
    valid = [any(values) for values in zip(*fields.values(), strict=True)]
    arrays = [pa.array(values, pa.string()) for values in fields.values()]
    return pa.StructArray.from_arrays(arrays, list(fields), mask=pa.array([not each for each in valid]))


def _kept(table: pa.Table) -> dict[str, list[str | None]]:
    """What the column `settings` says, by name."""
    if COLUMN not in table.column_names or not pa.types.is_struct(table.schema.field(COLUMN).type):
        return {}
    rows_of = [value or {} for value in table.column(COLUMN).to_pylist()]
    return {
        field.name: [value_text(field.name, value.get(field.name)) for value in rows_of]
        for field in table.schema.field(COLUMN).type
    }


def _texts(table: pa.Table, name: str, columns: tuple[str, ...]) -> list[str | None]:
    if not set(columns) <= set(table.column_names):
        return [None] * len(table)
    values = [table.column(column).to_pylist() for column in columns]
    if len(values) == 1:
        return [value_text(name, value) for value in values[0]]
    return [
        None if any(map(rows.is_missing, sides)) else value_text(name, sides) for sides in zip(*values, strict=True)
    ]


def _filled(texts: list[str | None], other: Sequence[str | None] | None) -> list[str | None]:
    return texts if other is None else [text or kept for text, kept in zip(texts, other, strict=True)]


def count_settings(column: pa.Array | pa.ChunkedArray) -> dict[str, Values | int]:
    """How many of the rows have each value of each setting; of a setting that none has, nothing."""
    combined = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    counted = {}
    for place, field in enumerate(combined.type):
        values = combined.flatten()[place].drop_null().value_counts()
        pairs = zip(*(values.field(part).to_pylist() for part in ("values", "counts")), strict=True)
        if len(values):
            counted[field.name] = _bounded(dict(pairs))
    return counted


def _bounded(values: Values) -> Values | int:
    return dict(values) if len(values) <= MOST_VALUES else sum(values.values())


def add_settings(known: Known, more: Known) -> dict[str, Values | int]:
    """The counts of two disjoint sets of images together."""
    return {name: _together(known.get(name, {}), more.get(name, {})) for name in dict.fromkeys([*known, *more])}


def _together(values: Values | int, more: Values | int) -> Values | int:
    if isinstance(values, int) or isinstance(more, int):
        return _images(values) + _images(more)
    return _bounded(Counter(values) + Counter(more))


def _images(values: Values | int) -> int:
    return values if isinstance(values, int) else sum(values.values())


def known_settings(manifest: Mapping[str, Any] | None, generator: str) -> Known:
    """What is known of a generator's settings by a run's manifest; nothing by that of an earlier version."""
    known: Known = ((manifest or {}).get(COLUMN) or {}).get(generator) or {}
    return known


class Difference(NamedTuple):
    """A setting that differs between two sides."""

    name: str
    ours: str
    """The values of one side, in words."""
    theirs: str

    @property
    def against(self) -> str:
        """As it is said of two generators: cfg 4 against 7.5."""
        return f"{self.name} {self.ours} against {self.theirs}"

    def between(self, run_id: str) -> str:
        """As it is said of two runs: cfg 4 here, 7.5 in RUN."""
        return f"{self.name} {self.ours} here, {self.theirs} in {run_id}"


def differences(ours: Known, theirs: Known) -> list[Difference]:
    """The settings that both sides know and in which they differ; seeds are none of them."""
    return [
        Difference(name, in_words(values), in_words(theirs[name]))
        for name, values in ours.items()
        if name != REPEATS and name in theirs and _distance(values, theirs[name]) >= SAME
    ]


def _distance(values: Values | int, others: Values | int) -> float:
    """The share of images that would have to change their value for both to have the same ones equally often."""
    if isinstance(values, int) or isinstance(others, int):
        return float(isinstance(values, int) != isinstance(others, int))
    shares, of_others = ({value: n / _images(each) for value, n in each.items()} for each in (values, others))
    apart = (abs(shares.get(value, 0) - of_others.get(value, 0)) for value in {*shares, *of_others})
    return math.fsum(apart) / 2


def in_words(values: Values | int) -> str:
    """One value as it is; several with their shares, the most frequent first."""
    if isinstance(values, int):
        return f"more than {MOST_VALUES} values"
    if len(values) == 1:
        return next(iter(values))
    most = sorted(values.items(), key=lambda pair: (-pair[1], pair[0]))
    return names([f"{value} ({n / _images(values):.0%})" for value, n in most], MOST_SHOWN)


def differ(ours: Known, theirs: Known) -> str:
    """How two generators' settings differ, in words, such as `cfg 4 against 7.5`; empty where they do not."""
    found = [difference.against for difference in differences(ours, theirs)]
    return names(found, MOST_SHOWN) if found else ""


def differ_from_run(before: Mapping[str, Any], after: Mapping[str, Any], generator: str) -> str:
    """How a generator's settings differ between two manifests, such as `cfg 4 here, 7.5 in RUN`; else empty."""
    sides = (known_settings(manifest, generator) for manifest in (after, before))
    found = [difference.between(str(before.get("run_id", "the earlier run"))) for difference in differences(*sides)]
    return names(found, MOST_SHOWN) if found else ""


def mixed(known: Known) -> str:
    """The settings that are not the same for all of one generator's images, in words; empty where there are none."""
    several = [f"{name} {in_words(values)}" for name, values in known.items()
               if name != REPEATS and (isinstance(values, int) or len(values) > 1)]  # fmt: skip
    return names(several, MOST_SHOWN) if several else ""


def unknown_sentence(manifest: Mapping[str, Any], generators: Sequence[str]) -> str:
    """Of which of the generators no setting is known, where one is of others; empty where that says nothing."""
    unknown = [name for name in generators if not known_settings(manifest, name)]
    if not unknown or len(unknown) == len(generators):
        return ""
    return f"No settings are known of {plural(len(unknown), 'generator')}: {names(unknown)}."
