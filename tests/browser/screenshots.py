"""The README's screenshots: python -m tests.browser.screenshots store/runs/RUN/report.html docs"""

import shutil
import sys
import tempfile
from pathlib import Path

from selenium import webdriver
from selenium.webdriver.chrome.options import Options
from selenium.webdriver.chrome.service import Service

ARGUMENTS = ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-background-networking",
             "--disable-component-update", "--disable-sync", "--hide-scrollbars")  # fmt: skip


def shoot(report: Path, picture: Path, *, width: int, height: int, anchor: str) -> None:
    """Saves what a window of this size shows of the report from the anchor on."""
    options = Options()
    options.binary_location = str(shutil.which("chromium"))
    with tempfile.TemporaryDirectory() as profile:
        for argument in (*ARGUMENTS, f"--user-data-dir={profile}"):
            options.add_argument(argument)
        driver = webdriver.Chrome(options=options, service=Service(shutil.which("chromedriver")))
        try:
            size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
            driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
            driver.get(f"{report.absolute().as_uri()}#{anchor}")
            driver.save_screenshot(str(picture))
        finally:
            driver.quit()


if __name__ == "__main__":
    run, folder = Path(sys.argv[1]), Path(sys.argv[2])
    shoot(run, folder / "report-desktop.png", width=1280, height=1500, anchor="")
    shoot(run, folder / "report-phone.png", width=390, height=1300, anchor="gallery")
