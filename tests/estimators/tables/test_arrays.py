import array_api_strict
import numpy as np
import pandas as pd
import pytest
import torch

from normalign.estimators import RFMClassifier, RFMRegressor
from normalign.estimators._inputs import Origin, as_numpy, check_weights
from tests.estimators.samples import ESTIMATORS, FRESH, NUMBERS, X, answers

STRICT_DEVICES = array_api_strict.__array_namespace_info__().devices()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_tensor_goes_to_numpy_and_back(dtype):
    tensor = torch.arange(3, dtype=dtype)
    array = as_numpy(tensor)
    assert isinstance(array, np.ndarray)
    back = Origin.of(tensor).restored(array)
    torch.testing.assert_close(back, tensor)


def test_a_tensor_with_a_graph_or_in_bfloat16_is_read_without_its_graph():
    tensor = torch.ones(2, dtype=torch.bfloat16, requires_grad=True)
    np.testing.assert_array_equal(as_numpy(tensor), [1.0, 1.0])
    assert tensor.requires_grad


def test_views_that_are_negated_only_when_read_are_read():
    numbers = torch.complex(torch.ones(2), torch.ones(2)).conj().imag
    assert numbers.is_neg()
    np.testing.assert_array_equal(as_numpy(numbers), [-1.0, -1.0])
    assert as_numpy(torch.complex(torch.ones(2), torch.ones(2)).conj())[0] == 1 - 1j


def test_values_under_a_mask_are_never_seen():
    masked = np.ma.masked_equal(np.array([1, 2], dtype=np.int8), 2)
    np.testing.assert_array_equal(as_numpy(masked), [1.0, np.nan])
    single = as_numpy(np.ma.masked_equal(np.float32([1, 2]), 2))
    assert single.dtype == np.float32
    np.testing.assert_array_equal(single, [1.0, np.nan])
    words = as_numpy(np.ma.array(["a", "b"], mask=[False, True]))
    assert words.tolist() == ["a", None]
    assert as_numpy(np.ma.array([1, 2])).tolist() == [1, 2]


@pytest.mark.parametrize("device", STRICT_DEVICES)
def test_any_array_of_the_standard_goes_to_numpy_and_back(device):
    values = strict(np.array([1.0, 2.0]), device)
    array = as_numpy(values)
    assert type(array) is np.ndarray
    np.testing.assert_array_equal(array, [1.0, 2.0])
    back = Origin.of(values).restored(array)
    assert back.device == device
    assert bool(array_api_strict.all(back == values))


class Elsewhere:
    """An array that only its own library's method brings to the processor."""

    device = "gpu"

    def __array_namespace__(self):
        return np

    def get(self):
        return np.array([1.0, 2.0])


class Old:
    """An array that knows numpy, and no newer way of exchange."""

    device = "cpu"

    def __array_namespace__(self):
        return np

    def __array__(self, dtype=None, copy=None):
        return np.array([1.0, 2.0], dtype=dtype)


@pytest.mark.parametrize("values", [Elsewhere(), Old()])
def test_arrays_with_a_way_of_their_own_are_read_by_it(values):
    np.testing.assert_array_equal(as_numpy(values), [1.0, 2.0])


@pytest.mark.parametrize("values", [[1, 2], np.ones(2), pd.Series([1, 2])])
def test_what_numpy_reads_itself_is_left_alone(values):
    assert as_numpy(values) is values
    assert Origin.of(values).restored(np.ones(2)) is not None
    assert type(Origin.of(values).restored(np.ones(2))) is np.ndarray


def test_texts_stay_with_numpy():
    words = np.array(["a", "b"])
    assert Origin.of(torch.ones(2)).restored(words) is words


def strict(table, device):
    """Some of the devices have no float64."""
    coarse = "no_" in str(device)
    values = table.astype(np.float32) if coarse else table
    return array_api_strict.asarray(values, device=device)


METHODS = ["predict", "predict_proba", "decision_function", "jacobian"]


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize(
    ("table", "fresh"),
    [
        (torch.as_tensor(X), torch.as_tensor(FRESH)),
        (torch.as_tensor(X).float(), torch.as_tensor(FRESH).float()),
        *((strict(X, device), strict(FRESH, device)) for device in STRICT_DEVICES),
    ],
    ids=["float64 tensor", "float32 tensor", *map(str, STRICT_DEVICES)],
)
def test_arrays_of_any_library_come_back_as_that_library_has_them(kind, table, fresh):
    y = answers(kind)
    codes = np.unique(y, return_inverse=True)[1] if y.dtype.kind == "U" else y
    codes = codes.astype(as_numpy(table).dtype)
    plain = kind(n_iter=1).fit(as_numpy(table), codes)
    given = Origin.of(table).restored(codes)
    machine = kind(n_iter=1).fit(table, given)
    for name in METHODS:
        if not hasattr(machine, name):
            continue
        found = getattr(machine, name)(fresh)
        wanted = getattr(plain, name)(as_numpy(fresh))
        assert type(found) is type(fresh)
        assert found.device == fresh.device
        np.testing.assert_array_equal(as_numpy(found), wanted)
        if name != "predict":
            assert found.dtype == fresh.dtype
    assert type(machine.X_fit_) is np.ndarray
    assert machine.score(table, codes) == plain.score(as_numpy(table), codes)


@pytest.mark.parametrize("convert", [np.asarray, torch.as_tensor])
def test_labels_are_not_rounded_to_the_precision_of_the_table(convert):
    labels = (X[:, 0] > 0) + 2.0**24  # the next float32 is two away
    table = convert(X.astype(np.float32))
    for y in (labels, np.stack([labels, -labels], axis=1)):
        found = RFMClassifier(n_iter=0).fit(table, y).predict(table)
        assert type(found) is type(table)
        np.testing.assert_array_equal(np.asarray(found), y)


@pytest.mark.parametrize("device", STRICT_DEVICES)
@pytest.mark.parametrize("dtype", [np.int64, np.float64])
def test_labels_go_back_to_devices_that_have_no_64_bits(device, dtype):
    table, labels = strict(X, device), (X[:, 0] > 0).astype(dtype)
    found = RFMClassifier(n_iter=0).fit(table, labels).predict(table)
    assert found.device == device
    np.testing.assert_array_equal(as_numpy(found), labels)


class Coarse:
    """A namespace without numbers of 64 bits, like that of some accelerators."""

    @staticmethod
    def asarray(values, device=None):
        if values.dtype.itemsize > 4:
            raise TypeError("no such dtype on this device")
        return values


@pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.float64])
def test_labels_that_a_device_cannot_hold_are_refused_and_not_narrowed(dtype):
    origin = Origin(Coarse, "coarse")
    few = np.array([1, 2**24], dtype=dtype)
    np.testing.assert_array_equal(origin.restored(few, exact=True), few)
    words = (
        r"^predict: X must be on a device that holds .*64, got coarse, which has no 8"
    )
    with pytest.raises(ValueError, match=words):
        origin.restored(np.array([1, 2**33 + 1], dtype=dtype), exact=True)


def test_numbers_are_rounded_for_a_device_but_not_to_infinity():
    origin = Origin(Coarse, "coarse")
    assert origin.restored(np.array([1 / 3])) == np.float32(1 / 3)
    with pytest.raises(ValueError, match="coarse, which has no 1e"):
        origin.restored(np.array([1.0, 1e40]))


@pytest.mark.parametrize("dtype", [">i8", ">i4", ">f8", ">u2", "<i8", np.longdouble])
def test_labels_of_any_byte_order_and_width_come_back_as_tensors(dtype):
    labels = (np.digitize(NUMBERS, [-0.5, 0.5]) + 300).astype(dtype)
    table = torch.as_tensor(X)
    for y in (labels, np.stack([labels, -labels], axis=1).astype(dtype)):
        machine = RFMClassifier(n_iter=0, ridge=1e-6).fit(table, y)
        found = machine.predict(table)
        assert isinstance(found, torch.Tensor)
        np.testing.assert_array_equal(found.numpy(), y)
    assert all(classes.dtype.isnative for classes in machine.classes_)


def test_answers_that_single_precision_cannot_hold_stay_in_double():
    table = X.astype(np.float32)
    huge = RFMRegressor(n_iter=1).fit(table, 1e40 * NUMBERS)
    plain = RFMRegressor(n_iter=1).fit(table, NUMBERS)
    for name in ("predict", "jacobian"):
        found, wanted = getattr(huge, name)(table), getattr(plain, name)(table)
        assert (found.dtype, wanted.dtype) == (np.float64, np.float32)
        # the plain answer is rounded to float32
        np.testing.assert_allclose(found / 1e40, wanted, rtol=1e-5, atol=1e-6)


def test_predicted_words_are_numpys_even_for_tensors():
    machine = RFMClassifier().fit(torch.as_tensor(X), ["a", "b"] * 30)
    assert machine.predict(torch.as_tensor(FRESH)).dtype.kind == "U"
    assert isinstance(machine.predict_proba(torch.as_tensor(FRESH)), torch.Tensor)


@pytest.mark.parametrize(
    "convert",
    [
        lambda t: pd.DataFrame(t).astype("Float64"),
        lambda t: pd.DataFrame(t).astype(object),
        lambda t: t.tolist(),
        lambda t: np.asfortranarray(t),
        lambda t: np.repeat(t, 2, axis=0)[::2],
    ],
)
def test_numbers_in_any_dress_are_the_same_numbers(convert):
    wanted = RFMRegressor().fit(X, NUMBERS).predict(FRESH)
    machine = RFMRegressor().fit(convert(X), NUMBERS)
    np.testing.assert_array_equal(machine.predict(convert(FRESH)), wanted)


def test_integers_and_booleans_are_numbers():
    table = pd.DataFrame(
        {
            "flag": pd.array([True, False] * 30, dtype="boolean"),
            "count": pd.array(range(60), dtype="Int64"),
            "plain": np.arange(60) % 3 == 0,
        }
    )
    machine = RFMRegressor().fit(table, NUMBERS)
    again = RFMRegressor().fit(table.astype(float), NUMBERS)
    np.testing.assert_array_equal(machine.predict(table), again.predict(table))
    assert list(machine.feature_names_in_) == ["flag", "count", "plain"]


def test_nothing_given_by_the_caller_is_changed_or_shared():
    table, numbers, weights = X.copy(), NUMBERS.copy(), np.ones(len(X))
    machine = RFMRegressor().fit(table, numbers, sample_weight=weights)
    np.testing.assert_array_equal(table, X)
    np.testing.assert_array_equal(numbers, NUMBERS)
    wanted = machine.predict(FRESH)
    table[:] = 0.0
    machine._machine = []  # made of the arrays again
    np.testing.assert_array_equal(machine.predict(FRESH), wanted)


@pytest.mark.parametrize(
    ("weights", "words"),
    [
        (np.ones(4), "one number for each of the 3 rows"),
        (np.ones((3, 1)), "one number for each of the 3 rows"),
        ([1.0, np.nan, 1.0], "finite and not negative, got 1 that are not, nan"),
        ([1.0, -1.0, -2.0], "finite and not negative, got 2 that are not, -1.0"),
        ([0.0, 0.0, 0.0], "only zero weights"),
        ([1.0, 1e-40, 0.0], "divide them all by their mean"),
        ([1.0, 1e40, 0.0], "divide them all by their mean"),
    ],
)
def test_wrong_weights_are_refused(weights, words):
    with pytest.raises(ValueError, match=f"fit: sample_weight must be .*{words}"):
        check_weights("fit", weights, 3)


@pytest.mark.parametrize(
    "weights",
    [
        np.ones(3) + 1j,
        torch.ones(3) + 1j,
        ["1", "2", "3"],
        np.array([1, "2", 3], dtype=object),
        np.arange(3).astype("m8[D]"),
    ],
    ids=["complex", "complex tensor", "texts", "objects", "durations"],
)
def test_weights_that_are_no_real_numbers_are_refused(weights):
    with pytest.raises(TypeError, match="fit: sample_weight must be real numbers"):
        check_weights("fit", weights, 3)


def test_a_weight_under_a_mask_or_missing_is_no_weight():
    for weights in (
        np.ma.masked_equal([1.0, 2.0], 2),
        pd.Series([1, pd.NA], dtype="Int64"),
    ):
        with pytest.raises(ValueError, match="finite and not negative"):
            check_weights("fit", weights, 2)


def test_weights_that_are_ragged_sparse_or_without_values_are_refused():
    with pytest.raises(ValueError, match=r"^fit: sample_weight must be one .* lengths"):
        check_weights("fit", [[1.0], [1.0, 2.0]], 2)
    with pytest.raises(TypeError, match=r"^fit: sample_weight must be dense.*to_dense"):
        check_weights("fit", torch.ones(2).to_sparse(), 2)
    with pytest.raises(TypeError, match=r"^fit: sample_weight must be a tensor with"):
        check_weights("fit", torch.ones(2, device="meta"), 2)


def test_weights_may_be_a_tensor_or_one_number():
    np.testing.assert_array_equal(check_weights("fit", torch.ones(2), 2), [1, 1])
    np.testing.assert_array_equal(check_weights("fit", 2, 2), [2, 2])
    assert check_weights("fit", None, 2) is None
