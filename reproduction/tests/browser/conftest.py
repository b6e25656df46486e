"""A real browser, and pages opened in it in the views that every report is read in."""

import shutil

import pytest

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip
VIEWS = [("light", 390), ("light", 1400), ("dark", 390), ("dark", 1400)]


@pytest.fixture(scope="session")
def browser():
    if CHROMIUM is None:
        pytest.skip("chromium is not installed")
    playwright = pytest.importorskip(
        "playwright.sync_api", reason="the browser extra is not installed"
    )
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield opened
        opened.close()


def visited(browser, report, scheme, width, **more):
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}, **more
    )
    opened = context.new_page()
    opened.complaints, opened.requests = [], []
    opened.on("console", lambda m: opened.complaints.append(f"{m.type}: {m.text}"))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda r: opened.requests.append(r.url))
    opened.goto(report.as_uri())
    opened.scheme, opened.width = scheme, width
    return opened
