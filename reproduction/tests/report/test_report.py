import argparse
import csv
import dataclasses
import hashlib
import html.parser
import io
import subprocess
import sys
from xml.etree import ElementTree

import pytest

from normalign_reproduction import catalogue
from normalign_reproduction.commands import report, show
from normalign_reproduction.files import write_bytes
from normalign_reproduction.report import files as kept_files
from normalign_reproduction.report.files import sync_files, write_report
from normalign_reproduction.report.outcome import (
    differences,
    duration_words,
    origin,
    outcome,
)
from normalign_reproduction.report.svg import svg_file
from normalign_reproduction.spec import Record, Size
from normalign_reproduction.store import Store
from tests.fakes import MADE, fake_items, result, store_of

ITEMS = fake_items()
BY_NAME = {item.name: item for item in ITEMS}
ASKED = {"size": "quick", "preset": "released", "digits": "digits_5000"}
SVG = "{http://www.w3.org/2000/svg}"
VOID = {"meta", "link", "br", "input"}


def written(out, items, store, **more):
    asked = {**ASKED, "command": "normalign reproduce", **more}
    return write_report(out, items=items, store=store, **asked)


def run(monkeypatch, command, *words):
    monkeypatch.setattr(catalogue, "NAMES", tuple(BY_NAME))
    monkeypatch.setattr(catalogue, "item", BY_NAME.__getitem__)
    parser = argparse.ArgumentParser()
    command.add_to(parser.add_subparsers())
    arguments = parser.parse_args([command.__name__.rpartition(".")[2], *words])
    return arguments.run(arguments)


class Page(html.parser.HTMLParser):
    """Checks that tags close, and keeps texts, identifiers and what is loaded."""

    def __init__(self, text):
        super().__init__()
        self.open, self.words, self.names, self.loads = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attrs):
        about = dict(attrs)
        if "id" in about:
            self.names.append(about["id"])
        for name in ("src", "href", "xlink:href"):
            if name in about and not about[name].startswith(("#", "data:")):
                self.loads.append(about[name])
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.words.append(data)

    @property
    def text(self):
        return " ".join("".join(self.words).split())


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A report of all items, of which one lacks runs and one has none."""
    out = tmp_path_factory.mktemp("out")
    store = store_of(ITEMS[:-2], out / "results")
    store_of(ITEMS[-1:], out / "results", skip=3)
    return written(out, ITEMS, store)


@pytest.fixture(scope="module")
def page(made):
    return Page(made.read_text(encoding="utf-8"))


def test_it_is_one_page_that_loads_nothing(page):
    assert page.loads == []
    assert len(page.names) == len(set(page.names))
    assert {item.name for item in ITEMS} <= set(page.names)


def test_every_item_says_what_the_paper_shows_and_what_ours_does(page):
    for item in ITEMS:
        assert item.title in page.text
        assert item.shows in page.text
    assert "GrokAlign groks first in 4 of 5." in page.text
    assert "The alignment ends at" in page.text


def test_quick_stands_with_every_finding_figure_and_table(page):
    assert page.text.count("Ours shows (quick size") == len(ITEMS)
    assert page.text.count("Epochs to grokking quick size") == 1
    assert page.text.count("Does it agree? quick size") == len(ITEMS)


def test_missing_runs_are_said_with_the_command_that_makes_them(page):
    ablation = "5 of 8 runs are there. normalign reproduce ablation"
    assert f"{ablation} --digits digits_5000 makes" in page.text
    hyper = "0 of 16 runs are there. normalign reproduce hyperparameters makes"
    assert hyper in page.text


def test_tables_and_figures_are_files_too(made):
    names = {path.name for path in (made.parent / "tables").iterdir()}
    assert names == {"table1.csv", "table1.md", "table1.tex"}
    figures = sorted((made.parent / "figures").iterdir())
    assert [path.stem for path in figures] == sorted(
        item.name for item in ITEMS if item.figures
    )
    for path in figures:
        root = ElementTree.parse(path).getroot()
        assert root.tag.endswith("svg")
        assert len(list(root.iter("{http://www.w3.org/2000/svg}path"))) > 4


def test_what_differs_is_read_off_the_settings(tmp_path):
    item = BY_NAME["zero_jacobian"]
    store = store_of([item], tmp_path)
    found = outcome(item, size="quick", preset="released", store=store)
    assert differences(found) == [
        "5000 embedded digits in place of MNIST",
        "epochs 300 instead of 10000",
        "2 seeds instead of 3",
    ]


def test_a_difference_of_some_variants_says_of_which():
    item = BY_NAME["ablation"]
    variants = [
        {**variant, "width": 100 if variant["strategy"] == "baseline" else 256}
        for variant in item.variants[:2]
    ]
    sizes = {**item.sizes, "quick": Size(3, variants=variants)}
    small = dataclasses.replace(item, sizes=sizes)
    asked = {"size": "quick", "preset": "released", "digits": "mnist"}
    found = outcome(small, store=Store("nowhere"), **asked)
    assert differences(found) == [
        "strategy baseline: width 100 instead of 256",
        "2 variants instead of 4",
    ]


def test_at_full_size_nothing_differs(tmp_path):
    item = BY_NAME["kernel_logistic"]
    found = outcome(item, size="full", preset="released", store=Store(tmp_path))
    assert differences(found) == []


def test_data_of_some_variants_say_of_which(tmp_path):
    item = dataclasses.replace(
        BY_NAME["table1"], needs_digits=lambda s: s["task"].startswith("MNIST")
    )
    found = outcome(item, store=store_of([item], tmp_path), **ASKED)
    assert found.complete
    assert found.data == "synthetic data and 5000 embedded digits"
    lines = differences(found)
    assert lines[0] == "task MNIST CE, MNIST SE: 5000 embedded digits in place of MNIST"
    assert not any("MNIST" in line for line in lines[1:])
    on_mnist = outcome(item, store=Store(tmp_path), **{**ASKED, "digits": "mnist"})
    assert not any("embedded" in line for line in differences(on_mnist))


@pytest.mark.parametrize("departures", [(), ("a <ramp> of 10 steps", "no warm-up")])
def test_nothing_differs_only_where_no_departure_is_given(tmp_path, departures):
    item = dataclasses.replace(BY_NAME["kernel_logistic"], departures=departures)
    store = store_of([item], tmp_path / "results", size="full")
    text = Page(written(tmp_path, [item], store, size="full").read_text()).text
    assert ("nothing: all settings" in text) == (not departures)
    assert ("Full size: the paper's." in text) == (not departures)
    for line in departures:
        assert line in text
        assert text.index("What differs from the paper", 1000) < text.index(line)


def test_show_tells_what_differs(tmp_path, monkeypatch, capsys):
    departures = ("a <ramp> of 10 steps",)
    item = dataclasses.replace(BY_NAME["kernel_logistic"], departures=departures)
    monkeypatch.setitem(BY_NAME, item.name, item)
    store_of([item], tmp_path / "results")
    for form, line in {
        "table": "- a <ramp> of 10 steps",
        "md": "- a &lt;ramp&gt; of 10 steps",
        "tex": "% - a <ramp> of 10 steps",
    }.items():
        words = (item.name, "--format", form, "--out", str(tmp_path))
        assert run(monkeypatch, show, *words) == 0
        told = capsys.readouterr().out.splitlines()
        assert line in told
        assert line.partition("a")[0] + "epochs 300 instead of 10000" in told


def test_where_numbers_come_from_is_said_once(tmp_path):
    item = BY_NAME["kernel_logistic"]
    store = store_of([item], tmp_path)
    facts = origin(outcome(item, size="quick", preset="released", store=store))
    assert facts["commit"] == MADE["commit"]
    assert facts["runs"] == "6 of 6"
    # six runs of batches of five that took 12.5 s each
    assert facts["computing"] == duration_words(6 * 12.5 / 5)


def test_digits_are_those_of_which_more_runs_are_finished(tmp_path):
    item = BY_NAME["ablation"]
    asked = {"size": "quick", "preset": "released"}
    empty = outcome(item, store=Store(tmp_path), **asked)
    assert empty.data == "MNIST"
    store = store_of([item], tmp_path)
    assert outcome(item, store=store, **asked).data == "5000 embedded digits"
    asked["digits"] = "mnist"
    assert outcome(item, store=store, **asked).records == []


def test_the_same_results_give_the_same_bytes(tmp_path):
    item = BY_NAME["zero_jacobian"]
    pages = []
    for name in ("one", "two"):
        store = store_of([item], tmp_path / name / "results")
        written(tmp_path / name, [item], store)
        files = sorted((tmp_path / name).rglob("*.*"))
        pages.append(
            [f.read_bytes() for f in files if f.suffix in (".html", ".svg", ".csv")]
        )
    assert pages[0] == pages[1]


def test_words_of_an_item_never_become_markup(tmp_path):
    odd = "<script>alert('x')</script> & \"q\" {x} %_$"
    item = dataclasses.replace(
        BY_NAME["table1"], title=odd, shows=odd, reference=odd,
        finding=lambda records: odd,
    )  # fmt: skip
    store = store_of([item], tmp_path / "results")
    text = written(tmp_path, [item], store).read_text(encoding="utf-8")
    assert "<script>alert" not in text
    assert Page(text).text.count("<script>alert('x')</script>") >= 4


def test_an_item_that_cannot_be_drawn_yet_does_not_stop_the_page(tmp_path):
    item = BY_NAME["table1"]

    def rows(records):
        return [{"task": records[len(item.variants) * 2 - 1]["task"]}]

    table = dataclasses.replace(item.tables[0], rows=rows)
    item = dataclasses.replace(item, tables=[table])
    store = store_of([item], tmp_path / "results", skip=1)
    text = Page(written(tmp_path, [item], store).read_text(encoding="utf-8")).text
    assert "39 of 40 runs are there" in text
    assert not (tmp_path / "tables").exists()


def test_no_items_are_refused(tmp_path):
    with pytest.raises(ValueError, match="items must be non-empty"):
        written(tmp_path, [], Store(tmp_path))


def test_writing_it_does_not_import_torch(tmp_path):
    code = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.fakes import fake_items, store_of\n"
        "from normalign_reproduction.report.files import write_report\n"
        f"out = Path({str(tmp_path)!r})\n"
        "items = fake_items()[2:4]\n"
        "write_report(out, items=items, size='quick', preset='released',\n"
        "    digits='digits_5000', store=store_of(items, out), command='x')\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_show_writes_tables_and_ends_of_curves(tmp_path, monkeypatch, capsys):
    store_of([BY_NAME["table1"], BY_NAME["ablation"]], tmp_path / "results")
    out = ("--out", str(tmp_path))
    assert run(monkeypatch, show, "table1", "ablation", *out) == 0
    text = capsys.readouterr().out
    assert "Epochs to grokking (quick size" in text
    assert "Which gradient penalty: where the curves end (quick size" in text
    assert run(monkeypatch, show, "ablation", "--format", "csv", *out) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert rows[0]["strategy"] == "GrokAlign"
    assert len(rows) == 4
    assert all(float(row["effective_rank"]) >= 1 for row in rows)


def test_show_writes_a_figure_as_svg(tmp_path, monkeypatch, capsys):
    store_of([BY_NAME["construction"]], tmp_path / "results")
    words = ("construction", "--format", "svg", "--out", str(tmp_path))
    assert run(monkeypatch, show, *words) == 0
    text = capsys.readouterr().out
    assert ElementTree.fromstring(text.encode()).tag.endswith("svg")
    with pytest.raises(ValueError, match="--part must be one of construction, got 'x'"):
        run(monkeypatch, show, *words, "--part", "x")


@pytest.mark.parametrize("form", ["table", "md", "csv", "tex"])
def test_show_of_a_figure_without_curves_has_its_numbers(
    tmp_path, monkeypatch, capsys, form
):
    store_of([BY_NAME["construction"]], tmp_path / "results")
    words = ("construction", "--format", form, "--out", str(tmp_path))
    assert run(monkeypatch, show, *words) == 0
    text = capsys.readouterr().out
    assert "points" in text
    assert "epochs" in text
    if form == "csv":
        rows = list(csv.DictReader(io.StringIO(text)))
        assert [row["points"] for row in rows] == ["5", "10"]
        assert all(100 <= float(row["epochs"]) < 140 for row in rows)


def test_show_of_results_without_numbers_has_the_claims(tmp_path, monkeypatch, capsys):
    item = BY_NAME["construction"]
    store = Store(tmp_path / "results")
    for one in item.runs(**ASKED):
        store.write(one, {"history": result(one)["history"]}, dict(MADE))
    assert run(monkeypatch, show, item.name, "--out", str(tmp_path)) == 0
    assert "alignment rises" in capsys.readouterr().out


@pytest.mark.parametrize("name", ["construction", "sparsity"])
def test_a_figures_file_says_what_it_is_from(tmp_path, name):
    item = BY_NAME[name]
    store = store_of([item], tmp_path / "results")
    written(tmp_path, [item], store)
    root = ElementTree.parse(tmp_path / "figures" / f"{name}.svg").getroot()
    about = outcome(item, store=store, **ASKED).about
    assert about.startswith("quick size, released preset, ")
    assert root.get("aria-label") == f"{item.figures[0].caption} ({about})"
    words = list(root.iter(f"{SVG}text"))
    feet = [word for word in words if word.get("style", "").startswith("font: 8px")]
    assert " ".join(word.text for word in feet) == about
    # below the drawing, and within the picture
    _, _, width, height = map(float, root.get("viewBox").split())
    drawn = float(root.find(f".//{SVG}g[@id='{name}-patch_1']/{SVG}path").get("d")
                  .split()[2])  # fmt: skip
    assert all(drawn < float(word.get("y")) < height for word in feet)
    assert all(4 + 8 * 0.56 * len(word.text) <= width for word in feet)
    assert root.get("height") == f"{height:g}pt"


def test_without_words_a_figures_file_says_what_its_records_are_from():
    item = BY_NAME["construction"]
    records = [Record(one, result(one)) for one in item.runs(**ASKED)]
    text = svg_file(item.figures[0], records, name="x")
    assert ">quick size, released preset, synthetic data</text>" in text


def test_a_report_removes_what_an_earlier_one_wrote_and_nothing_else(tmp_path):
    table, drawing = BY_NAME["table1"], BY_NAME["construction"]
    store = store_of([table, drawing], tmp_path / "results")
    written(tmp_path, [table, drawing], store)
    own = tmp_path / "figures" / "mine.svg"
    own.write_text("<svg/>")
    changed = tmp_path / "tables" / "table1.md"
    changed.write_text(changed.read_text() + "A remark.")
    # no run of this size is there: nothing of the quick ones may stay beside its page
    written(tmp_path, [table, drawing], store, size="full")
    for folder, kept in (("tables", [changed]), ("figures", [own])):
        assert list((tmp_path / folder).iterdir()) == kept


def test_what_a_report_writes_again_stays(tmp_path):
    item = BY_NAME["construction"]
    store = store_of([item], tmp_path / "results")
    written(tmp_path, [item], store)
    before = (tmp_path / "figures" / "construction.svg").read_bytes()
    written(tmp_path, [item], store)
    assert (tmp_path / "figures" / "construction.svg").read_bytes() == before


@pytest.mark.parametrize(
    "content",
    [
        "{", "[]", '{"a.txt": 3, "b.txt": [[1]]}',
        '{"../outside.txt": ["DIGEST"]}', '{"/OUTSIDE": ["DIGEST"]}',
    ],
)  # fmt: skip
def test_a_list_that_is_broken_or_points_outside_removes_nothing(tmp_path, content):
    outside, folder = tmp_path / "outside.txt", tmp_path / "out"
    outside.write_text("mine")
    folder.mkdir()
    digest = hashlib.sha256(b"mine").hexdigest()
    content = content.replace("DIGEST", digest).replace("/OUTSIDE", str(outside))
    (folder / "list.json").write_text(content)
    sync_files(folder, {"tables/a.md": "text"}, list_name="list.json")
    assert outside.read_text() == "mine"
    assert (folder / "tables" / "a.md").read_text() == "text"
    sync_files(folder, {}, list_name="list.json")
    assert not (folder / "tables" / "a.md").exists()


def test_a_report_that_was_stopped_halfway_leaves_nothing_unknown(
    tmp_path, monkeypatch
):
    sync_files(tmp_path, {"a": "1"}, list_name="list.json")

    def full(path, content):
        if path.name == "b":
            raise OSError(28, "no space left")
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr(kept_files, "write_bytes", full)
        with pytest.raises(OSError, match="no space"):
            sync_files(tmp_path, {"a": "2", "c": "3", "b": "4"}, list_name="list.json")
    assert (tmp_path / "a").read_text() == "2"
    sync_files(tmp_path, {}, list_name="list.json")
    assert {path.name for path in tmp_path.iterdir()} == {"list.json"}


def test_show_of_nothing_says_how_to_make_it(tmp_path, monkeypatch, capsys):
    assert run(monkeypatch, show, "table1", "--out", str(tmp_path)) == 1
    told = capsys.readouterr()
    assert told.out == ""
    assert "0 of 40 runs are there" in told.err
    assert "normalign reproduce table1 --preset released" in told.err


def test_one_csv_holds_one_item(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="must have exactly one NAME, got none"):
        run(monkeypatch, show, "--format", "csv", "--out", str(tmp_path))


def test_report_writes_the_page_again(tmp_path, monkeypatch, capsys):
    store_of([BY_NAME["table1"]], tmp_path / "results")
    opened = []
    monkeypatch.setattr("webbrowser.open", opened.append)
    words = ("table1", "--open", "--out", str(tmp_path))
    assert run(monkeypatch, report, *words) == 0
    path = tmp_path / "report.html"
    assert capsys.readouterr().out == f"report: {path}\n"
    assert opened == [path.absolute().as_uri()]
    assert "normalign report table1" in Page(path.read_text(encoding="utf-8")).text


def test_other_seeds_sizes_and_presets_are_other_runs(tmp_path):
    item = BY_NAME["table1"]
    store = store_of([item], tmp_path)
    asked = {"size": "quick", "preset": "released", "store": store}
    assert outcome(item, **asked).complete
    assert not outcome(item, **{**asked, "size": "full"}).records
    assert not outcome(item, **{**asked, "preset": "text"}).records
    assert outcome(item, **asked, seeds=1).complete
    more = outcome(item, **asked, seeds=3)
    assert (len(more.records), len(more.runs)) == (40, 60)
    assert more.command.endswith("--seeds 3")


def test_the_results_of_the_fakes_are_the_same_each_time():
    run_ = ITEMS[0].runs(**ASKED)[0]
    assert result(run_) == result(run_)
