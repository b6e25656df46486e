"""What a filter refuses, what it says, and that nothing has happened by then."""

import copy

import pytest
import torch
from torch import nn

from normalign.optim import GradientFilter, Grokfast, GrokfastWindow, OrthoGrad

KINDS = [Grokfast, GrokfastWindow, OrthoGrad]


def single():
    weight = nn.Parameter(torch.ones(3))
    return weight, torch.optim.SGD([weight], lr=0.1)


@pytest.mark.parametrize("kind", KINDS)
def test_only_optimizers_can_be_filtered(kind):
    with pytest.raises(TypeError) as error:
        kind([nn.Parameter(torch.ones(1))][:0])
    assert str(error.value) == (
        f"{kind.__name__}: optimizer must be a torch.optim.Optimizer, got []. "
        "Build the optimizer first, then attach the filter to it."
    )


@pytest.mark.parametrize("kind", KINDS)
def test_an_optimizer_that_needs_a_closure_is_refused(kind):
    with pytest.raises(TypeError, match="steps without a closure, got LBFGS"):
        kind(torch.optim.LBFGS([nn.Parameter(torch.ones(1))]))


@pytest.mark.parametrize("kind", KINDS)
def test_a_differentiable_optimizer_is_refused(kind):
    sgd = torch.optim.SGD([nn.Parameter(torch.ones(1))], differentiable=True)
    with pytest.raises(ValueError, match="made with differentiable=False"):
        kind(sgd)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("keyword", [False, True])
def test_a_step_with_a_closure_is_refused_with_the_remedy(kind, keyword):
    weight, sgd = single()
    gradient_filter = kind(sgd)
    weight.grad = torch.tensor([1.0, 2.0, 3.0])

    def closure():
        raise AssertionError("never called")

    with pytest.raises(ValueError, match=r"loss.backward\(\), then step\(\) without"):
        sgd.step(closure=closure) if keyword else sgd.step(closure)
    assert torch.equal(weight.grad, torch.tensor([1.0, 2.0, 3.0]))
    assert gradient_filter.state_dict()["state"] == {}
    sgd.step(None)


@pytest.mark.parametrize("kind", KINDS)
def test_a_sparse_gradient_is_refused_before_any_other_is_touched(kind):
    dense = nn.Linear(2, 3)
    sparse = nn.Embedding(4, 2, sparse=True)
    sgd = torch.optim.SGD([*dense.parameters(), sparse.weight], lr=0.1)
    gradient_filter = kind(sgd)
    dense(sparse(torch.tensor([1]))).sum().backward()
    before = dense.weight.grad.clone()
    with pytest.raises(TypeError) as error:
        sgd.step()
    assert str(error.value).startswith(
        f"{kind.__name__}: the gradient of parameter 2 must be dense, got layout "
        "sparse_coo, shape (4, 2). "
    )
    assert "sparse=False" in str(error.value)
    assert torch.equal(dense.weight.grad, before)
    assert gradient_filter.state_dict()["state"] == {}


def test_a_step_inside_a_step_is_refused():
    class Nested(torch.optim.SGD):
        def step(self, closure=None):
            return super().step(closure)

    single()  # torch hooks a class at its first instance
    weight = nn.Parameter(torch.ones(3))
    nested = Nested([weight], lr=0.1)
    Grokfast(nested)
    weight.grad = torch.ones(3)
    with pytest.raises(TypeError, match="filtered twice"):
        nested.step()


def test_a_step_that_raised_does_not_count_as_a_step_inside_a_step():
    class Fragile(torch.optim.Optimizer):
        broken = True

        def __init__(self, weights):
            super().__init__(weights, {})

        def step(self, closure=None):
            if self.broken:
                raise MemoryError

    weight = nn.Parameter(torch.ones(3))
    fragile = Fragile([weight])
    Grokfast(fragile, strength=1.0)
    weight.grad = torch.ones(3)
    with pytest.raises(MemoryError):
        fragile.step()
    fragile.broken = False
    weight.grad = torch.ones(3)
    fragile.step()
    assert torch.equal(weight.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize(
    ("kind", "settings", "error", "text"),
    [
        (Grokfast, {"decay": 1.0}, ValueError, "decay must be in [0, 1), got 1.0."),
        (Grokfast, {"decay": -0.1}, ValueError, "decay must be in [0, 1), got -0.1."),
        (Grokfast, {"decay": float("nan")}, ValueError, "decay must be in [0, 1), got"),
        (Grokfast, {"decay": "0.9"}, TypeError, "decay must be a number, got '0.9'."),
        (Grokfast, {"strength": True}, TypeError, "strength must be a number, got"),
        (Grokfast, {"strength": -1}, ValueError, "strength must be finite and at le"),
        (
            GrokfastWindow,
            {"strength": float("inf")},
            ValueError,
            "strength must be finite and at least 0, got inf.",
        ),
        (GrokfastWindow, {"window": 0}, ValueError, "window must be at least 1, got 0"),
        (GrokfastWindow, {"window": 2.0}, TypeError, "window must be an int, got 2.0."),
        (
            GrokfastWindow,
            {"warmup": "no"},
            TypeError,
            "warmup must be a bool, got 'no'.",
        ),
        (OrthoGrad, {"rescale": None}, TypeError, "rescale must be a bool, got None."),
    ],
)
def test_wrong_settings_are_refused_and_leave_no_hook_behind(
    kind, settings, error, text
):
    weight, sgd = single()
    with pytest.raises(error) as caught:
        kind(sgd, **settings)
    assert str(caught.value).startswith(f"{kind.__name__}: {text}")
    weight.grad = torch.tensor([1.0, 2.0, 3.0])
    sgd.step()
    assert torch.equal(weight.grad, torch.tensor([1.0, 2.0, 3.0]))


def test_a_filter_without_settings_takes_none():
    class Plain(GradientFilter):
        def transform(self, weights, gradients):
            raise NotImplementedError

    with pytest.raises(TypeError, match="Plain: settings must be empty, got decay"):
        Plain(single()[1], decay=0.5)


@pytest.mark.parametrize(
    ("change", "error", "text"),
    [
        (lambda s: [], TypeError, "state_dict must be a dict, got []."),
        (lambda s: {"state": {}}, ValueError, "one without filter, settings."),
        (
            lambda s: s | {"filter": "OrthoGrad"},
            ValueError,
            "must be one of Grokfast, got one of OrthoGrad.",
        ),
        (lambda s: s | {"settings": {}}, ValueError, "must be decay, strength, got"),
        (
            lambda s: s | {"settings": {"decay": 2.0, "strength": 1.0}},
            ValueError,
            "decay must be in [0, 1), got 2.0.",
        ),
        (
            lambda s: s | {"state": {"0": s["state"][0]}},
            ValueError,
            "an optimizer with the same 1 parameters, got state for parameter 0.",
        ),
        (
            lambda s: s | {"state": {0: {"average": torch.ones(4)}}},
            ValueError,
            "the average of parameter 0 must be of the parameter's shape (3,)",
        ),
        (
            lambda s: s | {"state": {0: {"average": torch.tensor(1.0)}}},
            ValueError,
            "the average of parameter 0 must be of the parameter's shape (3,)",
        ),
    ],
)
def test_a_foreign_state_is_refused_and_changes_nothing(change, error, text):
    weight, sgd = single()
    ema = Grokfast(sgd, decay=0.5)
    weight.grad = torch.ones(3)
    sgd.step()
    before = copy.deepcopy(ema.state_dict())
    with pytest.raises(error) as caught:
        ema.load_state_dict(change(ema.state_dict()))
    assert text in str(caught.value)
    after = ema.state_dict()
    assert after["settings"] == before["settings"]
    torch.testing.assert_close(after["state"], before["state"], atol=0, rtol=0)
