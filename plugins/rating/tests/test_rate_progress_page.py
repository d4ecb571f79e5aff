"""The progress page reloads itself, fits on a phone, and is accessible, as tested in a real browser."""

from collections.abc import Callable, Iterator
from threading import Thread

import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.common.exceptions import WebDriverException
from selenium.webdriver.common.by import By
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

from plugins.rating.tests.raters import MEAN_GRADES, RatedStudy, grade_randomly
from plumbline.pipelines.web.listening import open_listening_socket
from tests.browser.opened import (
    NEEDS_BROWSER,
    ON_DESKTOP,
    WIDTHS_AND_SCHEMES,
    find,
    find_accessibility_problems,
    open_page,
    set_preferred_scheme,
)
from tests.operators.report.made import make_plain_prompts, make_run

pytestmark = NEEDS_BROWSER
TIMEOUT_SECONDS = 60


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> RatedStudy:
    folder = tmp_path_factory.mktemp("rated")
    run = make_run(folder, prompts=make_plain_prompts(24), generators=tuple(MEAN_GRADES))
    study = RatedStudy(store=run.store.place.url, study=str(folder / "study"), raters=4)
    for name in ("ann", "bobby", "cyrill"):
        study.rate(name, limit=45)
    study.rate("zed", grade_randomly, limit=45)
    return study


@pytest.fixture(scope="module")
def address(study: RatedStudy) -> Iterator[str]:
    import uvicorn

    with open_listening_socket("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(study.app, log_level="error", lifespan="off"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/progress"
        server.should_exit = True
        thread.join()


@pytest.fixture
def page(browser: WebDriver, address: str, width: int) -> WebDriver:
    return open_page(browser, address, width)


def wait_until(page: WebDriver, condition: Callable[[WebDriver], object]) -> None:
    WebDriverWait(page, TIMEOUT_SECONDS, ignored_exceptions=[WebDriverException]).until(condition)


def test_the_page_shows_the_progress_and_never_scrolls_sideways(page: WebDriver, width: int) -> None:
    assert page.find_element(By.TAG_NAME, "h1").text == "Progress"
    assert [heading.text for heading in find(page, "h2")] == ["Answers and agreement", "Generators", "Raters"]
    assert page.execute_script("return document.documentElement.scrollWidth") <= width  # type: ignore[no-untyped-call]
    assert page.find_element(By.ID, "standing").text.startswith("1 of 1 pair of generators decided; ")


@ON_DESKTOP
def test_the_page_reloads_after_new_answers_if_refreshing_is_on(page: WebDriver, study: RatedStudy) -> None:
    script = "document.dispatchEvent(new Event('visibilitychange'))"
    standing = page.find_element(By.ID, "standing").text
    study.rate("newcomer", limit=1)
    page.execute_script(script)  # type: ignore[no-untyped-call]
    wait_until(page, lambda seen: seen.find_element(By.ID, "standing").text != standing)
    assert "newcomer" in page.find_element(By.TAG_NAME, "main").text
    assert page.get_log("browser") == []  # type: ignore[no-untyped-call]


@WIDTHS_AND_SCHEMES
def test_the_page_has_no_accessibility_problem(page: WebDriver, scheme: str) -> None:
    set_preferred_scheme(page, scheme)
    assert find_accessibility_problems(page) == []
    set_preferred_scheme(page, "")
