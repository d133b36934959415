"""The README's picture of the page: `python -m service.tools.screenshot` (needs playwright and Chromium).

Starts a service with the shipped bundle, types a made-up ticket into the page, points at a word and writes
docs/screenshot.png.
"""

from __future__ import annotations

import argparse
import io
import shutil
from pathlib import Path
from typing import Any

from service.settings import SHIPPED_BUNDLE
from service.tools.processes import router

TICKET = (
    "This is not about the courier. You took the money for my hedge trimmer twice, "
    "please give one payment back."
)
POINTED_AT = "twice"
TARGET = Path(__file__).resolve().parents[2] / "docs" / "screenshot.png"
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    # Disable Chromium's background requests.
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-default-apps",
    "--disable-domain-reliability",
    "--disable-sync",
    "--metrics-recording-only",
    "--no-pings",
]


def take(url: str, target: Path, ticket: str, point_at: str, scheme: str, width: int, height: int) -> None:
    """Write a picture of the page with a ticket in it."""
    from PIL import Image
    from playwright.sync_api import sync_playwright

    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        raise SystemExit("chromium is not installed")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=ARGUMENTS)
        options: dict[str, Any] = {"locale": "en-GB", "color_scheme": scheme}
        page = browser.new_page(viewport={"width": width, "height": height}, **options)
        page.goto(url)
        page.fill("#text", ticket)
        words = page.locator("button.word").get_by_text(point_at, exact=True)
        words.wait_for()
        page.wait_for_selector(".head")
        words.first.hover()
        page.wait_for_selector("#word-panel tbody tr")
        page.evaluate("document.activeElement.blur()")
        page.wait_for_timeout(500)  # wait for the animation of the bars
        picture = Image.open(io.BytesIO(page.screenshot(full_page=True))).convert("RGB")
        browser.close()
    # 256 colours keep the file small; MAXCOVERAGE preserves rare bright colours
    palette = picture.quantize(256, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    palette.save(target, optimize=True)


def main() -> None:
    """Take the picture."""
    parser = argparse.ArgumentParser(
        "python -m service.tools.screenshot", description="Picture the router's page."
    )
    parser.add_argument("--out", type=Path, default=TARGET)
    parser.add_argument("--bundle", type=Path, default=SHIPPED_BUNDLE)
    parser.add_argument("--ticket", default=TICKET)
    parser.add_argument("--point-at", default=POINTED_AT)
    parser.add_argument("--scheme", choices=["light", "dark"], default="light")
    parser.add_argument("--width", type=int, default=1200)
    parser.add_argument("--height", type=int, default=900)
    given = parser.parse_args()
    bundle = given.bundle.absolute()
    with router(bundle=bundle, feedback_url="sqlite://", log_requests=False) as server:
        take(server.url, given.out, given.ticket, given.point_at, given.scheme, given.width, given.height)
    print(f"{given.out}: {given.out.stat().st_size / 1e3:.0f} kB")


if __name__ == "__main__":
    main()
