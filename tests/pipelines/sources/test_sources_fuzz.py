"""Whatever prompts, images, manifests and overrides contain, a sweep is planned or ends with a one-line error."""

import io
import json
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from plumbline.jobs.command import get_command, list_dotted_keys, load_values
from plumbline.jobs.display.console import JobConsole
from plumbline.jobs.status import show_runs
from plumbline.operators.base.errors import PlumblineError
from plumbline.operators.base.ordered_maps import map_sequentially
from plumbline.pipelines.base.storage import StorageConfig
from plumbline.pipelines.report.report import open_run
from plumbline.pipelines.sources.benchmark import IMAGE_COLUMNS, BenchmarkConfig, ColumnsConfig
from plumbline.pipelines.sources.prompts import read_prompts
from plumbline.pipelines.sources.shards import ShardSize, read_extra_columns, read_shard
from plumbline.pipelines.sources.sources import Sources
from plumbline.pipelines.store.runs import find_run, list_runs, read_manifest
from plumbline.pipelines.store.store import Store
from tests.bench_of import list_sources, read_image_rows, write_rows
from tests.commands import load_job_config
from tests.damage import FEW_EXAMPLES_SETTINGS, FOREIGN_BYTES, ODD_VALUES, ByteEdit, apply_edits, draw_edits
from tests.operators.report.made import make_run

STORAGE_CONFIG = StorageConfig()
PROMPT_ROWS = [
    {"prompt_id": "p0", "text": "a café, at night", "skills": ["colour", "count"]},
    {"prompt_id": "p1", "text": 'two "red" cubes', "skills": []},
    {"prompt_id": "p2", "text": "", "skills": ["colour"]},
]


def allow_one_line_error(read: Callable[[], Any]) -> Any:
    """Return the result of `read`, or None if it raises a PlumblineError; any other error fails the test."""
    try:
        return read()
    except PlumblineError as error:
        assert str(error).strip()
        str(error).encode()
        return None


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two images of one generator, and return the benchmark's folder; the tests write the prompts."""
    folder = tmp_path_factory.mktemp("bench")
    rows = [{**row, "prompt_id": f"p{number}"} for number, row in enumerate(read_image_rows("atlas", 2))]
    write_rows(folder / "images/atlas/0.parquet", rows)
    return folder


def read_all(benchmark: BenchmarkConfig) -> Sources | None:
    """List a benchmark's sources and read every shard as the stages do; return None if the sources cannot be listed."""
    sources = allow_one_line_error(lambda: list_sources(benchmark, ShardSize(2)))
    if sources is None:
        return None
    names = (*IMAGE_COLUMNS, "prompt") if benchmark.prompts is None else IMAGE_COLUMNS
    for shard in sources.prompt_shards:
        allow_one_line_error(lambda shard=shard: read_prompts(shard))
    for shard in sources.image_shards:
        allow_one_line_error(lambda shard=shard: read_shard(shard, names))
        allow_one_line_error(lambda shard=shard: read_extra_columns(shard, sources.extra, sources.settings))
    assert all(broken.message.strip() for broken in sources.broken)
    return sources


def assert_prompts_are_usable(sources: Sources | None) -> None:
    if sources is not None:
        ids = sources.prompts.column("prompt_id").to_pylist()
        assert len(set(ids)) == len(ids) and all(ids)
        assert sum(shard.rows for shard in sources.prompt_shards) == len(ids)


def open_prompts(bench: Path, file: Path) -> BenchmarkConfig:
    return BenchmarkConfig(name="fuzz", prompts=str(file), images=f"{bench}/images")


def make_content(suffix: str) -> bytes:
    if suffix == "csv":
        return 'prompt_id,text,skills\np0,"a café, at night",colour\np1,"two ""red"" cubes",\np2,,count\n'.encode()
    if suffix == "jsonl":
        return "".join(json.dumps(prompt) + "\n" for prompt in PROMPT_ROWS).encode()
    if suffix == "json":
        return json.dumps({str(prompt["prompt_id"]): prompt for prompt in PROMPT_ROWS}, ensure_ascii=False).encode()
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(PROMPT_ROWS), sink, row_group_size=2)
    return bytes(sink.getvalue().to_pybytes())


@pytest.mark.parametrize("suffix", ["csv", "json", "jsonl", "parquet"])
@FEW_EXAMPLES_SETTINGS
@given(changes=draw_edits(st.sampled_from(FOREIGN_BYTES) | st.binary(max_size=60)))
def test_damaged_prompt_files_are_read_or_refused_in_one_line(
    suffix: str, bench: Path, changes: list[ByteEdit]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"prompts.{suffix}"
        file.write_bytes(apply_edits(make_content(suffix), changes))
        assert_prompts_are_usable(read_all(open_prompts(bench, file)))


ODD_CELLS = st.sampled_from([*ODD_VALUES, b"p0", b"\xff"])
PROMPT_RECORDS = st.lists(
    st.dictionaries(st.sampled_from(["prompt_id", "text", "skills", "other"]), ODD_CELLS), min_size=1, max_size=4
)


@pytest.mark.parametrize("suffix", ["json", "jsonl"])
@FEW_EXAMPLES_SETTINGS
@given(records=PROMPT_RECORDS)
def test_odd_values_in_json_are_read_or_refused_in_one_line(
    suffix: str, bench: Path, records: list[dict[str, Any]]
) -> None:
    lines = [json.dumps(record, default=repr) for record in records]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"prompts.{suffix}"
        file.write_text("\n".join(lines) if suffix == "jsonl" else f"[{','.join(lines)}]")
        assert_prompts_are_usable(read_all(open_prompts(bench, file)))


def make_column(values: Sequence[Any]) -> pa.Array | None:
    """Return a column of the type that Arrow infers, or of possibly invalid text; None if no type fits all values."""
    if all(isinstance(value, bytes) for value in values):
        return pa.array(values, pa.binary()).view(pa.string())
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, UnicodeEncodeError, ValueError):
        return None


def write_columns(path: Path, columns: Sequence[tuple[str, Sequence[Any]]]) -> bool:
    """Write a table whose column names may repeat; return False if Parquet cannot store it."""
    arrays = [(name, array) for name, values in columns if (array := make_column(values)) is not None]
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        pq.write_table(pa.table([array for _, array in arrays], names=[name for name, _ in arrays]), path)
    except (pa.ArrowException, UnicodeEncodeError):
        return False
    return True


def draw_columns(*names: str) -> st.SearchStrategy[list[tuple[str, list[Any]]]]:
    values = (
        st.lists(ODD_CELLS, min_size=3, max_size=3)
        | ODD_CELLS.map(lambda value: [value] * 3)
        | st.just(["p0", "p1", "p2"])
    )
    return st.lists(st.tuples(st.sampled_from(names), values), min_size=1, max_size=6)


@FEW_EXAMPLES_SETTINGS
@given(columns=draw_columns("prompt_id", "text", "skills", "other"))
def test_odd_columns_of_prompts_are_read_or_refused_in_one_line(
    bench: Path, columns: list[tuple[str, list[Any]]]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.parquet"
        if write_columns(file, columns):
            assert_prompts_are_usable(read_all(open_prompts(bench, file)))


@pytest.mark.parametrize("own", [True, False], ids=["own prompts", "a benchmark's"])
@FEW_EXAMPLES_SETTINGS
@given(
    columns=draw_columns("prompt_id", "image_id", "image", "uri", "prompt", "seed"), extra=st.sampled_from(["*", ()])
)
def test_odd_columns_of_images_are_read_or_refused_in_one_line(
    bench: Path, own: bool, columns: list[tuple[str, list[Any]]], extra: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if write_columns(Path(folder) / "images/flint/0.parquet", columns):
            write_rows(Path(folder) / "prompts.parquet", PROMPT_ROWS)
            prompts = None if own else f"{folder}/prompts.parquet"
            columns_config = ColumnsConfig(extra=extra)
            read_all(BenchmarkConfig(name="fuzz", prompts=prompts, images=f"{folder}/images", columns=columns_config))


@pytest.mark.parametrize("own", [True, False], ids=["own prompts", "a benchmark's"])
@FEW_EXAMPLES_SETTINGS
@given(changes=draw_edits(st.binary(max_size=60)))
def test_damaged_images_are_read_or_refused_in_one_line(own: bool, changes: list[ByteEdit]) -> None:
    rows = [
        {"prompt_id": f"p{n}", "image": b"x" * 50, "uri": "a.png", "prompt": f"a cat {n}", "seed": n} for n in range(4)
    ]
    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pylist(rows), sink, row_group_size=2, compression="none")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "images/flint/0.parquet"
        file.parent.mkdir(parents=True)
        file.write_bytes(apply_edits(sink.getvalue().to_pybytes(), changes))
        write_rows(Path(folder) / "prompts.parquet", PROMPT_ROWS)
        prompts = None if own else f"{folder}/prompts.parquet"
        read_all(
            BenchmarkConfig(name="fuzz", prompts=prompts, images=f"{folder}/images", columns=ColumnsConfig(extra="*"))
        )


# Manifests


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Store:
    return make_run(tmp_path_factory.mktemp("made")).store


def show_all(store: Store, content: bytes) -> None:
    """Write `content` as the manifest of the only run, then list, show and open the run."""
    (run_id,) = (run.run_id for run in list_runs(store))
    (store.place / f"runs/{run_id}/manifest.json").write(content)
    shown = io.StringIO()
    show_runs(JobConsole(file=shown, width=140), list_runs(store))
    assert run_id in shown.getvalue()
    allow_one_line_error(lambda: open_run(store, find_run(store, "latest"), None, map_sequentially))


@FEW_EXAMPLES_SETTINGS
@given(changes=draw_edits(st.sampled_from(FOREIGN_BYTES) | st.binary(max_size=60)))
def test_damaged_manifests_are_read_or_refused_in_one_line(
    store: Store, whole_manifest: dict[str, Any], changes: list[ByteEdit]
) -> None:
    show_all(store, apply_edits(json.dumps(whole_manifest).encode(), changes))


@pytest.fixture(scope="module")
def whole_manifest(store: Store) -> dict[str, Any]:
    (run,) = list_runs(store)
    return read_manifest(store, run.run_id)


@FEW_EXAMPLES_SETTINGS
@example(values={182: "\ud800"})
@example(values={83: None})
@given(values=st.dictionaries(st.integers(0, 200), ODD_CELLS, min_size=1, max_size=3))
def test_odd_values_in_manifests_are_read_or_refused_in_one_line(
    store: Store, whole_manifest: dict[str, Any], values: dict[int, Any]
) -> None:
    content = json.loads(json.dumps(whole_manifest))
    for place, value in values.items():
        keys = list_dotted_keys(content)
        *parents, last = keys[place % len(keys)].split(".")
        inner = content
        for name in parents:
            inner = inner.get(name, {}) if isinstance(inner, dict) else {}
        if isinstance(inner, dict):
            inner[last] = json.loads(json.dumps(value, default=repr))
    show_all(store, json.dumps(content).encode())


# Overrides

SWEEP_KEYS = sorted(list_dotted_keys(load_values(get_command("sweep"), ["sweep=shapes"])))
ODD_KEY_VALUES = [
    "", "null", "{}", "[]", "[1,", "{a: b}", "-1", "0", "1e999", "nan", "true", "'", '"', "a,b", "${oc.env:HOME}",
    "${x}", "???", "\\", "é", "\udcff", "s3://", "s3:/x", "~nobody/x", "\0", "/dev/null", "x" * 5000, "[" * 500, "$",
    "@", "a=b", "\n",
]  # fmt: skip


@FEW_EXAMPLES_SETTINGS
@example(key="", value="", prefix="+")
@example(key="adaptive", value="x" * 5000, prefix="")
@given(
    key=st.sampled_from(SWEEP_KEYS)
    | st.sampled_from(["", "x", "metric", "sweep", "cluster", "model@models.vqa", "hydra.run"]),
    value=st.sampled_from(ODD_KEY_VALUES),
    prefix=st.sampled_from(["", "", "+", "++", "~"]),
)
def test_odd_overrides_are_accepted_or_refused_in_one_line(key: str, value: str, prefix: str) -> None:
    given = ["sweep=shapes", f"{prefix}{key}={value}"]
    allow_one_line_error(lambda: load_job_config("sweep", *given))
