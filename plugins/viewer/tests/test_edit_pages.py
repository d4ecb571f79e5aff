"""The viewer shows edited images with their source images in a real browser."""

from collections.abc import Iterator
from threading import Thread

import pytest

pytest.importorskip("selenium.webdriver", reason="needs selenium: pip install -e '.[test]'")
pytest.importorskip("axe_core_python", reason="needs axe-core: pip install -e '.[test]'")
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.support.ui import WebDriverWait

from plugins.viewer.tests.page_client import open_client
from plumbline.pipelines.web.listening import open_listening_socket
from tests.browser import test_edits
from tests.browser.opened import NEEDS_BROWSER, ON_DESKTOP, find, find_accessibility_problems, open_page
from tests.browser.test_edits import TIMEOUT_SECONDS, find_sliders
from tests.operators.report.made import MadeRun

pytestmark = NEEDS_BROWSER
run = test_edits.run


@pytest.fixture(scope="module")
def address(run: MadeRun, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    import uvicorn

    with (
        open_client(run.store, tmp_path_factory.mktemp("rows")) as pages,
        open_listening_socket("127.0.0.1", 0) as listener,
    ):
        server = uvicorn.Server(uvicorn.Config(pages.app, log_level="error", lifespan="off"))
        thread = Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield f"http://127.0.0.1:{listener.getsockname()[1]}/runs/{run.run_id}"
        server.should_exit = True
        thread.join()


@ON_DESKTOP
@pytest.mark.parametrize("path", ["/scores/0", "/scores/1", "/scores/2", "/prompt?id=p0001"])
def test_pages_with_edits_have_no_accessibility_problem(
    path: str, browser: WebDriver, address: str, width: int
) -> None:
    page = open_page(browser, address + path, width)
    assert len(find_sliders(page)) == {"/scores/2": 0, "/prompt?id=p0001": 2}.get(path, 1)
    for slider in find_sliders(page):
        slider.send_keys(Keys.END)
    assert len(find(page, "img.before")) == len(find_sliders(page))
    page.execute_script("document.querySelectorAll('img').forEach(one => { one.loading = 'eager'; })")  # type: ignore[no-untyped-call]
    loaded = "return Array.from(document.images).every(one => one.complete && one.naturalWidth > 0)"
    WebDriverWait(page, TIMEOUT_SECONDS).until(lambda seen: seen.execute_script(loaded))
    assert find_accessibility_problems(page) == [] and page.get_log("browser") == []  # type: ignore[no-untyped-call]
