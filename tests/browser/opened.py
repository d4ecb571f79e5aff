"""Pages as a real browser has them: opened from their files at two widths, with nothing on the console."""

import shutil
from pathlib import Path

import pytest
from axe_core_python.selenium import Axe
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webdriver import WebDriver
from selenium.webdriver.remote.webelement import WebElement

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")
NEEDS_BROWSER = pytest.mark.skipif(
    not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver (apt install chromium-driver)"
)
ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--window-size=1280,900")  # fmt: skip
PHONE, DESKTOP = 390, 1280
ON_DESKTOP, ON_PHONE = (pytest.mark.parametrize("width", [side], indirect=True) for side in (DESKTOP, PHONE))
"""Of claims that the width has no part in, or that are harder to keep on a phone."""


def open_page(browser: WebDriver, page: Path | str, width: int) -> WebDriver:
    """A page, freshly opened from its file or address, whose console is looked at."""
    size = {"width": width, "height": 850, "deviceScaleFactor": 1, "mobile": width == PHONE}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page if isinstance(page, str) else page.as_uri())
    assert browser.get_log("browser") == []  # type: ignore[no-untyped-call]
    return browser


def find(page: WebDriver | WebElement, selector: str) -> list[WebElement]:
    return list(page.find_elements(By.CSS_SELECTOR, selector))


def press(page: WebDriver, element: WebElement) -> None:
    """Focuses an element and presses Enter, as somebody without a mouse does."""
    page.execute_script("arguments[0].focus()", element)  # type: ignore[no-untyped-call]
    page.switch_to.active_element.send_keys(Keys.ENTER)


def in_scheme(page: WebDriver, scheme: str) -> None:
    """Has the system prefer light or dark, or nothing, from now on."""
    features = [{"name": "prefers-color-scheme", "value": scheme}] if scheme else []
    page.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def barriers(page: WebDriver) -> list[str]:
    """What axe-core, with all its rules, finds that keeps people out: the rule and the first place of each."""
    page.set_script_timeout(300)
    violations = Axe().run(page, options={"resultTypes": ["violations"]})["violations"]
    return [f"{one['id']}: {one['help']}, {one['nodes'][0]['html']}" for one in violations]
