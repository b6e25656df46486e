"""A real browser, and the interactive pages opened in it from their files."""

import base64
import json
import shutil
import statistics
from pathlib import Path

import numpy as np
import pytest
import torch

import normalign as na

WEB = Path(__file__).parents[2] / "web"
CHROMIUM = shutil.which("chromium")
ARGUMENTS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
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


@pytest.fixture
def visit(browser):
    """Open pages by name; without motion, so that nothing moves until it is told to."""
    contexts = []

    def opened(name, fragment="", *, scheme="light", width=1400, motion=False, **more):
        context = browser.new_context(
            color_scheme=scheme, viewport={"width": width, "height": 900},
            reduced_motion="no-preference" if motion else "reduce", **more,
        )  # fmt: skip
        contexts.append(context)
        page = context.new_page()
        page.complaints, page.requests = [], []
        page.on("console", lambda m: page.complaints.append(f"{m.type}: {m.text}"))
        page.on("pageerror", lambda error: page.complaints.append(str(error)))
        page.on("request", lambda r: page.requests.append(r.url))
        page.set_default_timeout(20_000)
        page.goto(f"{(WEB / f'{name}.html').as_uri()}{fragment}")
        settle(page)
        return page

    yield opened
    for context in contexts:
        context.close()


def settle(page):
    """Wait until all that was asked for is drawn."""
    page.evaluate(
        "() => new Promise(done => requestAnimationFrame(() => "
        "requestAnimationFrame(() => requestAnimationFrame(done))))"
    )


def sticking_out(page):
    """What is wider than the card or the page that it is in."""
    return page.evaluate(
        "() => [...document.querySelectorAll('main *')].filter(element => {"
        "  const box = element.getBoundingClientRect();"
        "  const card = (element.closest('.card') ?? document.documentElement);"
        "  return box.right > card.getBoundingClientRect().right + 1;"
        " }).map(element => element.outerHTML.slice(0, 80))"
    )


def assert_quick_frames(page, action=""):
    """Fail if a frame leaves no time to paint at sixty per second.

    What is timed is the script's work in a frame, while ``action`` runs before each. A
    busy machine has several attempts at being quick.
    """
    medians = []
    for _ in range(4):
        work = page.evaluate(
            "async () => { const times = [], original = frame, end = Date.now() + 2000;"
            " frame = () => { const start = performance.now(); original();"
            "   times.push(performance.now() - start); };"
            " while (Date.now() < end) {"
            f"   {action}; await new Promise(requestAnimationFrame); }}"
            " frame = original; return times; }"
        )
        medians.append(statistics.median(work))
        if medians[-1] < 12 and len(work) > 50:
            return
    pytest.fail(f"a frame takes {medians} ms of 1000 / 60")


def random_model(widths, seed=0, scale=1.5):
    generator = torch.Generator().manual_seed(seed)
    return na.nn.mlp(widths, init_scale=scale, generator=generator, dtype=torch.float64)


def as_lists(model):
    """A model as arguments for the page: widths, and parameters in torch's order."""
    linear = list(model)[::2]
    return {
        "widths": [linear[0].in_features, *(layer.out_features for layer in linear)],
        "parameters": [p.detach().flatten().tolist() for p in model.parameters()],
    }


# For `evaluate`: a network from such arguments, and lists from typed arrays.
BUILD = """
function build({ widths, parameters }) {
  const network = new Network(widths);
  network.parameters().forEach((parameter, i) => parameter.set(parameters[i]));
  return network;
}
function plain(value) {
  if (ArrayBuffer.isView(value)) return [...value];
  if (Array.isArray(value)) return value.map(plain);
  if (value === Infinity) return "inf";
  if (value === null || typeof value !== "object") return value;
  return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, plain(v)]));
}
"""


def calculate(page, body, argument=None):
    """Run JavaScript with `build`, `plain` and `argument`, and return its value."""
    return page.evaluate(f"argument => {{ {BUILD} {body} }}", argument)


def page_model(page, expression="network"):
    """The network of a page as a torch model."""
    widths, parameters = page.evaluate(
        f"() => [{expression}.widths, {expression}.parameters().map(p => [...p])]"
    )
    model = na.nn.mlp(widths, dtype=torch.float64)
    flat = [value for values in parameters for value in values]
    flat = torch.tensor(flat, dtype=torch.float64)
    torch.nn.utils.vector_to_parameters(flat, model.parameters())
    return model


def read_data(name):
    """What a script of web/data defines."""
    text = (WEB / "data" / name).read_text(encoding="utf-8")
    return json.loads(text[text.index("{") : text.rindex(";")])


def read_checkpoint(text, widths):
    """A checkpoint of the digit page as a torch model, in float64."""
    raw, model = base64.b64decode(text), na.nn.mlp(widths, dtype=torch.float64)
    with torch.no_grad():
        for layer in list(model)[::2]:
            m, n = layer.weight.shape
            ends = np.cumsum([4 * m, 4 * m, m * n])
            factor, bias, whole, raw = (
                raw[: ends[0]], raw[ends[0] : ends[1]], raw[ends[1] : ends[2]],
                raw[ends[2] :],
            )  # fmt: skip
            whole = np.frombuffer(whole, "i1").reshape(m, n).astype("f8")
            factor = np.frombuffer(factor, "<f4").astype("f8")
            layer.weight.copy_(torch.tensor(whole * factor[:, None]))
            layer.bias.copy_(torch.tensor(np.frombuffer(bias, "<f4").astype("f8")))
    assert raw == b""
    return model


MEASURES = {
    "normalAlignment": "normal_alignment",
    "effectiveRank": "effective_rank",
    "centroidAlignment": "centroid_alignment",
    "jacobianNorm": "jacobian_norm",
    "offsetNorm": "offset_norm",
    "radius": "radius",
    "localRobustness": "local_robustness",
}


def assert_same_geometry(measured, model, x, y=None):
    """Compare what a page measured at one sample with the library."""
    x = torch.as_tensor(x, dtype=torch.float64)[None]
    affine = na.local_affine(model, x)
    y = affine.output.argmax(1) if y is None else torch.tensor([y])
    geometry = na.local_geometry(model, x, y)
    # Both in float64: what differs is the order of sums.
    close = {"rtol": 1e-8, "atol": 1e-8}
    for ours, theirs in MEASURES.items():
        got = torch.tensor([float(measured[ours])], dtype=torch.float64)
        torch.testing.assert_close(got, getattr(geometry, theirs), msg=ours, **close)
    for ours, theirs in (
        ("output", affine.output), ("offset", affine.offset),
        ("jacobian", affine.jacobian), ("centroid", affine.jacobian.sum(1)),
    ):  # fmt: skip
        got = torch.tensor(measured[ours], dtype=torch.float64)
        torch.testing.assert_close(got, theirs.flatten(), msg=ours, **close)
