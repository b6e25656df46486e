"""The exact partition of a slice, against counting, autograd and sampling."""

from __future__ import annotations

import importlib
import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from normalign.geometry._partition import Partition, Slice, partition
from normalign.geometry._partition.piecewise import Residual

F64 = torch.float64


@pytest.fixture(scope="module", autouse=True)
def one_thread():
    """Small tensors: threads cost more than they bring."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def randomised(model: nn.Module, seed: int = 0) -> nn.Module:
    """Fill parameters and statistics with draws, in float64 and evaluation mode."""
    generator = seeded(seed)
    model = model.to(F64).eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if tensor.is_floating_point():
                fan = max(1, tensor[0].numel() if tensor.ndim > 1 else 4)
                tensor.normal_(std=1.5 / fan**0.5, generator=generator)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return model


def mlp(*widths: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for n_in, n_out in pairwise(widths):
        layers += [nn.Linear(n_in, n_out), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


class Skip(nn.Module):
    """A block in the manner of torchvision, with steps in place."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 3, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(3)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.conv2(out)
        out += identity
        return self.relu(out)


class Functional(nn.Module):
    """A forward written with functions instead of modules."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3)
        self.scale = nn.Parameter(torch.ones(3, 1, 1))
        self.head = nn.Linear(12, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.relu(self.conv(x)) * self.scale - 0.1
        x = nn.functional.max_pool2d(x, 2)
        x = torch.cat([x, -x / 2], dim=1)
        x = x.mean(dim=3)
        return self.head(x.view(x.size(0), -1))


CASES = {
    "mlp": (mlp(6, 12, 12, 4), (6,)),
    "scalar output": (mlp(5, 9, 9, 1), (5,)),
    "leaky, hardtanh, relu6, prelu": (
        nn.Sequential(
            nn.Linear(4, 8), nn.LeakyReLU(0.2), nn.Linear(8, 8), nn.Hardtanh(-0.5, 0.4),
            nn.Linear(8, 8), nn.ReLU6(), nn.Linear(8, 8), nn.PReLU(8), nn.Dropout(),
            nn.Linear(8, 6), nn.Softshrink(0.1),
            nn.Linear(6, 3),
        ),
        (4,),
    ),
    "convolution, pools, batch norm, shortcuts": (
        nn.Sequential(
            nn.ZeroPad2d(1), nn.Conv2d(1, 3, 3, stride=1), nn.BatchNorm2d(3), nn.ReLU(),
            nn.MaxPool2d(2),
            Residual(
                nn.Sequential(
                    nn.Conv2d(3, 3, 3, padding=1, groups=3), nn.PReLU(3),
                    nn.Conv2d(3, 3, 1),
                ),
                nn.Conv2d(3, 3, 1),
            ),
            nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3),
        ),
        (1, 8, 8),
    ),
    "overlapping max pool of raw convolutions": (
        nn.Sequential(
            nn.Conv2d(1, 2, 3, padding=1, padding_mode="circular"),
            nn.MaxPool2d(3, stride=2, padding=1), nn.Flatten(), nn.Linear(18, 3),
        ),
        (1, 6, 6),
    ),
    "one dimension": (
        nn.Sequential(
            nn.Conv1d(2, 3, 3, stride=2, dilation=2), nn.ReLU(),
            nn.MaxPool1d(2, ceil_mode=True, dilation=2), nn.ConstantPad1d(1, 0.5),
            nn.AvgPool1d(2), nn.Flatten(), nn.Unflatten(1, (3, 2)),
            nn.ConstantPad1d(1, -2.0), nn.Flatten(), nn.Linear(12, 2),
        ),
        (2, 15),
    ),
    "torchvision block": (
        nn.Sequential(nn.Conv2d(1, 3, 3), Skip(), nn.Flatten(), nn.Linear(48, 3)),
        (1, 6, 6),
    ),
    "functional forward": (Functional(), (1, 6, 6)),
}  # fmt: skip


@pytest.fixture(scope="module", params=list(CASES))
def case(request) -> tuple[nn.Module, Partition]:
    model, shape = CASES[request.param]
    model = randomised(model)
    x = torch.randn(shape, dtype=F64, generator=seeded(1))
    head = [m for m in model.modules() if isinstance(m, nn.Linear)][-1]
    with torch.no_grad():  # all outputs are zero at x: decision boundaries meet there
        head.bias -= model(x[None])[0]
    return model, partition(model, Slice.around(x, radius=3.0, generator=seeded(2)))


def test_the_regions_fill_the_bounds(case):
    _, found = case
    assert len(found) > 20
    assert math.isclose(float(found.areas.sum()), 4.0, rel_tol=1e-9)
    assert bool((found.areas > 0).all())


def test_every_region_is_convex_and_counter_clockwise(case):
    _, found = case
    for corners in found.polygons:
        sides = corners.roll(-1, 0) - corners
        after = sides.roll(-1, 0)
        turn = sides[:, 0] * after[:, 1] - sides[:, 1] * after[:, 0]
        # Snapping moves a vertex by up to 1e-10 of the diameter.
        assert float(turn.min()) > -1e-9


def test_slope_and_offset_are_the_models_jacobian_and_value(case):
    model, found = case
    points = found.centers
    chosen = torch.arange(0, len(found), max(1, len(found) // 60))

    def of_plane(p: Tensor) -> Tensor:
        return model(found.slice_.embed(p[None])).flatten()

    for row in chosen.tolist():
        jacobian = torch.autograd.functional.jacobian(of_plane, points[row])
        torch.testing.assert_close(found.slope[row], jacobian, rtol=1e-9, atol=1e-9)
    with torch.no_grad():
        outputs = model(found.slice_.embed(points)).flatten(1)
    inner = (found.slope @ points[..., None])[..., 0] + found.offset
    torch.testing.assert_close(inner, outputs, rtol=1e-9, atol=1e-9)


def test_values_at_random_points_are_the_models(case):
    model, found = case
    points = torch.rand(4000, 2, dtype=F64, generator=seeded(3)) * 2 - 1
    with torch.no_grad():
        outputs = model(found.slice_.embed(points)).flatten(1)
    torch.testing.assert_close(found(points), outputs, rtol=1e-9, atol=1e-9)


def test_the_map_is_continuous_across_edges(case):
    _, found = case
    starts = torch.cat(found.polygons)
    stops = torch.cat([corners.roll(-1, 0) for corners in found.polygons])
    side = stops - starts
    middle, length = (starts + stops) / 2, side.norm(dim=1, keepdim=True)
    normal = torch.stack([side[:, 1], -side[:, 0]], 1) / length
    owner = torch.repeat_interleave(found.cells.counts)
    step = 1e-7
    outside = middle + step * normal
    neighbour = found.region_of(outside)
    real = (neighbour >= 0) & (length[:, 0] > 1e-5) & (neighbour != owner)
    assert int(real.sum()) > 20
    values = [
        (found.slope[r[real]] @ middle[real][..., None])[..., 0] + found.offset[r[real]]
        for r in (owner, neighbour)
    ]
    # The point outside may lie in a region that only comes close to the edge, off by
    # the step; slopes are of order ten.
    torch.testing.assert_close(*values, rtol=0, atol=1e-5)
    assert float((values[0] - values[1]).abs().median()) < 1e-12


def test_decision_boundaries_are_ties_of_the_two_largest_outputs(case):
    model, found = case
    edges = found.decision_boundaries()
    assert len(edges) > 5
    weight = torch.rand(5, 1, 1, dtype=F64, generator=seeded(4))
    points = (weight * edges.ends[:, 0] + (1 - weight) * edges.ends[:, 1]).flatten(0, 1)
    with torch.no_grad():
        outputs = model(found.slice_.embed(points)).flatten(1)
    if outputs.shape[1] == 1:
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], 1)
    best = outputs.topk(2)
    assert float((best.values[:, 0] - best.values[:, 1]).abs().max()) < 1e-9
    classes = best.indices.sort(1).values
    assert bool((classes == edges.classes.repeat(5, 1)).all())


def test_class_cells_tell_the_class_of_every_point(case):
    model, found = case
    cells = found.class_cells()
    assert math.isclose(float(cells.cells.areas().sum()), 4.0, rel_tol=1e-9)
    with torch.no_grad():
        outputs = model(found.slice_.embed(cells.cells.centroids())).flatten(1)
    if outputs.shape[1] == 1:
        outputs = torch.cat([outputs, torch.zeros_like(outputs)], 1)
    own = outputs.gather(1, cells.label[:, None])[:, 0]
    assert float((outputs.amax(1) - own).max()) < 1e-9


def patterns(model: nn.Module, x: Tensor) -> Tensor:
    """The signs of all inputs of ReLUs and the places of all maxima, one row each."""
    seen: list[Tensor] = []

    def record(module: nn.Module, given: tuple[Tensor, ...], _) -> None:
        if isinstance(module, nn.ReLU):
            seen.append((given[0] > 0).flatten(1).long())
        if isinstance(module, nn.MaxPool2d):
            _, place = nn.functional.max_pool2d(
                given[0], module.kernel_size, return_indices=True
            )
            seen.append(place.flatten(1))

    handles = [m.register_forward_hook(record) for m in model.modules()]
    with torch.no_grad():
        model(x)
    for handle in handles:
        handle.remove()
    return torch.cat(seen, 1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (mlp(6, 15, 15, 3), (6,)),
        (
            nn.Sequential(
                nn.Conv2d(1, 3, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(),
                nn.Linear(12, 8), nn.ReLU(), nn.Linear(8, 2),
            ),
            (1, 6, 6),
        ),
    ],
)  # fmt: skip
def test_one_region_is_one_activation_pattern(model, shape):
    model = randomised(model)
    x = torch.randn(shape, dtype=F64, generator=seeded(5))
    found = partition(model, Slice.around(x, radius=3.0))
    points = torch.rand(6000, 2, dtype=F64, generator=seeded(6)) * 2 - 1
    pattern = patterns(model, found.slice_.embed(points))
    _, pattern = pattern.unique(dim=0, return_inverse=True)
    pairs = torch.stack([found.region_of(points), pattern], 1).unique(dim=0)
    assert len(pairs) > 30
    assert len(pairs[:, 0].unique()) == len(pairs), "a region holds two patterns"
    assert len(pairs[:, 1].unique()) == len(pairs), "a pattern lies in two regions"


def crossings_inside(lines: Tensor) -> int:
    """The number of pairs of lines that cross within (-1, 1)^2."""
    first, second = torch.combinations(torch.arange(len(lines))).unbind(1)
    system = torch.stack([lines[first, :2], lines[second, :2]], 1)
    right = -torch.stack([lines[first, 2], lines[second, 2]], 1)
    return int((torch.linalg.solve(system, right).abs() < 1).all(1).sum())


@pytest.mark.parametrize("count", [1, 5, 40])
def test_a_hidden_layer_has_as_many_regions_as_its_arrangement_of_lines(count):
    # Lines in a convex frame: 1 + lines that meet it + crossings inside (Zaslavsky).
    model = randomised(mlp(2, count, 2), seed=count)
    first = model[0]
    lines = torch.cat([first.weight, first.bias[:, None]], 1).detach()
    corners = torch.tensor([[1, 1], [1, -1], [-1, 1], [-1, -1]], dtype=F64)
    values = corners @ lines[:, :2].T + lines[:, 2]
    meeting = (values.amin(0) < 0) & (values.amax(0) > 0)
    expected = 1 + int(meeting.sum()) + crossings_inside(lines[meeting])
    found = partition(model)
    assert len(found) == expected
    crossed = found.level_sets.unit.unique()
    assert crossed.tolist() == meeting.nonzero()[:, 0].tolist()


def test_the_level_set_of_one_unit_is_its_line():
    model = nn.Sequential(nn.Linear(2, 1), nn.ReLU()).to(F64)
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[1.0, 2.0]]))
        model[0].bias.fill_(-0.5)
    found = partition(model)
    assert len(found) == 2
    ends = found.level_sets.ends[0]
    # x + 2 y = 1/2 leaves the square at (1, -1/4) and (-1, 3/4).
    ends = ends[ends[:, 0].argsort()]
    expected = torch.tensor([[-1.0, 0.75], [1.0, -0.25]], dtype=F64)
    torch.testing.assert_close(ends, expected, rtol=0, atol=1e-15)
    assert found.level_sets.layer.tolist() == [0]
    assert found.layers == ("1",)
    # Below the line: a rectangle of width 2 and mean height 5/4.
    torch.testing.assert_close(
        found.areas.sort().values, torch.tensor([1.5, 2.5], dtype=F64)
    )


def test_three_planes_that_meet_in_a_point_make_three_cells():
    # max(x, y, -x - y): three rays from zero; full lines would make six regions.
    linear = nn.Linear(2, 3, bias=False).to(F64)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 0.0], [0.0, 1.0], [-1.0, -1.0]]))
    model = nn.Sequential(linear, nn.Unflatten(1, (1, 3)), nn.MaxPool1d(3))
    found = partition(model)
    assert len(found) == 3
    assert len(found.level_sets) == 3
    assert math.isclose(float(found.areas.sum()), 4.0, rel_tol=1e-12)
    assert bool((found.level_sets.ends.norm(dim=-1).amin(1) < 1e-12).all())


def test_a_maximum_that_wins_at_no_corner_is_found():
    linear = nn.Linear(2, 3).to(F64)
    with torch.no_grad():
        linear.weight.copy_(torch.tensor([[1.0, 0.0], [-1.0, 0.0], [0.0, 0.0]]))
        linear.bias.copy_(torch.tensor([0.0, 0.0, 0.5]))
    found = partition(nn.Sequential(linear, nn.Unflatten(1, (1, 3)), nn.MaxPool1d(3)))
    torch.testing.assert_close(
        found.areas.sort().values, torch.tensor([1.0, 1.0, 2.0], dtype=F64)
    )


def test_units_with_one_line_and_lines_through_corners_lose_no_area():
    # Sixteen lines, many through zero, through corners, or equal.
    angles = torch.arange(8, dtype=F64) * math.pi / 8
    model = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 16), nn.ReLU())
    model = randomised(model)
    with torch.no_grad():
        rays = torch.stack([angles.cos(), angles.sin()], 1)
        model[0].weight.copy_(torch.cat([rays, rays, -3 * rays, rays]))
        model[0].bias.zero_()
        model[0].bias[24:] = 1e-11 * torch.arange(8)  # slivers below the tolerance
        model[2].bias.zero_()
    found = partition(model)
    assert math.isclose(float(found.areas.sum()), 4.0, rel_tol=1e-12)
    points = torch.rand(500, 2, dtype=F64, generator=seeded(7)) * 2 - 1
    torch.testing.assert_close(found(points), model(points).detach(), atol=1e-9, rtol=0)


@settings(max_examples=25, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    widths=st.lists(st.integers(1, 12), min_size=1, max_size=3),
    radius=st.sampled_from([1e-3, 1.0, 50.0]),
    activation=st.sampled_from([nn.ReLU, nn.LeakyReLU, nn.Hardtanh, nn.PReLU]),
)
def test_any_small_network_is_reproduced(seed, widths, radius, activation):
    layers: list[nn.Module] = []
    for n_in, n_out in zip([3, *widths], widths, strict=False):
        layers += [nn.Linear(n_in, n_out), activation()]
    model = randomised(nn.Sequential(*layers, nn.Linear(widths[-1], 3)), seed)
    generator = seeded(seed)
    x = torch.randn(3, dtype=F64, generator=generator)
    found = partition(model, Slice.around(x, radius=radius, generator=generator))
    assert math.isclose(float(found.areas.sum()), 4.0, rel_tol=1e-9)
    points = torch.rand(300, 2, dtype=F64, generator=generator) * 2 - 1
    outputs = model(found.slice_.embed(points)).detach()
    scale = float(outputs.abs().max()) + radius
    torch.testing.assert_close(found(points), outputs, rtol=0, atol=1e-9 * scale)
    edges = found.decision_boundaries()
    if len(edges):
        tied = model(found.slice_.embed(edges.ends.mean(1))).detach().topk(2).values
        assert float((tied[:, 0] - tied[:, 1]).max()) < 1e-9 * scale


def test_bounds_may_be_a_convex_polygon_in_either_direction():
    model = randomised(mlp(2, 20, 3))
    triangle = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 1.0]])
    for corners in (triangle, triangle.flip(0)):
        found = partition(model, bounds=corners)
        assert math.isclose(float(found.areas.sum()), 1.0, rel_tol=1e-12)
    assert found.region_of(torch.tensor([[1.9, 0.9], [0.1, 0.1]])).tolist()[0] == -1


@pytest.mark.parametrize(
    "bounds",
    [
        (1.0, -1.0, -1.0, 1.0),
        torch.tensor([[0.0, 0.0], [1.0, 1.0]]),
        torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.5, 0.5], [0.0, 2.0]]),
        torch.tensor([[math.cos(t), math.sin(t)] for t in range(0, 20, 4)])[:5],
        torch.tensor([[0.0, 0.0], [1.0, 1.0], [2.0, 2.0]]),
    ],
)
def test_bounds_that_are_no_convex_polygon_are_refused(bounds):
    with pytest.raises(ValueError, match="partition: bounds must be"):
        partition(nn.ReLU(), bounds=bounds)


def test_more_regions_than_allowed_are_refused_with_the_remedy():
    model = randomised(mlp(2, 40, 2))
    count = len(partition(model))
    assert len(partition(model, max_regions=count)) == count
    with pytest.raises(ValueError, match="raise max_regions"):
        partition(model, max_regions=count - 1)


def test_small_batches_of_regions_change_nothing(monkeypatch):
    model, shape = CASES["convolution, pools, batch norm, shortcuts"]
    model = randomised(model)
    plane = Slice.around(torch.randn(shape, dtype=F64, generator=seeded(1)), radius=3.0)
    whole = partition(model, plane)
    subdivision = importlib.import_module("normalign.geometry._partition.subdivision")
    monkeypatch.setattr(subdivision, "BATCH_SIZE", 20_000)
    parts = partition(model, plane)
    assert len(parts) == len(whole)
    there = whole.region_of(parts.centers)
    torch.testing.assert_close(whole.slope[there], parts.slope, rtol=0, atol=1e-12)
    torch.testing.assert_close(whole.areas[there], parts.areas, rtol=0, atol=1e-12)


def test_the_model_is_left_as_it_was():
    model = mlp(3, 8, 2)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    found = partition(model, Slice.around(torch.zeros(3)))
    assert found.slope.dtype == F64
    assert model[0].weight.dtype == torch.float32
    assert model[0].weight.requires_grad
    assert all(torch.equal(before[k], v) for k, v in model.state_dict().items())


def test_a_step_in_place_overwrites_what_the_shortcut_adds():
    # torch computes relu(x) + W relu(x) here, not x + W relu(x).
    model = randomised(Residual(nn.Sequential(nn.ReLU(inplace=True), nn.Linear(2, 2))))
    points = torch.rand(100, 2, dtype=F64, generator=seeded(0)) * 2 - 1
    found = partition(model)(points)
    torch.testing.assert_close(found, model(points.clone()).detach())


def test_a_hook_that_changes_results_is_noticed():
    model = randomised(mlp(2, 5, 2))
    model[0].register_forward_hook(lambda module, given, result: 2 * result)
    with pytest.raises(ValueError, match="Remove hooks"):
        partition(model)


def test_the_text_form_says_how_many_regions_there_are():
    assert repr(partition(nn.ReLU())) == (
        "Partition(4 regions of area 4, 2 outputs, edges by layer {Kinked: 3})"
    )


class TestSlice:
    def test_a_plane_through_three_points_holds_them(self):
        points = torch.randn(3, 2, 5, dtype=F64, generator=seeded(0))
        plane = Slice.through(*points)
        place = plane.coordinates(points)
        torch.testing.assert_close(plane.embed(place), points)
        assert math.isclose(float(place.norm(dim=1).max()), 0.8, rel_tol=1e-12)
        gram = plane.axes.flatten(1) @ plane.axes.flatten(1).T
        torch.testing.assert_close(gram, gram[0, 0] * torch.eye(2, dtype=F64))

    def test_a_plane_around_a_point_is_orthogonal_and_reproducible(self):
        x = torch.randn(3, 4, dtype=F64, generator=seeded(0))
        plane = Slice.around(x, radius=2.0, generator=seeded(9))
        again = Slice.around(x, radius=2.0, generator=seeded(9))
        assert torch.equal(plane.axes, again.axes)
        gram = plane.axes.flatten(1) @ plane.axes.flatten(1).T
        torch.testing.assert_close(gram, 4 * torch.eye(2, dtype=F64))

    def test_axes_on_one_line_are_refused(self):
        with pytest.raises(ValueError, match="linearly independent"):
            Slice(torch.zeros(3), torch.ones(2, 3))
        with pytest.raises(ValueError, match="not on one line"):
            Slice.through(torch.zeros(3), torch.ones(3), 2 * torch.ones(3))

    def test_axes_of_another_shape_are_refused(self):
        with pytest.raises(ValueError, match=r"of shape \(2, 3\)"):
            Slice(torch.zeros(3), torch.ones(2, 4))
