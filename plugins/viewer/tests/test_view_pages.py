"""In a real browser, the viewer's pages log no errors, apply choices immediately, and load their images."""

from collections.abc import Callable, Iterator, Sequence
from itertools import permutations
from threading import Thread

import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import Select, WebDriverWait

from plugins.viewer.tests.page_client import open_client
from plumbline.operators.base import rows, schemas
from plumbline.pipelines.report.report import write_report
from plumbline.pipelines.web.listening import open_listening_socket
from tests.browser.opened import (
    DESKTOP_SLOW,
    DESKTOP_WIDTH,
    NEEDS_BROWSER,
    ON_DESKTOP,
    ON_PHONE,
    find,
    find_accessibility_problems,
    open_page,
    press_enter,
    set_preferred_scheme,
)
from tests.operators.report.made import HOSTILE_PROMPTS, MadeRun, draw_noisy_score, make_plain_prompts, make_run

pytestmark = NEEDS_BROWSER
RUN_PAGE = "/runs/20260102-030405-000006"
SIDES_PAGE = (
    "/compare?left=20260102-030405-000006&right=20260102-030405-000006&left_generator=cobalt&right_generator=atlas"
)
TIMEOUT_SECONDS = 60
"""Timeout in seconds for a page on a busy machine."""


def wait_until(page: WebDriver, condition: Callable[[WebDriver], object]) -> None:
    WebDriverWait(page, TIMEOUT_SECONDS, ignored_exceptions=[WebDriverException]).until(condition)


def score(generator: str, metric: str, prompt: int) -> float | None:
    return None if (generator, prompt) == ("cobalt", 7) else draw_noisy_score(generator, metric, prompt)


def choose_settings(prompt: int) -> dict[str, str]:
    return {"cfg": ("4", "7.5")[prompt % 2], "steps": "20"}


def write_choices(run: MadeRun, generators: Sequence[str], n_prompts: int) -> None:
    """Write choices of a judge and of people between all generators' images of each prompt, in both orders."""
    for metric, path in (("pairwise", "comparisons"), ("side_by_side", "metaeval/people_choices")):
        records = [
            {
                "prompt_id": f"p{at:04d}",
                "metric": metric,
                "first_generator": first,
                "second_generator": second,
                "first_image_id": f"{first[:20]}-p{at:04d}",
                "second_image_id": f"{second[:20]}-p{at:04d}",
                "p_first": (at + len(metric) + generators.index(first)) % 4 / 3,
            }
            for at in range(n_prompts)
            for first, second in permutations(generators, 2)
        ]
        run.store.write_table(f"runs/{run.run_id}/{path}.parquet", rows.table(records, schemas.COMPARED_PAIRS))


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import uvicorn

    folder = tmp_path_factory.mktemp("view")
    names = ("atlas", "<b>bold", "cobalt", "מחולל")
    prompts = [*HOSTILE_PROMPTS, *make_plain_prompts(10)]
    run = make_run(
        folder,
        prompts=prompts,
        generators=names,
        score=score,
        errors={"corrupt_image": 2},
        image_settings=choose_settings,
    )
    write_choices(run, names, len(prompts))
    write_report(run.store)
    with open_client(run.store, folder / "rows") as pages, open_listening_socket("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(pages.app, log_level="error", lifespan="off"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        thread.join()


TWO_METRICS_PAGE = f"{RUN_PAGE}/scores?metric=gecko&against=clipscore&generator=atlas"
TESTED_PAGES = ("/", RUN_PAGE, TWO_METRICS_PAGE, f"{RUN_PAGE}/scores/70?at=71", f"{RUN_PAGE}/scores/7",
         f"{RUN_PAGE}/prompt?id=p0001&question=1", f"{RUN_PAGE}/prompt?id=p0002", f"{RUN_PAGE}/questions",
         "/trends?benchmark=made", f"{RUN_PAGE}/report", SIDES_PAGE, "/notes")  # fmt: skip
PREFIXES_TESTED_ELSEWHERE = ("/trends", f"{RUN_PAGE}/report")
"""Prefixes of pages that are covered by other tests."""


@DESKTOP_SLOW
@pytest.mark.parametrize("path", TESTED_PAGES)
def test_a_page_logs_no_error_fits_the_width_and_is_accessible(
    path: str, browser: WebDriver, address: str, width: int
) -> None:
    page = open_page(browser, address + path, width)
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    assert page.execute_script("return window.hacked") is None  # type: ignore[no-untyped-call]
    assert len(find(page, "h1")) == 1
    unnamed = "return Array.from(document.querySelectorAll('main select, main input:not([type=hidden])'))"
    assert page.execute_script(f"{unnamed}.filter(one => !one.labels.length).length") == 0  # type: ignore[no-untyped-call]
    if not path.startswith(PREFIXES_TESTED_ELSEWHERE):
        set_preferred_scheme(page, "dark" if width == DESKTOP_WIDTH else "light")
        assert find_accessibility_problems(page) == []
        set_preferred_scheme(page, "")


@ON_DESKTOP
def test_a_choice_applies_at_once_and_empty_fields_stay_out_of_the_address(
    browser: WebDriver, address: str, width: int
) -> None:
    page = open_page(browser, f"{address}{RUN_PAGE}/scores", width)
    Select(page.find_element(By.NAME, "metric")).select_by_value("gecko")
    wait_until(page, lambda seen: seen.current_url.endswith("?metric=gecko"))
    page.find_element(By.NAME, "words").send_keys("cups 9")
    press_enter(page, page.find_element(By.NAME, "words"))
    wait_until(page, lambda seen: "words=cups" in seen.current_url)
    wait_until(page, lambda seen: seen.find_element(By.TAG_NAME, "h1").text == "Scores 4 rows")
    assert page.find_element(By.NAME, "words").get_attribute("value") == "cups 9"


@ON_DESKTOP
def test_links_lead_from_a_mean_to_its_worst_image_and_the_next(browser: WebDriver, address: str, width: int) -> None:
    page = open_page(browser, f"{address}{RUN_PAGE}", width)
    press_enter(page, page.find_element(By.CSS_SELECTOR, ".board tbody td a"))
    wait_until(page, lambda seen: find(seen, ".rows .what a"))
    press_enter(page, page.find_element(By.CSS_SELECTOR, ".rows .what a"))
    wait_until(page, lambda seen: find(seen, ".seen img"))
    assert find(page, "[rel=prev]") == []
    press_enter(page, page.find_element(By.CSS_SELECTOR, "[rel=next]"))
    wait_until(page, lambda seen: "at=2" in seen.current_url)
    whole = "const one = document.querySelector('.seen img'); return one.complete && one.naturalWidth > 0"
    wait_until(page, lambda seen: seen.execute_script(whole))
    assert find(page, ".questions li")


def test_the_link_to_a_report_is_visible_and_bars_are_explained_above_them(
    browser: WebDriver, address: str, width: int
) -> None:
    page = open_page(browser, f"{address}/", width)
    (report,) = find(page, ".runs tbody a[href$='/report']")
    right = page.execute_script("return arguments[0].getBoundingClientRect().right", report)  # type: ignore[no-untyped-call]
    assert right <= width or width < 1280
    for path in (f"{RUN_PAGE}/prompt?id=p0005", f"{RUN_PAGE}/scores/7"):
        page = open_page(browser, address + path, width)
        caption = next(one for one in find(page, ".caption") if "percentile rank" in one.text)
        assert caption.location["y"] < find(page, ".scores")[0].location["y"]


@ON_DESKTOP
def test_a_question_shows_every_image_next_to_its_answer(browser: WebDriver, address: str, width: int) -> None:
    page = open_page(browser, f"{address}{RUN_PAGE}/prompt?id=p0005", width)
    press_enter(page, page.find_element(By.CSS_SELECTOR, ".answers tbody a"))
    wait_until(page, lambda seen: find(seen, ".asked"))
    assert len(find(page, ".side .card")) == 4 and len(find(page, ".side .given .state")) == 4
    loaded = "return Array.from(document.images).every(one => one.complete && one.naturalWidth > 0)"
    page.execute_script("document.querySelectorAll('img').forEach(one => { one.loading = 'eager'; })")  # type: ignore[no-untyped-call]
    wait_until(page, lambda seen: seen.execute_script(loaded))


@ON_DESKTOP
def test_a_link_reopens_the_same_view_and_the_back_button_works(browser: WebDriver, address: str, width: int) -> None:
    page = open_page(browser, address + SIDES_PAGE, width)
    Select(page.find_element(By.NAME, "sort")).select_by_value("down")
    wait_until(page, lambda seen: "sort=down" in seen.current_url)
    Select(page.find_element(By.NAME, "skill")).select_by_value("counting")
    wait_until(page, lambda seen: "skill=counting" in seen.current_url and find(seen, ".duo"))
    link, shown = page.current_url, page.find_element(By.ID, "pictures").text
    page.back()
    wait_until(page, lambda seen: "skill=" not in seen.current_url and find(seen, ".duo"))
    assert Select(page.find_element(By.NAME, "sort")).first_selected_option.text == "the largest drops"
    assert page.find_element(By.ID, "pictures").text != shown
    assert open_page(browser, link, width).find_element(By.ID, "pictures").text == shown


@ON_PHONE
def test_a_note_is_written_by_keyboard_and_appears_on_its_image(browser: WebDriver, address: str, width: int) -> None:
    page = open_page(browser, f"{address}{RUN_PAGE}/scores/39", width)
    for name, said in (("author", "Ann"), ("tag", "check"), ("text", "<b>one</b> cup too many")):
        page.find_element(By.NAME, name).clear()
        page.find_element(By.NAME, name).send_keys(said)
    press_enter(page, page.find_element(By.NAME, "keep"))
    wait_until(page, lambda seen: "<b>one</b> cup too many" in seen.find_element(By.CSS_SELECTOR, ".notes").text)
    assert page.find_element(By.NAME, "author").get_attribute("value") == "Ann", "the author's name is remembered"
    assert page.find_element(By.NAME, "text").get_attribute("value") == ""
    set_preferred_scheme(page, "dark")
    assert find_accessibility_problems(page) == [] and page.get_log("browser") == []  # type: ignore[no-untyped-call]
    set_preferred_scheme(page, "")
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]


@ON_DESKTOP
def test_a_report_works_in_its_sandbox(browser: WebDriver, address: str, width: int) -> None:
    page = open_page(browser, f"{address}{RUN_PAGE}/report", width)
    theme = page.find_element(By.ID, "theme")
    before = theme.text
    press_enter(page, theme)
    assert theme.text != before and browser.get_log("browser") == []  # type: ignore[no-untyped-call]
