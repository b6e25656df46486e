import pytest
import torch

from normalign.data import Dataset, rows


@pytest.fixture
def data():
    x, y = torch.randn(4, 2), torch.tensor([0, 1, 0, 1])
    return Dataset(x, y, x[:1], y[:1], name="four", origin="by hand", exact=False)


def test_to_casts_real_tensors_and_leaves_class_indices(data):
    moved = data.to("cpu", torch.float64)
    assert moved.x_train.dtype == moved.x_test.dtype == torch.float64
    assert moved.y_train.dtype == torch.int64
    assert moved.exact is False
    assert data.x_train.dtype == torch.float32


def test_real_targets_are_cast_too(data):
    y = torch.ones(4)
    real = Dataset(data.x_train, y, data.x_train, y, name="", origin="")
    assert real.to(dtype=torch.float64).y_test.dtype == torch.float64


def test_an_integer_dtype_is_refused(data):
    with pytest.raises(TypeError, match="dtype must be a floating-point dtype"):
        data.to(dtype=torch.int64)


def test_the_repr_is_one_small_line(data):
    text = repr(data)
    assert text == "Dataset(four: 4 train, 1 test, inputs (2,) float32, not exact)"


def test_mismatched_tensors_are_refused(data):
    x, y = data.x_train, data.y_train
    with pytest.raises(ValueError, match="y_train must be as long as x_train"):
        Dataset(x, y[:2], x, y, name="", origin="")
    with pytest.raises(ValueError, match="y_test must be as long as x_test"):
        Dataset(x, y, x, y[:2], name="", origin="")
    with pytest.raises(ValueError, match="x_test must be of shape"):
        Dataset(x, y, x[:, :1], y, name="", origin="")


def test_a_class_with_too_few_rows_is_named_in_time():
    labels = torch.tensor([0, 0, 0, 1])
    with pytest.raises(ValueError, match="at most 2 for subset='balanced'"):
        rows("load", "n_train", labels, count=4, subset="balanced")
