"""A picture of a report's first screen: `python benchmarks/report_picture.py RUN/report.html docs/images/report.png`.

Needs playwright and Chromium.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from playwright.sync_api import sync_playwright


def main(report: Path, picture: Path, scheme: str = "light") -> None:
    executable = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1320, "height": 985}, device_scale_factor=1.5, color_scheme=scheme)
        page.goto(report.resolve().as_uri())
        page.wait_for_selector("html[data-ready]")
        page.eval_on_selector("#scrub", "e => { e.value = 60; e.dispatchEvent(new Event('input')); }")
        page.wait_for_timeout(400)
        page.screenshot(path=picture)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:4])
