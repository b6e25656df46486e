import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from normalign.training import Member
from normalign.training._targets import (
    LOSSES,
    ClassEncoding,
    class_encoding,
    class_encodings,
    is_correct,
    prepared_target,
    stacked_loss,
)
from normalign.training.loop import accuracy
from normalign.training.rules import SGD
from tests.training.ensembles import ensemble

BITS, SIGNS = torch.tensor([0.0, 1.0, 1.0]), torch.tensor([-1.0, 1.0, 1.0])


@pytest.mark.parametrize("k", [1, 2, 5])
def test_right_answers_are_those_of_accuracy(k):
    source = torch.Generator().manual_seed(k)
    output = torch.randn(3, 20, k, generator=source)
    classes = torch.randint(0, max(k, 2), (3, 20), generator=source)
    if k == 1:
        targets = [classes, classes[..., None], 2.0 * classes - 1]
    else:
        targets = [classes, functional.one_hot(classes, k).float()]
    for target in targets:
        answers = class_encoding(list(target), k)
        assert answers is not None
        right = is_correct(output, target, answers)
        assert 0 < right.sum() < right.numel()
        for i in range(3):
            expected = float(accuracy(output[i], target[i]))
            assert float(right[i].float().mean()) == pytest.approx(expected)


def test_the_threshold_lies_between_the_targets():
    output = torch.tensor([[0.3], [0.4], [0.6]])
    for threshold, expected in ((0.0, [False, True, True]), (0.5, [True, False, True])):
        right = is_correct(output, BITS, ClassEncoding("bits", threshold))
        assert right.tolist() == expected


@pytest.mark.parametrize("kind", ["signs", "bits"])
def test_an_output_that_is_no_number_is_wrong(kind):
    output, target = torch.full((3, 1), math.nan), SIGNS if kind == "signs" else BITS
    assert not is_correct(output, target, ClassEncoding(kind)).any()


def test_training_and_test_targets_decide_together_what_a_one_is():
    ones = torch.ones(2)
    for other, kind in ((BITS, "bits"), (SIGNS, "signs")):
        for train, test in ((ones, other), (other, ones)):
            found = class_encodings({"train": [train], "test": [test]}, 1)
            assert [a.kind for a in found.values() if a] == [kind, kind]
    mixed = class_encodings({"train": [BITS], "test": [SIGNS]}, 1)
    assert mixed == {"train": None, "test": None}
    further = {"train": [BITS], "test": [BITS], "further": [torch.randn(3)]}
    assert [a is None for a in class_encodings(further, 1).values()] == [0, 0, 1]


def trained_with(network, x, y, loss):
    data = SimpleNamespace(x_train=x, y_train=y, x_test=x, y_test=y)
    made = ensemble([network], data, [Member(0, SGD())], loss=loss, epochs=0)
    return made.train()[0].history["train_accuracy"][0]


def entropy(output, target):
    return functional.binary_cross_entropy_with_logits(output[:, 0], target)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_a_perfect_classifier_of_zeros_and_ones_is_always_right(dtype):
    x = torch.linspace(-1, 2, 20, dtype=torch.float64)[:, None]
    network = nn.Linear(1, 1).double()
    nn.init.ones_(network.weight)
    nn.init.zeros_(network.bias)
    assert trained_with(network, x, (x[:, 0] > 0.5).to(dtype), "squared_error") == 1
    if dtype.is_floating_point:
        assert trained_with(network, x, (x[:, 0] > 0).to(dtype), entropy) == 1


def squares(output, target):
    return (output[:, : target.shape[1]] - target).square().mean()


@pytest.mark.parametrize(
    ("y", "k", "loss"),
    [
        (torch.rand(6, 3).double(), 3, "squared_error"),
        (torch.rand(6, 3).softmax(1).double(), 3, "cross_entropy"),
        (torch.rand(6).double(), 1, "squared_error"),
        (torch.randint(0, 2, (6, 2)), 4, squares),
    ],
)
def test_quantities_have_no_accuracy(y, k, loss):
    x = torch.randn(6, 2, dtype=torch.float64)
    assert math.isnan(trained_with(nn.Linear(2, k).double(), x, y, loss))


def test_a_run_without_accuracies_goes_on_from_its_checkpoint(tmp_path):
    x = torch.randn(6, 2, dtype=torch.float64)
    data = SimpleNamespace(x_train=x, y_train=x[:, 0], x_test=x, y_test=x[:, 1])
    network = nn.Linear(2, 1).double()
    first, again = (
        ensemble(
            [network], data, [Member(0, SGD())], loss="squared_error", epochs=2
        ).train(checkpoint=tmp_path / "run")[0]
        for _ in range(2)
    )
    assert math.isnan(again.history["test_accuracy"][-1])
    assert again.history["train_loss"] == first.history["train_loss"]


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
