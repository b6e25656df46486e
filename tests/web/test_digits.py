"""The digit page in a browser: draw, pick, move through training, attack, read off."""

import contextlib
import io
import statistics

import numpy as np
import pytest
import torch

import normalign as na
from normalign.data import MNIST_MEAN, MNIST_STD
from tests.web.conftest import (
    VIEWS,
    WEB,
    assert_quick_frames,
    assert_same_geometry,
    calculate,
    read_checkpoint,
    read_data,
    settle,
    sticking_out,
)

pytestmark = pytest.mark.browser

RUNS = ("without", "with")


@pytest.fixture(scope="module")
def data():
    return read_data("digits.js")


@pytest.fixture(scope="module")
def models(data):
    weights = read_data("digits-weights.js")
    return {
        run: [read_checkpoint(text, data["widths"]) for text in weights[run]]
        for run in RUNS
    }


def shown(page, run):
    """The numbers of a panel, by name, without the percentage beside them."""
    rows = page.locator(f"#{run} .measures tr").all_inner_texts()
    pairs = (row.split("\t") for row in rows)
    return {name: value.split(" (")[0].replace("−", "-") for name, value in pairs}


def page_input(page):
    return page.evaluate("() => [...inputOf(digit)]")


def picture(page, selector):
    return page.evaluate(
        "selector => { const c = document.querySelector(selector);"
        " return [...c.getContext('2d').getImageData(0, 0, 28, 28).data].join(); }",
        selector,
    )


@pytest.mark.parametrize(("scheme", "width"), VIEWS)
def test_it_opens_without_complaint_and_fits_the_screen(visit, scheme, width):
    page = visit("digits", scheme=scheme, width=width)
    assert page.complaints == []
    assert all(url.startswith((WEB.as_uri(), "data:")) for url in page.requests)
    assert page.evaluate("() => document.documentElement.scrollWidth") <= width
    for canvas in page.locator("canvas").all():
        box = canvas.bounding_box()
        assert box["width"] > 15
        assert box["x"] + box["width"] <= width
    assert sticking_out(page) == []
    background = page.evaluate("() => getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, background[4:-1].split(","))) > 380) == (scheme == "light")


@pytest.mark.parametrize("moment", [0, 8, 15, 23])
def test_values_are_those_of_the_library(visit, data, models, moment):
    page = visit("digits", f"#digit=test-4&epoch={data['epochs'][moment]}")
    x = page_input(page)
    for run in RUNS:
        model = models[run][moment]
        local = calculate(page, "return plain(localMaps()[argument])", run)
        assert_same_geometry(local, model, x)
        inputs = torch.tensor([x], dtype=torch.float64)
        affine = na.local_affine(model, inputs)
        label = affine.output.argmax(1)
        geometry = na.local_geometry(model, inputs, label)
        values = shown(page, run)
        for name, value in (
            ("Normal alignment", geometry.normal_alignment),
            ("Effective rank", geometry.effective_rank),
            ("Centroid alignment", geometry.centroid_alignment),
            ("Local robustness", geometry.local_robustness),
        ):
            # As printed: three or two digits after the point.
            assert float(values[name]) == pytest.approx(
                float(value), rel=1e-3, abs=6e-4
            )
        read = page.locator(f"#{run} .prediction b").inner_text()
        assert int(read) == int(label)
        cosines = torch.cosine_similarity(affine.jacobian[0], inputs)
        texts = page.locator(f"#{run} .rows span").all_inner_texts()
        printed = torch.tensor([float(text.replace("−", "-")) for text in texts])
        torch.testing.assert_close(printed.double(), cosines, rtol=0, atol=6e-3)


def test_a_digit_to_pick_is_the_digit_of_the_data(visit, data):
    digits = na.data.load_digits_5000(
        n_train=1024, n_test=1024, seed=0, normalise=True, flatten=True
    )
    train = ("train", digits.x_train, digits.y_train)
    test = ("test", digits.x_test, digits.y_test)
    for half, x, y in (train, test):
        assert len(data["digits"][half]) == 20
        page = visit("digits", f"#digit={half}-7")
        entry = data["digits"][half][7]
        assert entry["label"] == int(y[entry["row"]])
        np.testing.assert_allclose(page_input(page), x[entry["row"]], atol=1e-5)


def test_the_slider_moves_through_training(visit, data):
    page = visit("digits", "#digit=train-3&epoch=0")
    before = [picture(page, f"#{run} .rows canvas") for run in RUNS]
    assert before[0] == before[1]  # the same initial weights
    assert page.locator("#epoch").inner_text() == "epoch 0"
    slider = page.locator("#checkpoint")
    slider.press("End")
    settle(page)
    after = [picture(page, f"#{run} .rows canvas") for run in RUNS]
    assert after[0] != after[1]
    assert after[0] != before[0]
    last = data["epochs"][-1]
    assert page.locator("#epoch").inner_text() == f"epoch {last:,}"
    slider.press("ArrowLeft")
    settle(page)
    assert page.url.endswith(f"epoch={data['epochs'][-2]}")
    # A click on a chart goes to the nearest checkpoint.
    box = page.locator("#chart-accuracy").bounding_box()
    page.mouse.click(box["x"] + 45, box["y"] + 60)
    settle(page)
    assert page.locator("#epoch").inner_text() == "epoch 0"


def test_play_runs_to_the_end(visit, data):
    n = len(data["epochs"])
    page = visit("digits", f"#epoch={data['epochs'][n - 3]}")
    page.locator("#play").click()
    assert page.locator("#play").inner_text() == "Pause"
    page.wait_for_function(f"() => checkpoint === {n - 1}")
    assert page.locator("#play").inner_text() == "Play"


def test_digits_can_be_picked_by_keyboard(visit):
    page = visit("digits")
    button = page.get_by_role("button", name="Test digit 8").first
    button.press("Enter")
    settle(page)
    assert button.get_attribute("aria-pressed") == "true"
    assert "digit=test-16" in page.url
    assert page.evaluate("() => digit.label") == 8


def assert_centred(pixels):
    ink = np.array(pixels).reshape(28, 28)
    rows, columns = np.nonzero(ink > 0.02)
    sides = np.ptp(rows) + 1, np.ptp(columns) + 1
    assert 18 <= max(sides) <= 22
    place = np.arange(28) + 0.5
    middle = (ink.sum(1) @ place / ink.sum(), ink.sum(0) @ place / ink.sum())
    np.testing.assert_allclose(middle, 14, atol=0.1)


def draw(page, *strokes):
    box = page.locator("#pad").bounding_box()
    for stroke in strokes:
        x, y = stroke[0]
        page.mouse.move(box["x"] + x * box["width"], box["y"] + y * box["height"])
        page.mouse.down()
        for x, y in stroke[1:]:
            page.mouse.move(
                box["x"] + x * box["width"], box["y"] + y * box["height"], steps=4
            )
        page.mouse.up()
    settle(page)


def test_a_drawn_digit_is_centred_and_read(visit):
    page = visit("digits")
    # A seven, small and in a corner, in two strokes.
    draw(page, [(0.1, 0.1), (0.4, 0.1), (0.2, 0.6)], [(0.15, 0.32), (0.36, 0.32)])
    pixels = page.evaluate("() => digit.pixels")
    assert_centred(pixels)
    assert max(pixels) == 1
    assert min(pixels) == 0
    assert page.locator("#with .prediction b").inner_text() == "7"
    assert "digit=" not in page.url
    # A stroke of its own begins a new digit after one was picked.
    page.get_by_role("button", name="Training digit 0").first.click()
    draw(page, [(0.5, 0.2), (0.5, 0.8)])
    assert page.evaluate("() => strokes.length") == 1
    assert_centred(page.evaluate("() => digit.pixels"))
    assert page.locator("#with .prediction b").inner_text() == "1"


def test_a_digit_can_be_drawn_by_keyboard(visit):
    page = visit("digits")
    pad = page.locator("#pad")
    for key in ["ArrowUp"] * 6 + ["Shift+ArrowDown"] * 12:
        pad.press(key)
    settle(page)
    assert_centred(page.evaluate("() => digit.pixels"))
    assert page.locator("#with .prediction b").inner_text() == "1"
    pad.press("Delete")
    assert page.evaluate("() => strokes.length") == 0


def test_the_attack_needs_the_distance_that_the_library_finds(visit, data, models):
    page = visit("digits", f"#digit=train-12&epoch={data['epochs'][15]}")
    assert shown(page, "with")["Distance of the attack"] == "press Attack"
    page.locator("#attack").click()
    page.wait_for_function("() => attacks && attacks.without && attacks.with")
    settle(page)
    x = torch.tensor([page_input(page)], dtype=torch.float64)
    for run in RUNS:
        model = models[run][15]
        y = model(x).argmax(1)
        radius = na.robustness.minimal_radius(
            model, x, y, max_radius=40.0, norm="l2",
            low=-MNIST_MEAN / MNIST_STD, high=(1 - MNIST_MEAN) / MNIST_STD,
        )  # fmt: skip
        found = calculate(page, "return plain(attacks[argument])", run)
        assert found["radius"] == pytest.approx(float(radius), rel=1e-5)
        printed = shown(page, run)["Distance of the attack"]
        assert float(printed) == pytest.approx(float(radius), rel=1e-3, abs=6e-4)
        answer = int(model(torch.tensor([found["point"]]).double()).argmax())
        assert answer != int(y)
        caption = page.locator(f"#{run} figure.attacked figcaption").inner_text()
        assert caption == f"attacked: reads {answer}"
    page.locator("#checkpoint").press("ArrowRight")
    settle(page)  # of another network nothing is known yet
    assert shown(page, "with")["Distance of the attack"] == "press Attack"


def test_the_address_holds_digit_and_moment(visit, data):
    page = visit("digits")
    page.get_by_role("button", name="Training digit 5").nth(1).click()
    page.locator("#checkpoint").press("Home")
    page.locator("#checkpoint").press("ArrowRight")
    settle(page)
    fragment = page.url[page.url.index("#") :]
    assert fragment == f"#digit=train-11&epoch={data['epochs'][1]}"
    other = visit("digits", fragment)
    assert page_input(other) == page_input(page)
    assert shown(other, "with") == shown(page, "with")
    odd = visit("digits", "#digit=cat-3&epoch=7.5")
    assert odd.complaints == []
    assert odd.evaluate("() => digit.half") == "train"


@pytest.mark.parametrize("run", RUNS)
def test_the_python_program_prints_the_numbers_of_the_page(visit, run):
    page = visit("digits", "#digit=test-9&epoch=330")
    page.locator("#attack").click()
    page.wait_for_function("() => attacks && attacks.without && attacks.with")
    settle(page)
    page.locator(f"#{run} .python").click()
    code = page.locator("dialog pre").inner_text()
    printed, names = io.StringIO(), {}
    with contextlib.redirect_stdout(printed):
        exec(code, names)
    values = shown(page, run)
    geometry = na.local_geometry(names["model"], names["x"], names["predicted"])
    for name, value in (
        ("Normal alignment", geometry.normal_alignment),
        ("Effective rank", geometry.effective_rank),
        ("Local robustness", geometry.local_robustness),
        ("Distance of the attack", names["radius"]),
    ):
        assert float(values[name]) == pytest.approx(float(value), rel=1e-3, abs=6e-4)
    read = page.locator(f"#{run} .prediction b").inner_text()
    assert f"reads {read}" in printed.getvalue()


def test_the_runs_memorise_first_and_generalise_later(data):
    assert len(data["epochs"]) == 24
    generalised = {}
    for run in RUNS:
        history = data["runs"][run]["history"]
        rows = list(
            zip(
                history["epoch"], history["train_accuracy"], history["test_accuracy"],
                strict=True,
            )
        )  # fmt: skip
        memorised, _, tested = next(row for row in rows if row[1] > 0.99)
        generalised[run] = next(row[0] for row in rows if row[2] > 0.8)
        assert tested < 0.7
        assert generalised[run] > 3 * memorised
    assert generalised["without"] > 3 * generalised["with"]


def test_late_alignment_without_the_penalty_is_with_the_mean_of_all_digits(models):
    """As the text says: the row of the true class shows it."""
    digits = na.data.load_digits_5000(
        n_train=1024, n_test=1024, seed=0, normalise=True, flatten=True
    )
    x, y = digits.x_train.double(), digits.y_train
    mean = torch.nn.functional.normalize(x.mean(0), dim=0)
    x, y = x[:256], y[:256]
    own, top = {}, {}
    for run in RUNS:
        with torch.no_grad():
            jacobian = na.local_affine(models[run][-1], x).jacobian
        row = jacobian[torch.arange(256), y]
        own[run] = float(torch.cosine_similarity(row, x).mean())
        right = torch.linalg.svd(jacobian, full_matrices=False).Vh[:, 0]
        top[run] = float((right @ mean).abs().mean())
    assert top["without"] > 0.4 > 0.2 > top["with"]
    assert own["without"] < 0 < 0.3 < own["with"]


def test_rounded_networks_read_as_well_as_those_that_were_trained(data):
    for run in RUNS:
        record = data["runs"][run]
        exact = dict(
            zip(
                record["history"]["epoch"],
                record["history"]["test_accuracy"],
                strict=True,
            )
        )
        for epoch, rounded in zip(
            data["epochs"], record["rounded_test_accuracy"], strict=True
        ):
            assert rounded == pytest.approx(exact[epoch], abs=0.01)


def test_checkpoints_say_where_they_come_from(visit, data):
    provenance = data["provenance"]
    assert len(provenance["commit"]) == 40
    assert provenance["seconds"] > 60
    assert {"python", "torch", "normalign"} <= set(provenance["versions"])
    page = visit("digits")
    page.locator("summary").click()
    text = page.locator("#provenance").inner_text()
    assert provenance["commit"][:10] in text
    assert provenance["versions"]["torch"] in text


def test_the_pages_stay_small():
    sizes = {path: path.stat().st_size for path in WEB.rglob("*") if path.is_file()}
    data = sum(size for path, size in sizes.items() if path.parent.name == "data")
    assert data < 4_000_000
    assert sum(sizes.values()) - data < 150_000
    # Nothing is loaded from elsewhere.
    for path in sizes:
        if path.parent.name != "data":
            assert "http" not in path.read_text(encoding="utf-8"), path


def test_a_forward_and_ten_backward_passes_take_less_than_ten_milliseconds(visit):
    page = visit("digits")
    times = page.evaluate(
        "() => { const x = inputOf(digit), network = networkAt('with', 10);"
        " return Array.from({ length: 60 }, () => { const start = performance.now();"
        "   localGeometry(network, x); return performance.now() - start; }); }"
    )
    assert statistics.median(times) < 10


def test_moving_the_slider_keeps_sixty_frames_per_second(visit):
    page = visit("digits")
    page.evaluate("() => DIGITS.epochs.forEach((_, i) => setCheckpoint(i))")
    assert_quick_frames(page, "setCheckpoint((checkpoint + 1) % DIGITS.epochs.length)")
