import math
import re
import subprocess
import sys

import matplotlib as mpl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from normalign_reproduction.report.contents import curve_ends, run_numbers
from normalign_reproduction.report.panels import (
    COLOURS,
    Panel,
    Panels,
    PointsPanel,
    final_value,
    mean_curve,
    spread,
)
from normalign_reproduction.spec import Figure, Record, Run

mpl.use("agg")

FINITE = st.floats(-1e6, 1e6)


def record(seed=0, *, columns=None, result=None, **settings):
    run = Run("tiny", 1, "quick", "released", "synthetic", settings, seed)
    content = {} if columns is None else {"history": {"columns": columns}}
    return Record(run, {**content, **(result or {})})


def line(seed, slope, **settings):
    """A run whose curve is the slope times the epoch, at epochs 0 to 100."""
    epochs = [0, 1, 10, 100]
    return record(
        seed, columns={"epoch": epochs, "loss": [slope * e for e in epochs]}, **settings
    )


LOSS = Panel(x="epoch", y="loss", ylabel="Loss")


def drawn_lines(figure, panel=0):
    return [
        (list(one.get_xdata()), list(one.get_ydata()))
        for one in figure.axes[panel].get_lines()
    ]


def test_a_line_is_the_mean_over_seeds_at_each_positive_epoch():
    records = [line(0, 1.0, width=4), line(1, 3.0, width=4)]
    figure = Panels(panels=[LOSS], by="width")(records)
    assert drawn_lines(figure) == [([1, 10, 100], [2.0, 20.0, 200.0])]
    assert figure.axes[0].get_xscale() == "log"


def test_a_linear_axis_keeps_epoch_zero():
    panel = Panel(x="epoch", y="loss", log_x=False)
    figure = Panels(panels=[panel])([line(0, 1.0)])
    assert drawn_lines(figure)[0][0] == [0, 1, 10, 100]


def test_the_band_reaches_from_least_to_greatest_of_few_seeds():
    records = [line(seed, slope, width=4) for seed, slope in enumerate([1.0, 2.0, 6.0])]
    figure = Panels(panels=[LOSS], by="width")(records)
    heights = figure.axes[0].collections[0].get_paths()[0].vertices[:, 1]
    assert (heights.min(), heights.max()) == (1.0, 600.0)


def test_five_seeds_have_a_band_of_one_standard_deviation():
    # deviations -2 ... 2 of 3: variance 10 / 4
    made = spread([1.0, 2.0, 3.0, 4.0, 5.0])
    assert made.mean == 3.0
    assert made.high - made.mean == pytest.approx(math.sqrt(2.5))
    assert made.mean - made.low == pytest.approx(math.sqrt(2.5))


@given(st.lists(FINITE, min_size=1, max_size=12))
def test_the_mean_lies_in_its_band(values):
    made = spread(values)
    slack = 1e-9 * (1 + max(map(abs, values)))  # of float64 sums
    assert made.low - slack <= made.mean <= made.high + slack
    assert made.n == len(values)


@given(st.lists(st.tuples(FINITE, FINITE), min_size=1, max_size=8))
def test_seeds_evaluated_at_the_same_epochs_are_averaged_exactly(pairs):
    epochs = list(range(1, len(pairs) + 1))
    records = [
        record(seed, columns={"epoch": epochs, "y": [pair[seed] for pair in pairs]})
        for seed in (0, 1)
    ]
    curve = mean_curve(records, "epoch", "y", log=True)
    assert curve.x == epochs
    assert curve.mean == pytest.approx([(a + b) / 2 for a, b in pairs])
    assert curve.low == [min(pair) for pair in pairs]


def test_seeds_evaluated_elsewhere_are_read_between_on_the_axis():
    coarse = record(0, columns={"epoch": [1, 100], "y": [0.0, 2.0]})
    fine = record(1, columns={"epoch": [1, 10, 100], "y": [0.0, 1.0, 2.0]})
    # 10 is half way from 1 to 100 on a logarithmic axis, 9/99 on a linear one
    assert mean_curve([coarse, fine], "epoch", "y", log=True).mean == [0.0, 1.0, 2.0]
    straight = mean_curve([coarse, fine], "epoch", "y").mean[1]
    assert straight == pytest.approx((1 + 2 * 9 / 99) / 2)


def test_a_run_that_ended_early_counts_as_far_as_it_goes():
    short = record(0, columns={"epoch": [1, 2], "y": [0.0, 0.0]})
    whole = record(1, columns={"epoch": [1, 2, 3], "y": [2.0, 2.0, 2.0]})
    assert mean_curve([short, whole], "epoch", "y").mean == [1.0, 1.0, 2.0]


def test_what_is_not_finite_is_left_out():
    odd = record(0, columns={"epoch": [1, 2, 3], "y": [1.0, "nan", 3.0]})
    assert mean_curve([odd], "epoch", "y").x == [1.0, 3.0]
    assert spread([math.nan, math.inf]) is None


def test_numbers_are_lines_from_small_to_large_in_the_order_of_viridis():
    records = [line(0, 1.0, strength=s) for s in (10, 2, 0.5)]
    lines = Panels(panels=[LOSS], by="strength").lines(records)
    assert [one.label for one in lines] == ["0.5", "2", "10"]
    greens = [int(one.colour[3:5], 16) for one in lines]
    assert greens == sorted(greens)
    assert len({one.colour for one in lines}) == 3


def test_words_are_lines_in_the_order_of_the_labels():
    records = [line(0, 1.0, method=m) for m in ("other", "b", "a")]
    panels = Panels(panels=[LOSS], by="method", labels={"a": "First", "b": "Second"})
    lines = panels.lines(records)
    assert [one.label for one in lines] == ["First", "Second", "other"]
    assert [one.colour for one in lines] == list(COLOURS[:3])


def test_colours_are_different_ones_if_not_sequential():
    records = [line(0, 1.0, classes=k) for k in (6, 8)]
    panels = Panels(panels=[LOSS], by="classes", sequential=False)
    assert [one.colour for one in panels.lines(records)] == list(COLOURS[:2])


def test_the_legend_stands_where_it_is_asked_for():
    records = [line(0, 1.0, width=w) for w in (1, 2)]
    inside = Panels(panels=[LOSS, LOSS], by="width", legend=1)(records)
    assert inside.axes[0].get_legend() is None
    words = [text.get_text() for text in inside.axes[1].get_legend().get_texts()]
    assert words == ["1", "2"]
    below = Panels(panels=[LOSS], by="width", legend="below")(records)
    assert below.axes[0].get_legend() is None
    assert len(below.legends) == 1


def test_apart_each_panel_is_a_figure_without_the_shared_legend():
    records = [line(0, 1.0, width=w) for w in (1, 2)]
    one, other = Panels(panels=[LOSS, LOSS], by="width").apart()
    assert len(one(records).axes) == len(other(records).axes) == 1
    assert one(records).axes[0].get_legend() is None


def test_several_columns_of_a_panel_have_their_own_dashes_and_names():
    columns = {"epoch": [1, 10], "train": [0, 1], "test": [0, 0.5]}
    panel = Panel(x="epoch", y={"train": "Train", "test": "Test"})
    figure = Panels(panels=[panel])([record(0, columns=columns)])
    styles = [one.get_linestyle() for one in figure.axes[0].get_lines()]
    words = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert styles == ["-", "--"]
    assert words == ["Train", "Test"]


def test_points_draw_a_setting_of_zero_where_they_are_told():
    records = [record(0, gamma=g, result={"accuracy": g / 1000}) for g in (100, 0, 10)]
    panel = PointsPanel(
        x="gamma", ys={"accuracy": "Clean"}, zero_at=0.1, scale=100, xlabel="γ"
    )
    figure = Panels(panels=[panel], by="gamma")(records)
    assert drawn_lines(figure) == [([0.1, 10, 100], [0.0, 1.0, 10.0])]
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["0", "10", "100"]


def test_a_final_value_is_the_results_own_or_the_last_finite_one_of_a_column():
    columns = {"epoch": [1, 2, 3], "y": [1.0, 2.0, "nan"]}
    assert final_value(record(0, columns=columns), "y") == 2.0
    assert final_value(record(0, columns=columns, result={"y": 7}), "y") == 7.0
    assert math.isnan(final_value(record(0, result={"y": None}), "y"))


def test_an_unknown_column_is_refused_with_those_there_are():
    with pytest.raises(ValueError, match="must be one of epoch, loss, got 'accuracy'"):
        Panels(panels=[Panel(x="epoch", y="accuracy")])([line(0, 1.0)])
    with pytest.raises(ValueError, match="records must be non-empty"):
        Panels(panels=[LOSS])([])


def test_powers_of_ten_are_written_as_text():
    columns = {"epoch": [1, 10**6], "y": [1e-5, 1.0]}
    figure = Panels(panels=[Panel(x="epoch", y="y", log_y=True)])(
        [record(0, columns=columns)]
    )
    figure.canvas.draw()
    axis = figure.axes[0]
    labels = [t.get_text() for t in (*axis.get_xticklabels(), *axis.get_yticklabels())]
    # Which powers have a tick depends on matplotlib; how they are written does not.
    assert {"1", "10⁻⁴"} <= set(labels)
    assert {"10⁴", "10⁵", "10⁶"} & set(labels)
    plain = {"0.01", "0.1", "1", "10", "100", "1000"}
    assert all(
        label in plain or re.fullmatch("10[⁻⁰¹²³⁴-⁹]+", label) for label in labels
    )


def test_where_curves_end_is_a_table_with_a_row_for_each_line():
    records = [line(s, slope, width=w) for w, s, slope in [(2, 0, 1.0), (2, 1, 3.0)]]
    records += [line(0, 5.0, width=1)]
    table = curve_ends(Figure("f", Panels(panels=[LOSS], by="width"), "A caption"))
    first, second = table.rows(records)
    assert (first["width"], first["loss"], first["loss_interval"]) == ("1", 500.0, None)
    assert (second["loss"], second["n"]) == (200.0, 2)
    low, high = second["loss_interval"]
    assert (low + high) / 2 == pytest.approx(200.0)
    assert curve_ends(Figure("f", lambda records: None, "Not of panels")) is None


def test_ends_of_curves_in_percent_say_so():
    share = {"clean": "Clean", "robust": "Robust"}
    panels = [
        Panel(x="epoch", y=share, ylabel="Accuracy (%)", scale=100),
        PointsPanel(x="width", ys={"rank": "Rank"}, scale=100),
    ]
    table = curve_ends(Figure("f", Panels(panels=panels), "A caption"))
    curves = {"epoch": [1], "clean": [0.5], "robust": [0.25]}
    (row,) = table.rows([record(columns=curves, result={"rank": 2.0}, width=1)])
    heads = {column.name: column.title for column in table.columns[2:]}
    assert heads == {
        "clean_percent": "Accuracy (%): Clean",
        "robust_percent": "Accuracy (%): Robust",
        "rank": "Rank",
    }
    assert (row["clean_percent"], row["robust_percent"], row["rank"]) == (50, 25, 200)


def test_a_figure_without_curves_has_the_numbers_of_its_runs():
    figure = Figure("f", lambda records: None, "Not of panels")
    records = [
        record(seed, width=width, result={"norms": [seed, width], "rank": 2,
               "points": [[0, 1]], "ended": "epochs", "flat": True})
        for width in (3, 5) for seed in (0, 1)
    ]  # fmt: skip
    table = run_numbers(figure, records)
    assert [column.name for column in table.columns] == ["width", "n", "norms", "rank"]
    first, second = table.rows(records)
    # of 0, 1, 3, 3 and of 0, 1, 5, 5
    assert (first["norms"], first["norms_reach"]) == (2, (0, 3))
    assert (second["norms"], second["norms_reach"]) == (3, (0, 5))
    assert (second["width"], second["n"], second["rank"]) == (5, 2, 2)


def test_there_are_no_numbers_of_panels_of_no_runs_and_of_results_without_any():
    figure = Figure("f", lambda records: None, "Not of panels")
    assert run_numbers(Figure("f", Panels(panels=[LOSS]), ""), [record()]) is None
    assert run_numbers(figure, []) is None
    assert run_numbers(figure, [record(result={"ended": "epochs"})]) is None


def test_declaring_a_figure_imports_neither_matplotlib_nor_torch():
    code = (
        "import sys\n"
        "from normalign_reproduction.report.panels import Panel, Panels\n"
        "Panels(panels=[Panel(x='epoch', y='loss')])\n"
        "sys.exit(bool({'matplotlib', 'torch'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
