"""A browser for pages."""

import shutil

import pytest

pytest.register_assert_rewrite("stories", "recorded")  # they say what they compared


@pytest.fixture(scope="module")  # while Playwright runs, nothing else of this process can run an event loop
def browser():
    playwright = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    with playwright.sync_playwright() as started:
        names = ("chromium", "chromium-browser", "google-chrome", "chrome")
        found = next(filter(None, map(shutil.which, names)), None)
        try:
            browser = started.chromium.launch(executable_path=found, args=["--no-sandbox"], timeout=120_000)
        except playwright.Error as error:
            pytest.skip(f"there is no Chromium that starts: {str(error).splitlines()[0]}")
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser):
    """``open_page(url, ...)`` opens a page; at the end no script has failed and nothing has been requested."""
    troubles, pages = [], []

    def open_page(url: str, width: int = 1280, height: int = 720, **settings):
        one = browser.new_page(viewport={"width": width, "height": height}, **settings)
        one.set_default_timeout(120_000)
        one.on("pageerror", lambda error: troubles.append(str(error)))
        one.on("console", lambda message: troubles.append(message.text))
        one.on("request", lambda request: troubles.append(request.url) if request.url.startswith("http") else None)
        one.goto(url)
        if one.locator("#stories").count():
            one.wait_for_selector("body[data-ready]")
        pages.append(one)
        return one

    yield open_page
    for one in pages:
        one.close()
    assert not troubles
