"""Batch normalisation: fixed statistics in a pull-back, living ones elsewhere."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from normalign.regularizers._second_order import lean_operations
from tests.regularizers.second_order.cases import (
    CLOSE,
    Decomposed,
    Step,
    leaves,
    normal,
    normalised,
    pulled_by,
    under_lean,
    with_statistics,
)


def test_batch_norm_in_training_pulls_at_fixed_statistics_and_learns_through_them():
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    oracle = Decomposed(model, x)
    v = normal(*oracle.output.shape)
    pulled = torch.einsum("nk,nkd->nd", v, oracle.jacobians())
    offset = (v * oracle.output).sum() - (pulled * x.flatten(1)).sum()
    task = F.cross_entropy(oracle.output, torch.arange(5) % 4)
    loss = task + pulled.square().sum() + offset.square() / 5
    names = [name for name, _ in model.named_parameters()]
    expected = torch.autograd.grad(loss, list(model.parameters()))

    step = Step(model, x)
    torch.testing.assert_close(step.output, oracle.output, **CLOSE)
    torch.testing.assert_close(step.pulled.flatten(1), pulled, **CLOSE)
    for name, gradient in zip(names, expected, strict=True):
        torch.testing.assert_close(step.gradients[name], gradient, **CLOSE)


def test_the_statistics_do_matter_to_the_gradient():
    # Otherwise the test above could not tell a derivative through them from none.
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    free = Decomposed(model, x)
    held = Decomposed(model, x)
    held.statistics = [(m.detach(), v.detach()) for m, v in free.statistics]
    weight = model[0].weight
    one, two = (
        torch.autograd.grad(oracle.jacobians().square().sum(), weight)[0]
        for oracle in (free, held)
    )
    assert (one - two).norm() > 0.1 * one.norm()


@pytest.mark.parametrize("training", [True, False])
def test_batch_norm_gives_what_torch_gives(training):
    model, x = with_statistics(normalised()).train(training), normal(5, 4, 8, 8)
    twin = copy.deepcopy(model)
    expected = twin(x)
    expected.square().sum().backward()
    point = x.clone().requires_grad_()
    with lean_operations(point):
        output = model(point)
    output.square().sum().backward()  # the task loss alone, in the ordinary way
    assert torch.equal(output, expected)
    for (name, buffer), other in zip(
        model.named_buffers(), twin.buffers(), strict=True
    ):
        assert torch.equal(buffer, other), name
    for parameter, other in zip(model.parameters(), twin.parameters(), strict=True):
        torch.testing.assert_close(parameter.grad, other.grad, **CLOSE)


def test_a_pull_back_of_batch_norm_belongs_to_one_sample():
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    point = x.clone().requires_grad_()
    with lean_operations(point) as operations:
        output = model(point)
    with operations.pulling():
        (pulled,) = torch.autograd.grad(output[2].sum(), point, retain_graph=True)
    (mixed,) = torch.autograd.grad(output[2].sum(), point)
    others = [0, 1, 3, 4]
    assert torch.count_nonzero(pulled[others]) == 0
    assert torch.count_nonzero(mixed[others]) > 0


def training_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, weight, bias, training=True)


def evaluation_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    mean, var = torch.tensor([0.3, -1.0, 2.0]), torch.tensor([0.5, 1.0, 3.0])
    return F.batch_norm(x, mean.double(), var.double(), weight, bias)


@pytest.mark.parametrize("shape", [(3, 3, 2), (4, 3)])
@pytest.mark.parametrize("function", [training_norm, evaluation_norm])
def test_first_and_second_derivatives_agree_with_differences(function, shape):
    inputs = leaves(shape, (3,), (3,))
    assert gradcheck(under_lean(function), inputs)
    assert gradgradcheck(under_lean(function), inputs)


@pytest.mark.parametrize("function", [training_norm, evaluation_norm])
def test_a_gradient_with_a_graph_is_the_gradient_without(function):
    x, v, *parameters = leaves((3, 3, 2), (3, 3, 2), (3,), (3,))
    expected = torch.autograd.grad(function(x, *parameters), [x, *parameters], v)
    output = under_lean(function)(x, *parameters)
    found = torch.autograd.grad(output, [x, *parameters], v, create_graph=True)
    for one, two in zip(found, expected, strict=True):
        torch.testing.assert_close(one, two, **CLOSE)


def test_derivatives_of_a_pull_back_through_batch_norm_agree_with_differences():
    # With x held: differences in x would move the statistics that the pull-back holds.
    x, v, weight, bias, before = leaves((4, 3, 2), (4, 2, 2), (2,), (2,), (2, 3, 1))

    def function(v: Tensor, before: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        def model(x: Tensor) -> Tensor:
            hidden = F.conv1d(x, before)
            return torch.tanh(training_norm(hidden, weight, bias))

        return pulled_by(model)(x, v)

    assert gradcheck(function, [v, before, weight, bias])
    assert gradgradcheck(function, [v, before, weight, bias])


def test_several_probes_pull_through_one_graph():
    model, x = with_statistics(normalised()).train(), normal(5, 4, 8, 8)
    point = x.clone().requires_grad_()
    with lean_operations(point) as operations:
        y = model(point)
    total = y.new_zeros(())
    with operations.pulling():
        for seed in range(3):
            v = normal(*y.shape, seed=seed)
            (pulled,) = torch.autograd.grad(y, point, v, create_graph=True)
            total = total + pulled.square().sum()
    (gradient,) = torch.autograd.grad(total, model[0].weight)

    oracle = Decomposed(model, x)
    jacobians = oracle.jacobians()
    expected = sum(
        torch.einsum("nk,nkd->nd", normal(*y.shape, seed=seed), jacobians)
        .square()
        .sum()
        for seed in range(3)
    )
    (truth,) = torch.autograd.grad(expected, model[0].weight)
    torch.testing.assert_close(total, expected, **CLOSE)
    torch.testing.assert_close(gradient, truth, **CLOSE)
