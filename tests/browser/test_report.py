"""The tour's report in a real browser: nothing missing, nothing sticking out."""

import shutil

import pytest

from normalign.paper import run_tour
from normalign.paper.tour.runs import TourSettings

pytestmark = pytest.mark.browser

CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--no-first-run",
]  # fmt: skip


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    small = TourSettings(
        epochs=12, n_train=60, n_test=40, hidden=(24, 24), batch_size=20, n_measured=8,
        init_scale=2.0, learning_rate=3e-4,
    )  # fmt: skip
    out = tmp_path_factory.mktemp("out")
    return run_tour(out, settings=small, progress=False).report


@pytest.fixture(scope="module")
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


@pytest.fixture(params=[("light", 390), ("light", 1400), ("dark", 390), ("dark", 1400)])
def page(request, browser, report):
    scheme, width = request.param
    context = browser.new_context(
        color_scheme=scheme, viewport={"width": width, "height": 900}
    )
    opened = context.new_page()
    opened.complaints, opened.requests = [], []
    opened.on("console", lambda m: opened.complaints.append(f"{m.type}: {m.text}"))
    opened.on("pageerror", lambda error: opened.complaints.append(str(error)))
    opened.on("request", lambda r: opened.requests.append(r.url))
    opened.goto(report.as_uri())
    opened.scheme, opened.width = scheme, width
    yield opened
    context.close()


def test_nothing_is_complained_about_and_nothing_else_is_loaded(page, report):
    assert page.complaints == []
    loaded = [url for url in page.requests if not url.startswith("data:")]
    assert loaded == [report.as_uri()]


def test_every_picture_is_drawn(page):
    sizes = page.evaluate(
        "() => [...document.querySelectorAll('figure > svg')].map(s => {"
        " const r = s.getBoundingClientRect(); return [r.width, r.height]; })"
    )
    assert len(sizes) >= 10
    assert all(width > 100 and height > 50 for width, height in sizes)
    empty = page.evaluate(
        "async () => { const bad = [];"
        " for (const i of document.querySelectorAll('svg image')) {"
        "  const p = new Image(); p.src = i.href.baseVal;"
        "  try { await p.decode(); } catch { bad.push('broken'); continue; }"
        "  if (!p.naturalWidth || !p.naturalHeight) bad.push('empty'); }"
        " return bad; }"
    )
    assert empty == []
    count = page.evaluate("() => document.querySelectorAll('svg image').length")
    assert count >= 20  # five digits and five centroids, for two networks


def test_nothing_sticks_out_to_the_side(page):
    wide = page.evaluate("() => document.documentElement.scrollWidth")
    assert wide <= page.width


def test_ink_and_ground_follow_the_colour_scheme(page):
    def lightness(expression: str) -> float:
        colour = page.evaluate(expression)
        parts = [float(p) for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
        return sum(parts) / 3 / 255

    ground = lightness("() => getComputedStyle(document.body).backgroundColor")
    ink = lightness("() => getComputedStyle(document.querySelector('svg text')).fill")
    assert (ground > 0.5) == (page.scheme == "light")
    assert abs(ground - ink) > 0.6
