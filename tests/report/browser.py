"""A headless Chromium for tests of pages, or why there is none."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest

ARGUMENTS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@contextlib.contextmanager
def chromium() -> Iterator:
    """The browser, with a list ``complaints`` of what pages write to the console and of requests beyond the disk."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="no playwright; make browser installs it")
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    if path is None:
        pytest.skip("no chromium in the PATH; make browser installs it")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=ARGUMENTS)
        yield browser
        browser.close()


@contextlib.contextmanager
def opened(browser, path, *, width=1280, height=900, scheme="light") -> Iterator:
    """A page from disk; what it complains about, and whatever it asks from elsewhere, fails the test."""
    complaints = []
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("request", lambda request: request.url.startswith(("file:", "data:")) or complaints.append(request.url))
    page.goto(path.as_uri())
    yield page
    page.close()
    assert not complaints
