"""The command-line jobs score the words in images, as read by the real PP-OCRv6."""

import json
from collections.abc import Callable
from importlib import metadata
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from plumbline.operators.base.errors import format_install_remedy
from plumbline.operators.base.extensions import find_missing_packages
from tests.bench_of import write_rows
from tests.commands import find_newest_run_folder, run, run_for_output, run_refused
from tests.signs import draw_chinese_sign, draw_photograph, draw_sign

SCORE_OPTIONS = ("metric=[text]", "cluster=here")


def test_a_folder_of_photographs_with_signs_is_scored_without_a_gpu(tmp_path: Path) -> None:
    """The images are a tilted sign, a Chinese sign, an image without words, and a damaged file."""
    folder = tmp_path / "photographs"
    folder.mkdir()
    pictures = {
        "shop.jpg": (draw_photograph("GRAND OPENING"), 'a shop with "Grand Opening" on a board'),
        "hill.png": (draw_chinese_sign("中山"), "路牌写着「中山」"),
        "cat.png": (draw_sign("cat"), "a cat"),
        "gone.png": (b"no picture", 'a sign "OPEN"'),
    }
    for name, (content, _) in pictures.items():
        (folder / name).write_bytes(content)
    lines = [json.dumps({"file_name": name, "text": text}) for name, (_, text) in pictures.items()]
    (folder / "metadata.jsonl").write_text("\n".join(lines))
    run_for_output("score", f"images={folder}", f"store={tmp_path}/store", "max_failed=0.5", *SCORE_OPTIONS, code=2)
    scores = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    texts = {name: text for name, (_, text) in pictures.items()}
    found = {(row["score"], (row["error"] or {}).get("kind")) for row in scores}
    assert len(scores) == len(texts) and found == {
        (1.0, None),
        (None, "no_text_wanted"),
        (None, "corrupt_image"),
    }, scores


@pytest.fixture
def bench(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that writes a benchmark and returns the arguments for sweeping it.

    The function takes the values of the column `wanted`, which contains the expected words: one value per prompt.
    """

    def write_bench(*words: object) -> list[str]:
        prompts = [
            {"prompt_id": str(number), "text": 'a "SALE" sign OPEN', "wanted": wanted}
            for number, wanted in enumerate(words)
        ]
        (tmp_path / "prompts.jsonl").write_text("\n".join(map(json.dumps, prompts)))
        rows = [
            {"image_id": str(number), "prompt_id": str(number), "image": draw_sign("OPEN")}
            for number in range(len(words))
        ]
        write_rows(tmp_path / "images/mine/0.parquet", rows)
        given = [f"benchmark.prompts={tmp_path}/prompts.jsonl", f"benchmark.images={tmp_path}/images"]
        return ["sweep=own_images", *given, f"store={tmp_path}/store", "max_failed=0.5", *SCORE_OPTIONS]

    return write_bench


def test_a_column_of_the_prompts_file_takes_precedence_over_quotes(
    bench: Callable[..., list[str]], tmp_path: Path
) -> None:
    given = bench("open", ["OPEN", "24 h"], None, 7)
    run_for_output("sweep", *given, "benchmark.columns.words=wanted", code=2)
    scores = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    assert [(row["score"], row["n_questions"]) for row in scores] == [
        (1.0, 1),
        (pytest.approx(1 / 3), 3),
        (0.0, 1),
        (None, None),
    ]
    error = scores[3]["error"]
    assert error["kind"] == "no_questions" and "prompts.jsonl, row 3: expected 'wanted' as a list" in error["message"]
    assert "0 cells to compute" in run_for_output("sweep", *given, "benchmark.columns.words=wanted", code=2)
    assert "questions   │     1 │      0" in run_for_output("sweep", *given, "dry_run=true")


def test_editing_a_word_recomputes_only_the_shards_of_its_prompt(tmp_path: Path) -> None:
    def write_prompt(number: int, wanted: str) -> None:
        row = {"prompt_id": str(number), "text": f"sign {number}", "wanted": wanted}
        write_rows(tmp_path / f"prompts/{number}.parquet", [row])

    for number in (0, 1):
        write_prompt(number, "OPEN")
        image = {"image_id": str(number), "prompt_id": str(number), "image": draw_sign("OPEN")}
        write_rows(tmp_path / f"images/mine/{number}.parquet", [image])
    given = ["sweep=own_images", f"benchmark.prompts={tmp_path}/prompts", f"benchmark.images={tmp_path}/images"]
    given += [f"store={tmp_path}/store", "benchmark.columns.words=wanted", *SCORE_OPTIONS]
    run_for_output("sweep", *given)
    write_prompt(1, "SALE")
    assert (
        run_for_output("sweep", *given, "dry_run=true").count("│     2 │      1 │       1 │") == 3
    )  # questions, ocr, scores
    run_for_output("sweep", *given)
    scores = pq.read_table(find_newest_run_folder(tmp_path / "store") / "scores.parquet").to_pylist()
    assert [row["score"] for row in scores] == [1.0, 0.0]


@pytest.mark.parametrize(
    ("more", "code", "refusal"),
    [
        ("benchmark.columns.words=text_wanted", 1, "no prompt has a text in the column 'text_wanted'"),
        (
            "benchmark.prompts=null benchmark.columns.words=wanted",
            64,
            "requires a prompts file with the column 'wanted'",
        ),
    ],
)
def test_a_missing_column_is_refused_when_planning(
    bench: Callable[..., list[str]], more: str, code: int, refusal: str
) -> None:
    ended = run("sweep", *bench("open"), *more.split(), "dry_run=true")
    assert ended.code == code and "benchmark.columns.words" in ended.line and refusal in ended.line


def test_a_missing_extra_is_reported_in_one_line_before_any_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The packages of the extra are missing, as they are after a plain `pip install .`."""
    real = metadata.version

    def version(package: str) -> str:
        if package == "rapidocr":
            raise metadata.PackageNotFoundError(package)
        return real(package)

    monkeypatch.setattr(metadata, "version", version)
    find_missing_packages.cache_clear()
    try:
        folder = tmp_path / "mine"
        folder.mkdir()
        (folder / "open.png").write_bytes(draw_sign("OPEN"))
        (folder / "metadata.jsonl").write_text(json.dumps({"file_name": "open.png", "text": 'a sign "OPEN"'}))
        told = run_refused("score", f"images={folder}", "metric=[text]", "models=shapes", f"store={tmp_path}/store")
        assert told == f"error: family rapidocr needs rapidocr; {format_install_remedy('ocr')}"
        assert not (tmp_path / "store").exists()
    finally:
        find_missing_packages.cache_clear()
