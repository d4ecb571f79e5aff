"""Scores can be filtered by their images' settings and by how differently two metrics rank an image."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from plugins.viewer.tests.page_client import PageClient, open_client
from plugins.viewer.tests.test_pages import list_row_numbers, read
from plugins.viewer.tests.test_sides import read_text
from plumbline.plugins.viewer.run_database import MAX_CACHED_ORDERS
from tests.operators.report.made import make_plain_prompts, make_run

RUN_ID = "20260102-030405-000006"
SCORES_PAGE = f"/runs/{RUN_ID}/scores"
PAIR_PAGE = f"/compare?left={RUN_ID}&right={RUN_ID}&left_generator=atlas&right_generator=cobalt"
SCORES_BY_METRIC = {"gecko": (0.1, 0.2, 0.3, 0.4), "clipscore": (0.4, 0.1, 0.3, 0.2)}
"""Scores of each prompt by metric. Lower is better for clipscore, so its ranks are 1/8, 7/8, 3/8, 5/8; gecko's ranks
ascend.
"""


@pytest.fixture(scope="module")
def ask(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    folder = tmp_path_factory.mktemp("filters")
    run = make_run(
        folder, prompts=make_plain_prompts(4), generators=("atlas", "cobalt"), lower_is_better=["clipscore"],
        score=lambda generator, metric, prompt: SCORES_BY_METRIC[metric][prompt],
        image_settings=lambda prompt: {"cfg": ("4", "7.5")[prompt % 2], "size": None if prompt == 3 else "64x64"},
    )  # fmt: skip
    with open_client(run.store, folder / "rows") as pages:
        yield pages


def test_scores_are_filtered_by_settings_which_the_page_of_an_image_shows(ask: PageClient) -> None:
    assert list_row_numbers(read(ask, f"{SCORES_PAGE}?metric=gecko&set.cfg=7.5")) == ["1", "3", "5", "7"]
    assert list_row_numbers(read(ask, f"{SCORES_PAGE}?metric=gecko&set.cfg=7.5&set.size=64x64&generator=cobalt")) == [
        "5"
    ]
    assert list_row_numbers(read(ask, f"{SCORES_PAGE}?metric=gecko&set.cfg=4&generator=atlas")) == ["0", "2"]
    assert "generated with cfg 7.5, size 64x64" in read_text(ask, f"{SCORES_PAGE}/1")
    assert "generated with cfg 7.5 " in read_text(ask, f"{SCORES_PAGE}/3")


def test_images_that_two_metrics_rank_most_differently_come_first(ask: PageClient) -> None:
    asked = f"{SCORES_PAGE}?metric=gecko&against=clipscore&generator=atlas"
    assert list_row_numbers(read(ask, asked)) == ["1", "2", "3", "0"], "their ranks differ by 1/2, 1/4, 1/4 and 0"
    page = read_text(ask, asked)
    assert "atlas gecko 0.200 38% 0.100 88%" in page and "atlas gecko 0.100 12% 0.400 12%" in page
    assert list_row_numbers(read(ask, f"{SCORES_PAGE}?against=clipscore&set.cfg=7.5&words=p0003")) == ["3", "7"], (
        "the first metric is gecko by default"
    )
    assert list_row_numbers(read(ask, f"{asked}&sort=highest")) == list("3210")
    neighbours = read(ask, f"{SCORES_PAGE}/2?metric=gecko&against=clipscore&generator=atlas&at=2").links
    assert [link.partition("?")[0].rpartition("/")[2] for link in neighbours if "at=" in link] == ["1", "3"]


def test_orders_by_two_metrics_are_cached_up_to_a_limit(ask: PageClient) -> None:
    def list_orders() -> list[str]:
        tables = "SELECT table_name FROM duckdb_tables() WHERE starts_with(table_name, 'order_') ORDER BY ALL"
        return [name for (name,) in ask.browser._database.select(tables)]

    page = f"{SCORES_PAGE}?metric=gecko&against=clipscore&words="
    first = [list_row_numbers(read(ask, f"{page}p000{at}")) for at in range(4)]
    tables = list_orders()
    assert [list_row_numbers(read(ask, f"{page}p000{at}")) for at in range(4)] == first and list_orders() == tables
    assert read(ask, f"{page}p0003&page=2").links and list_orders() == tables
    assert [len(list_row_numbers(read(ask, f"{page}{at} blue"))) for at in range(4)] == [2] * 4 and len(
        list_orders()
    ) == MAX_CACHED_ORDERS


def test_images_with_notes_can_be_sorted_by_the_disagreement_of_two_metrics(ask: PageClient) -> None:
    asked = f"{SCORES_PAGE}?metric=gecko&against=clipscore&notes=any"
    assert list_row_numbers(read(ask, asked)) == []
    note = {"author": "ann", "text": "two cups"}
    assert [ask(f"{SCORES_PAGE}/{row}/notes", method="POST", json=note).status_code for row in (0, 1)] == [201, 201]
    assert list_row_numbers(read(ask, asked))[::2] == ["1", "0"], "every second link leads to the notes of a row"


def test_rewritten_scores_are_read_and_sorted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("plumbline.plugins.viewer.browser.LIST_REFRESH_SECONDS", 0.0)
    shared = {"prompts": make_plain_prompts(4), "generators": ("atlas",)}
    run = make_run(tmp_path, **shared, score=lambda generator, metric, prompt: SCORES_BY_METRIC[metric][prompt])
    with open_client(run.store, tmp_path / "rows") as ask:
        assert list_row_numbers(read(ask, f"{SCORES_PAGE}?metric=gecko&against=clipscore")) == ["0", "3", "1", "2"]
        make_run(tmp_path, **shared, score=lambda generator, metric, prompt: SCORES_BY_METRIC[metric][prompt - 1])
        assert list_row_numbers(read(ask, f"{SCORES_PAGE}?metric=gecko&against=clipscore")) == ["1", "0", "2", "3"]


def test_a_filter_by_settings_applies_to_both_sides_of_a_comparison(ask: PageClient) -> None:
    assert "1–4 of 4 prompts" in read_text(ask, PAIR_PAGE) and "1–1 of 1 prompt" in read_text(
        ask, f"{PAIR_PAGE}&set.cfg=7.5&set.size=64x64"
    )


@pytest.mark.parametrize(
    ("asked", "missing"),
    [
        ("set.cfg=9", f"cfg=9: not in run {RUN_ID}; choose one of 4, 7.5"),
        ("set.sampler=DDIM", f"setting=sampler: not in run {RUN_ID}; choose one of cfg, size"),
        ("against=tifa", f"metric=tifa: not in run {RUN_ID}; choose one of gecko, clipscore"),
    ],
)
def test_an_unknown_setting_or_metric_in_a_link_is_named(asked: str, missing: str, ask: PageClient) -> None:
    assert missing in read_text(ask, f"{SCORES_PAGE}?{asked}", 404)
