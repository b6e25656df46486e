"""The tour's report in a real browser: nothing missing, nothing sticking out."""

import pytest

from normalign.paper import run_tour
from normalign.paper.tour.runs import TourSettings
from tests.browser.conftest import VIEWS, visited

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    small = TourSettings(
        epochs=12, n_train=60, n_test=40, hidden=(24, 24), batch_size=20, n_measured=8,
        init_scale=2.0, learning_rate=3e-4,
    )  # fmt: skip
    out = tmp_path_factory.mktemp("out")
    return run_tour(out, settings=small, progress=False).report


@pytest.fixture(params=VIEWS)
def page(request, browser, report):
    opened = visited(browser, report, *request.param)
    yield opened
    opened.context.close()


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
