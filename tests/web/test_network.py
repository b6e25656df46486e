"""The mathematics of the pages equals the library's."""

import pytest
import torch
from torch.nn.functional import cross_entropy

import normalign as na
from normalign.geometry import Slice, partition
from tests.web.conftest import as_lists, assert_same_geometry, calculate, random_model

pytestmark = pytest.mark.browser


@pytest.fixture
def page(visit):
    return visit("playground")


@pytest.mark.parametrize(
    "widths", [[2, 16, 16, 3], [2, 5, 2], [7, 9, 8, 7, 4], [784, 64, 64, 10], [3, 4]]
)
def test_measures_are_those_of_the_library(page, widths):
    model = random_model(widths)
    generator = torch.Generator().manual_seed(1)
    for x in torch.randn(3, widths[0], generator=generator, dtype=torch.float64):
        label = int(model(x).argmin())  # misclassified: robustness is 0
        measured = calculate(
            page,
            "const network = build(argument.model), x = Float64Array.from(argument.x);"
            "const measureAs = y => localGeometry(network, x, y);"
            "return plain([null, argument.label].map(measureAs))",
            {"model": as_lists(model), "x": x.tolist(), "label": label},
        )
        assert_same_geometry(measured[0], model, x)
        assert_same_geometry(measured[1], model, x, label)
        assert measured[1]["localRobustness"] == 0


@pytest.mark.parametrize("x", [[0.3, -0.2], [0.0, 0.0]])
def test_a_map_that_does_not_depend_on_the_input_has_the_librarys_values(page, x):
    model = random_model([2, 4, 3])
    with torch.no_grad():
        model[0].bias.fill_(-9.0)  # every unit is off
    measured = calculate(
        page, "return plain(localGeometry(build(argument.model), argument.x))",
        {"model": as_lists(model), "x": x},
    )  # fmt: skip
    assert_same_geometry(measured, model, x)
    assert measured["normalAlignment"] == measured["effectiveRank"] == 0
    assert measured["localRobustness"] == "inf"


@pytest.mark.parametrize("penalty_weight", [0.0, 0.01])
@pytest.mark.parametrize("widths", [[2, 16, 16, 2], [2, 12, 5], [2, 8, 8, 8, 8, 3]])
def test_fifty_steps_of_training_are_those_of_the_library(page, widths, penalty_weight):
    model = random_model(widths)
    start = as_lists(model)
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(60, 2, generator=generator, dtype=torch.float64)
    y = (2 * x[:, 0].abs()).long() % widths[-1]
    batches = [torch.randperm(60, generator=generator)[:20] for _ in range(50)]

    penalty = na.GrokAlign(penalty_weight, estimator="exact")
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01, weight_decay=0.1)
    losses, penalties = [], []
    for rows in batches:
        logits, value = penalty(model, x[rows])
        loss = cross_entropy(logits, y[rows])
        optimizer.zero_grad()
        (loss + value).backward()
        optimizer.step()
        losses.append(loss.item())
        penalties.append(value.item())

    parameters, values = calculate(
        page,
        "const { start, batches, penaltyWeight } = argument, network = build(start);"
        "const trainer = new Trainer(network,"
        "  { learningRate: 0.01, weightDecay: 0.1, penaltyWeight });"
        "const values = batches.map(({ x, y }) =>"
        "  trainer.step(Float64Array.from(x), y));"
        "return plain([network.parameters(), values])",
        {
            "start": start,
            "batches": [
                {"x": x[rows].flatten().tolist(), "y": y[rows].tolist()}
                for rows in batches
            ],
            "penaltyWeight": penalty_weight,
        },
    )
    # Rounding alone, which fifty steps of Adam enlarge.
    for got, expected in zip(parameters, model.parameters(), strict=True):
        got = torch.tensor(got, dtype=torch.float64)
        torch.testing.assert_close(got, expected.detach().flatten(), rtol=0, atol=1e-7)
    assert [v["loss"] for v in values] == pytest.approx(losses, abs=1e-7)
    assert [v["penalty"] for v in values] == pytest.approx(penalties, abs=1e-7)
    assert sum(losses[-10:]) < sum(losses[:10])


@pytest.mark.parametrize("bounds", [None, (-4.2, 4.9)])
def test_the_smallest_attack_is_that_of_the_library(page, bounds):
    low, high = bounds or (None, None)
    model = random_model([6, 20, 20, 4], seed=3, scale=3.0)
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(8, 6, generator=generator, dtype=torch.float64)
    y = model(x).argmax(1)
    expected = na.robustness.minimal_radius(
        model, x, y, max_radius=2.0, norm="l2", low=low, high=high
    )
    found = calculate(
        page,
        "const { model, x, y, low, high } = argument, network = build(model);"
        "const range = { low: low ?? -Infinity, high: high ?? Infinity };"
        "return plain(x.map((row, i) =>"
        "  minimalRadius(network, Float64Array.from(row), y[i],"
        "    { maxRadius: 2, ...range })))",
        {
            "model": as_lists(model), "x": x.tolist(), "y": y.tolist(),
            "low": low, "high": high,
        },
    )  # fmt: skip
    radii = torch.tensor([float(f["radius"]) for f in found], dtype=torch.float64)
    torch.testing.assert_close(radii, expected, rtol=1e-8, atol=1e-8)
    assert bool(radii.isfinite().any())
    for attack, start, label in zip(found, x, y, strict=True):
        if attack["point"] is not None:
            point = torch.tensor(attack["point"], dtype=torch.float64)
            assert model(point).argmax() != label
            assert float((point - start).norm()) <= attack["radius"] + 1e-12


def test_an_attack_on_a_wrong_answer_needs_nothing(page):
    found = calculate(
        page,
        "const network = build(argument), x = Float64Array.of(0.1, 0.2);"
        "const wrong = 1 - argmax(network.output(x));"
        "return minimalRadius(network, x, wrong, { maxRadius: 1 }).radius",
        as_lists(random_model([2, 5, 2])),
    )
    assert found == 0


REGIONS = """
const network = build(argument);
const box = { left: -1.5, right: 1.5, bottom: -1.5, top: 1.5 };
const { regions, edges } = partition(network, box);
"""


@pytest.mark.parametrize("widths", [[2, 16, 16, 3], [2, 24, 2], [2, 8, 8, 8, 2]])
def test_regions_are_those_of_the_library(page, widths):
    model = random_model(widths, seed=5, scale=2.0)
    expected = partition(
        model, Slice(torch.zeros(2).double(), torch.eye(2).double()),
        bounds=[-1.5, 1.5, -1.5, 1.5],
    )  # fmt: skip
    found = calculate(
        page, REGIONS + "return plain({ regions, edges })", as_lists(model)
    )
    assert len(found["regions"]) == len(expected)
    area = 0.0
    for region in found["regions"]:
        corners = torch.tensor(region["polygon"], dtype=torch.float64).view(-1, 2)
        after = corners.roll(-1, 0)
        area += (
            float((corners[:, 0] * after[:, 1] - corners[:, 1] * after[:, 0]).sum()) / 2
        )
        middle = corners.mean(0, keepdim=True)
        affine = na.local_affine(model, middle)
        rows = torch.tensor(region["map"], dtype=torch.float64).view(-1, 3)
        torch.testing.assert_close(rows[:, :2], affine.jacobian[0], rtol=0, atol=1e-9)
        torch.testing.assert_close(rows[:, 2], affine.offset[0], rtol=0, atol=1e-9)
    assert area == pytest.approx(9.0, abs=1e-9)
    # Edges of all layers together are as long as the library's level sets.
    flat = [v for layer in found["edges"] for v in layer]
    ends = torch.tensor(flat, dtype=torch.float64).view(-1, 2, 2)
    length = float((ends[:, 0] - ends[:, 1]).norm(dim=1).sum())
    level_sets = expected.level_sets.ends
    assert length == pytest.approx(
        float((level_sets[:, 0] - level_sets[:, 1]).norm(dim=1).sum()), rel=1e-9
    )


def test_boundaries_and_level_sets_lie_where_the_outputs_say(page):
    model = random_model([2, 16, 16, 4], seed=6, scale=2.5)
    boundary, levels = calculate(
        page,
        REGIONS + "const boundary = [], levels = [];"
        "for (const region of regions) boundarySegments(region, boundary);"
        "for (const region of regions)"
        "  for (let i = 0; i < 4; i++) marginSegments(region, i, 0.25, levels);"
        "return [boundary, levels]",
        as_lists(model),
    )

    def margins(segments):
        ends = torch.tensor(segments, dtype=torch.float64).view(-1, 2, 2)
        top = model(ends.mean(1)).detach().topk(2, dim=1).values
        return top[:, 0] - top[:, 1]

    assert len(boundary) > 40
    assert len(levels) > 100
    assert float(margins(boundary).max()) < 1e-9
    steps = margins(levels) / 0.25
    torch.testing.assert_close(steps, steps.round(), rtol=0, atol=1e-8)
    assert float(steps.min()) > 0.5
