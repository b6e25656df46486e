import pytest
import torch
from torch import nn
from torch.nn import functional

from normalign.training.losses import (
    LOSSES,
    prepared_target,
    stacked_loss,
)

OUTPUT = torch.randn(4, 7, 3, dtype=torch.float64, generator=torch.Generator())
CLASSES = torch.randint(0, 3, (4, 7), generator=torch.Generator())


def test_the_cross_entropy_of_each_network_is_torchs():
    found = stacked_loss("cross_entropy")(OUTPUT, CLASSES)
    for i in range(4):
        expected = functional.cross_entropy(OUTPUT[i], CLASSES[i])
        torch.testing.assert_close(found[i], expected)


def test_the_cross_entropy_takes_rows_of_probabilities():
    shares = OUTPUT.flip(1).softmax(2)
    found = stacked_loss("cross_entropy")(OUTPUT, shares)
    for i in range(4):
        expected = functional.cross_entropy(OUTPUT[i], shares[i])
        torch.testing.assert_close(found[i], expected)


def test_the_squared_error_is_the_mean_over_samples_and_outputs():
    target = OUTPUT.flip(1)
    found = stacked_loss("squared_error")(OUTPUT, target)
    for i in range(4):
        torch.testing.assert_close(found[i], functional.mse_loss(OUTPUT[i], target[i]))


@pytest.mark.parametrize(
    "loss", [functional.cross_entropy, nn.CrossEntropyLoss(label_smoothing=0.1)]
)
def test_a_function_of_ones_own_sees_one_network_at_a_time(loss):
    found = stacked_loss(loss)(OUTPUT, CLASSES)
    for i in range(4):
        torch.testing.assert_close(found[i], loss(OUTPUT[i], CLASSES[i]))


@pytest.mark.parametrize("name", LOSSES)
def test_no_network_sees_the_gradient_of_another(name):
    output = OUTPUT.clone().requires_grad_()
    target = CLASSES if name == "cross_entropy" else OUTPUT.flip(2)
    stacked_loss(name)(output, target)[1].backward()
    assert output.grad is not None
    moved = output.grad.abs().amax((1, 2))
    assert moved[1] > 0
    assert moved[[0, 2, 3]].max() == 0


def test_an_unknown_name_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="loss must be 'cross_entropy' or"):
        stacked_loss("hinge")


def test_class_numbers_become_one_hot_rows_for_the_squared_error():
    for dtype in (torch.int64, torch.int32, torch.uint8):
        rows = prepared_target(torch.tensor([2, 0]).to(dtype), "squared_error", 3)
        assert torch.equal(rows, torch.tensor([[0.0, 0.0, 1.0], [1.0, 0.0, 0.0]]))


def test_one_output_is_compared_with_the_numbers_themselves():
    for target in (torch.tensor([-1, 1]), torch.tensor([-1.0, 1.0])):
        column = prepared_target(target, "squared_error", 1)
        assert torch.equal(column, torch.tensor([[-1.0], [1.0]]))


def test_class_numbers_of_any_integer_dtype_suit_the_cross_entropy():
    found = prepared_target(torch.tensor([2, 0], dtype=torch.int16), "cross_entropy", 3)
    assert found.dtype == torch.int64
    assert found.tolist() == [2, 0]


def test_the_targets_of_ones_own_loss_stay_as_they_are():
    target = torch.randn(5, 2, 2)
    assert prepared_target(target, functional.mse_loss, 7) is target


@pytest.mark.parametrize(
    ("target", "loss", "k", "text"),
    [
        (torch.ones(4), "cross_entropy", 3, r"class numbers .* Call y.long\(\)"),
        (torch.ones(4, 2), "cross_entropy", 3, r".* or probabilities \(n, 3\), got"),
        (torch.ones(4, 3).long(), "cross_entropy", 3, r"class numbers \(n,\) of"),
        (
            torch.tensor([0, 3]),
            "cross_entropy",
            3,
            "class numbers from 0 to 2, got 0 to 3",
        ),
        (
            torch.tensor([-1, 1]),
            "cross_entropy",
            2,
            "class numbers from 0 to 1, got -1 to 1",
        ),
        (
            torch.tensor([-1, 1]),
            "squared_error",
            2,
            "class numbers from 0 to 1, got -1 to 1",
        ),
        # (n, 1) against (n, 3) would broadcast, and train on nonsense.
        (torch.ones(4), "squared_error", 3, r"numbers of shape \(n, 3\), or class"),
        (torch.ones(4, 2), "squared_error", 3, r"numbers of shape \(n, 3\)"),
    ],
)
def test_targets_that_do_not_fit_are_refused(target, loss, k, text):
    with pytest.raises(ValueError, match=f"^Ensemble: targets must be {text}"):
        prepared_target(target, loss, k)


def test_the_cross_entropy_of_one_output_is_refused():
    with pytest.raises(ValueError, match=r"^Ensemble: loss must be .* one output, got"):
        prepared_target(torch.zeros(4).long(), "cross_entropy", 1)


def test_a_loss_that_is_neither_a_name_nor_a_function_is_refused():
    for loss in (3, ["squared_error"]):
        with pytest.raises(TypeError, match=r"^Ensemble: loss must be 'cross_entropy'"):
            stacked_loss(loss)
