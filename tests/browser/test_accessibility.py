"""Every page by axe, in light, dark and on a phone, in each language: no serious finding."""

import importlib.util
from pathlib import Path

import pytest

from tests.browser.writing import settled

sync_api = pytest.importorskip("playwright.sync_api")
package = importlib.util.find_spec("axe_playwright_python")
if package is None or package.origin is None:
    pytest.skip("axe-playwright-python is not installed here", allow_module_level=True)
AXE = (Path(package.origin).parent / "axe.min.js").read_text(encoding="utf-8")
LOOKS = {
    "light": {"color_scheme": "light"},
    "dark": {"color_scheme": "dark"},
    "phone": {"viewport": {"width": 390, "height": 844}, "has_touch": True, "is_mobile": True},
}
READY = {
    "/": ".head",
    "/review": "#filters select",
    "/today": ".tile",
    "/upload": "#start",
    "/learn": "#ticket-grid .head",
}


@pytest.mark.parametrize("locale", ["en-GB", "fr-FR", "de-DE"])
@pytest.mark.parametrize("look", LOOKS)
@pytest.mark.parametrize("path", READY)
def test_axe_finds_nothing_serious(visit, path, look, locale):
    page = visit(path, locale=locale, **LOOKS[look])
    page.wait_for_selector(READY[path])
    if path == "/":
        settled(page)
        page.locator(".head").first.click()
        page.locator("#answer details summary").click()
    page.evaluate(AXE)
    found = page.evaluate("axe.run().then(result => result.violations)")
    serious = [
        (each["id"], [node["html"][:200] for node in each["nodes"]])
        for each in found
        if each["impact"] in ("serious", "critical")
    ]
    assert not serious
