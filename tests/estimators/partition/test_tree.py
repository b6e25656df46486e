from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign.estimators._partition import Tree, band, grow, smoothstep


def coordinate_axes(x):
    return lambda nodes: [torch.eye(x.shape[1], dtype=torch.float64) for _ in nodes]


def random_axes(x, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (3, x.shape[1])
    return lambda nodes: [
        torch.randn(shape, generator=generator, dtype=torch.float64) for _ in nodes
    ]


def table(n, d, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64)


def gates(tree, x):
    """All gates as one (n, leaves) matrix."""
    dense = torch.zeros(len(x), tree.n_leaves, dtype=torch.float64)
    for visit in tree.visits(x):
        dense[visit.rows, visit.leaf] = visit.gate
    return dense


def test_smoothstep_has_flat_ends_and_is_symmetric():
    place = torch.linspace(0, 1, 11, dtype=torch.float64, requires_grad=True)
    value = smoothstep(place)
    torch.testing.assert_close(value + smoothstep(1 - place), torch.ones_like(value))
    (slope,) = torch.autograd.grad(value.sum(), place)
    assert slope[0] == slope[-1] == 0
    torch.testing.assert_close(slope, 6 * place * (1 - place))


@given(
    values=st.lists(st.integers(-3, 3), min_size=2, max_size=40),
    overlap=st.floats(0, 0.9),
)
def test_a_band_leaves_something_beyond_each_of_its_ends(values, overlap):
    projection = torch.tensor(values, dtype=torch.float64)
    edges = band(projection, overlap=overlap)
    if len(set(values)) == 1:
        assert edges is None
        return
    assert edges is not None
    assert edges[0] < edges[1]
    assert (projection <= edges[0]).any()
    assert (projection >= edges[1]).any()


@given(n=st.integers(2, 200), overlap=st.floats(0, 0.9))
def test_without_ties_no_side_holds_more_than_half_and_half_the_overlap(n, overlap):
    edges = band(torch.arange(n, dtype=torch.float64), overlap=overlap)
    assert edges is not None
    held = sum(value < edges[1] for value in range(n))
    # The quantiles are counted in whole rows, hence one row of slack.
    assert held <= max(n * (1 + overlap) / 2 + 1, 1)


@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(1, 120),
    d=st.integers(1, 4),
    limit=st.integers(2, 30),
    overlap=st.sampled_from([0.0, 0.1, 0.4]),
    seed=st.integers(0, 5),
)
def test_gates_are_a_partition_of_unity_and_leaves_hold_their_support(
    n, d, limit, overlap, seed
):
    x = table(n, d, seed)
    tree, leaves = grow(
        x, max_leaf_size=limit, overlap=overlap, axes=random_axes(x, seed)
    )
    assert len(leaves) == tree.n_leaves
    assert max(len(rows) for rows in leaves) <= limit
    assert min(len(rows) for rows in leaves) >= 1
    everywhere = torch.cat([x, 3 * table(50, d, seed + 100)])
    dense = gates(tree, everywhere)
    assert (dense >= 0).all()
    # A product of at most log2(n) pairs that each sum to 1 in float64.
    torch.testing.assert_close(
        dense.sum(1), torch.ones(len(everywhere), dtype=torch.float64)
    )
    for leaf, rows in enumerate(leaves):
        reached = set((dense[:n, leaf] > 1e-12).nonzero()[:, 0].tolist())
        assert reached <= set(rows.tolist())


def test_gate_gradients_are_those_of_automatic_differentiation():
    x = table(60, 3)
    tree, _ = grow(x, max_leaf_size=10, overlap=0.4, axes=random_axes(x))
    at = table(40, 3, seed=1).requires_grad_(True)
    dense = gates(tree, at)
    crossing = 0
    gradients = torch.zeros(40, tree.n_leaves, 3, dtype=torch.float64)
    for visit in tree.visits_with_gradients(at.detach()):
        gradients[visit.rows, visit.leaf] = visit.gradient
        crossing += int((visit.gradient != 0).any(1).sum())
    assert crossing > 20
    for leaf in range(tree.n_leaves):
        (expected,) = torch.autograd.grad(dense[:, leaf].sum(), at, retain_graph=True)
        torch.testing.assert_close(gradients[:, leaf], expected)


def test_gates_are_continuous_across_every_band_edge():
    tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 1.0]]), torch.tensor([[-1, -2]]))
    around = torch.tensor([[-1e-6], [0.0], [1e-6], [1 - 1e-6], [1.0], [1 + 1e-6]])
    dense = gates(tree, around.double())
    # The slope at an edge is 0, so 1e-6 away the gate moved by about 3e-12; the
    # float32 literals above round 1 - 1e-6 by up to 6e-8 more.
    assert (dense[:3, 1] < 1e-11).all()
    assert (dense[3:, 1] > 1 - 1e-11).all()


def test_no_cut_gives_one_leaf_that_answers_alone():
    x = table(5, 2)
    tree, leaves = grow(x, max_leaf_size=5, overlap=0.1, axes=random_axes(x))
    assert [rows.tolist() for rows in leaves] == [[0, 1, 2, 3, 4]]
    (visit,) = tree.visits(x)
    assert visit.leaf == 0
    assert visit.gate.tolist() == [1.0] * 5


def test_identical_rows_become_one_leaf_whatever_their_number():
    x = torch.ones(50, 3, dtype=torch.float64)
    tree, leaves = grow(x, max_leaf_size=4, overlap=0.1, axes=random_axes(x))
    assert tree.n_leaves == 1
    assert len(leaves[0]) == 50


def test_a_binary_axis_is_cut_between_its_two_values():
    x = torch.tensor([[0.0]] * 7 + [[1.0]] * 3, dtype=torch.float64)
    tree, leaves = grow(x, max_leaf_size=8, overlap=0.1, axes=coordinate_axes(x))
    assert [len(rows) for rows in leaves] == [7, 3]
    assert tree.bands.tolist() == [[0.0, 1.0]]


def test_rounding_around_a_binary_axis_does_not_cut_inside_its_atoms():
    x = table(200, 2)
    x[:, 0] = (x[:, 0] > 0.8).double()
    axis = torch.tensor([[1.0, 1e-15]], dtype=torch.float64)
    tree, _ = grow(
        x, max_leaf_size=199, overlap=0.0, axes=lambda nodes: [axis for _ in nodes]
    )
    torch.testing.assert_close(
        tree.bands, torch.tensor([[0.0, 1.0]], dtype=torch.float64)
    )


def test_a_lopsided_axis_gives_way_to_a_more_even_one():
    x = table(100, 2)
    x[:, 0] = 0.0
    x[0, 0] = 1.0
    tree, leaves = grow(x, max_leaf_size=60, overlap=0.0, axes=coordinate_axes(x))
    assert tree.directions.tolist() == [[0.0, 1.0]]
    assert [len(rows) for rows in leaves] == [50, 50]


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
def test_the_leaves_do_not_depend_on_the_unit_of_the_data(scale):
    x = table(64, 2)
    here = grow(x, max_leaf_size=10, overlap=0.1, axes=random_axes(x)).leaves
    there = grow(scale * x, max_leaf_size=10, overlap=0.1, axes=random_axes(x)).leaves
    assert [rows.tolist() for rows in here] == [rows.tolist() for rows in there]


def test_outliers_of_every_scale_do_not_stop_growth():
    x = torch.tensor([[10.0**power] for power in range(60)], dtype=torch.float64)
    _, leaves = grow(x, max_leaf_size=12, overlap=0.1, axes=coordinate_axes(x))
    assert max(len(rows) for rows in leaves) <= 12
    assert torch.cat(leaves).unique().tolist() == list(range(60))


def test_depth_is_logarithmic_for_continuous_data():
    x = table(4096, 3)
    tree, _ = grow(x, max_leaf_size=64, overlap=0.0, axes=random_axes(x))
    assert tree.n_leaves == 64
    assert math.log2(tree.n_leaves) == 6


def test_growth_asks_for_the_axes_of_a_whole_level_at_once():
    x = table(64, 2)
    asked = []

    def axes(nodes):
        asked.append(len(nodes))
        return [torch.eye(2, dtype=torch.float64) for _ in nodes]

    grow(x, max_leaf_size=8, overlap=0.0, axes=axes)
    assert asked == [1, 2, 4]
