"""In a real browser, the page about several benchmarks opens from a file, can be sorted, and escapes names."""

from pathlib import Path

import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from plumbline.pipelines.report.suites import write_suite
from tests.browser.opened import (
    NEEDS_BROWSER,
    ON_DESKTOP,
    WIDTHS_AND_SCHEMES,
    find,
    find_accessibility_problems,
    open_page,
    press_enter,
    set_preferred_scheme,
)
from tests.operators.report.made import HOSTILE_PROMPTS, make_run

pytestmark = NEEDS_BROWSER
GENERATOR_NAMES = ("atlas", HOSTILE_PROMPTS[0], "מחולל")
BENCHMARKS = (HOSTILE_PROMPTS[0], "places")


@pytest.fixture(scope="module")
def suite(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the page about two benchmarks with hostile names, and return its path."""
    folder, runs = tmp_path_factory.mktemp("suite"), dict[str, str]()
    for day, benchmark in enumerate(BENCHMARKS, 1):
        run = make_run(folder, generators=GENERATOR_NAMES, run_id=f"2026-01-0{day}", benchmark=benchmark)
        runs[benchmark] = run.run_id
    told = [f"{HOSTILE_PROMPTS[0]} does not score places"]
    suite, _ = write_suite(run.store, "20260103-020000-000000", runs, exit_code=0, left_out=told, notes=told)
    return Path(suite.get_page_url(run.store))


@pytest.fixture
def page(browser: WebDriver, suite: Path, width: int) -> WebDriver:
    return open_page(browser, suite, width)


def test_the_page_starts_with_the_leader_and_never_scrolls_sideways(page: WebDriver, width: int) -> None:
    assert page.find_element(By.TAG_NAME, "h1").text.startswith("atlas leads overall by ")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    assert [table.is_displayed() for table in find(page, "#means table")] == [True, False]


@ON_DESKTOP
def test_names_are_neither_executed_nor_rendered_as_markup_and_every_run_is_linked(page: WebDriver) -> None:
    assert page.execute_script("return window.hacked") is None  # type: ignore[no-untyped-call]
    assert find(page, "main b b, main script, main img, header img, header script") == []
    assert HOSTILE_PROMPTS[0] in page.find_element(By.ID, "means").text
    links = [one.get_attribute("href") or "" for one in find(page, "#benchmarks a")]
    assert [link.partition("/runs/")[2] for link in links] == [f"2026-01-0{day}/report.html" for day in (1, 2)]


@ON_DESKTOP
def test_the_means_can_be_sorted_with_the_keyboard(page: WebDriver) -> None:
    table = find(page, "#means table")[0]
    press_enter(page, find(table, "thead button")[1])
    values = [float(cell.get_attribute("data-value") or "nan") for cell in find(table, "tbody td:nth-child(2)")]
    assert len(values) == 3 and values == sorted(values, reverse=True)


@WIDTHS_AND_SCHEMES
def test_axe_core_finds_no_accessibility_problem(page: WebDriver, scheme: str) -> None:
    set_preferred_scheme(page, scheme)
    assert find_accessibility_problems(page) == []
    set_preferred_scheme(page, "")
