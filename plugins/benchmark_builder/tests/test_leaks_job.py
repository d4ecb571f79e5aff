"""Prompts that occur in a training set are found in files of every kind, and leaderboards are made without them."""

import csv
import io
import json
import tarfile
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from plumbline.plugins.benchmark_builder.leaks import Caption, LeakFinder, LeakTarget
from tests.commands import run_for_output, run_refused
from tests.operators.report.made import make_run

LONG_PROMPT = "a tall red lighthouse on a grey cliff above the sea, with three white gulls and one boat"
PROMPTS = (
    "A red star beside two blue cups",
    "A red star beside three blue cups",
    "A red star beside four blue cups",
    f"{LONG_PROMPT} at dawn",
    f"{LONG_PROMPT} at night in heavy rain",
    "A red star beside six blue cups",
    "A red star beside seven blue cups",
    "A red star beside eight blue cups",
)
PLANTED_LEAKS = {
    "p0000": ("exact", "captions.parquet", "row 1"),
    "p0001": ("exact", "captions.txt", "line 2"),
    "p0002": ("reordered", "captions.jsonl", "line 1"),
    "p0003": ("near", "captions.csv", "line 2"),
    "p0004": ("contained", "captions.tar", "sample 00001"),
}


def make_score(generator: str, metric: str, prompt: int) -> float:
    return 0.6 if generator == "atlas" else 0.9 if prompt < len(PLANTED_LEAKS) else 0.5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaks")
    make_run(
        folder,
        prompts=PROMPTS,
        generators=("atlas", "borealis"),
        metrics=("gecko",),
        question_metrics=(),
        score=make_score,
    )
    training = folder / "training"
    training.mkdir()
    pd.DataFrame({"caption": ["a dog", PROMPTS[0], PROMPTS[0], None], "n": 1}).to_parquet(training / "captions.parquet")
    (training / "captions.txt").write_text(
        "a crimson star next to six azure mugs\nA RED STAR, beside: three (blue) cups!\n"
    )
    (training / "captions.jsonl").write_text(
        json.dumps({"text": "four blue cups beside a red star", "url": "x"})
        + "\n{broken\n"
        + json.dumps({"text": "a cat"})
    )
    with (training / "captions.csv").open("w", newline="") as file:
        csv.writer(file).writerows([("id", "caption"), (1, f"{LONG_PROMPT} at early dawn")])
    noted = json.dumps({"caption": f"photo of {PROMPTS[4]}, 4k, highly detailed, trending, wide angle"}).encode()
    with tarfile.open(training / "captions.tar", "w") as tar:
        for name, content in (
            ("00000.jpg", b"no picture"),
            ("00000.txt", PROMPTS[7][:-9].encode()),
            ("00001.json", noted),
        ):
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    (training / "README.md").write_text(PROMPTS[7])
    return folder


def list_arguments(folder: Path, *more: str) -> list[str]:
    return [f"captions={folder}/training", f"store={folder}/store", "cluster=here", *more]


def read_leaks(folder: Path) -> tuple[dict[str, Any], pd.DataFrame]:
    newest = max((folder / "store/leaks").iterdir())
    return json.loads((newest / "leaks.json").read_text()), pd.read_parquet(newest / "leaks.parquet")


def test_only_the_planted_prompts_are_found_with_their_rows(folder: Path) -> None:
    """Paraphrases, and prompts with a different number, are not found."""
    said = " ".join(run_for_output("leaks", *list_arguments(folder)).split())
    content, leaks = read_leaks(folder)
    first = leaks.drop_duplicates("prompt_id")
    where = zip(first.kind, first.file.map(lambda file: Path(file).name), first.row, strict=True)
    assert dict(zip(first.prompt_id, where, strict=True)) == PLANTED_LEAKS
    assert leaks[leaks.prompt_id == "p0000"][["row", "training_rows"]].to_numpy().tolist() == [
        ["row 1", 2],
        ["row 2", 2],
    ]
    near = first[first.kind == "near"].iloc[0]
    assert near.similarity == pytest.approx(17 / 20), "the texts share 17 of their 18 and 19 three-word sequences"
    assert "5 of 8 prompts (62.5%) were found in 10 captions of 5 files" in said
    assert "captions.jsonl, line 2: " in said and "1 row of the training set could not be read" in said
    assert (content["rows"], content["leaked"]) == (10, 5)


def test_the_leaderboards_with_and_without_leaked_prompts_are_compared(folder: Path) -> None:
    """The mean of borealis is (5 x 0.9 + 3 x 0.5) / 8 = 0.75, or 0.5 without the five leaked prompts.

    The mean of atlas is 0.6 in both cases.
    """
    said = " ".join(run_for_output("leaks", *list_arguments(folder)).split())
    content, _ = read_leaks(folder)
    assert content["boards"]["gecko"] == [["borealis", 0.75, 0.5], ["atlas", pytest.approx(0.6), pytest.approx(0.6)]]
    assert "gecko: the order changes to atlas, borealis." in said
    run_for_output("leaks", *list_arguments(folder, "kinds=[exact]"))
    content, leaks = read_leaks(folder)
    assert content["leaked"] == 2 and set(leaks.kind) == {"exact"}


def test_the_prompts_of_a_benchmark_are_found_without_a_run(folder: Path) -> None:
    named = (f"benchmark.prompts={folder}/bench/prompts.parquet", "benchmark=own", "benchmark.images=none")
    said = run_for_output("leaks", *list_arguments(folder, *named))
    assert "5 of 8 prompts" in said and "leave out the option benchmark to see a run's leaderboards" in said


def test_an_impossible_search_is_refused_in_one_line(folder: Path) -> None:
    for more, complaint in (
        ((f"captions={folder}/store/bridges",), "expected files that end in .parquet, .csv"),
        (("column=alt",), "expected a column alt, found"),
        (("near=0",), "near: expected a fraction above 0 and at most 1"),
    ):
        assert complaint in run_refused("leaks", *list_arguments(folder), *more)


@pytest.mark.parametrize("count", [2_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_memory_does_not_grow_with_the_number_of_captions(count: int) -> None:
    finder = LeakFinder([LeakTarget(str(number), f"a red star beside {number} blue cups") for number in range(50)], 0.8)

    def make_captions(count: int) -> Iterator[Caption]:
        return (Caption("f", str(row), f"A red star beside {row % 90} blue cups!") for row in range(count))

    def measure_peak(last: int) -> int:
        tracemalloc.start()
        found = finder.find(make_captions(last))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert found.scanned == last and len(found.best) == 50
        return most

    assert measure_peak(count) < measure_peak(600) + 20_000
