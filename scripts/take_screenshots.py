"""Takes the screenshots of the console's main pages, light and dark, while the demo runs."""

import argparse
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from io import BytesIO
from pathlib import Path
from typing import Final, Literal

from PIL import Image
from playwright.sync_api import Page, sync_playwright

SCREENSHOTS: Final = Path(__file__).parents[1] / "docs/screenshots"
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")
PAGES: Final = {
    "overview": ("/console", ""),
    "events": ("/console/events", ""),
    "event": ("/console/events?type=charge.dispute.*", "#found tbody a"),
    "failed-deliveries": ("/console/dead", ""),
    "failed-deliveries-cause": ("/console/dead", "main tbody a"),
    "rejection": ("/console/rejections?source=stripe", "main tbody a"),
    "conflict": ("/console/conflicts", "main tbody a"),
    "alerts": ("/console/alerts", ""),
    "source": ("/console/sources/stripe", ""),
    "endpoint": ("/console/applications", 'main tbody a:has-text("A customer of the shop")'),
}
"""The path of each page, and what leads from there to the page."""
_ENDPOINT_LINK: Final = 'main a[href*="/endpoints/ep_"]'
_CONSOLE: Final = re.compile(r"(http://\S+)/console \(name (\S+), password (\S+)\)")
_SETTLE_MS: Final = 1_500
"""How long a page may take to draw its charts."""


@contextmanager
def running_demo(seconds: int) -> Iterator[tuple[str, str, str]]:
    """Run the demo in a folder of its own; yield its URL, and the name and password of its operator."""
    with tempfile.TemporaryDirectory(prefix="boathook-") as folder:
        command = [sys.executable, "-m", "boathook", "demo", "--seconds", str(seconds), "--data-dir", f"{folder}/demo"]
        output = Path(folder) / "output"
        with output.open("w") as file, subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT) as demo:
            try:
                while (console := _CONSOLE.search(output.read_text())) is None:
                    if demo.poll() is not None:
                        raise RuntimeError(f"the demo has ended: {output.read_text()}")
                    time.sleep(1)
                yield console[1], console[2], console[3]
            finally:
                demo.send_signal(signal.SIGINT)


def sign_in(page: Page, url: str, name: str, password: str) -> None:
    """Sign the operator in."""
    page.goto(f"{url}/console/sign-in")
    page.get_by_label("Name").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    page.wait_for_url(f"{url}/console")


def take(page: Page, to: Path) -> None:
    """Write a picture of a page, of no more colours than it needs."""
    picture = Image.open(BytesIO(page.screenshot())).convert("RGB")
    picture.quantize(256, Image.Quantize.FASTOCTREE, dither=Image.Dither.NONE).save(to, optimize=True)


def take_all(page: Page, url: str) -> None:
    """Write a picture of each page in both themes."""
    for name, (path, link) in PAGES.items():
        page.goto(f"{url}{path}")
        if link:
            page.locator(link).first.click()
        if name == "endpoint":
            page.locator(_ENDPOINT_LINK).first.click()
        for theme in THEMES:
            page.emulate_media(color_scheme=theme)
            page.wait_for_timeout(_SETTLE_MS)
            take(page, SCREENSHOTS / f"{name}-{theme}.png")


def main() -> None:
    """Run the demo for a while, and take the screenshots before it ends."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=int, default=1_200, help="how long the demo runs before")
    seconds = parser.parse_args().seconds
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    with running_demo(seconds + 300) as (url, name, password), sync_playwright() as playwright:
        time.sleep(seconds)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        sign_in(page, url, name, password)
        take_all(page, url)
        browser.close()


if __name__ == "__main__":
    main()
