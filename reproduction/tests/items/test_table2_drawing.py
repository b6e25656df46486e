import pytest

from normalign_reproduction.items.table2.drawing import against, frontier
from tests.items.tables_by_hand import record, twins


def test_a_point_stands_where_its_table_does():
    records = twins("a", (0.8, 70.0, 0.2), (0.6, 60.0, 0.3)) + twins(
        "b", (0.9, 80.0, 0.4), (0.7, 90.0, 0.1), protocol="leak-free"
    )
    axes = against(records).axes
    assert len(axes) == 3
    drawn = [
        [tuple(point) for dots in axis.collections for point in dots.get_offsets()]
        for axis in axes
    ]
    assert drawn[0] == [pytest.approx((80, 60)), pytest.approx((90, 70))]
    assert drawn[1] == [(70, 60), (80, 90)]
    assert drawn[2] == [(0.2, 0.3), (0.4, 0.1)]


def test_the_diagonal_is_one():
    records = twins("a", (0.8, 70.0, 0.2), (0.6, 60.0, 0.3))
    for axis in against(records).axes:
        (line,) = axis.get_lines()
        assert list(line.get_xdata()) == list(line.get_ydata())


def test_the_path_goes_from_weight_0_to_weight_1():
    records = [
        record("a", w, accuracy=a, asr=[s / 2, s, s + 1], protocol="leak-free")
        for w, a, s in ((1.0, 0.9, 60.0), (0.0, 0.7, 40.0), (0.1, 0.8, 50.0))
    ]
    means, single = frontier(records).axes
    lines = {line.get_label(): line for line in means.get_lines()}
    assert list(lines["radius 1"].get_xdata()) == [40, 50, 60]
    assert list(lines["radius 2"].get_xdata()) == [41, 51, 61]
    assert list(lines["radius 1"].get_ydata()) == pytest.approx([70, 80, 90])
    assert single.get_lines()[0].get_label() == "a"


@pytest.mark.parametrize("draw", [against, frontier])
def test_nothing_to_draw_is_refused(draw):
    with pytest.raises(ValueError, match="records must be non-empty"):
        draw([])


def test_a_table_without_a_rate_is_not_drawn():
    records = [
        record("a", w, accuracy=0.0, asr=[None] * 3, protocol="leak-free")
        for w in (0.0, 1.0)
    ]
    assert len(against(records).axes[1].get_lines()) == 0
    assert frontier(records).axes[1].get_lines() == []
