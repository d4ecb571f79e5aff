"""Whatever a file contains, a meta-evaluation produces findings, or fails with a one-line error and a remedy."""

import json
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import deepcopy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from plumbline.operators.base.errors import PlumblineError
from plumbline.pipelines.metaeval.metaeval import run_metaeval
from plumbline.pipelines.metaeval.protocols import MetaevalConfig
from tests.damage import ODD_VALUES
from tests.pipelines.metaeval.releases.files import LAYOUTS, Layout, encode_content, format_csv, make_rows, write_file
from tests.pipelines.metaeval.test_metaeval import make_metaeval_config

Json = Any
FEW_EXAMPLES = settings(max_examples=4, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture])
ODD_COPIES = st.sampled_from(ODD_VALUES).map(deepcopy)


@cache
def make_config(protocol: str) -> MetaevalConfig:
    """Return a configuration with few resamples and without paths."""
    draws = ["sampling.resamples=3", "sampling.permutations=3"]
    return make_metaeval_config(Path(), f"protocol={protocol}", "protocol.path=unset", *draws)


def check_findings(protocol: str, path: Path, scores: Path | None = None, **options: Any) -> None:
    """Check that each finding is a finite number or has a reason, or that there is a one-line error instead."""
    base = make_config(protocol)
    made = replace(
        base,
        protocol=replace(base.protocol, path=str(path), **options),
        scores=str(scores) if scores else None,
        output=f"{(scores or path).parent}/out",
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            judged = run_metaeval(made).judgements
        except PlumblineError as error:
            assert str(error) and len(str(error).splitlines()) == 1
            return
    assert all(math.isfinite(one.value) or (math.isnan(one.value) and one.convention != "") for one in judged)


@st.composite
def draw_damaged_rows(draw: st.DrawFn, rows: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Draw a damaged copy of a table: up to four cells, columns or rows are changed, removed or duplicated."""
    found = [dict(row) for row in rows]
    for _ in range(draw(st.integers(0, 4))):
        row = draw(st.integers(0, len(found) - 1))
        names = sorted(found[row]) or ["x"]
        name = draw(st.sampled_from(names))
        how = draw(st.sampled_from(["cell", "cell", "cell", "column", "renamed", "dropped", "row", "doubled", "field"]))
        if how == "cell":
            found[row][name] = draw(ODD_COPIES)
        elif how == "column":
            value = draw(ODD_COPIES)
            found = [{**one, name: value} for one in found]
        elif how == "renamed":
            other = draw(st.sampled_from([*names, "score", "metric", "rating", "image_id", "x", ""]))
            found = [{other if key == name else key: value for key, value in one.items()} for one in found]
        elif how == "dropped":
            found = [{key: value for key, value in one.items() if key != name} for one in found]
        elif how == "field":
            found[row].pop(name, None)
        elif how == "doubled":
            found.append(dict(found[row]))
        elif len(found) > 1:
            del found[row]
    return found


@st.composite
def draw_damaged_tree(draw: st.DrawFn, tree: Json) -> Json:
    """Draw a damaged copy of a JSON value: one to three nested values are replaced, removed or duplicated."""
    text = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 3))):
        inner = [node for node in _list_nodes(text) if node]
        if not inner:
            return draw(ODD_COPIES)
        place = inner[draw(st.sampled_from(range(len(inner))))]
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        how = draw(st.sampled_from(["odd", "dropped", "doubled"]))
        if how == "odd":
            place[key] = draw(ODD_COPIES)
        elif how == "dropped":
            del place[key]
        elif isinstance(place, list):
            place.append(deepcopy(place[key]))
        else:
            place[draw(st.sampled_from(["", "x", "models", "id", f"{key} "]))] = deepcopy(place[key])
    return text


def _list_nodes(tree: Json) -> list[Any]:
    children = list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    own = [tree] if isinstance(tree, dict | list) else []
    return own + [node for child in children for node in _list_nodes(child)]


def encode_damaged(name: str, content: Json) -> bytes:
    """Encode a JSON value, or rows that may lack columns, in the format of the file extension."""
    if name.endswith(".json"):
        return json.dumps(content).encode()
    names = list(dict.fromkeys(key for row in content for key in row)) or ["x"]
    whole = [{key: row.get(key) for key in names} for row in content]
    if name.endswith(".jsonl"):
        return "".join(f"{json.dumps(row)}\n" for row in content).encode()
    if name.endswith(".csv"):
        return format_csv(whole).encode(errors="surrogatepass")
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table([_convert_to_column([row[key] for row in whole]) for key in names], names=names), sink)
    return bytes(sink.getvalue())


def _convert_to_column(values: list[Json]) -> pa.Array:
    """Convert values to a column of their type, or to text if they have no common type; integers may become floats."""
    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) < 2 or kinds == {int, float}) and {} not in values:  # Parquet has no structs without fields
        with suppress(pa.ArrowException, OverflowError, UnicodeError):
            return pa.array(values)
    return pa.array([None if value is None else repr(value) for value in values])


@st.composite
def draw_damaged_bytes(draw: st.DrawFn, whole: bytes) -> bytes:
    """Draw a damaged copy of a file: it is truncated at a random position, or one byte is changed."""
    at = draw(st.integers(0, len(whole) - 1))
    rest = draw(st.none() | st.binary(min_size=1, max_size=1))
    return whole[:at] + (b"" if rest is None else rest + whole[at + 1 :])


@st.composite
def draw_damaged_layout(draw: st.DrawFn, layout: Layout, *, values: bool) -> Layout:
    """Draw a copy of a layout with damaged values or damaged bytes in its files."""
    files: dict[str, bytes] = {}
    for name, content in layout.files.items():
        if not values or isinstance(content, str | bytes):
            files[name] = draw(draw_damaged_bytes(encode_content(name, content)))
        elif name.endswith(".json"):
            files[name] = encode_damaged(name, draw(draw_damaged_tree(content)))
        else:
            files[name] = encode_damaged(name, draw(draw_damaged_rows(content)))
    return layout._replace(files=files)


SCORE_ROWS = make_rows(
    "image_id prompt_id generator m",
    *((f"{sample}_i{image}", f"{sample}_c{caption}", "", image * caption)
      for sample in (0, 1) for image in (0, 1) for caption in (0, 1)),
    ("1.jpg", "A dog .", "", 1), ("", "00007", "One", 2), ("", "00007", "Two", 3), ("0133_sd.png", "A zebra.", "", 4),
    ("5.png", "A zebra.", "", 5), ("u0-0", "a cat", "", 6), ("u0-1", "a cat", "", 7), ("", "07", "muse", 8),
    ("", "07", "sdxl", 9), ("coco_1_mini_dalle", "", "", 2), ("i", "p", "g", 1), ("001", "07", "atlas", 1),
    ("Text-Guided_IE/One/a.jpg", "Text-Guided_IE/a.jpg", "One", 1), ("0/left", "0", "", 1), ("0/right", "0", "", 2),
)  # fmt: skip
"""Rows of a score table with a few images of every layout, so that each layout has something to judge."""


@pytest.mark.parametrize("values", [True, False], ids=["values", "bytes"])
@pytest.mark.parametrize("name", LAYOUTS)
@FEW_EXAMPLES
@given(data=st.data())
def test_any_damaged_release_gives_findings_or_a_one_line_error(
    name: str, values: bool, data: st.DataObject, tmp_path: Path
) -> None:
    check_damaged(LAYOUTS[name], values, data, tmp_path)


def check_damaged(layout: Layout, values: bool, data: st.DataObject, folder: Path) -> None:
    """Run a meta-evaluation on a layout with damaged values or damaged bytes in its files."""
    path = data.draw(draw_damaged_layout(layout, values=values)).write(folder / "release")
    check_findings(layout.reader, path, write_file(folder / "s.csv", SCORE_ROWS))


RATED_ROWS = make_rows(
    "image_id prompt_id generator rater template rating skills",
    *((f"i{n}", f"p{n // 2}", "gh"[n % 2], rater, "likert", (n * 3 + len(rater)) % 5 + 1, "color")
      for n in range(8) for rater in ("a", "bb")),
)  # fmt: skip
LONG_SCORES = make_rows(
    "image_id prompt_id generator metric score",
    *((f"i{n}", f"p{n // 2}", "gh"[n % 2], metric, n / 7) for n in range(8) for metric in ("m", "k")),
)
WIDE_SCORES = make_rows(
    "image_id prompt_id generator m k", *((f"i{n}", f"p{n // 2}", "gh"[n % 2], n / 7, n % 3) for n in range(8))
)


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
@FEW_EXAMPLES
@given(data=st.data())
def test_any_damaged_table_gives_findings_or_a_one_line_error(suffix: str, data: st.DataObject, tmp_path: Path) -> None:
    ratings, scores = f"r.{suffix}", f"s.{suffix}"
    write_file(tmp_path / ratings, encode_damaged(ratings, data.draw(draw_damaged_rows(RATED_ROWS))))
    for content in (encode_damaged(scores, data.draw(draw_damaged_rows(LONG_SCORES) | draw_damaged_rows(WIDE_SCORES))),
                    data.draw(draw_damaged_bytes(encode_damaged(scores, WIDE_SCORES)))):  # fmt: skip
        write_file(tmp_path / scores, content)
        check_findings("long", tmp_path / ratings, tmp_path / scores, tasks=("ratings", "orders"))
