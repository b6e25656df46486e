"""Every Python block of every page runs, and every number is the measured one."""

import json
import re
import runpy
import signal
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
import pytest
import torch
from markdown_it import MarkdownIt

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))
README = DOCS.parent / "README.md"
PAGES = [README, *sorted(DOCS.glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
SECONDS = 120


@pytest.fixture
def limited(request):
    """Interrupt a page that takes too long, where the system can."""

    def stop(number, frame):
        pytest.fail(f"{request.node.name} took more than {SECONDS} seconds")

    if not hasattr(signal, "SIGALRM"):
        yield
        return
    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(SECONDS)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def test_the_readme_begins_with_the_two_commands_and_shows_three_short_snippets():
    text = README.read_text()
    assert text.index("make run") < text.index("make test") < 500
    blocks = BLOCK.findall(text)
    assert len(blocks) == 3
    assert all(len(block.splitlines()) < 10 for block in blocks)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_of_a_page_lead_somewhere(page):
    for target in re.findall(r"(?<!!)\[[^\]]+\]\(([^)#]+)\)", page.read_text()):
        assert "://" in target or (page.parent / target).exists(), target


@pytest.mark.parametrize(
    "page",
    sorted([*DOCS.parent.glob("*.md"), *DOCS.glob("*.md")]),
    ids=lambda page: page.stem,
)
def test_html_of_a_page_is_comments_and_no_text(page):
    """A line that begins with a comment is HTML: its links and bold text stay raw."""
    for token in MarkdownIt("commonmark").parse(page.read_text()):
        if token.type == "html_block":
            text = re.sub(r"<!--.*?-->", "", token.content, flags=re.DOTALL)
            assert not text.strip(), f"line {token.map[0] + 1}"


@pytest.mark.parametrize("start", ["", "  ", "- ", "> ", "1. ", "- text\n  "], ids=repr)
def test_a_value_at_the_beginning_of_a_line_is_refused(start):
    filled = runpy.run_path(str(DOCS / "tables.py"))["filled"]
    n = 2 + start.count("\n")
    for kind in "vn":
        page = f"text\n{start}<!--{kind}:tables-->120<!--/{kind}--> **bold**\n"
        with pytest.raises(ValueError, match=f"got one in line {n}"):
            filled(page)
    page = "text <!--n:tables-->120<!--/n-->\n"
    assert filled(page) == page


@pytest.mark.usefixtures("limited")
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_code_of_a_page_runs_in_order(page, tmp_path, monkeypatch):
    blocks = list(BLOCK.finditer(page.read_text()))
    if not blocks:
        pytest.skip("a page without code")
    monkeypatch.chdir(tmp_path)
    mpl.use("agg")
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    names: dict[str, object] = {"__name__": page.stem}
    try:
        for block in blocks:
            # Empty lines before it, so that an error names the line of the page.
            above = "\n" * (page.read_text()[: block.start(1)].count("\n"))
            exec(compile(above + block[1], str(page), "exec"), names)
    finally:
        torch.set_num_threads(threads)
        plt.close("all")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_pictures_of_a_page_are_there_and_small(page):
    for name in re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page.read_text()):
        if "://" in name:
            continue
        picture = page.parent / name
        assert picture.is_file(), name
        assert picture.stat().st_size < 300_000, name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_numbers_of_a_page_are_those_that_were_measured(page):
    figures = runpy.run_path(str(DOCS / "figures.py"))
    kept = figures["NUMBER"].findall(page.read_text())
    if not kept:
        pytest.skip("a page without measured numbers")
    measured = json.loads((DOCS / "images" / "numbers.json").read_text())["numbers"]
    for name, shown in kept:
        assert shown == measured[name], name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_tables_of_a_page_are_those_that_were_saved(page):
    tables = runpy.run_path(str(DOCS / "tables.py"))
    text = page.read_text()
    if not any(tables[kind].search(text) for kind in ("TABLE", "VALUE")):
        pytest.skip("a page without saved tables")
    assert tables["filled"](text) == text


def variant(ratio, other, *, grokked=3):
    """A result of one variant: epochs with the ratio and with another form."""
    shared = {"task": "mnist_ce, no biases, start x8", "seeds": 3, "weight": 1.0}
    none = {"form": "none", "grokked": 0, "mean_epoch": None, "test_accuracy": 0.5}
    told = [("power 2", other, 3), ("ratio", ratio, grokked)]
    forms = [{"form": f, "mean_epoch": e, "grokked": g} for f, e, g in told]
    lines = [{**shared, **line} for line in (none, *forms)]
    return {"epochs": {shared["task"]: 1000}, "lines": lines}


@pytest.mark.parametrize(
    ("result", "cell"),
    [
        (variant(ratio=40.0, other=90.0), "**40**"),
        (variant(ratio=90.0, other=40.0), "90"),
        (variant(ratio=40.2, other=40.4), "40"),
        (variant(ratio=40.0, other=90.0, grokked=2), "40 (2)"),
    ],
    ids=["sooner", "later", "the same as printed", "not all seeds"],
)
def test_the_ratio_is_bold_where_all_its_seeds_are_sooner(result, cell):
    tables = runpy.run_path(str(DOCS / "tables.py"))
    row = tables["powers_variants"](result)[2].strip("| ").split(" | ")
    assert row[:4] == ["cross-entropy", "no", "weights x8", "50 %"]
    assert row[5:] == [cell]


def contest(**changes):
    """A row of the benchmark of kernel machines."""
    seconds = {"ours": 2.0, "xrfm": 6.0, "plain": None}
    row = {"n": 2000, "d": 30, "k": 2, "n_iter": 1, "seconds": seconds}
    return {**row, "faster": {"xrfm": 3.0}, "differs": {"xrfm": 2e-4}, **changes}


def machine_rows(result):
    tables = runpy.run_path(str(DOCS / "tables.py"))
    lines = tables["KINDS"]["rfm"]({"records": result})
    return [[cell.strip() for cell in line.split("|")[1:-1]] for line in lines if line]


def test_a_contest_of_machines_shows_times_ratios_and_failures():
    header, rule, row = machine_rows({"a": [contest()]})
    assert header == [
        "(a) full fit",
        "ours",
        "xrfm",
        "plain transcription",
        "differ by",
    ]
    assert len(rule) == len(header)
    size = "n = 2000, d = 30, k = 2, 1 update"
    assert row == [size, "2 s", "6 s (**3.0x**)", "fails", "2e-04"]


def test_a_contestant_that_was_not_asked_has_an_empty_cell():
    alone = contest(seconds={"ours": 9.0}, faster={}, differs={})
    *_, row = machine_rows({"d": [contest(), alone]})
    assert row[1:] == ["9 s", "", "", ""]


def test_a_large_table_that_failed_says_why():
    *_, row = machine_rows({"e": [{"failed": "no room"}]})
    assert row == ["failed: no room", "", "", "", "", ""]


def test_a_table_without_its_file_is_not_measured_yet():
    tables = runpy.run_path(str(DOCS / "tables.py"))
    assert tables["table"]("rfm-no-such-machine") == "Not measured yet.\n"
