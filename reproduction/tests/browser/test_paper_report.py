"""The report on tables and figures in a real browser, with results made by formula."""

import pytest

from normalign_reproduction.report.files import write_report
from tests.browser.conftest import VIEWS, visited
from tests.fakes import fake_items, store_of

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    out = tmp_path_factory.mktemp("out")
    items = fake_items()
    store = store_of(items[:-1], out / "results")
    store_of(items[-1:], out / "results", skip=3)
    return write_report(
        out, items=items, size="quick", preset="released", digits="digits_5000",
        store=store, command="normalign reproduce",
    )  # fmt: skip


@pytest.fixture(params=VIEWS, ids=lambda view: f"{view[0]}-{view[1]}")
def page(request, browser, report):
    opened = visited(browser, report, *request.param)
    yield opened
    opened.context.close()


def lightness(page, expression):
    colour = page.evaluate(expression)
    parts = [float(p) for p in colour[colour.index("(") + 1 : -1].split(",")[:3]]
    return sum(parts) / 3 / 255


GROUND = "() => getComputedStyle(document.body).backgroundColor"
INK = "() => getComputedStyle(document.querySelector('svg text')).fill"


def summary(page):
    """The items of the summary, from top to bottom, that are to be seen."""
    return page.evaluate(
        "() => [...document.querySelectorAll('.summary tbody tr')]"
        ".filter(row => row.getBoundingClientRect().height > 0)"
        ".sort((a, b) => a.getBoundingClientRect().top - b.getBoundingClientRect().top)"
        ".map(row => row.querySelector('a').getAttribute('href').slice(1))"
    )


def test_nothing_is_complained_about_and_nothing_else_is_loaded(page, report):
    page.wait_for_load_state("networkidle")
    assert page.complaints == []
    assert [url for url in page.requests if url[:5] != "data:"] == [report.as_uri()]


def test_every_picture_is_drawn_and_none_is_too_small_to_read(page):
    pictures = page.evaluate(
        "() => [...document.querySelectorAll('figure svg')].map(s => {"
        " const box = s.getBoundingClientRect();"
        " const words = [...s.querySelectorAll('text')];"
        " const heights = words.map(t => t.getBoundingClientRect().height);"
        " return [box.width, box.height, words.length,"
        "  s.querySelectorAll('path').length, Math.min(...heights)]; })"
    )
    # three panels each of three figures, two of two, and one in one piece
    assert len(pictures) == 3 * 3 + 2 * 2 + 1
    for width, height, n_words, n_paths, least in pictures:
        assert width >= 250
        assert height >= 150
        assert n_words >= 4
        assert n_paths >= 10
        assert least >= 7  # pixels


def test_nothing_sticks_out_to_the_side(page):
    page.evaluate("() => document.querySelectorAll('details').forEach(d => d.open = 1)")
    assert page.evaluate("() => document.documentElement.scrollWidth") <= page.width
    outside = page.evaluate(
        "() => [...document.querySelectorAll('h1, h2, h3, p, pre, dl, figure, .box,"
        " .pill, button, input')].filter(e => !e.closest('table'))"
        ".filter(e => e.getBoundingClientRect().right > innerWidth + 1)"
        ".map(e => e.outerHTML.slice(0, 80))"
    )
    assert outside == []


def test_a_wide_table_scrolls_in_its_own_box(page):
    box = page.evaluate(
        "() => { const b = document.querySelector('#table1 .box:not(.cards)');"
        " return [b.scrollWidth, b.clientWidth, getComputedStyle(b).overflowX]; }"
    )
    assert box[2] == "auto"
    assert (box[0] > box[1]) == (page.width == 390)


def test_ink_and_ground_follow_the_system_and_then_the_toggle(page):
    def is_light():
        ground, ink = lightness(page, GROUND), lightness(page, INK)
        assert abs(ground - ink) > 0.6
        return ground > 0.5

    before = page.scheme == "light"
    assert is_light() == before
    button = page.locator("button.theme")
    assert button.inner_text() == ("Dark" if before else "Light")
    button.click()
    assert is_light() != before
    assert button.inner_text() == ("Light" if before else "Dark")
    page.reload()
    assert is_light() != before
    button.click()
    assert is_light() == before


def test_heads_sort_by_number_one_way_and_then_the_other(page):
    as_printed = [item.name for item in fake_items()]
    assert summary(page) == as_printed
    time = page.locator(".summary th button", has_text="Time")
    # 2.5 s for each run; the number of runs is variants times two seeds, less 3
    runs = {item.name: 2 * len(item.variants) for item in fake_items()}
    runs["ablation"] -= 3
    time.click()
    rising = [runs[name] for name in summary(page)]
    assert rising == sorted(rising)
    assert rising != list(runs.values())
    time.click()
    falling = [runs[name] for name in summary(page)]
    assert falling == sorted(falling, reverse=True)
    page.locator(".summary th button", has_text="Item").click()
    assert summary(page) == as_printed


def test_what_cannot_be_told_comes_last_whichever_way(page):
    verdicts = page.locator(".summary th button", has_text="Verdicts")
    verdicts.click()
    rising = summary(page)
    assert rising[0] == "hyperparameters"  # none of one holds
    assert rising[-1] == "ablation"
    verdicts.click()
    falling = summary(page)
    assert falling[-1] == "ablation"
    assert falling[-2] == "hyperparameters"


def test_a_tables_text_sorts_by_letter_and_its_numbers_by_size(page):
    table = "#table1 .box:not(.cards)"
    page.locator(f"{table} th button", has_text="Method").click()
    methods = page.locator(f"{table} tbody td:nth-child(2)").all_inner_texts()
    assert methods == sorted(methods)
    page.locator(f"{table} thead th:nth-child(4) button").click()
    texts = page.locator(f"{table} tbody td:nth-child(4)").all_inner_texts()
    epochs = [float(text.split()[0]) for text in texts]
    assert epochs == sorted(epochs)


def test_words_in_the_field_filter_the_summary(page):
    field, count = page.locator(".tools input"), page.locator(".tools [aria-live]")
    field.fill("TRANSFORMER modular")
    assert summary(page) == ["transformer"]
    assert count.inner_text() == "1 of 8"
    field.fill("figure 7")
    assert summary(page) == ["zero_jacobian"]
    field.fill("no such words")
    assert summary(page) == []
    field.fill("")
    assert len(summary(page)) == 8
    assert count.inner_text() == ""


def test_a_link_of_the_summary_leads_to_its_section(page):
    page.locator(".summary a", has_text="Figure 7").click()
    top = page.evaluate(
        "() => document.querySelector('#zero_jacobian').getBoundingClientRect().top"
    )
    assert abs(top) < 60


def test_a_table_can_be_taken_along(page):
    with page.expect_download() as taken:
        page.locator("#table1 .files a", has_text="CSV").click()
    assert taken.value.suggested_filename == "table1.csv"
    text = taken.value.path().read_text(encoding="utf-8")
    assert text.startswith("size,preset,data,task,method,share,epochs,epochs_low,")
    assert len(text.splitlines()) == 21


@pytest.mark.parametrize("width", [390, 1400])
def test_without_scripts_all_is_there_and_nothing_pretends_to_answer(
    browser, report, width
):
    page = visited(browser, report, "light", width, java_script_enabled=False)
    assert page.locator(".summary tbody tr").count() == 8
    assert page.locator(".summary tbody tr").first.is_visible()
    assert page.locator("figure svg").first.is_visible()
    assert page.locator("button.theme").is_hidden()
    assert page.locator(".tools").is_hidden()
    assert page.locator("th button").count() == 0
    page.context.close()
