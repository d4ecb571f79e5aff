"""Whatever a file holds, a meta-evaluation ends in findings or in one line that a person can act on."""

import json
import math
import warnings
from collections.abc import Callable, Mapping, Sequence
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

from plumbline.operators.errors import PlumblineError
from plumbline.operators.judging.judgement import Judgement
from plumbline.pipelines.judging.metaeval import Findings, run_metaeval
from plumbline.pipelines.judging.protocols import MetaevalConfig
from tests.pipelines.judging.releases.files import (
    EQBEN,
    EQBEN_FULL,
    FLICKR_JSON,
    GECKO,
    GECKO_PROMPTS,
    GENAI,
    PICK_A_PIC,
    SEETRUE,
    T2V,
    T2V_SCORES,
    TIFA,
    TS2_METADATA,
    TS2_SCORES,
    WINOGROUND,
    as_csv,
    put,
)
from tests.pipelines.judging.test_metaeval import config

Json = Any
few = settings(
    max_examples=15, deadline=None, derandomize=True, database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)  # fmt: skip
ODD = st.sampled_from(
    [None, True, "", " ", "nan", "-inf", "1e400", "1,5", "NaN", "p0", "i0", "g", -1, 0, 1, 2.5, 55, 2**53 + 1, 2**70,
     1e308, -1e308, 5e-324, math.nan, math.inf, "é", "\x00", "\u2028", "a\nb", '"', ";", "x" * 5000, [], [1, None], {},
     {"bytes": None, "path": "a"}, ["a", ["b"]], "\ud800", "=1+1", "'); drop", "../../etc"]
).map(deepcopy)  # fmt: skip


@cache
def asked(protocol: str) -> MetaevalConfig:
    """A protocol with few draws, its paths to be set."""
    draws = ["sampling.resamples=3", "sampling.permutations=3"]
    return config(Path(), f"protocol={protocol}", "protocol.path=unset", *draws)


def judged(protocol: str, path: Path, scores: Path | None = None, **options: Any) -> Findings | None:
    """The findings, whose numbers are finite or have a reason; None where one line says why there are none."""
    base = asked(protocol)
    made = replace(
        base,
        protocol=replace(base.protocol, path=str(path), **options),
        scores=str(scores) if scores else None,
        output=str((scores or path).parent / "out"),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            found = run_metaeval(made)
        except PlumblineError as error:
            assert str(error) and len(str(error).splitlines()) == 1
            return None
    assert all(_is_sound(judgement) for judgement in found.judgements)
    return found


def _is_sound(judged: Judgement) -> bool:
    return math.isfinite(judged.value) or (math.isnan(judged.value) and judged.convention != "")


@st.composite
def harmed(draw: st.DrawFn, rows: Sequence[Mapping[str, Json]]) -> list[dict[str, Json]]:
    """Rows with up to four cells, columns or rows changed, dropped or doubled."""
    table = [dict(row) for row in rows]
    for _ in range(draw(st.integers(0, 4))):
        row = draw(st.integers(0, len(table) - 1))
        names = sorted(table[row]) or ["x"]
        name = draw(st.sampled_from(names))
        how = draw(st.sampled_from(["cell", "cell", "cell", "column", "renamed", "dropped", "row", "doubled", "field"]))
        if how == "cell":
            table[row][name] = draw(ODD)
        elif how == "column":
            value = draw(ODD)
            table = [{**one, name: value} for one in table]
        elif how == "renamed":
            other = draw(st.sampled_from([*names, "score", "metric", "rating", "image_id", "x", ""]))
            table = [{other if key == name else key: value for key, value in one.items()} for one in table]
        elif how == "dropped":
            table = [{key: value for key, value in one.items() if key != name} for one in table]
        elif how == "field":
            table[row].pop(name, None)
        elif how == "doubled":
            table.append(dict(table[row]))
        elif len(table) > 1:
            del table[row]
    return table


@st.composite
def harmed_tree(draw: st.DrawFn, tree: Json) -> Json:
    """JSON with one to three of its values replaced, dropped or doubled, wherever they are."""
    text = json.loads(json.dumps(tree))
    for _ in range(draw(st.integers(1, 3))):
        inner = [node for node in _nodes(text) if node]
        if not inner:
            return draw(ODD)
        node = draw(st.sampled_from(range(len(inner))))
        place = inner[node]
        key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else range(len(place))))
        how = draw(st.sampled_from(["odd", "dropped", "doubled"]))
        if how == "odd":
            place[key] = draw(ODD)
        elif how == "dropped":
            del place[key]
        elif isinstance(place, list):
            place.append(deepcopy(place[key]))
        else:
            place[draw(st.sampled_from(["", "x", "models", "id", f"{key} "]))] = deepcopy(place[key])
    return text


def _nodes(tree: Json) -> list[Any]:
    children = list(tree.values()) if isinstance(tree, dict) else tree if isinstance(tree, list) else []
    own = [tree] if isinstance(tree, dict | list) else []
    return own + [node for child in children for node in _nodes(child)]


def as_text(table: Sequence[Mapping[str, Json]], delimiter: str = ",") -> bytes:
    names = list(dict.fromkeys(name for row in table for name in row)) or ["x"]
    return as_csv([{name: row.get(name) for name in names} for row in table], delimiter).encode(errors="surrogatepass")


def as_lines(table: Sequence[Mapping[str, Json]]) -> bytes:
    return "".join(f"{json.dumps(row)}\n" for row in table).encode()


def as_table(table: Sequence[Mapping[str, Json]]) -> bytes:
    """Parquet, of columns whose values are of one kind; of texts where they are not."""
    names = list(dict.fromkeys(name for row in table for name in row)) or ["x"]
    columns = [_column([row.get(name) for row in table]) for name in names]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.table(columns, names=names), sink)
    return bytes(sink.getvalue())


def _column(values: list[Json]) -> pa.Array:
    kinds = {type(value) for value in values if value is not None}
    if (len(kinds) < 2 or kinds == {int, float}) and {} not in values:  # Parquet has no structs without fields
        with suppress(pa.ArrowException, OverflowError, UnicodeError):
            return pa.array(values)
    return pa.array([None if value is None else repr(value) for value in values])


WRITERS: Mapping[str, Callable[[Sequence[Mapping[str, Json]]], bytes]] = {
    "csv": as_text,
    "jsonl": as_lines,
    "parquet": as_table,
}
RATED = [
    {"image_id": f"i{n}", "prompt_id": f"p{n // 2}", "generator": "gh"[n % 2], "rater": rater, "template": "likert",
     "rating": (n * 3 + len(rater)) % 5 + 1, "skills": "color"}
    for n in range(8) for rater in ("a", "bb")
]  # fmt: skip
LONG = [
    {"image_id": f"i{n}", "prompt_id": f"p{n // 2}", "generator": "gh"[n % 2], "metric": metric, "score": n / 7}
    for n in range(8)
    for metric in ("m", "k")
]
WIDE = [
    {"image_id": f"i{n}", "prompt_id": f"p{n // 2}", "generator": "gh"[n % 2], "m": n / 7, "k": n % 3} for n in range(8)
]


@pytest.mark.parametrize("suffix", WRITERS)
@few
@given(rated=harmed(RATED), scored=st.one_of(harmed(LONG), harmed(WIDE)))
def test_no_table_of_ratings_or_scores_ends_in_another_way(
    suffix: str, rated: list[dict[str, Json]], scored: list[dict[str, Json]], tmp_path: Path
) -> None:
    ratings = put(tmp_path / f"r.{suffix}", WRITERS[suffix](rated))
    scores = put(tmp_path / f"s.{suffix}", WRITERS[suffix](scored))
    judged("long", ratings, scores, tasks=("ratings", "orders"))


@pytest.mark.parametrize("suffix", WRITERS)
@few
@given(share=st.floats(0, 1), byte=st.integers(0, 255), cut=st.booleans())
def test_no_damage_to_a_table_of_scores_ends_in_another_way(
    suffix: str, share: float, byte: int, cut: bool, tmp_path: Path
) -> None:
    whole = WRITERS[suffix](WIDE)
    at = min(int(share * len(whole)), len(whole) - 1)
    damaged = whole[:at] if cut else whole[:at] + bytes([byte]) + whole[at + 1 :]
    ratings = put(tmp_path / "r.csv", as_text(RATED))
    scores = put(tmp_path / f"s.{suffix}", damaged)
    judged("long", ratings, scores)


TREES: Mapping[str, tuple[str, str, Json]] = {
    "tifa160": ("tifa160", "t.json", TIFA),
    "genai_bench": ("genai_bench", "g.json", GENAI),
    "eqben": ("eqben", "e.json", EQBEN),
    "eqben, full": ("eqben", "f.json", EQBEN_FULL),
    "flickr8k_cf": ("flickr8k_cf", "c.json", FLICKR_JSON),
}
IMAGES: Sequence[Mapping[str, Json]] = [
    *(
        {"image_id": f"{sample}_i{image}", "prompt_id": f"{sample}_c{caption}", "generator": "", "m": image * caption}
        for sample in (0, 1)
        for image in (0, 1)
        for caption in (0, 1)
    ),
    {"image_id": "1.jpg", "prompt_id": "A dog .", "generator": "", "m": 1},
    {"image_id": "", "prompt_id": "00007", "generator": "One", "m": 2},
    {"image_id": "", "prompt_id": "00007", "generator": "Two", "m": 3},
    {"image_id": "0133_sd.png", "prompt_id": "A zebra.", "generator": "", "m": 4},
    {"image_id": "5.png", "prompt_id": "A zebra.", "generator": "", "m": 5},
    {"image_id": "u0-0", "prompt_id": "a cat", "generator": "", "m": 6},
    {"image_id": "u0-1", "prompt_id": "a cat", "generator": "", "m": 7},
    {"image_id": "", "prompt_id": "07", "generator": "muse", "m": 8},
    {"image_id": "", "prompt_id": "07", "generator": "sdxl", "m": 9},
    {"image_id": "coco_1_mini_dalle", "prompt_id": "", "generator": "", "m": 2},
]  # fmt: skip


@pytest.mark.parametrize("name", TREES)
@few
@given(data=st.data())
def test_no_release_in_json_ends_in_another_way(name: str, data: st.DataObject, tmp_path: Path) -> None:
    protocol, file, tree = TREES[name]
    path = put(tmp_path / file, json.dumps(data.draw(harmed_tree(tree))))
    scores = put(tmp_path / "s.csv", as_text(IMAGES))
    judged(protocol, path, scores)


@few
@given(skills=harmed_tree({"counting": [7], "basic": [7, 8, 9]}))
def test_no_file_of_skills_ends_in_another_way(skills: Json, tmp_path: Path) -> None:
    put(tmp_path / "genai_skills.json", json.dumps(skills))
    path, scores = put(tmp_path / "g.json", json.dumps(GENAI)), put(tmp_path / "s.csv", as_text(IMAGES))
    judged("genai_bench", path, scores)


TABLES: Mapping[str, Sequence[Mapping[str, Json]]] = {
    "winoground": WINOGROUND,
    "seetrue": SEETRUE,
    "pick_a_pic": [{**row, "jpg_0": "not read"} for row in PICK_A_PIC],
}


@pytest.mark.parametrize("suffix", WRITERS)
@pytest.mark.parametrize("name", TABLES)
@few
@given(data=st.data())
def test_no_release_in_a_table_ends_in_another_way(name: str, suffix: str, data: st.DataObject, tmp_path: Path) -> None:
    path = put(tmp_path / f"t.{suffix}", WRITERS[suffix](data.draw(harmed(TABLES[name]))))
    scores = put(tmp_path / "s.csv", as_text(IMAGES))
    judged(name, path, scores)


@few
@given(data=st.data())
def test_no_folder_of_gecko_ends_in_another_way(data: st.DataObject, tmp_path: Path) -> None:
    for name, table in {**GECKO, "prompts": GECKO_PROMPTS}.items():
        put(tmp_path / f"{name}.csv", as_text(data.draw(harmed(table))))
    scores = put(tmp_path / "s.csv", as_text(IMAGES))
    judged("gecko", tmp_path, scores)


@few
@given(metadata=harmed(TS2_METADATA), scores=harmed(TS2_SCORES))
def test_no_folder_of_t2iscorescore_ends_in_another_way(
    metadata: list[dict[str, Json]], scores: list[dict[str, Json]], tmp_path: Path
) -> None:
    put(tmp_path / "ts2_metadata.csv", as_text(metadata))
    put(tmp_path / "ts2_scores_per_image.csv", as_text(scores))
    judged("t2iscorescore", tmp_path)


@few
@given(ratings=harmed_tree(T2V), scores=harmed(T2V_SCORES))
def test_no_folder_of_t2vscore_ends_in_another_way(
    ratings: Json, scores: list[dict[str, Json]], tmp_path: Path
) -> None:
    put(tmp_path / "t2vscore_human_ratings.json", json.dumps(ratings))
    put(tmp_path / "t2vscore_results.csv", as_text(scores))
    judged("t2vscore", tmp_path)
