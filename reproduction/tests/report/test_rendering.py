import csv
import dataclasses
import html.parser
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.report.html import grid_table
from normalign_reproduction.report.tables import (
    FORMS,
    grid,
    latex,
    markdown,
    one_line,
    render,
)
from normalign_reproduction.spec import Column, Record, Run, Table

RUN = Run("tiny", 1, "quick", "released", "synthetic", {}, 0)
RECORDS = [Record(RUN, {})]
FROM = ["quick", "released", "synthetic data"]
# No surrogates and no control signs: no file of results has them.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=20)
NUMBER = st.floats(allow_nan=False) | st.integers(-(10**12), 10**12)


def table(rows, *, title="Title", note="", columns=None):
    columns = columns or [
        Column("name", "Name"),
        Column("value", "Value", "{:.2f}", "published", "reach"),
    ]
    return Table("tiny", title, lambda records: rows, columns, note)


ROW = {"name": "xor", "value": 1 / 3, "published": 0.5, "reach": (0.25, 0.75)}


def parsed(text):
    return list(csv.reader(io.StringIO(text)))


def markdown_cells(line):
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]]


def test_ours_stands_beside_the_papers_with_its_interval_after():
    written = grid(table([ROW]), RECORDS)
    assert [head.text for head in written.heads] == ["Name", "Value", "Value (paper)"]
    assert list(written.cells[0]) == ["xor", "0.33 [0.25, 0.75]", "0.50"]
    assert [head.paper for head in written.heads] == [False, False, True]
    assert [head.numeric for head in written.heads] == [False, True, True]


def test_what_is_missing_is_a_dash_without_an_interval():
    rows = [{"name": "xor", "value": None, "reach": (0, 1)}, {"value": float("nan")}]
    cells = grid(table(rows), RECORDS).cells
    assert [list(row) for row in cells] == [["xor", "–", "–"], ["–", "–", "–"]]


def test_booleans_are_words_and_text_is_itself():
    rows = [{"name": True, "value": "never"}, {"name": False, "value": 2}]
    cells = [list(row)[:2] for row in grid(table(rows), RECORDS).cells]
    assert cells == [["yes", "never"], ["no", "2.00"]]


@pytest.mark.parametrize("form", ["table", "md", "tex"])
def test_the_size_stands_in_the_title(form):
    text = render(table([ROW]), RECORDS, form=form, about="quick size, 2 seeds")
    assert "Title (quick size, 2 seeds)" in text


def test_in_csv_size_preset_and_data_are_columns():
    rows = parsed(render(table([ROW]), RECORDS, form="csv", about="quick size"))
    assert rows[0] == [
        "size",
        "preset",
        "data",
        "name",
        "value",
        "value_low",
        "value_high",
        "value_paper",
    ]
    assert rows[1] == [*FROM, "xor", repr(1 / 3), "0.25", "0.75", "0.5"]


def test_in_csv_a_row_may_have_data_of_its_own():
    digits = dataclasses.replace(RUN, data="mnist", size="full", preset="text")
    both = [*RECORDS, Record(digits, {})]
    made = table([ROW, {**ROW, "data": "MNIST"}])
    rows = parsed(render(made, both, form="csv", about=""))
    assert rows[1][:3] == ["full/quick", "released/text", "synthetic data and MNIST"]
    assert rows[2][2] == "MNIST"


def test_csv_leaves_empty_what_is_missing():
    rows = parsed(render(table([{"name": "xor"}]), RECORDS, form="csv", about=""))
    assert rows[1] == [*FROM, "xor", "", "", "", ""]


@given(
    st.lists(
        st.fixed_dictionaries(
            {"name": TEXT, "value": NUMBER, "published": st.none() | NUMBER}
        ),
        max_size=5,
    )
)
def test_csv_reads_back_to_the_last_digit(rows):
    back = parsed(render(table(rows), RECORDS, form="csv", about="any"))
    assert len(back) == len(rows) + 1
    for row, line in zip(rows, back[1:], strict=True):
        assert line[3] == row["name"]
        assert float(line[4]) == row["value"]
        paper = None if line[7] == "" else float(line[7])
        assert paper == row["published"]


@given(title=TEXT, name=TEXT, head=TEXT, note=TEXT)
def test_no_text_breaks_out_of_a_markdown_table(title, name, head, note):
    columns = [Column("name", head), Column("value", "Value")]
    made = table([{"name": name, "value": 1}], title=title, note=note, columns=columns)
    lines = render(made, RECORDS, form="md", about="quick").splitlines()
    assert lines[0].startswith("**")
    assert lines[1] == ""
    assert [len(markdown_cells(line)) for line in lines[2:5]] == [2, 2, 2]
    assert not any(re.search(r"[<>]", line) for line in lines)
    assert len(lines) == (7 if one_line(note) else 5)


@given(title=TEXT, name=TEXT, head=TEXT)
def test_no_text_breaks_out_of_a_latex_table(title, name, head):
    columns = [Column("name", head), Column("value", "Value")]
    made = table([{"name": name, "value": 1}], title=title, columns=columns)
    lines = render(made, RECORDS, form="tex", about="quick").splitlines()
    body = lines[lines.index(r"    \toprule") : lines.index(r"    \bottomrule")]
    assert len(body) == 4
    for line in (body[1], body[3]):
        assert len(re.findall(r"(?<!\\)&", line)) == 1
        assert line.endswith(r" \\")
    text = "\n".join(lines[1:])
    assert not re.search(r"(?<!\\)[%#_]", text)
    braces = re.sub(r"\\[{}]", "", text)
    assert braces.count("{") == braces.count("}")


@given(title=TEXT, name=TEXT, head=TEXT)
def test_no_text_becomes_markup_of_a_page(title, name, head):
    class Reader(html.parser.HTMLParser):
        def __init__(self):
            super().__init__()
            self.tags, self.words = [], []

        def handle_starttag(self, tag, attrs):
            self.tags.append(tag)

        def handle_data(self, data):
            self.words.append(data)

    columns = [Column("name", head)]
    made = table([{"name": name}], title=title, columns=columns)
    reader = Reader()
    reader.feed(grid_table(grid(made, RECORDS)))
    reader.close()
    assert reader.tags == ["div", "table", "thead", "tr", "th", "tbody", "tr", "th"]
    assert one_line(name) in one_line("".join(reader.words))


def test_a_bracket_in_a_terminal_table_is_itself():
    text = render(
        table([{"name": "[red]xor[/red]"}], title="[b]T[/b]"), RECORDS,
        form="table", about="quick",
    )  # fmt: skip
    assert "[red]xor[/red]" in text
    assert "[b]T[/b] (quick)" in text


def test_a_terminal_table_keeps_whole_numbers_and_no_colours():
    text = render(table([ROW], note="A note."), RECORDS, form="table", about="quick")
    assert "0.33 [0.25, 0.75]" in text
    assert "A note." in text
    assert "\x1b" not in text


@pytest.mark.parametrize("n_columns", [3, 12, 40])
def test_a_terminal_table_cuts_nothing(n_columns):
    words = [f"word{i}" + "-and-more" * 2 for i in range(n_columns)]
    columns = [Column(word, f"head {word}") for word in words]
    made = table([{word: f"{word} twice {word}" for word in words}], columns=columns)
    text = render(made, RECORDS, form="table", about="quick")
    assert "…" not in text
    assert n_columns == 40 or max(map(len, text.splitlines())) <= 160
    # all letters are there, in whichever line
    wanted = "".join(f"head{word}{word}twice{word}" for word in words)
    body = text.partition("\n")[2]
    assert {c: body.count(c) for c in set(wanted)} == {
        c: wanted.count(c) for c in set(wanted)
    }


def test_numbers_of_a_terminal_table_stay_on_one_line_where_words_can_give_way():
    long = {**ROW, "name": "a name of many words " * 20}
    text = render(table([long]), RECORDS, form="table", about="quick")
    assert "0.33 [0.25, 0.75]" in text


def test_signs_of_mathematics_are_set_by_latex():
    assert latex("γ ≥ 5 %_x^2") == r"$\gamma$ $\geq$ 5 \%\_x\textasciicircum{}2"


def test_markdown_shows_signs_as_they_are():
    assert markdown("a|b_c<d>&") == r"a\|b\_c&lt;d&gt;&amp;"


def test_an_unknown_format_is_refused():
    with pytest.raises(ValueError, match=f"form must be one of {', '.join(FORMS)}"):
        render(table([]), [], form="pdf", about="")
