"""The playground in a browser: drag, train, share, and read off."""

import contextlib
import io

import pytest
import torch

import normalign as na
from tests.web.conftest import (
    VIEWS,
    WEB,
    assert_quick_frames,
    assert_same_geometry,
    calculate,
    page_model,
    settle,
    sticking_out,
)

pytestmark = pytest.mark.browser

CIRCLE = "#data=circle&noise=0&width=32&depth=1&decay=0"


def point_on_screen(page, x, y):
    box = page.locator("#map").bounding_box()
    return (
        box["x"] + box["width"] * (x + 1.5) / 3,
        box["y"] + box["height"] * (1.5 - y) / 3,
    )


def measures(page):
    """The table of the selected point, by name."""
    rows = page.locator("#measures tr").all_inner_texts()
    return dict(row.split("\t") for row in rows)


def move_slider(page, name, n):
    slider = page.locator(f"#{name}")
    for _ in range(abs(n)):
        slider.press("ArrowRight" if n > 0 else "ArrowLeft")
    settle(page)


def steps(page):
    return page.evaluate("() => trainer.steps")


@pytest.mark.parametrize(("scheme", "width"), VIEWS)
def test_it_opens_without_complaint_and_fits_the_screen(visit, scheme, width):
    page = visit("playground", scheme=scheme, width=width)
    assert page.complaints == []
    assert all(url.startswith((WEB.as_uri(), "data:")) for url in page.requests)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for chart in page.locator("canvas").all():
        box = chart.bounding_box()
        assert box["width"] > 20
        assert box["x"] + box["width"] <= width
    assert sticking_out(page) == []
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) > 380) == (scheme == "light")


def test_the_theme_is_the_visitors_and_stays(visit):
    page = visit("playground")
    pixel = "() => [...map.getContext('2d').getImageData(3, 3, 1, 1).data].join()"
    before = page.evaluate(pixel)
    page.locator("button.theme").click()
    settle(page)
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"
    assert page.evaluate(pixel) != before
    page.reload()
    assert page.evaluate("() => document.documentElement.dataset.theme") == "dark"


def test_it_trains_at_once_unless_motion_is_unwanted(visit):
    page = visit("playground", motion=True)
    page.wait_for_function("() => trainer.steps > 20")
    assert page.locator("#run").inner_text() == "Pause"
    page.locator("#run").click()
    paused = steps(page)
    page.wait_for_timeout(200)
    assert steps(page) == paused
    still = visit("playground")
    still.wait_for_timeout(200)
    assert steps(still) == 0
    still.locator("#step").click()
    assert steps(still) == 1


def test_dragging_the_point_shows_its_map(visit):
    page = visit("playground")
    page.evaluate("() => { for (let i = 0; i < 100; i++) trainStep(); redraw(); }")
    page.mouse.move(*point_on_screen(page, *page.evaluate("() => point")))
    page.mouse.down()
    page.mouse.move(*point_on_screen(page, 0.9, -0.4), steps=5)
    page.mouse.up()
    settle(page)
    point = page.evaluate("() => point")
    assert point == pytest.approx([0.9, -0.4], abs=0.01)
    assert f"point={point[0]},{point[1]}" in page.url
    local = calculate(
        page, "return plain(localGeometry(network, Float64Array.from(point)))"
    )
    model = page_model(page)
    assert_same_geometry(local, model, point)
    shown = measures(page)
    geometry = na.local_geometry(
        model,
        torch.tensor([point]).double(),
        torch.tensor([max(range(3), key=lambda c: local["output"][c])]),
    )
    for name, value in (
        ("Normal alignment", geometry.normal_alignment),
        ("Effective rank", geometry.effective_rank),
        ("Centroid alignment", geometry.centroid_alignment),
        ("Local robustness", geometry.local_robustness),
    ):
        assert float(shown[name].replace("−", "-")) == pytest.approx(
            float(value), abs=6e-4
        )
    # Its region: one that holds it, with its map.
    held = calculate(
        page, "return plain(regionAt(currentRegions().regions, ...point).map)"
    )
    flat = torch.tensor(held).view(-1, 3)
    torch.testing.assert_close(
        flat[:, :2].flatten(), torch.tensor(local["jacobian"]), rtol=0, atol=1e-5
    )


def test_the_point_follows_keys_and_visits_training_points(visit):
    page = visit("playground", "#point=0,0")
    canvas = page.locator("#map")
    canvas.press("ArrowRight")
    canvas.press("ArrowUp")
    canvas.press("Shift+ArrowUp")
    assert page.evaluate("() => point") == pytest.approx([0.05, 0.06])
    canvas.press("PageDown")
    point, known = page.evaluate("() => [point, [...train.inputs.subarray(2, 4)]]")
    assert point == known


def test_a_tap_moves_the_point_on_a_phone(visit):
    page = visit("playground", width=390, has_touch=True, is_mobile=True)
    page.locator("#map").scroll_into_view_if_needed()
    page.touchscreen.tap(*point_on_screen(page, -1.2, 1.2))
    settle(page)
    assert page.evaluate("() => point") == pytest.approx([-1.2, 1.2], abs=0.07)


def test_a_finger_on_the_point_drags_it_and_elsewhere_scrolls_the_page(visit):
    page = visit("playground", "#point=0,0", width=390, has_touch=True, is_mobile=True)
    page.locator("#map").scroll_into_view_if_needed()
    fingers = page.context.new_cdp_session(page)

    def swipe(start, end):
        for kind, place in (("Start", start), ("Move", end), ("End", None)):
            x, y = point_on_screen(page, *(place or end))
            points = [] if place is None else [{"x": x, "y": y}]
            fingers.send(
                "Input.dispatchTouchEvent",
                {"type": f"touch{kind}", "touchPoints": points},
            )
        settle(page)

    scrolled = page.evaluate("() => scrollY")
    swipe((0, 0), (0.6, 0.9))
    assert page.evaluate("() => point") == pytest.approx([0.6, 0.9], abs=0.02)
    assert page.evaluate("() => scrollY") == scrolled
    swipe((-1, -1), (-1, -0.2))
    assert page.evaluate("() => point") == pytest.approx([0.6, 0.9], abs=0.02)


def test_the_penalty_changes_the_run_that_goes_on_and_the_width_begins_another(visit):
    page = visit("playground")
    page.evaluate("() => { for (let i = 0; i < 20; i++) trainStep(); }")
    before = page.evaluate("() => trainer.settings.penaltyWeight")
    move_slider(page, "penalty", 2)
    move_slider(page, "decay", -1)
    assert steps(page) == 20
    assert page.evaluate("() => trainer.settings.penaltyWeight") > before
    move_slider(page, "width", -3)
    assert steps(page) == 0
    assert page.evaluate("() => network.widths") == [2, 13, 13, 3]
    move_slider(page, "depth", 1)
    assert page.evaluate("() => network.widths") == [2, 13, 13, 13, 3]
    noise = page.evaluate("() => [...train.inputs]")
    move_slider(page, "noise", 3)
    assert page.evaluate("() => [...train.inputs]") != noise


def test_the_address_holds_the_whole_state(visit):
    page = visit("playground")
    page.locator("#data button", has_text="moons").click()
    for name, n in (
        ("noise", 4),
        ("penalty", 3),
        ("decay", 2),
        ("depth", 1),
        ("width", -5),
    ):
        move_slider(page, name, n)
    page.locator("#start").select_option("2")
    page.locator("#seed").click()
    page.locator("#show-levels").uncheck()
    page.locator("#map").press("ArrowLeft")
    state = "() => JSON.stringify([settings, point, [...train.inputs], network.widths,"
    state += " network.parameters().map(p => [...p])])"
    before = page.evaluate(state.replace("settings,", "{ ...settings, point: 0 },"))
    other = visit("playground", page.url[page.url.index("#") :])
    assert (
        other.evaluate(state.replace("settings,", "{ ...settings, point: 0 },"))
        == before
    )
    # Training goes on the same way for everyone.
    for opened in (page, other):
        opened.evaluate("() => { for (let i = 0; i < 30; i++) trainStep(); }")
    weights = "() => network.weights.map(weight => [...weight])"
    assert other.evaluate(weights) == page.evaluate(weights)


def test_an_address_that_makes_no_sense_gives_the_default(visit):
    page = visit(
        "playground",
        "#data=cats&width=1e9&depth=x&penalty=7&noise=NaN&point=a,b&start=9",
    )
    assert page.complaints == []
    settings = page.evaluate("() => settings")
    assert settings["data"] == "spirals"
    assert settings["width"] == 32
    assert (settings["depth"], settings["penalty"], settings["noise"]) == (
        2,
        0.001,
        0.04,
    )


def test_the_construction_is_normal_aligned_and_is_the_librarys(visit):
    page = visit("playground", "#data=circle&noise=0&start=construction&width=9")
    assert page.evaluate("() => curves.alignment[0]") == pytest.approx(1, abs=1e-12)
    assert page.evaluate("() => curves.rank[0]") == pytest.approx(1, abs=1e-12)
    assert page.evaluate("() => network.widths") == [2, 5, 5]
    x = torch.tensor(page.evaluate("() => [...train.inputs]"), dtype=torch.float64)
    x = x.view(-1, 2)
    # On the page coordinates are rounded, here they have norm one to the last digit.
    unit = torch.nn.functional.normalize(x)
    expected = na.theory.normal_aligned_network(unit, torch.eye(5).double())
    ours = na.local_affine(page_model(page), x).jacobian
    theirs = na.local_affine(expected, unit).jacobian
    torch.testing.assert_close(ours, theirs, rtol=2e-3, atol=2e-3)
    # Whatever does not fit the construction ends it.
    page.locator("#data button", has_text="xor").click()
    assert page.locator("#start").input_value() == "1"


TRAIN = """
([fragment, n]) => {
  location.hash = fragment;
  load();
  for (let i = 0; i < n; i++) trainStep();
  record();
  const last = name => curves[name].at(-1);
  const active = train.labels.reduce((sum, _, i) => {
    const units = [];
    network.output(train.inputs.subarray(2 * i, 2 * i + 2), units);
    return sum + units.flatMap(unit => [...unit]).reduce((a, b) => a + b, 0);
  }, 0);
  return { alignment: last("alignment"), train: last("train"), test: last("test"),
    best: Math.max(...curves.test), active, regions: currentRegions().regions.length };
}
"""


def test_what_the_examples_say_is_what_happens(visit):
    page = visit("playground")
    links = [a.get_attribute("href") for a in page.locator("#examples a").all()]
    built, without, with_penalty, large, penalised, spirals = links
    start = page.evaluate(TRAIN, [built, 0])
    assert (start["alignment"], start["active"]) == (pytest.approx(1), 5)
    later = page.evaluate(TRAIN, [built, 500])
    assert later["alignment"] < 0.99
    assert later["active"] > 5
    plain = page.evaluate(TRAIN, [without, 2000])
    aligned = page.evaluate(TRAIN, [with_penalty, 2000])
    assert 1.6 < aligned["alignment"] / plain["alignment"] < 2.6
    plain = page.evaluate(TRAIN, [large, 1000])
    aligned = page.evaluate(TRAIN, [penalised, 1000])
    assert plain["train"] == 1 > aligned["train"]
    assert plain["test"] < plain["best"] - 0.03
    assert aligned["test"] > plain["test"] + 0.03
    assert plain["regions"] > 2000
    assert page.evaluate(TRAIN, [spirals, 1000])["train"] < 0.9


def test_following_an_example_loads_it(visit):
    page = visit("playground")
    page.locator("#examples a").first.click()
    settle(page)
    assert page.evaluate("() => settings.start") == "construction"
    assert page.locator("#start").input_value() == "construction"
    assert page.locator("#run").inner_text() == "Train"


def test_the_python_program_continues_with_the_network_on_the_screen(visit):
    page = visit("playground", CIRCLE + "&penalty=0.03")
    page.evaluate("() => { for (let i = 0; i < 200; i++) trainStep(); record(); }")
    page.locator("#snippet").click()
    code = page.locator("dialog pre").inner_text()
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(code.replace("range(500)", "range(0)"), names)
    x, y = names["x"], names["y"]
    geometry = na.local_geometry(names["model"], x, y)
    curves = page.evaluate("() => curves")
    for ours, theirs in (
        ("alignment", geometry.normal_alignment),
        ("rank", geometry.effective_rank),
        ("robustness", geometry.local_robustness),
    ):
        assert curves[ours][-1] == pytest.approx(float(theirs.mean()), abs=1e-9)
    assert "LocalGeometry of 5 samples" in printed.getvalue()
    exec(code.replace("range(500)", "range(100)"), {})
    page.keyboard.press("Escape")
    assert page.locator("dialog").is_hidden()


def test_curves_keep_the_run_before_for_comparison(visit):
    page = visit("playground")
    page.evaluate("() => { for (let i = 0; i < 50; i++) trainStep(); }")
    page.locator("#restart").click()
    assert page.evaluate("() => [curves.step.length, previousCurves.step.at(-1)]") == [
        1,
        50,
    ]
    page.evaluate("() => { for (let i = 0; i < 6000; i++) record(); }")
    assert page.evaluate("() => curves.step.length") <= 241


def test_sixty_frames_per_second_at_the_default_size(visit):
    assert_quick_frames(visit("playground", motion=True))
