"""People's choices between two images stand next to a judge's in a run's report."""

import re
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.bench_of import SHAPES_FOLDER, read_image_rows, read_prompt_rows
from tests.commands import find_newest_run_folder, run_for_output

N_PROMPTS = 16
GENERATORS = ("atlas", "garnet")
N_VOTED = 14
"""Number of prompts on which people chose one of the two images."""
SPLIT_VOTES: Sequence[float] = (1, 0)


def list_people_words(folder: Path) -> list[str]:
    """Return the words of a command that compares with people's choices in the folder, by the images' own ids."""
    return ["protocol=pick_a_pic", f"protocol.path={folder}/people.parquet", "protocol.match=image"]


def write_people(folder: Path, n_prompts: int = N_PROMPTS) -> None:
    """Write two people's choices in Pick-a-Pic's format: atlas' image unless only garnet's is correct, or split votes.

    Image 0 is garnet's for every second prompt.
    """
    texts = {row["prompt_id"]: row["text"] for row in read_prompt_rows(n_prompts)}
    truth = {row["image_id"]: row["correct"] for row in pq.read_table(SHAPES_FOLDER / "truth.parquet").to_pylist()}
    rows: list[dict[str, object]] = []
    for number, images in enumerate(zip(*(read_image_rows(name, n_prompts) for name in GENERATORS), strict=True)):
        ids = [image["image_id"] for image in images]
        prefers_atlas = float(truth[ids[0]] >= truth[ids[1]])
        votes = SPLIT_VOTES if number >= N_VOTED else (prefers_atlas, prefers_atlas)
        for rater, vote in zip(("ann", "ben"), votes, strict=True):
            swapped = number % 2
            first, second = (ids[1], ids[0]) if swapped else (ids[0], ids[1])
            label = 1 - vote if swapped else vote
            rows.append({"caption": texts[images[0]["prompt_id"]], "image_0_uid": first, "image_1_uid": second,
                         "label_0": label, "label_1": 1 - label, "has_label": True, "user_id": rater,
                         "ranking_id": str(len(rows))})  # fmt: skip
    pq.write_table(pa.Table.from_pylist(rows), folder / "people.parquet")


def sweep(folder: Path, *words: str) -> str:
    some = (f"limit={N_PROMPTS}", f"benchmark.generators=[{','.join(GENERATORS)}]", f"store={folder}/store")
    return run_for_output("sweep", "sweep=shapes", "metric=[pairwise]", "cluster=here", *some, *words)


def read_report(folder: Path) -> str:
    return (find_newest_run_folder(folder / "store") / "report.html").read_text()


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with people's choices, and with the store of a sweep that was compared with them."""
    folder = tmp_path_factory.mktemp("people")
    write_people(folder)
    sweep(folder, *list_people_words(folder))
    return folder


def test_the_report_shows_peoples_win_rates_and_how_often_the_judge_agrees(swept: Path) -> None:
    said = " ".join(run_for_output("report", f"store={swept}/store").split())
    assert "People (side_by_side) and pairwise: both choose the same image in" in said
    assert f"of {N_VOTED} pairs that people decide, on {N_VOTED} prompts" in said
    left_out = f"{N_PROMPTS - N_VOTED} undecided by people, 0 that the judge did not answer in both orders."
    assert f"Left out: {left_out}" in said
    people = pq.read_table(find_newest_run_folder(swept / "store") / "metaeval" / "people_choices.parquet").to_pandas()
    wins = people["p_first"].where(people["first_generator"] == "atlas", 1 - people["p_first"])
    page = " ".join(re.sub(r"<[^>]+>", " ", read_report(swept)).split())
    table = page.partition("Win rates by pairwise and by people (side_by_side)")[2]
    row = re.search(r"atlas 0\.\d+ 0\.\d+ to [01]\.\d+ (0\.\d+) 0\.\d+ to [01]\.\d+ a (\d+) ", table)
    assert row is not None and float(row[1]) == pytest.approx(wins.mean(), abs=1e-3) and int(row[2]) == N_PROMPTS


def test_peoples_choices_are_kept_as_comparisons(swept: Path) -> None:
    run = find_newest_run_folder(swept / "store")
    people = pq.read_table(run / "metaeval" / "people_choices.parquet").to_pandas()
    judge = pq.read_table(run / "comparisons.parquet")
    assert list(people.columns) == judge.column_names and len(people) == 2 * N_PROMPTS
    assert set(people["first_generator"]) == set(GENERATORS) and set(people["metric"]) == {"side_by_side"}
    assert set(people["first_image_id"]) | set(people["second_image_id"]) == set(judge["first_image_id"].to_pylist())


def test_metaeval_writes_peoples_choices_too(swept: Path) -> None:
    said = run_for_output("metaeval", f"store={swept}/store", "run=latest", *list_people_words(swept))
    assert "people_choices.parquet" in said


def test_too_few_choices_are_a_sentence_and_no_number(tmp_path: Path) -> None:
    write_people(tmp_path, n_prompts=4)
    sweep(tmp_path, *list_people_words(tmp_path))
    said = " ".join(run_for_output("report", f"store={tmp_path}/store").split())
    assert (
        "People (side_by_side) and pairwise: people: expected at least 10 prompts with a pair for which people" in said
    )
    assert "People&#39;s win rates are missing: " in read_report(tmp_path).replace("&#x27;", "&#39;")
