"""In a real browser, the trends page opens from a file, shows a chosen skill, and escapes names."""

from pathlib import Path

import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver

from plumbline.pipelines.report.trends import write_trends
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
GENERATOR_NAMES = ("atlas", HOSTILE_PROMPTS[0], "מחולל", "sdxl-step-500", "sdxl-step-1000")


@pytest.fixture(scope="module")
def trends(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write the trends page for three nights with hostile names, and return its path.

    One metric's template changes on the last night.
    """
    folder = tmp_path_factory.mktemp("trends")
    for day in range(1, 4):
        metrics = {
            "gecko": {"kind": "gecko", "template": HOSTILE_PROMPTS[0] if day == 3 else "is it so?"},
            "clipscore": {},
        }
        run = make_run(
            folder,
            generators=GENERATOR_NAMES,
            run_id=f"2026-01-{day:02d}",
            began=f"2026-01-{day:02d}T02:00:00+00:00",
            benchmark=HOSTILE_PROMPTS[0],
            config={"metrics": metrics},
        )
    _, url = write_trends(run.store)
    return Path(url)


@pytest.fixture
def page(browser: WebDriver, trends: Path, width: int) -> WebDriver:
    return open_page(browser, trends, width)


def read_visible(page: WebDriver, selector: str) -> list[str]:
    return [one.text for one in find(page, selector) if one.is_displayed()]


def test_the_page_starts_with_the_charts_and_never_scrolls_sideways(page: WebDriver, width: int) -> None:
    assert page.find_element(By.TAG_NAME, "h1").text == f"{HOSTILE_PROMPTS[0]} over its runs"
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    drawn = [svg for svg in find(page, "#runs svg") if svg.is_displayed()]
    assert len(drawn) == 2 and all(svg.size["width"] > 300 for svg in drawn)
    assert len([svg for svg in find(page, "#steps svg") if svg.is_displayed()]) == 2
    assert read_visible(page, "#steps .lines li") == ["sdxl"] and len(read_visible(page, "#runs .lines li")) == 3


@ON_DESKTOP
def test_names_and_settings_are_neither_executed_nor_rendered_as_markup(page: WebDriver) -> None:
    assert page.execute_script("return window.hacked") is None  # type: ignore[no-untyped-call]
    assert find(page, "main b b, main script, main img, header img, header script") == []
    assert HOSTILE_PROMPTS[0] in read_visible(page, "#runs .lines li")
    (sentence,) = read_visible(page, "#breaks li")
    assert sentence.startswith("gecko is a different metric since run 2026-01-03: template is it so? →")
    assert "<script>" in sentence


@ON_DESKTOP
def test_choosing_a_skill_changes_all_charts_and_the_table(page: WebDriver) -> None:
    assert set(read_visible(page, "[data-panel] h3")) == {"overall"}
    press_enter(page, next(one for one in find(page, "[data-choose='counting']") if one.is_displayed()))
    assert (
        set(read_visible(page, "[data-panel] h3")) == {"counting"} and len(read_visible(page, "[data-panel] h3")) == 3
    )
    label = find(page, "#runs [data-panel='counting'] .chart")[0].get_attribute("aria-label") or ""
    assert label.startswith("Mean gecko over runs, counting, with 95% intervals; newest: atlas 0.")


@ON_DESKTOP
def test_the_table_of_newest_means_can_be_sorted(page: WebDriver) -> None:
    table = next(one for one in find(page, "#newest table") if one.is_displayed())
    press_enter(page, find(table, "thead button")[1])
    values = [float(cell.get_attribute("data-value") or "nan") for cell in find(table, "tbody td:nth-child(2)")]
    assert len(values) == 5 and values == sorted(values, reverse=True)
    assert "+0.000" not in table.text and table.text.count("0.000") == 5, "gecko changed, clipscore did not"


@WIDTHS_AND_SCHEMES
def test_axe_core_finds_no_accessibility_problem(page: WebDriver, scheme: str) -> None:
    set_preferred_scheme(page, scheme)
    assert find_accessibility_problems(page) == []
    set_preferred_scheme(page, "")
