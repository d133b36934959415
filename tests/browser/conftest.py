"""A service with the shipped bundle, and Chromium to look at its page."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.tools.processes import router
from service.tools.screenshot import ARGUMENTS
from tests.browser.writing import settled


@pytest.fixture(scope="session")
def service_url(shipped_bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where the page is."""
    folder = tmp_path_factory.mktemp("service")
    with router(folder, bundle=shipped_bundle.resolve(), feedback_store_text=True) as server:
        yield server.url


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """One browser for a module; each test gets contexts of its own.

    Not for the session: while it runs, so does playwright's event loop in this thread, and a test of another
    module that calls asyncio.run() would fail.
    """
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("chromium is not installed here")
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed here")
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=path, args=ARGUMENTS, headless=True)
        yield browser
        browser.close()


@pytest.fixture
def visit(chromium: Any, service_url: str) -> Iterator[Any]:
    """visit("/", locale="fr-CA", …) -> a page; what it must never do is checked when the test ends."""
    contexts, errors, foreign = [], [], []

    def open_page(path: str = "/", **options: Any) -> Any:
        context = chromium.new_context(**({"locale": "en-GB", "color_scheme": "light"} | options))
        contexts.append(context)
        context.set_default_timeout(30_000)
        page = context.new_page()
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.on("dialog", lambda dialog: (errors.append(f"dialog: {dialog.message}"), dialog.dismiss()))
        page.on(
            "request", lambda r: None if r.url.startswith((service_url, "data:")) else foreign.append(r.url)
        )
        page.goto(service_url + path)
        if path == "/":
            settled(page)  # the first example
        return page

    open_page.errors = errors  # type: ignore[attr-defined]
    yield open_page
    for context in contexts:
        context.close()
    assert not foreign, "the page asked another server"
    assert not errors, "the page had errors"
