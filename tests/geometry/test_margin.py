"""Local robustness: the distance to the nearest boundary of the local affine map."""

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign import local_robustness
from tests.strategies import jacobians_and_inputs


def linear_problem(pair, seed):
    jacobian, x = pair
    generator = torch.Generator().manual_seed(seed)
    offset = torch.randn(jacobian.shape[:2], generator=generator, dtype=x.dtype)
    output = (jacobian @ x.unsqueeze(2)).squeeze(2) + offset
    return jacobian, offset, x, output


@given(jacobians_and_inputs(), st.integers(0, 999))
def test_no_step_shorter_than_the_distance_changes_the_class(pair, seed):
    jacobian, offset, x, output = linear_problem(pair, seed)
    y = output.argmax(1)
    distance = local_robustness(jacobian, offset, x, y)
    finite = torch.where(distance.isfinite(), distance, 1.0)
    generator = torch.Generator().manual_seed(seed)
    for _ in range(20):
        step = torch.randn(x.shape, generator=generator, dtype=x.dtype)
        step = step / step.norm(dim=1, keepdim=True) * (1 - 1e-9) * finite[:, None]
        moved = (jacobian @ (x + step).unsqueeze(2)).squeeze(2) + offset
        assert torch.equal(moved.argmax(1), y)


@given(jacobians_and_inputs(), st.integers(0, 999))
def test_a_step_just_beyond_the_distance_does(pair, seed):
    jacobian, offset, x, output = linear_problem(pair, seed)
    y = output.argmax(1)
    distance = local_robustness(jacobian, offset, x, y)
    for J, b, point, label, reach in zip(jacobian, offset, x, y, distance, strict=True):
        if not reach.isfinite():
            continue
        away = [J[c] - J[label] for c in range(len(J)) if (J[c] - J[label]).norm() > 0]
        ends = [point + 1.0001 * reach * w / w.norm() for w in away]
        assert any(int((J @ end + b).argmax()) != int(label) for end in ends)


def test_wrong_predictions_have_distance_zero():
    jacobian, offset = torch.eye(2).unsqueeze(0), torch.zeros(1, 2)
    x = torch.tensor([[1.0, 3.0]])
    assert local_robustness(jacobian, offset, x, torch.tensor([0])) == 0
    torch.testing.assert_close(
        local_robustness(jacobian, offset, x, torch.tensor([1])),
        torch.tensor([2 / 2**0.5]),
    )


def test_ties_have_distance_zero():
    jacobian, offset = torch.eye(2).unsqueeze(0), torch.zeros(1, 2)
    x = torch.tensor([[1.0, 1.0]])
    for label in (0, 1):
        assert local_robustness(jacobian, offset, x, torch.tensor([label])) == 0


def test_infinite_when_no_class_competes():
    x, y = torch.ones(1, 4), torch.tensor([0])
    one_output = local_robustness(torch.ones(1, 1, 4), torch.zeros(1, 1), x, y)
    same_rows = local_robustness(
        torch.ones(1, 3, 4), torch.tensor([[1.0, 0.0, 0.0]]), x, y
    )
    assert one_output.isinf()
    assert same_rows.isinf()
    assert local_robustness(
        torch.zeros(1, 3, 4), torch.tensor([[0.0, 1.0, 0.0]]), x, y
    ).eq(0)


def test_gradients():
    torch.manual_seed(0)
    jacobian = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    offset = torch.randn(3, 4, dtype=torch.float64, requires_grad=True)
    x = torch.randn(3, 5, dtype=torch.float64, requires_grad=True)
    y = ((jacobian @ x.unsqueeze(2)).squeeze(2) + offset).argmax(1)
    assert torch.autograd.gradcheck(
        lambda j, b, z: local_robustness(j, b, z, y), (jacobian, offset, x)
    )


def test_complaints():
    jacobian, offset, x = torch.ones(2, 3, 4), torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(ValueError, match=r"class indices from 0 to 2, got values from"):
        local_robustness(jacobian, offset, x, torch.tensor([0, 3]))
    with pytest.raises(TypeError, match="y must be of an integer dtype"):
        local_robustness(jacobian, offset, x, torch.tensor([0.0, 1.0]))
    with pytest.raises(ValueError, match=r"y must be of shape \(2,\)"):
        local_robustness(jacobian, offset, x, torch.tensor([0]))
    with pytest.raises(ValueError, match=r"offset must be of shape \(2, 3\)"):
        local_robustness(jacobian, torch.ones(2), x, torch.tensor([0, 1]))


@pytest.mark.parametrize(
    "convert",
    [
        list,
        np.array,
        lambda y: np.array(y, dtype=np.uint64),
        lambda y: np.array(y, dtype=">i4"),
        pd.Series,
        lambda y: pd.Series(y, dtype="Int64"),
        lambda y: np.array(y, dtype=object),
    ],
    ids=["list", "array", "unsigned", "foreign", "series", "nullable", "objects"],
)
def test_labels_may_be_integers_of_any_library(convert):
    jacobian, offset = torch.randn(3, 4, 5), torch.randn(3, 4)
    x, labels = torch.randn(3, 5), [2, 0, 3]
    found = local_robustness(jacobian, offset, x, convert(labels))
    wanted = local_robustness(jacobian, offset, x, torch.tensor(labels))
    assert torch.equal(found, wanted)


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (np.array(["a", "b"]), "a <U1 ndarray of shape"),
        ([[0], [0, 1]], r"\[\[0\], \[0, 1\]\]"),
        ([0, None], r"\[0, None\]"),
        (np.array([0.0, 1.0]), "a float64 Tensor"),
        (np.array([True, False]), "a bool Tensor"),
    ],
    ids=["texts", "ragged", "missing", "floats", "booleans"],
)
def test_labels_that_are_no_indices_are_refused_in_the_house_form(labels, words):
    jacobian, offset, x = torch.ones(2, 3, 4), torch.ones(2, 3), torch.ones(2, 4)
    with pytest.raises(
        TypeError, match=f"^local_robustness: y must be .*, got {words}"
    ):
        local_robustness(jacobian, offset, x, labels)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_the_scale_of_the_map_does_not_matter(scale):
    torch.manual_seed(0)
    jacobian, offset, x = torch.randn(4, 3, 5), torch.randn(4, 3), torch.randn(4, 5)
    y = ((jacobian @ x.unsqueeze(2)).squeeze(2) + offset).argmax(1)
    torch.testing.assert_close(
        local_robustness(scale * jacobian, scale * offset, x, y),
        local_robustness(jacobian, offset, x, y),
    )


def test_what_is_not_a_number_stays_so():
    jacobian, offset = torch.eye(2).unsqueeze(0), torch.full((1, 2), torch.nan)
    value = local_robustness(jacobian, offset, torch.ones(1, 2), torch.tensor([0]))
    assert value.isnan()
