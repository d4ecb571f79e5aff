"""A function in a file, a package or a program works like any metric, and only code that the user names is run."""

import io
import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

import plumbline
from plumbline.operators.base.errors import ConfigError
from tests.bench_of import Bench, read_image_rows, read_run_tables, run_plan
from tests.commands import find_newest_run_folder, run, run_for_output, run_refused

PAGE_TEXT = (Path(__file__).parent.parent.parent / "docs/plugins.md").read_text()
(EXAMPLE_CODE,) = re.findall(
    r"save it in a file, `mine.py`:\n\n```python\n(.*?)```", PAGE_TEXT, re.DOTALL | re.IGNORECASE
)
N_PROMPTS = 11
GENERATORS = ("flint", "atlas", "drift")
FUNCTIONS_CODE = """
import functools
import plumbline

LOADED = []

@functools.cache
def model():
    LOADED.append(1)
    return {odd}

def picky(image, prompt):
    total = hash_of(image)
    if total % 3 == 0:
        raise KeyError(prompt)
    return model()[total % 5]

@plumbline.metric(score_range=(-1, {limit}), better="lower", batches=True)
def batched(images, prompts):
    totals = [hash_of(image) for image in images]
    if any(total % 3 == 0 for total in totals):
        raise SystemExit("one of them")
    assert len(LOADED) < 2 and len(images) == len(prompts)
    return (total % 100 / 10 for total in totals)

def hash_of(image):
    total = sum(image.resize((8, 8)).tobytes())
    image.paste((0, 0, 0), (0, 0, *image.size))
    return total
"""
MAX_BATCHED_VALUE = 5
ODD_RESULTS = ["'7'", "float('nan')", "None", "2", "[1.0]"]


def hash_image(encoded_image: bytes) -> int:
    return sum(Image.open(io.BytesIO(encoded_image)).convert("RGB").resize((8, 8)).tobytes())


def brightness(encoded_image: bytes) -> float:
    return float(np.asarray(Image.open(io.BytesIO(encoded_image)).convert("RGB").convert("L")).mean())


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Bench:
    """Score uneven shards of three generators once; the folder also contains the example from docs/plugins.md."""
    folder = tmp_path_factory.mktemp("functions")
    (folder / "mine.py").write_text(EXAMPLE_CODE)
    (folder / "many.py").write_text(FUNCTIONS_CODE.format(odd=f"[{', '.join(ODD_RESULTS)}]", limit=MAX_BATCHED_VALUE))
    names = [f"{folder}/mine.py:brightness", "edge_density", f"{folder}/many.py:picky", f"{folder}/many.py:batched"]
    made = Bench(folder, f"metric=[{','.join(names)}]", generators=GENERATORS, count=N_PROMPTS)
    ended = made.run("max_failed=1")
    assert ended.code == 2, ended
    return made


def read_table(bench: Bench, name: str = "scores") -> pd.DataFrame:
    return pd.read_parquet(find_newest_run_folder(bench.store.place.url) / f"{name}.parquet")


def get_encoded_image(row: Any) -> bytes:
    """Return the encoded image that a row of scores refers to, from the embedded benchmark."""
    found = {each["image_id"]: each["image"] for each in read_image_rows(row.generator, N_PROMPTS)}
    return bytes(found[row.image_id])


def test_the_example_of_the_page_scores_every_image(bench: Bench) -> None:
    scored = read_table(bench).query("metric == 'brightness'")
    assert len(scored) == N_PROMPTS * len(GENERATORS)
    assert [row.score for row in scored.itertuples()] == [
        brightness(get_encoded_image(row)) for row in scored.itertuples()
    ]


@pytest.mark.parametrize("metric", ["picky", "batched"])
def test_an_exception_or_an_invalid_value_costs_only_its_own_row(bench: Bench, metric: str) -> None:
    kinds = set()
    for row in read_table(bench).query("metric == @metric").itertuples():
        total = hash_image(get_encoded_image(row))
        value = total % 100 / 10 if metric == "batched" else 2.0 if ODD_RESULTS[total % 5] == "2" else None
        kind = "unusable_value" if value is None or (metric == "batched" and value > MAX_BATCHED_VALUE) else None
        kind = "function_failed" if total % 3 == 0 else kind
        kinds.add(kind)
        assert (row.error and row.error["kind"]) == kind
        assert pd.isna(row.score) if kind else row.score == value
    assert kinds == {"function_failed", "unusable_value", None}


def test_the_error_names_the_function_its_file_and_the_line(bench: Bench) -> None:
    errors = read_table(bench, "errors").query("metric == 'picky' and kind == 'function_failed'")
    line = FUNCTIONS_CODE.splitlines().index("        raise KeyError(prompt)") + 1
    assert errors["message"].str.contains(f"picky of .*many.py raised KeyError: .* at line {line}; correct").all()
    assert errors["retryable"].all()


def test_a_function_cannot_change_the_image_for_another_function(bench: Bench) -> None:
    alone = read_table(bench).query("metric == 'edge_density'")["score"]
    assert alone.gt(0).all(), "hash_of overwrites the image that it is given"


def test_a_function_is_in_the_report_and_ranks_in_the_direction_that_it_declares(bench: Bench) -> None:
    run_folder = find_newest_run_folder(bench.store.place.url)
    manifest = json.loads((run_folder / "manifest.json").read_text())
    assert manifest["lower_is_better"] == ["batched"]
    report = (run_folder / "report.html").read_text()
    assert (
        "is the mean brightness of an image" in report
        and "is computed by the user's own function" in report.replace("&#39;", "'")
    )


def test_a_function_can_be_a_reward(bench: Bench, tmp_path: Path) -> None:
    store, pairs = f"store={bench.store.place.url}", tmp_path / "pairs"
    run_for_output(
        "rewards", store, "format=pairs", "reward=batched", f"output={pairs}", "held_out=0", "selection.margin=0"
    )
    assert len(pd.concat(map(pd.read_parquet, pairs.glob("data/*.parquet")))) > 0


def test_only_an_edit_of_the_file_computes_its_scores_again(bench: Bench, tmp_path: Path) -> None:
    moved = tmp_path / "moved.py"
    moved.write_text(EXAMPLE_CODE)
    assert not bench.plan(f"metric=[{moved}:brightness]").plan.missing
    moved.write_text(EXAMPLE_CODE.replace(".mean()", ".mean() / 2"))
    planned = bench.plan(f"metric=[{moved}:brightness]")
    assert {cell.recipe.stage for cell in planned.plan.missing} == {"function_values", "scores"}
    scored = read_run_tables(run_plan(planned))["scores"]
    assert [row.score for row in scored.itertuples()] == [
        brightness(get_encoded_image(row)) / 2 for row in scored.itertuples()
    ]


def test_a_run_records_no_code_and_jobs_that_read_it_run_none(bench: Bench, tmp_path: Path) -> None:
    copy = bench.copy_to(tmp_path)
    store = f"store={copy.store.place.url}"
    folder = find_newest_run_folder(copy.store.place.url)
    for file in Path(copy.store.place.url).rglob("*"):
        assert not file.is_file() or b"def brightness" not in file.read_bytes(), file
    manifest = json.loads((folder / "manifest.json").read_text())
    recorded = manifest["config"]["metrics"]["brightness"]
    assert recorded["function"] == "brightness" and recorded["code"].keys() == {
        "digest", "score_range", "better", "batches", "packages"
    }  # fmt: skip
    before = {file: file.read_text() for file in bench.folder.parent.glob("*.py")}
    for file, text in before.items():
        file.write_text(f"raise SystemExit('run by a record')\n{text}")
    try:
        for words in (
            ["report"],
            ["status"],
            ["trends"],
            ["rewards", "format=pairs", "reward=batched", f"output={tmp_path}/out"],
        ):
            ended = run(words[0], store, *words[1:])
            assert ended.code in (0, 2) and "run by a record" not in ended.out + ended.err, ended
    finally:
        for file, text in before.items():
            file.write_text(text)


def test_python_code_can_pass_the_function_or_name_its_file(bench: Bench) -> None:
    rows = read_image_rows("atlas", N_PROMPTS)

    def darkness(image: Image.Image, prompt: str) -> float:
        return 255 - float(np.asarray(image.convert("L")).mean())

    file = f"{bench.folder.parent}/mine.py:brightness"
    scores = plumbline.score([row["image"] for row in rows], "any", metrics=[darkness, "edge_density", file])
    wide = scores.pivot_table(index="image_id", columns="metric", values="score")
    assert len(wide) == N_PROMPTS and np.allclose(wide["brightness"] + wide["darkness"], 255)


def test_a_program_reads_an_edited_file_again(tmp_path: Path) -> None:
    file, image = tmp_path / "one.py", read_image_rows("atlas", 1)[0]["image"]
    for value in (1.0, 2.0):
        file.write_text(f"def one(image, prompt):\n    return {value}\n")
        assert plumbline.score(image, "any", metrics=f"{file}:one")["score"].tolist() == [value]


def test_a_function_of_a_package_imports_the_packages_other_modules(tmp_path: Path) -> None:
    package = tmp_path / "own_metrics"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "parts.py").write_text("HALF = 0.5\n")
    (package / "halves.py").write_text("from .parts import HALF\n\ndef half(image, prompt):\n    return HALF\n")
    (tmp_path / "conf/metric").mkdir(parents=True)
    named = "# @package metrics.named\nkind: function\nfunction: own_metrics.halves:half\nabout: is a half\n"
    (tmp_path / "conf/metric/named.yaml").write_text(named)
    bench = Bench(tmp_path, generators=["atlas"], count=5)
    words = bench.list_arguments("metric=[named,own_metrics.halves:half]", "--config-dir", f"{tmp_path}/conf")
    done = subprocess.run(
        [sys.executable, "-m", "jobs.sweep", *words],
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path.cwd()}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert read_table(bench)["score"].tolist() == [0.5] * 10 and set(read_table(bench)["metric"]) == {"named", "half"}


REFUSED_METRICS = [
    ("metric=[{file}]", "expected FILE.py:FUNCTION"),
    ("metric=[{file}:brihgtness]", "no function 'brihgtness'; did you mean brightness?"),
    ("metric=[{file}:np]", "no function 'np'"),
    ("metric=[{folder}/absent.py:f]", "No such file"),
    ("metric=[{folder}:f]", "expected a file name that ends in .py, or an importable"),
    ("metric=[nowhere.at.all:f]", "nowhere"),
    ("metric=[s3://bucket/mine.py:f]", "expected a local file"),
    ("metric=[{folder}/broken.py:f]", "SyntaxError"),
    ("metric=[{folder}/raises.py:f]", "raises.py: ZeroDivisionError: division by zero at line 2"),
    ("metric=[{folder}/declared.py:f]", "expected score_range to be two numbers, the lower number first, got (1, 0)"),
    ("metric=[{folder}/three.py:f]", "expected a function f(image, prompt), found f(a, b, c)"),
    ("metric=[{folder}/three.py:edge_density,edge_density]", "2 of the metrics are called 'edge_density'"),
    ("metric=[{folder}/large.py:f]", "expected at most 1,000,000 bytes"),
]


@pytest.mark.parametrize(("word", "said"), REFUSED_METRICS)
def test_anything_but_a_function_is_refused_in_one_line_before_any_work(word: str, said: str, tmp_path: Path) -> None:
    files = {
        "mine.py": EXAMPLE_CODE,
        "broken.py": "def f(:\n",
        "raises.py": "x = 0\n1 / x\n",
        "declared.py": "import plumbline\n@plumbline.metric(score_range=(1, 0))\ndef f(image, prompt): ...\n",
        "three.py": "def f(a, b, c): ...\ndef edge_density(a, b): ...\n",
        "large.py": "#" * 1_000_001,
    }
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    word = word.format(file=tmp_path / "mine.py", folder=tmp_path)
    line = run_refused("score", f"images={tmp_path}", word, f"store={tmp_path}/store", "models=shapes", code=64)
    assert line.startswith("error: ") and said in line and len(line) < 700
    assert not (tmp_path / "store").exists()


@pytest.mark.parametrize("better", [None, pd.NA, float("nan"), "", "larger", ["higher"], 1])
def test_an_unknown_direction_is_an_error(better: Any) -> None:
    with pytest.raises(ConfigError, match="expected better to be one of higher, lower, neither, got"):
        plumbline.metric(better=better)


@pytest.mark.slow
def test_workers_on_ray_receive_the_text_of_the_file(ray_cluster: None, tmp_path: Path) -> None:
    """The file no longer exists when the workers start."""
    file = tmp_path / "gone.py"
    file.write_text(EXAMPLE_CODE)
    bench = Bench(tmp_path, f"metric=[{file}:brightness]", generators=["atlas"], count=7)
    planned = bench.plan("cluster=local")
    file.unlink()
    scored = read_run_tables(run_plan(planned))["scores"]
    assert [row.score for row in scored.itertuples()] == [
        brightness(get_encoded_image(row)) for row in scored.itertuples()
    ]


def paint_black(image: Image.Image, prompt: str) -> float:
    brightness = float(np.asarray(image).mean())
    image.paste((0, 0, 0), (0, 0, *image.size))
    return brightness + len(prompt)


def test_shuffled_rows_with_the_same_image_are_scored_like_each_row_alone() -> None:
    """The function overwrites its image, which several rows share."""
    shown = [row["image"] for row in read_image_rows("atlas", 3)]
    rows = [(shown[number], f"a {'red ' * words}circle") for number in (0, 2, 1) for words in range(number + 2)]
    random.Random(1).shuffle(rows)
    metrics = [paint_black, "clipscore", "vqascore"]
    together = plumbline.score([image for image, _ in rows], [prompt for _, prompt in rows], metrics, models="shapes")
    alone = pd.concat([plumbline.score([image], [prompt], metrics, models="shapes") for image, prompt in rows])
    for metric, scored in together.groupby("metric"):
        expected = alone.loc[alone["metric"] == metric, "score"].tolist()
        assert scored["score"].tolist() == pytest.approx(expected, abs=1e-5) and scored["score"].nunique() > 3
