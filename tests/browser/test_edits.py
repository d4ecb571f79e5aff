"""In a real browser, edits are shown next to their source, with a slider for keyboard, mouse and touch."""

import re

import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.actions.action_builder import ActionBuilder
from selenium.webdriver.common.actions.interaction import POINTER_TOUCH
from selenium.webdriver.common.actions.pointer_input import PointerInput
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

from plumbline.pipelines.report.report import write_report
from tests.browser.opened import NEEDS_BROWSER, ON_DESKTOP, find, find_accessibility_problems, open_page, press_enter
from tests.operators.report.made import MadeRun, encode_png, make_plain_prompts, make_run

pytestmark = NEEDS_BROWSER
GENERATOR_NAMES = ("tweezers", "<b>roller")
TIMEOUT_SECONDS = 60
"""Maximum number of seconds to wait for images on a busy machine; a test continues as soon as they appear."""


def make_sources(prompt: int) -> list[bytes]:
    return [[encode_png(200 + prompt)], [encode_png(300), encode_png(301, 96)], [encode_png(400)[:-30]]][prompt % 3]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> MadeRun:
    """Make a run of edits that have one source, two sources or a damaged source, and write its report."""
    folder = tmp_path_factory.mktemp("edits")
    made = make_run(folder, prompts=make_plain_prompts(6), generators=GENERATOR_NAMES, sources=make_sources)
    write_report(made.store)
    return made


def find_sliders(page: WebDriver) -> list[WebElement]:
    return [slider for slider in find(page, "main .wipe input") if slider.is_displayed()]


def measure_uncovered(page: WebDriver, within: str) -> int:
    """Return the percentage of an edited image that its source does not cover, for the first image in `within`.

    `within` is a CSS selector.
    """
    style = f"return getComputedStyle(document.querySelector('{within} img.before')).clipPath"
    found = re.fullmatch(r"inset\(0px (\d+)% 0px 0px\)", page.execute_script(style))  # type: ignore[no-untyped-call]
    assert found
    return int(found[1])


def test_the_slider_draws_the_source_over_the_result_by_keyboard_mouse_and_touch(
    browser: WebDriver, run: MadeRun, width: int
) -> None:
    page = open_page(browser, run.folder / "report.html", width)
    slider = find_sliders(page)[0]
    page.execute_script("arguments[0].scrollIntoView({block: 'center'}); arguments[0].focus()", slider)  # type: ignore[no-untyped-call]
    assert find(page, "img.before") == []
    page.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert slider.get_attribute("value") == "5" and slider.get_attribute("aria-valuetext") == "5% source"
    assert measure_uncovered(page, "#sides") == 95
    page.switch_to.active_element.send_keys(Keys.END)
    assert measure_uncovered(page, "#sides") == 0
    ActionChains(page).move_to_element(slider).click().perform()
    assert slider.get_attribute("value") == "50" and measure_uncovered(page, "#sides") == 50
    touch = ActionBuilder(page, mouse=PointerInput(POINTER_TOUCH, "finger"))
    touch.pointer_action.move_to(slider, 1 - slider.size["width"] // 2, 0).pointer_down().pointer_up()
    touch.perform()
    assert slider.get_attribute("value") == "0" and measure_uncovered(page, "#sides") == 100
    result, over = find(slider.find_element(By.XPATH, "ancestor::th"), "img")
    assert over.rect == result.rect and over.get_attribute("src") != result.get_attribute("src")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]


@ON_DESKTOP
def test_every_card_shows_all_its_sources_or_the_reason_why_not(browser: WebDriver, run: MadeRun, width: int) -> None:
    page = open_page(browser, run.folder / "report.html", width)
    counts = [(len(find(card, ".source img")), len(find(card, ".wipe"))) for card in find(page, "#cards .card")]
    assert {*counts} == {(1, 1), (2, 1), (0, 0)}
    assert all(image.get_attribute("alt") for image in find(page, ".source img"))
    reasons = {reason.get_attribute("textContent") for reason in find(page, ".source small")}
    assert len(reasons) == 1 and "the source of the edit: " in str(reasons)
    assert find_accessibility_problems(page) == []


@ON_DESKTOP
def test_an_enlarged_edit_has_a_slider_whose_arrow_keys_stay_with_it(
    browser: WebDriver, run: MadeRun, width: int
) -> None:
    page = open_page(browser, run.folder / "report.html", width)
    buttons = [figure for figure in find(page, "#cards figure") if find(figure, ".wipe")]
    press_enter(page, buttons[0].find_element(By.CSS_SELECTOR, "[data-zoom]"))
    name = page.find_element(By.ID, "zoom-name").text
    slider = page.find_element(By.CSS_SELECTOR, "#zoom .wipe input")
    slider.send_keys(Keys.ARROW_RIGHT, Keys.ARROW_RIGHT)
    assert page.find_element(By.ID, "zoom-name").text == name and slider.get_attribute("value") == "10"
    assert measure_uncovered(page, "#zoom") == 90
    page.find_element(By.ID, "zoom-close").send_keys(Keys.ARROW_RIGHT)
    assert page.find_element(By.ID, "zoom-name").text != name
