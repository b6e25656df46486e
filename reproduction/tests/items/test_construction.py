"""The construction of Appendix A: what its figure computes, draws and claims."""

import math

import pytest
import torch
from matplotlib.collections import PathCollection

from normalign_reproduction.context import Context
from normalign_reproduction.items.construction import experiment as construction
from normalign_reproduction.items.construction.item import ITEM
from normalign_reproduction.spec import Record

CPU = torch.device("cpu")


@pytest.fixture(scope="module")
def records(tmp_path_factory):
    runs = ITEM.runs(size="quick", preset="text", digits="mnist", seeds=4)
    (batch,) = construction.batches(runs, CPU)
    context = Context(CPU, tmp_path_factory.mktemp("state") / "file")
    results = construction.compute(batch, context)
    return [Record(run, one) for run, one in zip(batch, results, strict=True)]


def changed(record, **entries):
    return Record(record.run, {**record.result, **entries})


def test_points_lie_on_the_unit_circle(records):
    for record in records:
        points = torch.tensor(record.result["points"])
        torch.testing.assert_close(
            points.norm(dim=1), torch.ones(len(points)), rtol=0, atol=1e-5
        )


def test_a_larger_sample_holds_the_smaller_one(records):
    five = {r.run.seed: r for r in records if r["n_points"] == 5}
    for record in records:
        if record["n_points"] == 10:
            small = five[record.run.seed].result["points"]
            assert record.result["points"][:5] == small


def test_norms_are_those_of_the_nearest_neighbour(records):
    """Four over the squared distance, by the formula for unit vectors."""
    for record in records:
        x = record.result["points"]
        for i, norm in enumerate(record.result["norms"]):
            near = min(math.dist(x[i], y) for j, y in enumerate(x) if j != i)
            # distances of numbers with six digits
            assert norm == pytest.approx(4 / near**2, rel=1e-3)


def test_each_level_set_parts_its_point_from_all_others(records):
    for record in records:
        x = torch.tensor(record.result["points"])
        beyond = x @ x.T > torch.tensor(record.result["offsets"])
        assert torch.equal(beyond, torch.eye(len(x), dtype=torch.bool))


def test_both_claims_hold_for_the_construction(records):
    for claim in ITEM.claims:
        assert all(verdict.holds for verdict in claim.check(records)), claim.statement


@pytest.mark.parametrize(
    "entries",
    [
        {"normal_alignment": [1.0, 0.99]},
        {"effective_rank": [1.0, 1.01]},
        {"output_error": 1e-3},
    ],
)
def test_one_point_off_is_enough_to_fail(records, entries):
    claim, off = ITEM.claims[0], [changed(records[0], **entries), *records[1:]]
    verdicts = {verdict.name: verdict.holds for verdict in claim.check(off)}
    assert verdicts == {"5 points": False, "10 points": True}


def test_norms_that_do_not_double_fail(records):
    flat = [changed(record, norms=[1.0] * record["n_points"]) for record in records]
    (verdict,) = ITEM.claims[1].check(flat)
    assert verdict.holds is False


def test_the_figure_has_four_panels_with_a_line_for_each_neuron(records):
    drawing = ITEM.figures[0].draw(records)
    panels = drawing.axes[:4]
    assert [len(axis.lines) for axis in panels] == [0, 5, 0, 10]
    clouds = [
        next(c for c in axis.collections if isinstance(c, PathCollection))
        for axis in panels
    ]
    assert [len(cloud.get_offsets()) for cloud in clouds] == [5, 5, 10, 10]


def test_the_lines_of_the_figure_are_the_level_sets(records):
    axis = ITEM.figures[0].draw(records).axes[1]
    shown = next(r for r in records if r["n_points"] == 5 and r.run.seed == 0)
    pairs = zip(shown.result["points"], shown.result["offsets"], strict=True)
    for line, (normal, offset) in zip(axis.lines, pairs, strict=True):
        for point in zip(*line.get_data(), strict=True):
            height = sum(a * b for a, b in zip(normal, point, strict=True))
            # normals of six digits are unit to 1e-6
            assert height == pytest.approx(offset, abs=1e-5)


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="LevelSets: records must be non-empty"):
        ITEM.figures[0].draw([])


def test_no_runs_make_no_batch():
    assert construction.batches([], CPU) == []
