import math
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from normalign.training import Member
from normalign.training.answers import (
    Answers,
    answers_of,
    answers_of_sets,
    right_answers,
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
        answers = answers_of(list(target), k)
        assert answers is not None
        right = right_answers(output, target, answers)
        assert 0 < right.sum() < right.numel()
        for i in range(3):
            expected = float(accuracy(output[i], target[i]))
            assert float(right[i].float().mean()) == pytest.approx(expected)


def test_the_threshold_lies_between_the_targets():
    output = torch.tensor([[0.3], [0.4], [0.6]])
    for threshold, expected in ((0.0, [False, True, True]), (0.5, [True, False, True])):
        right = right_answers(output, BITS, Answers("bits", threshold))
        assert right.tolist() == expected


@pytest.mark.parametrize("kind", ["signs", "bits"])
def test_an_output_that_is_no_number_is_wrong(kind):
    output, target = torch.full((3, 1), math.nan), SIGNS if kind == "signs" else BITS
    assert not right_answers(output, target, Answers(kind)).any()


def test_training_and_test_targets_decide_together_what_a_one_is():
    ones = torch.ones(2)
    for other, kind in ((BITS, "bits"), (SIGNS, "signs")):
        for train, test in ((ones, other), (other, ones)):
            found = answers_of_sets({"train": [train], "test": [test]}, 1)
            assert [a.kind for a in found.values() if a] == [kind, kind]
    mixed = answers_of_sets({"train": [BITS], "test": [SIGNS]}, 1)
    assert mixed == {"train": None, "test": None}
    further = {"train": [BITS], "test": [BITS], "further": [torch.randn(3)]}
    assert [a is None for a in answers_of_sets(further, 1).values()] == [0, 0, 1]


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
