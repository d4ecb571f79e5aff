"""Takes the screenshots for the README and the plugins' pages.

    python -m tests.browser.screenshots store/runs/RUN/report.html docs
    python -m tests.browser.screenshots http://127.0.0.1:8008/... plugins/viewer/view-desktop.png

The second form captures a page of `plumbline view` or `plumbline rate`. Append `390 844` for the width and height of a
phone.
"""

import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.support.wait import WebDriverWait

CHROMIUM_ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--hide-scrollbars")  # fmt: skip

IMAGES_LOADED_SCRIPT = """
return !document.querySelector("[aria-busy=true]")
  && [...document.images].every(i => i.complete || i.getBoundingClientRect().top > innerHeight)
"""
"""Script that returns true if all images in the window are loaded."""


def take_screenshot(address: str, picture: Path, *, width: int, height: int) -> None:
    """Save a screenshot of the page at `address` to the file `picture`; the window's size is in CSS pixels."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*CHROMIUM_ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(address)
            WebDriverWait(driver, 30).until(lambda shown: shown.execute_script(IMAGES_LOADED_SCRIPT))
            driver.save_screenshot(str(picture))
        finally:
            driver.quit()


if __name__ == "__main__":
    shown, target = sys.argv[1], Path(sys.argv[2])
    if shown.startswith("http://"):
        width, height = map(int, sys.argv[3:5] or (1280, 1000))
        take_screenshot(shown, target, width=width, height=height)
    else:
        report = Path(shown).absolute().as_uri()
        take_screenshot(report, target / "report-desktop.png", width=1280, height=1500)
        take_screenshot(f"{report}#gallery", target / "report-phone.png", width=390, height=1300)
