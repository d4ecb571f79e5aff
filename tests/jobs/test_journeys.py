"""A newcomer's images as they lie, scored by the commands that a newcomer would type: no conversion, nothing lost."""

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from jobs import ingest, score, sweep
from jobs.command import Command, run_job
from pipelines.config import read_config
from pipelines.sources.benchmark import BenchmarkConfig
from pipelines.sources.sources import open_sources
from pipelines.storage import StorageConfig
from tests.bench_of import images, prompts
from tests.files import put

pytestmark = pytest.mark.usefixtures("here", "no_report")
TEXTS = [row["text"] for row in prompts(3)]
PNGS = [row["image"] for row in images("atlas", 3)]
BOTH = {(name, text): 1 for name in ("flux", "sdxl") for text in TEXTS}


@pytest.fixture
def no_report(monkeypatch: pytest.MonkeyPatch) -> None:
    """The report is made elsewhere."""
    monkeypatch.setattr(sweep, "_report", lambda *_: None)


def parquet(path: Path, rows: Sequence[Mapping[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist([dict(row) for row in rows]), path)
    return path


def lines(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def run(job: Any, *arguments: str) -> int:
    command: Command = job.COMMAND
    return run_job(command, job.main, arguments)


def score_them(tmp_path: Path, *arguments: str, job: Any = score) -> int:
    """By what no model is asked for."""
    return run(job, f"store={tmp_path}/store", "metric=[entropy]", "models=shapes", *arguments)


def manifest(tmp_path: Path) -> dict[str, Any]:
    runs = tmp_path / "store/runs"
    read = json.loads((runs / (runs / "latest").read_text().strip() / "manifest.json").read_text())
    assert isinstance(read, dict)
    return read


def scored(tmp_path: Path) -> Counter[tuple[str, str]]:
    """How many images have a score, by generator and prompt."""
    of_run = manifest(tmp_path)
    benchmark = read_config(of_run["config"]["benchmark"], BenchmarkConfig)
    known = open_sources(benchmark, StorageConfig(), shard_rows=256).prompts.to_pylist()
    texts = {row["prompt_id"]: row["text"] for row in known}
    rows = pq.read_table(tmp_path / "store/runs" / of_run["run_id"] / "scores.parquet").to_pylist()
    return Counter((row["generator"], texts[row["prompt_id"]]) for row in rows if row["score"] is not None)


def paths_only(folder: Path) -> Path:
    """A Hugging Face dataset whose rows name files beside it."""
    put(folder, {f"files/{n}.png": png for n, png in enumerate(PNGS)})
    rows = [{"image": {"bytes": None, "path": f"files/{n}.png"}, "text": text} for n, text in enumerate(TEXTS)]
    return parquet(folder / "train-00000-of-00001.parquet", rows).parent


def captions(folder: Path) -> Path:
    rows = [{"jpg": png, "caption": text} for png, text in zip(PNGS, TEXTS, strict=True)]
    return parquet(folder / "0.parquet", rows).parent


def saved_to_disk(folder: Path) -> Path:
    table = pa.Table.from_pylist(
        [{"image": {"bytes": png, "path": None}, "text": text} for png, text in zip(PNGS, TEXTS, strict=True)]
    )
    put(folder, {"state.json": "{}", "dataset_info.json": "{}"})
    place = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(place, "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return folder


def prompt_list(folder: Path) -> Path:
    files = {f"{name}/{n:05d}.png": png for name in ("flux", "sdxl") for n, png in enumerate(PNGS)}
    return put(folder, {**files, "prompts.txt": "\n".join(TEXTS)})


def metadata_in_each(folder: Path) -> Path:
    """As GenEval's scripts leave them."""
    for n, (png, text) in enumerate(zip(PNGS, TEXTS, strict=True)):
        put(folder, {f"{n:05d}/metadata.jsonl": json.dumps({"prompt": text}), f"{n:05d}/samples/0000.png": png})
    return folder


def metadata_of_each_generator(folder: Path) -> Path:
    rows = [{"file_name": f"{n}.png", "text": text} for n, text in enumerate(TEXTS)]
    for name in ("flux", "sdxl"):
        put(folder / name, {"metadata.jsonl": lines(rows), **{f"{n}.png": png for n, png in enumerate(PNGS)}})
    return folder


def generators_in_a_column(folder: Path) -> Path:
    rows = [{"image": png, "prompt": text, "generator": name}
            for name in ("flux", "sdxl") for png, text in zip(PNGS, TEXTS, strict=True)]  # fmt: skip
    return parquet(folder / "all.parquet", rows)


def pick_a_pic(folder: Path) -> Path:
    rows = [{"caption": text, "jpg_0": png, "model_0": "flux", "jpg_1": png, "model_1": "sdxl", "label_0": 1.0}
            for png, text in zip(PNGS, TEXTS, strict=True)]  # fmt: skip
    return parquet(folder / "pairs.parquet", rows)


def names_alone(folder: Path) -> Path:
    return put(folder, {f"{text}.png": png for text, png in zip(TEXTS, PNGS, strict=True)})


JOURNEYS: dict[str, tuple[Callable[[Path], Path], Mapping[tuple[str, str], int]]] = {
    "Hugging Face Parquet with paths only": (paths_only, {("mine", text): 1 for text in TEXTS}),
    "Hugging Face Parquet with bytes and captions": (captions, {("mine", text): 1 for text in TEXTS}),
    "what save_to_disk leaves": (saved_to_disk, {("mine", text): 1 for text in TEXTS}),
    "plain folders with a list of prompts": (prompt_list, BOTH),
    "a folder of */metadata.jsonl, one a prompt": (metadata_in_each, {("mine", text): 1 for text in TEXTS}),
    "a folder of */metadata.jsonl, one a generator": (metadata_of_each_generator, BOTH),
    "several generators in one Parquet": (generators_in_a_column, BOTH),
    "Pick-a-Pic's two images a row": (pick_a_pic, BOTH),
    "prompts as the images' names": (names_alone, {("mine", text): 1 for text in TEXTS}),
}


@pytest.mark.parametrize("write, expected", JOURNEYS.values(), ids=JOURNEYS)
def test_images_as_they_lie_are_scored_by_one_command(
    write: Callable[[Path], Path], expected: Mapping[tuple[str, str], int], tmp_path: Path
) -> None:
    assert score_them(tmp_path, f"images={write(tmp_path / 'mine')}") == 0
    assert scored(tmp_path) == expected


def test_the_first_images_alone(tmp_path: Path) -> None:
    folder = prompt_list(tmp_path / "mine")
    assert score_them(tmp_path, f"images={folder}", "limit=2") == 0
    first = pq.read_table(next((tmp_path / "store/ingested").glob("*/prompts.parquet"))).column("text").to_pylist()[:2]
    assert scored(tmp_path) == {(name, text): 1 for name in ("flux", "sdxl") for text in first}
    assert manifest(tmp_path)["limited"] == {"prompts": 2, "of_prompts": 3, "images": 4, "of_images": 6}
    assert score_them(tmp_path, f"images={folder}") == 0
    assert scored(tmp_path) == BOTH and manifest(tmp_path)["counts"]["rows_kept"] == 4


def table_of(folder: Path, generator: str, pngs: Sequence[bytes] = PNGS, texts: Sequence[str] = TEXTS) -> Path:
    """A CSV with absolute paths and skills between semicolons, as a script writes it."""
    put(folder, {f"{generator}/{n}.png": png for n, png in enumerate(pngs)})
    rows = [f'{folder}/{generator}/{n}.png,"{text}",counting; colour' for n, text in enumerate(texts)]
    return put(folder, {f"{generator}.csv": "\n".join(["file,prompt,skills", *rows])}) / f"{generator}.csv"


def take_in(tmp_path: Path, generator: str, *arguments: str, **written: Any) -> int:
    table = table_of(tmp_path / "renders", generator, **written)
    return run(ingest, f"table={table}", f"generator={generator}", f"output={tmp_path}/own", *arguments)


def sweep_them(tmp_path: Path, prompt_file: Path | None = None, *arguments: str) -> int:
    where = [f"benchmark.prompts={prompt_file or tmp_path / 'own/prompts.parquet'}", f"benchmark.images={tmp_path}/own"]
    return score_them(tmp_path, "sweep=own_images", *where, *arguments, job=sweep)


def test_a_table_with_absolute_paths_keeps_its_skills(tmp_path: Path) -> None:
    assert take_in(tmp_path, "flux") == 0 and sweep_them(tmp_path) == 0
    assert scored(tmp_path) == {("flux", text): 1 for text in TEXTS}
    summary = pq.read_table(tmp_path / "store/runs" / manifest(tmp_path)["run_id"] / "summary.parquet").to_pylist()
    assert {row["skill"]: row["n"] for row in summary} == {"overall": 3, "counting": 3, "colour": 3}


def test_a_generator_is_added_to_what_was_taken_in_and_another_refreshed(tmp_path: Path) -> None:
    assert take_in(tmp_path, "flux") == 0 and sweep_them(tmp_path) == 0
    assert take_in(tmp_path, "sdxl") == 0 and sweep_them(tmp_path) == 0
    counts = manifest(tmp_path)["counts"]
    assert scored(tmp_path) == BOTH and (counts["cells_computed"], counts["cells_cached"]) == (2, 2)
    others = [PNGS[0], PNGS[1], images("flint", 3)[2]["image"]]
    assert take_in(tmp_path, "flux", "on_change=replace", pngs=others) == 0 and sweep_them(tmp_path) == 0
    counts = manifest(tmp_path)["counts"]
    assert scored(tmp_path) == BOTH and (counts["cells_computed"], counts["cells_cached"]) == (2, 2)
    assert counts["rows_kept"] == 2, "of three images one is another"


def test_a_subset_of_the_prompts_is_a_benchmark(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert take_in(tmp_path, "flux") == 0
    known = pq.read_table(tmp_path / "own/prompts.parquet").to_pylist()[:1]
    few = put(tmp_path, {"few.csv": f'prompt_id,text\n{known[0]["prompt_id"]},"{known[0]["text"]}"\n'}) / "few.csv"
    assert sweep_them(tmp_path, few, "dry_run=true") == 0
    assert "2 of 3 images are of prompts that benchmark.prompts does not have" in capsys.readouterr().out
    assert sweep_them(tmp_path, few, "benchmark.require_every_image=false") == 0
    assert scored(tmp_path) == {("flux", known[0]["text"]): 1}
