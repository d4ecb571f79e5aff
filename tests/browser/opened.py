"""Opens pages in a real browser at two widths, and reads, operates and checks them."""

import shutil
from pathlib import Path

import pytest
from axe_core_python.selenium import Axe
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM_FILE = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
CHROMEDRIVER_FILE = shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not (CHROMIUM_FILE and CHROMEDRIVER_FILE), reason="needs chromium and chromedriver (apt install chromium-driver)"
)
CHROMIUM_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--window-size=1280,900")  # fmt: skip
PHONE_WIDTH, DESKTOP_WIDTH = 390, 1280
ON_DESKTOP, ON_PHONE = (
    pytest.mark.parametrize("width", [side], indirect=True) for side in (DESKTOP_WIDTH, PHONE_WIDTH)
)
"""Marks for tests at a single width: ON_DESKTOP if the width does not matter, ON_PHONE if a phone is harder."""
DESKTOP_SLOW = pytest.mark.parametrize(
    "width", [pytest.param(DESKTOP_WIDTH, marks=pytest.mark.slow), PHONE_WIDTH], indirect=True
)
"""Mark for tests that are harder to pass on a phone; `make slow` also runs them on a desktop."""
WIDTHS_AND_SCHEMES = pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (DESKTOP_WIDTH, "light"),
        (PHONE_WIDTH, "dark"),
        pytest.param(DESKTOP_WIDTH, "dark", marks=pytest.mark.slow),
        pytest.param(PHONE_WIDTH, "light", marks=pytest.mark.slow),
    ],
    indirect=["width"],
)
"""Both widths with one colour scheme each; `make slow` runs the other two combinations."""


def open_page(browser: WebDriver, page: Path | str, width: int) -> WebDriver:
    """Open a page from its file or address; fail if it logs anything to the console."""
    size = {"width": width, "height": 850, "deviceScaleFactor": 1, "mobile": width == PHONE_WIDTH}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get("about:blank")
    browser.get_log("browser")  # type: ignore[no-untyped-call]  # forget the last test's page, whose server is gone
    browser.get(page if isinstance(page, str) else page.as_uri())
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    return browser


def find(page: WebDriver | WebElement, selector: str) -> list[WebElement]:
    return list(page.find_elements(By.CSS_SELECTOR, selector))


def find_shown(page: WebDriver, selector: str) -> list[WebElement]:
    """Return the visible elements that match a CSS selector, in one call to the browser."""
    script = "return Array.from(document.querySelectorAll(arguments[0])).filter((one) => one.checkVisibility())"
    return list(page.execute_script(script, selector))  # type: ignore[no-untyped-call]


def read_texts(page: WebDriver, selector: str, within: WebElement | None = None) -> list[str]:
    """Return the texts of the visible elements that match a CSS selector, in one call to the browser.

    Only elements in `within` count, if it is given.
    """
    script = """
        const [selector, within] = arguments, all = Array.from((within ?? document).querySelectorAll(selector));
        const shown = all.filter((one) => one.checkVisibility());
        return shown.map((one) => (one.innerText ?? one.textContent).trim());
    """
    return list(page.execute_script(script, selector, within))  # type: ignore[no-untyped-call]


def press_enter(page: WebDriver, element: WebElement) -> None:
    """Focus an element and press Enter, like a user without a mouse."""
    page.execute_script("arguments[0].focus()", element)  # type: ignore[no-untyped-call]
    page.switch_to.active_element.send_keys(Keys.ENTER)


def set_preferred_scheme(page: WebDriver, scheme: str) -> None:
    """Make the browser report that the user prefers `scheme` ("light" or "dark"), or its default if `scheme` is ""."""
    features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def find_accessibility_problems(page: WebDriver) -> list[str]:
    """Return the accessibility problems that axe-core finds with all its rules: each rule and its first element."""
    page.set_script_timeout(300)
    violations = Axe().run(page, options={"resultTypes": ["violations"]})["violations"]
    return [f"{one['id']}: {one['help']}, {one['nodes'][0]['html']}" for one in violations]
