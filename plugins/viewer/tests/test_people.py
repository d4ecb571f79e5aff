"""The viewer shows people's choices between a run's images next to the judge's, with the numbers of the report."""

import html
import re
from collections.abc import Iterator
from pathlib import Path
from shutil import copytree

import pyarrow.parquet as pq
import pytest

from plugins.viewer.tests.page_client import PageClient, open_client
from tests.commands import find_newest_run_folder, open_store_at, run_for_output
from tests.jobs.test_people_choices import GENERATORS, N_PROMPTS, N_VOTED, list_people_words, write_people
from tests.operators.report.made import make_run

JUDGE, PEOPLE = "pairwise", "people (side_by_side)"


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the store of a sweep that was compared with people's choices."""
    folder = tmp_path_factory.mktemp("people")
    write_people(folder)
    benchmark = ("sweep=shapes", f"limit={N_PROMPTS}", f"benchmark.generators=[{','.join(GENERATORS)}]")
    metrics = ("metric=[pairwise,clipscore]", "cluster=here", f"store={folder}/store")
    run_for_output("sweep", *benchmark, *metrics, *list_people_words(folder))
    return folder


@pytest.fixture(scope="module")
def ask(swept: Path) -> Iterator[PageClient]:
    with open_client(open_store_at(swept / "store"), swept / "rows") as pages:
        yield pages


def read_plain_text(page: str) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page)).split())


def test_a_run_shows_the_win_rates_of_people_and_judge_as_its_report_does(ask: PageClient, swept: Path) -> None:
    run = find_newest_run_folder(swept / "store")
    report = read_plain_text((run / "report.html").read_text())
    title = f"Win rates by {JUDGE} and by people (side_by_side)"
    shown = re.search(re.escape(title) + r" .*? atlas .*? garnet( [\d.]+){2} to ([\d.]+ ){2}", report)
    sentence = re.search(rf"People \(side_by_side\) and {JUDGE}: both choose the same image in .*? orders\.", report)
    page = read_plain_text(ask(f"/runs/{run.name}").text)
    assert shown is not None and shown[0] in page
    assert sentence is not None and sentence[0] in page


def describe(won_by_atlas: float) -> str:
    winner = "atlas" if won_by_atlas > 0.5 else "garnet"
    return "tie" if won_by_atlas == 0.5 else f"{winner} {max(won_by_atlas, 1 - won_by_atlas):.2f}"


def test_a_prompt_and_two_generators_side_by_side_show_both_choices_for_their_images(
    ask: PageClient, swept: Path
) -> None:
    run = find_newest_run_folder(swept / "store")
    choices = {}
    for name, path in ((JUDGE, "comparisons"), (PEOPLE, "metaeval/people_choices")):
        table = pq.read_table(run / f"{path}.parquet").to_pandas()
        first = table["first_generator"] == "atlas"
        table["won"] = table["p_first"].where(first, 1 - table["p_first"])
        choices[name] = table.groupby("prompt_id")["won"].mean()
    pages = "".join(
        ask(f"/compare?left={run.name}&right={run.name}&left_generator=garnet&right_generator=atlas&page={page}").text
        for page in (1, 2)
    )
    side_by_side, ties = read_plain_text(pages), 0
    for prompt_id in choices[PEOPLE].index:
        people, judge = (describe(choices[name][prompt_id]) for name in (PEOPLE, JUDGE))
        page = read_plain_text(ask(f"/runs/{run.name}/prompt?id={prompt_id}").text)
        assert f"pair {PEOPLE} {JUDGE} atlas against garnet {people} {judge}" in page
        assert f"Chosen as the better of the two: {PEOPLE} {people} {JUDGE} {judge}" in side_by_side
        ties += people == "tie"
    assert ties == len(choices[PEOPLE]) - N_VOTED


def test_new_choices_of_people_replace_those_before(swept: Path, tmp_path: Path) -> None:
    copytree(swept / "store", tmp_path / "store")
    run = find_newest_run_folder(tmp_path / "store").name
    with open_client(open_store_at(tmp_path / "store"), tmp_path / "rows") as ask:
        assert "People's win rates are missing" not in read_plain_text(ask(f"/runs/{run}").text)
        write_people(tmp_path, n_prompts=4)
        run_for_output("report", f"store={tmp_path}/store", *list_people_words(tmp_path))
        assert (
            "People's win rates are missing: comparisons by side_by_side: expected at least 10 prompts"
            in read_plain_text(ask(f"/runs/{run}").text)
        )


def test_a_run_without_choices_of_people_has_no_such_section(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    with open_client(run.store, tmp_path / "rows") as ask:
        for path in ("", "/prompt?id=p0001"):
            page = ask(f"/runs/{run.run_id}{path}").text
            assert 'id="people"' not in page and 'id="pairs"' not in page
