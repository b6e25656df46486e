import copy

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.utils import parametrizations
from torch.utils._python_dispatch import TorchDispatchMode

from normalign.nn import mlp
from normalign.optim import Grokfast, GrokfastWindow, OrthoGrad
from normalign.training._span_reduction import NEAR, span_reduction

D, H, N = 60, 7, 9

# 50 steps in float64 that differ only by the rounding of another order of sums; the
# activations of a ReLU network would have to lie that near to their kink to differ.
CLOSE = {"rtol": 0, "atol": 1e-8}


def normal(*shape, seed=0, dtype=torch.float64):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=dtype)


def network(k=1, *, bias=True, activation="relu", widths=(D, H)):
    generator = torch.Generator().manual_seed(1)
    return mlp(
        [*widths, 5, k], bias=bias, activation=activation, generator=generator,
        dtype=torch.float64,
    )  # fmt: skip


def sgd(weights, **settings):
    return torch.optim.SGD(
        weights, **{"lr": 0.05, "momentum": 0.2, "weight_decay": 0.1, **settings}
    )


OPTIMIZERS = {
    "momentum and coupled decay": sgd,
    "Nesterov": lambda w: sgd(w, nesterov=True),
    "no decay": lambda w: sgd(w, momentum=0.0, weight_decay=0.0),
    "much momentum": lambda w: sgd(w, lr=0.2, momentum=0.8),
}
FILTERS = {
    "none": lambda optimizer: None,
    "Grokfast": lambda o: Grokfast(o, decay=0.8, strength=0.5),
    "GrokfastWindow": lambda o: GrokfastWindow(o, window=5, strength=0.5),
    "OrthoGrad": OrthoGrad,
    "OrthoGrad rescaled": lambda o: OrthoGrad(o, rescale=True),
}


def penalised(model, x, generator):
    """Outputs, and |J^T v|^2 + (v.f - <J^T v, x>)^2 for one output probe a sample."""
    point = x.clone().requires_grad_()
    output = model(point)
    probe = torch.randn(output.shape, generator=generator, dtype=x.dtype)
    (pulled,) = torch.autograd.grad(output, point, probe, create_graph=True)
    offset = (probe * output).sum(1) - (pulled * x).sum(1)
    return output, (pulled.square().sum(1) + offset.square()).mean()


def trained(
    model, x, y, *, optimizer=sgd, gradient_filter="none", penalty=0.3, steps=50,
    batch=None, decoupled=0.0,
):  # fmt: skip
    """Train in place with a plain loop; the same probes and batches every time."""
    optimizer = optimizer(model.parameters())
    FILTERS[gradient_filter](optimizer)
    generator = torch.Generator().manual_seed(5)
    for _ in range(steps):
        order = torch.randperm(len(x), generator=generator)
        for index in order.split(batch or len(x)):
            output, size = penalised(model, x[index], generator)
            loss = (output - y[index]).square().mean() + penalty * size
            optimizer.zero_grad()
            loss.backward()
            with torch.no_grad():
                for weight in model.parameters():
                    weight.mul_(1 - decoupled)
            optimizer.step()
    return model


def assert_same_course(k=1, *, model=None, x=None, **settings):
    model = network(k) if model is None else model
    x = normal(N, D, seed=2) if x is None else x
    y = normal(N, k, seed=3)
    unseen = normal(20, D, seed=4)
    noisy = unseen + 0.5 * normal(20, D, seed=5)
    reduction = span_reduction(model, x)
    start = copy.deepcopy(model)
    reduced = trained(reduction.network, reduction.x_train, y, **settings)
    direct = trained(model, x, y, **settings)
    with torch.no_grad():
        torch.testing.assert_close(reduced(reduction.x_train), direct(x), **CLOSE)
        for points in (unseen, noisy):
            shadow = reduction.project(points)
            torch.testing.assert_close(reduced(shadow), direct(points), **CLOSE)
            # Training that moved nothing would prove nothing.
            assert float((direct(points) - start(points)).abs().max()) > 1e-3
    lifted = reduction.lift(reduced)
    for name, weight in direct.named_parameters():
        torch.testing.assert_close(lifted.get_parameter(name), weight, **CLOSE)


@pytest.mark.parametrize("k", [1, 3])
@pytest.mark.parametrize("bias", [False, True])
def test_the_course_is_the_same_with_momentum_decay_and_a_penalty(k, bias):
    assert_same_course(k, model=network(k, bias=bias))


@pytest.mark.parametrize("kind", [kind for kind in FILTERS if kind != "none"])
@pytest.mark.parametrize("k", [1, 3])
def test_the_course_is_the_same_with_a_gradient_filter(kind, k):
    assert_same_course(k, gradient_filter=kind)


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_the_course_is_the_same_with_every_form_of_sgd(kind):
    assert_same_course(optimizer=OPTIMIZERS[kind])


def test_the_course_is_the_same_with_mini_batches_and_decoupled_decay():
    assert_same_course(
        3, batch=4, decoupled=0.01, optimizer=lambda w: sgd(w, weight_decay=0.0)
    )


@pytest.mark.parametrize("activation", ["quadratic", "tanh", "gelu"])
def test_the_course_is_the_same_with_other_activations(activation):
    assert_same_course(
        model=network(activation=activation), optimizer=lambda w: sgd(w, lr=0.005)
    )


def test_the_course_is_the_same_with_dependent_rows():
    model, x = network(), normal(N, D, seed=2)
    with torch.no_grad():
        model[0].weight[1] = model[0].weight[0]
        model[0].weight[2] = 0
        model[0].weight[3] = 0.1 * x[4]
    x[1], x[2], x[3] = x[0], 0, x[4] - 2 * x[5]
    # Gone: one equal weight and one zero weight, an equal, a zero and a dependent
    # input, and the input that a weight is a multiple of.
    assert span_reduction(model, x).rank == H + N - 6
    assert_same_course(model=model, x=x)


def test_the_other_layers_may_have_any_rule():
    model, x, y = network(), normal(N, D, seed=2), normal(N, 1, seed=3)
    reduction = span_reduction(model, x)

    def mixed(net, x):
        rules = [
            sgd(net[0].parameters()),
            torch.optim.AdamW(net[2:].parameters(), lr=1e-2),
        ]
        for _ in range(50):
            net.zero_grad()
            (net(x) - y).square().mean().backward()
            for rule in rules:
                rule.step()
        return net(x).detach()

    torch.testing.assert_close(
        mixed(reduction.network, reduction.x_train), mixed(model, x), **CLOSE
    )


def test_adamw_takes_another_course_as_documented():
    model, x, y = network(), normal(N, D, seed=2), normal(N, 1, seed=3)
    reduction = span_reduction(model, x)

    def adamw(weights):
        return torch.optim.AdamW(weights, lr=1e-2)

    unseen = normal(20, D, seed=4)
    reduced = trained(reduction.network, reduction.x_train, y, optimizer=adamw)
    direct = trained(model, x, y, optimizer=adamw)
    difference = reduced(reduction.project(unseen)) - direct(unseen)
    assert float(difference.detach().abs().max()) > 1e-2


def test_noise_on_the_inputs_leaves_the_span_as_documented():
    model, x, y = network(), normal(N, D, seed=2), normal(N, 1, seed=3)
    reduction = span_reduction(model, x)
    direct = trained(model, x + 0.1 * normal(N, D, seed=9), y, steps=5)
    weight = direct[0].weight.detach()
    inside = reduction.project(weight)
    outside = weight.square().sum() - inside.square().sum()
    assert float(outside) > 1e-4


@st.composite
def spans(draw):
    """A network and inputs with copies, zeros and combinations among all the rows."""
    h, n = draw(st.integers(1, 5)), draw(st.integers(1, 5))
    d = h + n + draw(st.integers(1, 6))
    seed = draw(st.integers(0, 10**6))
    rows = normal(h + n, d, seed=seed)
    for position in range(1, h + n):
        kind = draw(st.sampled_from(["new", "new", "copy", "zero", "sum"]))
        before = draw(st.integers(0, position - 1))
        if kind == "copy":
            rows[position] = rows[before]
        elif kind == "zero":
            rows[position] = 0
        elif kind == "sum":
            rows[position] = rows[:position].sum(0) - 2 * rows[before]
    rows *= 10.0 ** draw(st.integers(-4, 4))
    rows[h:] *= 10.0 ** draw(st.integers(-3, 3))
    model = network(2, widths=(d, h))
    with torch.no_grad():
        model[0].weight.copy_(rows[:h])
    return model, rows[h:], normal(4, d, seed=seed + 1)


@given(spans(), st.sampled_from([100, 1000, 2**27]))
def test_outputs_inner_products_and_weights_survive_any_span(span, budget):
    model, x, points = span
    reduction = span_reduction(model, x, memory_budget=budget)
    weight, small = model[0].weight.detach(), reduction.network[0].weight.detach()
    r = len(weight) + len(x)
    assert small.shape == (len(weight), r)
    assert reduction.x_train.shape == (len(x), r)
    assert not small[:, reduction.rank :].any()
    assert not reduction.x_train[:, reduction.rank :].any()

    def close(got, true, scale):
        # Relative to the lengths that were multiplied; the root of 1e-16 where a
        # combination of rows has to be undone.
        torch.testing.assert_close(got, true, rtol=0, atol=1e-8 * float(scale))

    lengths = weight.norm(), x.norm()
    close(small @ small.T, weight @ weight.T, lengths[0] ** 2)
    close(reduction.x_train @ small.T, x @ weight.T, lengths[0] * lengths[1])
    close(reduction.x_train @ reduction.x_train.T, x @ x.T, lengths[1] ** 2)
    close(reduction.project(x), reduction.x_train, lengths[1])
    with torch.no_grad():
        hidden = reduction.network[0](reduction.project(points))
        close(hidden, model[0](points), 1 + lengths[0] * points.norm())
    close(reduction.lift(reduction.network)[0].weight.detach(), weight, lengths[0])


@given(spans())
def test_the_rank_is_that_of_the_rows(span):
    model, x, _ = span
    rows = torch.cat([model[0].weight.detach(), x])
    lengths = rows.norm(dim=1, keepdim=True)
    rows = rows / torch.where(lengths > 0, lengths, 1)
    values = torch.linalg.svdvals(rows)
    # The two ways of counting may differ on the edge of the tolerance only.
    sure = int((values > 10 * NEAR).sum()), int((values > NEAR / 10).sum())
    assert sure[0] <= span_reduction(model, x).rank <= sure[1]


@pytest.mark.parametrize("distance", [1e-10, 1e-7, 1e-5, 1e-3])
def test_nearly_equal_inputs_lose_no_more_than_the_stated_tolerance(distance):
    model, x, unseen = network(), normal(N, D, seed=2), normal(20, D, seed=4)
    x[1] = x[0] + distance * normal(D, seed=6)
    with torch.no_grad():
        model[0].weight[1] = model[0].weight[0] + distance * normal(D, seed=7)
    reduction = span_reduction(model, x)
    assert reduction.rank == H + N - 2 * (distance < NEAR)
    with torch.no_grad():
        near = reduction.network(reduction.project(unseen)) - model(unseen)
    lengths = float(model[0].weight.detach().norm() * unseen.norm())
    assert float(near.abs().max()) <= (NEAR if distance < NEAR else 1e-9) * lengths
    inner = reduction.x_train @ reduction.x_train.T - x @ x.T
    assert float(inner.abs().max()) <= NEAR**2 * float(x.square().sum())


def test_float32_is_reduced_to_its_own_rounding():
    d, h, n = 20_000, 40, 30
    x, unseen = normal(n, d, seed=2).float(), normal(9, d, seed=3).float()
    model = network(widths=(d, h)).float()
    reduction = span_reduction(model, x)
    assert reduction.x_train.dtype == reduction.network[0].weight.dtype == x.dtype
    exact = copy.deepcopy(model).double()
    with torch.no_grad():
        for points in (x, unseen):
            hidden = reduction.network[0](reduction.project(points)).double()
            true = exact[0](points.double())
            # Coordinates are rounded once: a few units of the last place of |w||x|.
            room = 4 * torch.finfo(x.dtype).eps * float(points.norm(dim=1).max())
            atol = room * float(exact[0].weight.norm(dim=1).max())
            torch.testing.assert_close(hidden, true, rtol=0, atol=atol)


class LargestDouble(TorchDispatchMode):
    bytes = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.dtype == torch.float64:
            self.bytes = max(self.bytes, result.numel() * result.element_size())
        return result


def test_no_double_copy_of_all_rows_is_ever_made():
    d, budget = 50_000, 100_000
    model, x = network(widths=(d, 4)).float(), normal(3, d, dtype=torch.float32)
    with LargestDouble() as seen:
        reduction = span_reduction(model, x, memory_budget=budget)
        reduction.project(x)
        reduction.lift(reduction.network)
    assert 0 < seen.bytes <= budget < 8 * d * 7


def test_nothing_given_is_changed_and_nothing_is_shared():
    model, x = network(), normal(N, D, seed=2)
    before = copy.deepcopy(model.state_dict()), x.clone(), torch.get_rng_state()
    model[2].requires_grad_(False)
    model[1].eval()
    reduction = span_reduction(model, x)
    reduction.project(x)
    lifted = reduction.lift(reduction.network)
    for made in (reduction.network, lifted):
        assert [p.requires_grad for p in made.parameters()] == [
            p.requires_grad for p in model.parameters()
        ]
        assert not made[1].training
        assert made[0].training
        with torch.no_grad():
            for weight in made.parameters():
                weight.zero_()
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[0][name])
    assert torch.equal(x, before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    assert model[0].in_features == D


def test_training_the_original_later_does_not_change_the_reduction():
    model, x = network(), normal(N, D, seed=2)
    weight = model[0].weight.detach().clone()
    reduction = span_reduction(model, x)
    with torch.no_grad():
        model[0].weight.zero_()
    lifted = reduction.lift(reduction.network)[0].weight
    torch.testing.assert_close(lifted, weight, **CLOSE)


class Named(nn.Module):
    """A module that is no Sequential; what it does with its input is a setting."""

    def __init__(self, way="plain"):
        super().__init__()
        self.way = way
        self.head = nn.Linear(H, 1)
        self.stem = nn.Linear(D, H)
        self.skip = nn.Linear(D, 1)

    def forward(self, x):
        if self.way == "dropout":
            x = nn.functional.dropout(x, 0.5, self.training)
        if self.way == "scaled":
            x = 2 * x
        hidden = self.stem(x)
        if self.way == "twice":
            hidden = hidden + self.stem(x)
        output = self.head(torch.tanh(hidden))
        if self.way == "sum":
            return output + x.sum(1, keepdim=True)
        if self.way == "skip":
            return output + self.skip(x)
        return output


def test_a_named_layer_of_any_module_is_reduced():
    model, x, unseen = Named().double(), normal(N, D), normal(5, D, seed=1)
    reduction = span_reduction(model, x, layer="stem")
    assert reduction.network.stem.in_features == H + N
    with torch.no_grad():
        output = reduction.network(reduction.project(unseen))
        torch.testing.assert_close(output, model(unseen), **CLOSE)


@pytest.mark.parametrize(
    "build",
    [
        lambda: nn.Linear(D, H),
        lambda: nn.Sequential(nn.Flatten(), nn.Identity(), nn.Linear(D, H)),
        lambda: nn.Sequential(nn.Sequential(nn.Linear(D, H), nn.ReLU()), nn.ReLU()),
        lambda: nn.Sequential(nn.Linear(D, H), nn.BatchNorm1d(H), nn.Dropout(0.5)),
    ],
)
def test_the_first_layer_is_found_where_nothing_comes_before_it(build):
    model, x = build().double(), normal(N, D)
    reduction = span_reduction(model, x)
    unseen = normal(5, D, seed=1)
    with torch.no_grad():
        output = reduction.network.eval()(reduction.project(unseen))
        torch.testing.assert_close(output, model.eval()(unseen), **CLOSE)


@pytest.mark.parametrize(
    ("way", "part"),
    [
        ("dropout", "a changed input"),
        ("scaled", "a changed input"),
        ("twice", "2 calls of 'stem'"),
        ("sum", "a way around it"),
        ("skip", "fails on the reduced input"),
    ],
)
def test_a_network_that_does_more_with_its_input_is_refused(way, part):
    with pytest.raises(ValueError, match=f"span_reduction: network must be .*{part}"):
        span_reduction(Named(way).double(), normal(N, D), layer="stem")


def tied():
    model = nn.Sequential(nn.Linear(D, D), nn.ReLU(), nn.Linear(D, D))
    model[2].weight = model[0].weight
    return model.double()


X = normal(N, D)


@pytest.mark.parametrize(
    ("model", "x", "kind", "part"),
    [
        ("net", X, TypeError, "network must be a module"),
        (network(), X.numpy(), TypeError, "x_train must be a tensor"),
        (network(), X.float(), TypeError, "float64 on cpu, as the first weight"),
        (network(), X[:, 1:], ValueError, "of shape .n, 60., as the first layer"),
        (network(), X[0], ValueError, "Flatten images first"),
        (network(), X[:0], ValueError, "of shape .n, 60., as the first layer"),
        (network(), normal(D - H, D), ValueError, "nothing would be gained"),
        (network(), X / 0, ValueError, "finite"),
        (network(), 1e200 * X, ValueError, "finite"),
        (nn.Sequential(nn.ReLU()), X, TypeError, "one with ReLU. If a linear"),
        (nn.Sequential(), X, TypeError, "one with Sequential"),
        (nn.Sequential(nn.Dropout(), nn.Linear(D, H)), X, TypeError, "with Dropout"),
        (tied(), X, ValueError, "one shared by 0.weight, 2.weight. Untie"),
        (
            parametrizations.weight_norm(nn.Linear(D, H)).double(), X, ValueError,
            "Remove the parametrization",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_reduced_is_refused_with_the_reason(model, x, kind, part):
    with pytest.raises(kind, match=rf"span_reduction: .*{part}"):
        span_reduction(model, x)


@pytest.mark.parametrize(
    ("settings", "kind"),
    [
        ({"layer": "1"}, TypeError),
        ({"layer": "stem"}, ValueError),
        ({"memory_budget": 0}, ValueError),
        ({"memory_budget": 1e9}, TypeError),
    ],
)
def test_unusable_settings_are_refused(settings, kind):
    with pytest.raises(kind, match=f"span_reduction: {next(iter(settings))} must be"):
        span_reduction(network(), X, **settings)


def test_projecting_and_lifting_refuse_what_does_not_fit():
    reduction = span_reduction(network(), X)
    for points, kind in (
        (X.float(), TypeError),
        (X.numpy(), TypeError),
        (X[:, 1:], ValueError),
        (X[0], ValueError),
    ):
        with pytest.raises(kind, match=r"SpanReduction\.project: x must be"):
            reduction.project(points)
    with pytest.raises(ValueError, match=r"takes 16 inputs, got one of 60\."):
        reduction.lift(network())
    with pytest.raises(TypeError, match="the weight must be float64 on cpu"):
        reduction.lift(reduction.network.float())


def test_no_points_project_to_no_points():
    assert span_reduction(network(), X).project(X[:0]).shape == (0, H + N)


@pytest.mark.cuda
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_gpu_reduces_as_the_cpu_does(dtype):
    model, x, unseen = network(), normal(N, D, seed=2), normal(20, D, seed=4)
    x[1] = x[0]
    model, x, unseen = (value.to("cuda", dtype) for value in (model, x, unseen))
    reduction = span_reduction(model, x)
    assert reduction.rank == H + N - 1
    tolerance = {"rtol": 0, "atol": 1e3 * torch.finfo(dtype).eps}
    with torch.no_grad():
        output = reduction.network(reduction.project(unseen))
        torch.testing.assert_close(output, model(unseen), **tolerance)
        lifted = reduction.lift(reduction.network)
        torch.testing.assert_close(lifted(unseen), model(unseen), **tolerance)
