"""Fixtures: the browser that all page tests share, and the width of its window."""

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(scope="session")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    from tests.browser.opened import CHROMEDRIVER_FILE, CHROMIUM_ARGUMENTS, CHROMIUM_FILE

    options = Options()
    options.binary_location = str(CHROMIUM_FILE)
    for argument in (*CHROMIUM_ARGUMENTS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(str(CHROMEDRIVER_FILE)))
    yield driver
    driver.quit()


@pytest.fixture(params=[1280, 390], ids=["desktop", "phone"])
def width(request: pytest.FixtureRequest) -> int:
    return int(request.param)
