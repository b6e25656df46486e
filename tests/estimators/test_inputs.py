"""Frames of other libraries: as those of pandas, or refused in the house form."""

import warnings

import array_api_strict
import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from normalign.estimators import (
    RFAMClassifier,
    RFAMClassifierCV,
    RFAMRegressorCV,
    RFMClassifier,
    RFMRegressor,
    make_tabular_pipeline,
)
from normalign.estimators._inputs import (
    Origin,
    as_numpy,
    check_weights,
    in_pandas,
    label_targets,
    numbers,
    plain_labels,
    split_blocks,
)
from normalign.kernels import _solve
from tests.estimators.samples import (
    CLASSIFIERS,
    ESTIMATORS,
    FRESH,
    NUMBERS,
    REGRESSORS,
    WORDS,
    N,
    X,
    answers,
    needs_variable_width,
)

STRICT_DEVICES = array_api_strict.__array_namespace_info__().devices()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_a_tensor_goes_to_numpy_and_back(dtype):
    tensor = torch.arange(3, dtype=dtype)
    array = as_numpy(tensor)
    assert isinstance(array, np.ndarray)
    back = Origin.of(tensor).restore(array)
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
    back = Origin.of(values).restore(array)
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
    assert Origin.of(values).restore(np.ones(2)) is not None
    assert type(Origin.of(values).restore(np.ones(2))) is np.ndarray


def test_texts_stay_with_numpy():
    words = np.array(["a", "b"])
    assert Origin.of(torch.ones(2)).restore(words) is words


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
    given = Origin.of(table).restore(codes)
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
    np.testing.assert_array_equal(origin.restore(few, exact=True), few)
    words = (
        r"^predict: X must be on a device that holds .*64, got coarse, which has no 8"
    )
    with pytest.raises(ValueError, match=words):
        origin.restore(np.array([1, 2**33 + 1], dtype=dtype), exact=True)


def test_numbers_are_rounded_for_a_device_but_not_to_infinity():
    origin = Origin(Coarse, "coarse")
    assert origin.restore(np.array([1 / 3])) == np.float32(1 / 3)
    with pytest.raises(ValueError, match="coarse, which has no 1e"):
        origin.restore(np.array([1.0, 1e40]))


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


FRAME = pd.DataFrame(X, columns=list("abcd"))
CITY = ["Rome", "Oslo", None] * (N // 3)
HOUSE = r"^\w+: X must be .+, got .+\. "


class Foreign:
    """A frame of no library, which pandas can take over."""

    def __init__(self, frame):
        self.frame = frame

    def __dataframe__(self, *args, **options):
        raise AssertionError("not asked")

    def to_pandas(self):
        return self.frame


class Alone(Foreign):
    """The same where pandas is not installed."""

    def to_pandas(self):
        raise ModuleNotFoundError("No module named 'pandas'")

    def __array__(self, dtype=None, copy=None):
        return self.frame.to_numpy(dtype=dtype)


class Stream:
    def __arrow_c_stream__(self, requested_schema=None):
        raise AssertionError("not asked")


class Lazy:
    @property
    def columns(self):
        raise AssertionError("work that nobody asked for")

    def collect(self):
        raise AssertionError("not asked")


def polars_frame(frame):
    return pytest.importorskip("polars").from_pandas(frame)


def arrow_table(frame):
    return pytest.importorskip("pyarrow").Table.from_pandas(frame)


every_library = pytest.mark.parametrize("made", [Foreign, polars_frame, arrow_table])


@every_library
def test_a_frame_of_any_library_is_the_same_table(made):
    wanted = RFMRegressor(n_iter=1).fit(FRAME, NUMBERS)
    machine = RFMRegressor(n_iter=1).fit(made(FRAME), NUMBERS)
    assert list(machine.feature_names_in_) == list("abcd")
    found = machine.predict(made(FRAME))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, wanted.predict(FRAME))
    assert machine.score(made(FRAME), NUMBERS) == wanted.score(FRAME, NUMBERS)


@every_library
def test_a_mixed_frame_of_any_library_goes_through_the_pipeline(made):
    mixed = FRAME.assign(city=CITY, flag=X[:, 1] > 0)
    mixed.loc[4, "a"] = np.nan
    wanted = make_tabular_pipeline(RFMClassifier(n_iter=1)).fit(mixed, WORDS)
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=1)).fit(made(mixed), WORDS)
    np.testing.assert_array_equal(
        pipeline.predict_proba(made(mixed)), wanted.predict_proba(mixed)
    )
    names = [part[:-1].get_feature_names_out().tolist() for part in (pipeline, wanted)]
    assert names[0] == names[1]


@every_library
@pytest.mark.parametrize(
    ("column", "remedy"),
    [
        (CITY, "make_tabular_pipeline"),
        (["1.5"] * N, "make_tabular_pipeline"),
        (pd.date_range("2020-01-01", periods=N), "Turn dates into numbers"),
    ],
    ids=["texts", "numbers as texts", "dates"],
)
def test_columns_of_any_library_that_are_no_numbers_are_named(made, column, remedy):
    with pytest.raises(ValueError, match=HOUSE + remedy) as caught:
        RFMClassifier().fit(made(FRAME.assign(odd=column)), WORDS)
    assert "got 'odd' (" in str(caught.value)


@pytest.mark.parametrize("table", [Stream(), Lazy()], ids=["stream", "lazy"])
def test_frames_that_pandas_cannot_take_over_are_refused(table):
    remedy = r"Pass (X\.collect\(\)|a pandas DataFrame, or an array)\.$"
    with pytest.raises(TypeError, match=HOUSE + remedy):
        RFMClassifier().fit(table, WORDS)
    with pytest.raises(TypeError, match=HOUSE + remedy):
        make_tabular_pipeline(RFMClassifier()).fit(table, WORDS)


def test_without_pandas_a_frame_of_numbers_is_an_array_and_others_are_refused():
    np.testing.assert_array_equal(in_pandas("fit", Alone(FRAME)), X)
    with pytest.raises(TypeError, match=r"^fit: .*No module named 'pandas'.* Pass a"):
        in_pandas("fit", Alone(FRAME.assign(city=CITY)))


def test_frames_of_pandas_and_all_that_are_no_frames_are_left_alone():
    class Mine(pd.DataFrame):
        def to_pandas(self):
            raise AssertionError("it is one")

    for table in (FRAME, Mine(FRAME), FRAME["a"], X, X.tolist(), None):
        assert in_pandas("fit", table) is table


@pytest.mark.parametrize("library", ["polars", "pyarrow"])
def test_answers_and_weights_may_be_columns_of_any_library(library):
    module = pytest.importorskip(library)
    made = module.Series if library == "polars" else module.array
    machine = RFMClassifier(n_iter=0)
    machine.fit(FRAME, made(WORDS.tolist()), sample_weight=made([1.0] * N))
    assert machine.classes_.tolist() == ["ant", "bee", "cat"]
    assert machine.score(FRAME, made(WORDS.tolist())) > 0.5
    assert RFMRegressor().fit(FRAME, made(NUMBERS)).score(FRAME, made(NUMBERS)) > 0.5


@given(st.lists(st.sampled_from(["a", "b", "c"]), min_size=2, max_size=20))
def test_indicators_name_each_rows_class_exactly_once(labels):
    if len(set(labels)) < 2:
        with pytest.raises(ValueError, match=f"one class, .*'{labels[0]}'"):
            label_targets("fit", labels)
        return
    found = label_targets("fit", labels)
    assert (found.columns.sum(axis=1) == 1).all()
    assert list(found.classes[0][found.columns.argmax(axis=1)]) == labels
    assert list(found.classes[0][found.codes[:, 0]]) == labels


@pytest.mark.parametrize(
    "labels",
    [
        [3, 7, 3],
        (3, 7, 3),
        np.array([3, 7, 3], dtype=object),
        pd.Series([3, 7, 3], dtype="Int64"),
        pd.Series([3, 7, 3], dtype="category"),
        torch.tensor([3, 7, 3]),
        np.array([3.0, 7.0, 3.0]),
        np.array([3.0, 7.0, 3.0], dtype=object),
        np.ma.array([3, 7, 3]),
    ],
)
def test_integer_labels_in_any_dress_are_integer_labels(labels):
    found = label_targets("fit", labels)
    assert list(found.classes[0]) == [3, 7]
    assert found.flat
    np.testing.assert_array_equal(found.columns, [[1, 0], [0, 1], [1, 0]])


@pytest.mark.parametrize("dtype", ["str", "string", "object", "category"])
def test_text_labels_of_any_pandas_type_are_texts(dtype):
    found = label_targets("fit", pd.Series(["b", "a", "b"], dtype=dtype))
    assert list(found.classes[0]) == ["a", "b"]


@needs_variable_width
def test_texts_of_variable_width_are_texts():
    labels = np.array(["b", "a", "b"], dtype=np.dtypes.StringDType())
    assert list(label_targets("fit", labels).classes[0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("labels", "kind"),
    [([True, False], "b"), ([0, 1], "i"), ([0.0, 1.0], "f"), (["a", "b"], "O")],
)
def test_objects_become_what_they_all_are(labels, kind):
    objects = np.array(labels, dtype=object)
    found = plain_labels("score", objects)
    assert found.dtype.kind == kind
    assert found.tolist() == labels
    assert label_targets("fit", objects).classes[0].dtype.kind == kind


def test_label_columns_may_be_of_different_kinds():
    frame = pd.DataFrame({"rooms": [3, 7, 3], "city": ["Rome", "Oslo", "Oslo"]})
    found = label_targets("fit", frame)
    assert found.classes[0].tolist() == [3, 7]
    assert found.classes[0].dtype.kind == "i"
    assert found.classes[1].tolist() == ["Oslo", "Rome"]
    assert plain_labels("score", frame).tolist() == frame.to_numpy().tolist()


def test_several_label_columns_stand_side_by_side():
    found = label_targets("fit", np.array([[0, 5], [1, 6], [0, 7]]))
    assert found.sizes == (2, 3)
    assert not found.flat
    np.testing.assert_array_equal(
        found.columns, [[1, 0, 1, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 1]]
    )
    left, right = split_blocks(found.columns, found.sizes)
    assert left.shape == (3, 2)
    assert right.shape == (3, 3)


def test_a_class_without_a_row_that_counts_is_no_class():
    used = np.array([True, True, False])
    found = label_targets("fit", ["a", "b", "c"], used=used)
    assert list(found.classes[0]) == ["a", "b"]


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (["a", None, "b"], "without missing ones, got 1 missing"),
        ([0.0, np.nan, 1.0], "without missing ones"),
        (pd.Series(["a", pd.NA, "b"], dtype="string"), "without missing ones"),
        (pd.Series([1, pd.NA, 0], dtype="Int64"), "without missing ones"),
        (np.array(["2020", "NaT", "2021"], "M8[D]"), "without missing ones, got 1 mis"),
        (np.array([1, "NaT", "NaT"], "m8[s]"), "without missing ones, got 2 missing"),
        ([0.0, np.inf, 1.0], "finite labels, got 1 infinite"),
        (pd.Series([0.0, np.inf, -np.inf]), "finite labels, got 2 infinite"),
        (np.array([0.0, np.inf, 1.0], dtype=object), "finite labels, got 1 infinite"),
        ([[["a"]]], r"shape \(n,\) or \(n, o\)"),
        (np.zeros((3, 0)), r"shape \(n,\) or \(n, o\), not empty, got shape \(3, 0\)"),
        (["a", "b"], "as long as X"),
        ([[0, 1], [1, 1], [0, 1]], "of at least two classes, got one class, 1"),
        (None, "requires y to be passed"),
        ([0.5, 1.5, 2.5], "Unknown label type"),
        (np.array([0.5, 1.5, 2.5], dtype=object), "Unknown label type"),
        (np.array([1, "a", 1], dtype=object), "of one kind.*of type int and str"),
        (np.array([b"a", b"b", b"a"]), "got bytes. Decode them"),
        (np.array([b"a", b"b", b"a"], dtype=object), "got bytes. Decode them"),
        (np.array([(1,), (2,), None], dtype=object)[[0, 1, 0]], "type tuple"),
        (np.ma.masked_equal([1, 0, 2], 2), "without missing ones, got 1 missing"),
        (np.array([1, 2, 1]) + 0j, "integers, booleans or texts, got .*complex128"),
        (np.array([1, 10**30, 1], dtype=object), "booleans or texts, got .* object"),
        (["a", "a", "a"], r"two classes, got one class, 'a'\."),
        ([7, 7, 7], r"two classes, got one class, 7\."),
    ],
)
def test_labels_that_say_nothing_or_are_none_are_refused(labels, words):
    with pytest.raises(ValueError, match=f"^fit: (column 1 of )?y must be .*{words}"):
        label_targets("fit", labels, n=3)


def test_labels_are_read_without_a_warning_but_what_to_tell_is_kept():
    column = label_targets("fit", np.array([["a"], ["b"]]))
    assert [type(caution) for caution in column.cautions] == [DataConversionWarning]
    many = label_targets("fit", np.arange(30))
    assert "could represent a regression problem" in str(many.cautions[0])
    assert not label_targets("fit", np.arange(30) % 15).cautions
    assert not label_targets("fit", np.arange(20)).cautions


def test_numbers_keep_their_shape_in_mind():
    flat, table = numbers("fit", [1, 2, 3]), numbers("fit", [[1], [2], [3]])
    assert flat.flat
    assert not table.flat
    np.testing.assert_array_equal(flat.columns, table.columns)
    nullable = numbers("fit", pd.Series([1, 2, 3], dtype="Float64"))
    np.testing.assert_array_equal(nullable.columns, flat.columns)
    assert flat.sizes == ()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ([1.0, np.nan, 2.0], "finite"),
        ([1.0, np.inf, 2.0], "finite"),
        (pd.Series([1, pd.NA, 2], dtype="Int64"), "finite"),
        ([1.0, 2.0], "as long as X, which has 3 rows, got 2 targets"),
        (np.ones((3, 1, 1)), r"\(n,\) or \(n, k\), not empty, got shape \(3, 1, 1\)"),
        (np.ones((3, 0)), r"not empty, got shape \(3, 0\)"),
        (1.0, r"\(n,\) or \(n, k\), not empty, got shape \(\)"),
        ([], r"not empty, got shape \(0,\)"),
        (["a", "b", "c"], "y must be real numbers.*classifier"),
        (["1", "2", "3"], "y must be real numbers.*classifier"),
        (np.array(["a", 1, 2], dtype=object), "y must be real numbers.*classifier"),
        (np.ones(3) + 1j, "y must be real numbers.*two targets of each"),
        (pd.Series(pd.date_range("2020", periods=3)), "Turn dates into numbers"),
        (pd.Series(pd.date_range("2020", periods=3, tz="UTC")), "Turn dates into"),
        (np.arange(3).astype("m8[D]"), "Turn dates into numbers"),
        (np.ma.masked_equal([1.0, 0.0, 2.0], 2), "finite.*got 1 values"),
        (None, "requires y to be passed"),
    ],
)
def test_numbers_that_are_none_are_refused(values, words):
    with pytest.raises(ValueError, match=words):
        numbers("fit", values, n=3)


RAGGED = [[1], [1, 2]]


def test_answers_of_different_lengths_are_refused_with_the_remedy():
    objects = np.array([None, None])
    objects[:] = RAGGED
    for rows in (RAGGED, objects, pd.Series(RAGGED)):
        for read in (label_targets, plain_labels):
            with pytest.raises(ValueError, match=r"^fit: y must .*MultiLabelBinarizer"):
                read("fit", rows)
        with pytest.raises(ValueError, match=r"^fit: y must .* Give every row as many"):
            numbers("fit", rows)


def test_an_index_of_several_levels_is_refused_with_the_remedy():
    index = pd.MultiIndex.from_arrays([[1, 2, 1], [3, 4, 4]])
    for read in (label_targets, plain_labels, numbers):
        with pytest.raises(
            TypeError, match=r"^fit: y must .*got a MultiIndex\. Pass y.to"
        ):
            read("fit", index)
        read("fit", index.to_frame(index=False))


def test_sparse_answers_are_refused_with_the_remedy():
    for read in (label_targets, numbers):
        with pytest.raises(TypeError, match="toarray"):
            read("fit", sparse.csr_array(np.eye(3)))


def test_classes_whose_columns_will_not_fit_are_refused_before_they_are_made():
    words = r"^fit: y must be of so few classes .*got 1000000 classes in 1000000 rows"
    with pytest.raises(ValueError, match=words + ".* A regressor takes numbers"):
        label_targets("fit", np.arange(1_000_000))  # 24 TB


@pytest.mark.parametrize(
    ("y", "words"),
    [
        (["a", np.nan, "b"], "labels without missing ones, got 1 missing"),
        (["a", 1, "b"], "labels of one kind.* type int and str"),
        (["a", True], "labels of one kind.* type bool and str"),
        ([("a", "b"), ("a", None)], "labels without missing ones, got 1 missing"),
    ],
    ids=str,
)
def test_lists_are_not_made_texts_where_one_label_is_one(y, words):
    with pytest.raises(ValueError, match=rf"^fit: (column \d of )?y must be {words}"):
        label_targets("fit", y)


def test_lists_of_columns_of_two_kinds_keep_both():
    words, digits = label_targets("fit", [["a", 1], ["b", 2]]).classes
    assert words.tolist() == ["a", "b"]
    assert digits.tolist() == [1, 2]


@pytest.mark.parametrize("read", [label_targets, numbers])
def test_tensors_without_numbers_in_memory_are_refused(read):
    with pytest.raises(TypeError, match=r"^fit: y must be dense.*y\.to_dense\(\)"):
        read("fit", torch.eye(3).to_sparse())
    with pytest.raises(TypeError, match=r"^fit: y must be a tensor with values"):
        read("fit", torch.zeros(3, device="meta"))


FEATURES_HOUSE = r"^\w+: [\w ]+ must be .+, got .+\."

REFUSALS = (
    "on a scale near the bandwidth",
    "must be spread over",
    "got one class",
    "that the dtype can tell apart",
)

finite = st.floats(allow_nan=False, allow_infinity=False, width=64)
tables = hnp.arrays(
    np.float64,
    st.tuples(st.integers(1, 8), st.integers(1, 12)),
    elements=st.one_of(
        finite,
        st.sampled_from([0.0, 1.0, -1.0, 1e30, -1e30, 1e-30, 1e300, -1.7e308, 5e-324]),
    ),
)


def test_one_row_beside_which_all_others_are_one_is_refused_by_the_median_too():
    table = np.array([[1.0, 0, 1, 1], [1, 1, 1e76, 1], [0, 1, 1, 1], [1, 1, 1, 1]])
    machine = RFAMClassifier(bandwidth_rule="median", n_iter=2)
    with pytest.raises(ValueError, match="on a scale near the bandwidth"):
        machine.fit(table, [0, 1, 0, 1])
    assert not [name for name in vars(machine) if name.endswith("_")]


@settings(max_examples=80, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.sampled_from(ESTIMATORS),
    tables,
    st.sampled_from(["fixed", "median"]),
    st.sampled_from(["laplace", "gaussian", "product_laplace"]),
    st.sampled_from(["auto", "float32"]),
    st.booleans(),
)
def test_any_finite_table_gives_finite_answers_or_an_error_of_the_house(
    kind, table, rule, kernel, dtype, diagonal
):
    machine = kind(
        bandwidth_rule=rule, kernel=kernel, dtype=dtype, diagonal=diagonal, n_iter=2
    )
    y = np.arange(len(table)) % 2
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            machine.fit(table, y)
        except ValueError as error:
            assert any(words in str(error) for words in REFUSALS)  # noqa: PT017
            assert not [name for name in vars(machine) if name.endswith("_")]
            return
        for name in ("predict", "predict_proba", "jacobian"):
            if hasattr(machine, name):
                found = getattr(machine, name)(np.concatenate([table, 0 * table]))
                assert np.isfinite(found).all(), name
    assert np.isfinite(machine.metric_).all()
    assert np.isfinite(machine.feature_importances_).all()


@settings(max_examples=40)
@given(st.sampled_from(ESTIMATORS), st.sampled_from([1e-30, 1e-8, 1e8, 1e30, 1e200]))
def test_the_units_of_a_table_do_not_matter_if_the_bandwidth_follows(kind, scale):
    y = answers(kind)
    settings = {"bandwidth": 1.0, "bandwidth_rule": "median", "n_iter": 2}
    if "identity_weight" in kind().get_params():
        settings["identity_weight"] = 0.0  # a blend would weigh units
    plain = kind(**settings).fit(X, y)
    scaled = kind(**settings).fit(scale * X, y)
    name = "decision_function" if kind in CLASSIFIERS else "predict"
    # scaling by what is no power of two rounds every number once
    np.testing.assert_allclose(
        getattr(scaled, name)(scale * FRESH), getattr(plain, name)(FRESH), rtol=1e-6
    )


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30, 1e200])
def test_the_units_of_the_targets_never_matter(dtype, scale):
    plain = RFMRegressor(dtype=dtype).fit(X, NUMBERS)
    scaled = RFMRegressor(dtype=dtype).fit(X, scale * NUMBERS)
    tolerance = 1e-9 if dtype == "float64" else 1e-2
    np.testing.assert_allclose(
        scaled.predict(FRESH) / scale, plain.predict(FRESH), rtol=tolerance, atol=1e-4
    )


def test_a_table_of_1e30_is_answered_rightly_and_with_a_warning():
    with pytest.warns(UserWarning, match="bandwidths apart.*StandardScaler"):
        machine = RFMRegressor(ridge=0.5).fit(1e30 * X, NUMBERS)
    # every kernel between distinct rows is zero, so rows know themselves alone
    np.testing.assert_allclose(machine.predict(1e30 * FRESH), NUMBERS.mean())
    own = NUMBERS.mean() + (NUMBERS - NUMBERS.mean()) / 1.5
    np.testing.assert_allclose(machine.predict(1e30 * X), own)


def test_single_precision_refuses_what_it_cannot_hold():
    machine = RFMRegressor(dtype="float32")
    with pytest.raises(ValueError, match="X must be on a scale near the bandwidth"):
        machine.fit(1e30 * X, NUMBERS)


@pytest.mark.parametrize("kind", ESTIMATORS)
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_missing_and_infinite_values_are_named_with_their_columns(kind, bad):
    frame = pd.DataFrame(X.copy(), columns=["age", "height", "rooms", "floor"])
    frame.loc[7, "rooms"] = bad
    machine = kind(n_iter=0)
    with pytest.raises(ValueError, match=r"'rooms'.*make_tabular_pipeline") as caught:
        machine.fit(frame, answers(kind))
    assert str(caught.value).startswith(f"{kind.__name__}: X must be finite")
    machine.fit(X, answers(kind))
    broken = FRESH.copy()
    broken[2, 3] = bad
    with pytest.raises(ValueError, match="1 places, in the columns 3"):
        machine.predict(broken)


def test_pandas_missing_values_are_missing_values():
    frame = pd.DataFrame(X).astype("Float64")
    frame.iloc[0, 1] = pd.NA
    with pytest.raises(ValueError, match="NaN in 1 places"):
        RFMRegressor().fit(frame, NUMBERS)


@pytest.mark.parametrize(
    "column",
    [
        pd.Series(["a"] * N, dtype="str"),
        pd.Series(["a"] * N, dtype="string"),
        pd.Series(["a"] * N, dtype=object),
        pd.Series(["1.5"] * N, dtype=object),
        pd.Series(["a"] * N, dtype="category"),
    ],
    ids=lambda column: str(column.dtype),
)
def test_columns_that_are_no_numbers_are_named_with_what_encodes_them(column):
    frame = pd.DataFrame(X).assign(city=column)
    words = r"X must be numbers, got 'city' \(.*make_tabular_pipeline\(RFMClassifier"
    with pytest.raises(ValueError, match=words):
        RFMClassifier().fit(frame, WORDS)


@pytest.mark.parametrize("dtype", ["M8[ns]", "M8[ns, UTC]", "period[D]", object])
def test_dates_are_named_with_advice_that_holds(dtype):
    days = pd.Series(pd.date_range("2020-01-01", periods=N, tz="UTC"))
    if dtype != "M8[ns, UTC]":
        days = days.dt.tz_localize(None)
    days = days.dt.to_period("D") if dtype == "period[D]" else days.astype(dtype)
    words = (
        r"X must be numbers, got 'day' \(.*\)\. Turn dates into numbers \(.*first\.$"
    )
    with pytest.raises(ValueError, match=words):
        RFMClassifier().fit(pd.DataFrame(X).assign(day=days), WORDS)


def test_values_under_a_mask_are_missing():
    masked = np.ma.masked_greater(X, 2)
    assert masked.mask.any()
    with pytest.raises(ValueError, match=f"NaN in {masked.mask.sum()} places"):
        RFMClassifier().fit(masked, WORDS)
    whole = RFMClassifier(n_iter=0).fit(np.ma.array(X), WORDS)
    plain = RFMClassifier(n_iter=0).fit(X, WORDS)
    np.testing.assert_array_equal(whole.predict(FRESH), plain.predict(FRESH))


def test_objects_that_are_missing_are_named_as_such():
    table = X.astype(object)
    table[4, 1] = pd.NA
    for given_table in (table, pd.DataFrame(table)):
        with pytest.raises(ValueError, match="NaN in 1 places, in the columns 1"):
            RFMRegressor().fit(given_table, NUMBERS)


def test_objects_that_are_no_values_are_refused():
    table = X.astype(object)
    table[4, 1] = {}
    with pytest.raises(
        TypeError, match=FEATURES_HOUSE + ".*argument must be a string or a real"
    ):
        RFMRegressor().fit(table, NUMBERS)


def test_tensors_without_values_are_refused():
    with pytest.raises(TypeError, match=FEATURES_HOUSE):
        RFMRegressor().fit(torch.as_tensor(X).to("meta"), NUMBERS)


def test_columns_of_one_name_are_refused():
    frame = pd.DataFrame(X, columns=list("abca"))
    with pytest.raises(ValueError, match=FEATURES_HOUSE) as caught:
        RFMRegressor().fit(frame, NUMBERS)
    assert "'a' more than once" in str(caught.value)


def test_arrays_of_texts_are_refused():
    words = X.astype(str)
    for table in (words, words.astype(object), words.tolist()):
        with pytest.raises(ValueError, match="make_tabular_pipeline"):
            RFMClassifier().fit(table, WORDS)


@pytest.mark.parametrize(
    "table",
    [
        sparse.csr_array(X),
        sparse.coo_matrix(X),
        torch.as_tensor(X).to_sparse(),
        pd.DataFrame(X).astype(pd.SparseDtype(float)),
        pd.DataFrame(X).astype(pd.SparseDtype(float, 0.0)),
    ],
    ids=lambda table: type(table).__name__,
)
def test_sparse_tables_are_refused_with_the_remedy(table):
    with pytest.raises(TypeError, match=FEATURES_HOUSE + r".*(toarray|to_dense)"):
        RFMRegressor().fit(table, NUMBERS)
    with pytest.raises(TypeError, match=r"toarray|to_dense"):
        RFMRegressor(n_iter=0).fit(X, NUMBERS).predict(table)


@pytest.mark.parametrize("kind", CLASSIFIERS)
def test_one_class_is_refused_by_its_name(kind):
    with pytest.raises(
        ValueError, match=r"at least two classes, got one class, .*'ant'"
    ):
        kind().fit(X, ["ant"] * N)
    weights = (WORDS == "bee").astype(float)
    with pytest.raises(ValueError, match=r"one class, .*'bee'"):
        kind().fit(X, WORDS, sample_weight=weights)


@pytest.mark.parametrize("kind", REGRESSORS)
def test_one_row_is_predicted_everywhere(kind):
    machine = kind().fit(X[:1], [7.0])
    np.testing.assert_array_equal(machine.predict(FRESH), 7.0)
    np.testing.assert_array_equal(machine.jacobian(FRESH), 0.0)
    np.testing.assert_array_equal(machine.feature_importances_, 0.0)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_constant_columns_and_constant_tables_are_harmless(kind):
    y = answers(kind)
    wide = np.column_stack([X, np.full(N, 1e9)])
    fresh = np.column_stack([FRESH, np.full(15, 1e9)])
    machine = kind(n_iter=2).fit(wide, y)
    assert machine.feature_importances_[-1] == 0
    np.testing.assert_allclose(machine.jacobian(fresh)[..., -1], 0, atol=1e-12)
    flat = kind(n_iter=2).fit(np.ones((N, 2)), y)
    found = flat.jacobian(np.ones((3, 2)))
    np.testing.assert_array_equal(found, 0.0)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_duplicated_rows_count_as_weights(kind):
    y = answers(kind)
    doubled = kind(n_iter=2).fit(np.tile(X, (2, 1)), np.tile(y, 2))
    weighted = kind(n_iter=2).fit(X, y, sample_weight=np.full(N, 2.0))
    np.testing.assert_allclose(
        doubled.jacobian(FRESH), weighted.jacobian(FRESH), atol=1e-7
    )


def test_rows_that_contradict_each_other_are_averaged():
    table, y = np.repeat(X, 2, axis=0), np.tile([0.0, 2.0], N)
    machine = RFMRegressor(center=False, ridge=1e-6).fit(table, y)
    np.testing.assert_allclose(machine.predict(X), 1.0, atol=1e-3)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_many_more_columns_than_rows_are_no_obstacle(kind):
    rng = np.random.default_rng(0)
    table = rng.normal(size=(9, 300))
    y = np.arange(9) % 2
    machine = kind(bandwidth=50.0, ridge=1e-6).fit(table, y)
    assert machine.metric_.shape == (300, 300)
    np.testing.assert_allclose(machine.predict(table), y, atol=1e-2)


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_wrong_columns_at_predict_are_refused(kind):
    names = list("abcd")
    machine = kind(n_iter=0).fit(pd.DataFrame(X, columns=names), answers(kind))
    fresh = pd.DataFrame(FRESH, columns=names)
    form = rf"(?s)^{kind.__name__}: X must be a table as in fit, got a DataFrame of .*"
    with pytest.raises(ValueError, match=form + "names.*seen at fit time.*missing"):
        machine.predict(fresh.drop(columns="b"))
    with pytest.raises(ValueError, match="unseen at fit time"):
        machine.predict(fresh.assign(e=0.0))
    with pytest.raises(ValueError, match="same order"):
        machine.predict(fresh[list("dcba")])
    with pytest.warns(UserWarning, match="feature names"):
        machine.predict(FRESH)


@pytest.mark.parametrize(
    ("table", "error", "words"),
    [
        (X[:, 0], ValueError, r"float64 ndarray of shape \(60,\)\. Expected 2D"),
        (X[:, :, None], ValueError, r"shape \(60, 4, 1\)\. Found array with dim 3"),
        (X[:0], ValueError, r"shape \(0, 4\)\. Found array with 0 sample"),
        (X[:, :0], ValueError, r"shape \(60, 0\)\. Found array with 0 feature"),
        (None, ValueError, r"None\. Expected 2D"),
        ("table", ValueError, r"'table'\. could not convert"),
        ({"a": [1]}, TypeError, r"\{'a': \[1\]\}\. "),
        ([[1], [2, 3]], ValueError, r"\[\[1\], \[2, 3\]\]\. .*inhomogeneous"),
        (
            pd.DataFrame(),
            ValueError,
            r"shape \(0, 0\)\. Found array with 0",
        ),
        (pd.DataFrame(X[:0]), ValueError, r"shape \(0, 4\)\. Found array with 0"),
        (
            pd.DataFrame(index=range(N)),
            ValueError,
            r"shape \(60, 0\)\. Found array",
        ),
        (pd.Series(X[:, 0]), ValueError, r"a float64 Series of shape \(60,\)\. "),
        (
            pd.DataFrame(X, columns=["a", 1, "b", 2]),
            TypeError,
            r"shape \(60, 4\)\. Feature names are only supported if all .* string",
        ),
    ],
    ids=[
        *("column", "cube", "no rows", "no columns", "None", "text", "dict", "ragged"),
        *("empty frame", "frame of no rows", "frame of no columns", "series", "names"),
    ],
)
def test_what_is_no_table_is_refused_in_the_house_form(table, error, words):
    rule = "RFMRegressor: X must be a table of rows and columns, got .*"
    with pytest.raises(error, match=rf"(?s)^{rule}{words}"):
        RFMRegressor().fit(table, NUMBERS)
    if isinstance(table, np.ndarray):
        machine = RFMRegressor(n_iter=0).fit(X, NUMBERS)
        with pytest.raises(error, match=r"^RFMRegressor: X must be a table as in fit"):
            machine.predict(table)


@pytest.mark.parametrize("kind", [*ESTIMATORS, RFAMClassifierCV, RFAMRegressorCV])
@pytest.mark.parametrize("piped", [False, True])
def test_whatever_is_empty_or_of_another_length_is_refused(kind, piped):
    machine = make_tabular_pipeline(kind()) if piped else kind()
    nothing = ([], [[]], None, 3.0, "table", X[:, :, None], pd.DataFrame(), [[1], []])
    callee = "make_tabular_pipeline" if piped else kind.__name__
    for table in nothing:
        with pytest.raises(
            ValueError, match=rf"(?s)^{callee}: X must be a table .*got"
        ):
            machine.fit(table, [0, 1])
    for y in ([], [[]], None, 1, "text", [0, 1], [None] * N, np.zeros((N, 1, 1))):
        with pytest.raises(ValueError, match=rf"^{kind.__name__}: y must be .*, got"):
            machine.fit(X, y)


RECORDS = np.array([(1, 2.0), (2, 1.0)], dtype=[("a", "i4"), ("b", "f8")])


@pytest.mark.parametrize(
    ("table", "words"),
    [
        (
            [{"a": 1, "b": 2.0}, {"a": 2, "b": 1.0}],
            r"a list of dicts\. .*Frame\(rows\)",
        ),
        (RECORDS, r"an array with the fields \('a', 'b'\)\. Use pandas.DataFrame\(X\)"),
        (RECORDS.view(np.recarray), "an array with the fields"),
        (RECORDS[:, None], "an array with the fields"),
    ],
    ids=["dicts", "structured", "records", "column"],
)
@pytest.mark.parametrize("whole", [RFMRegressor, RFAMRegressorCV, "pipeline"])
def test_rows_that_name_their_values_are_refused_with_the_remedy(table, words, whole):
    pipeline = whole == "pipeline"
    machine = make_tabular_pipeline(RFMRegressor()) if pipeline else whole()
    callee = "make_tabular_pipeline" if pipeline else whole.__name__
    rule = f"^{callee}: X must be a table of rows and columns, got {words}"
    with pytest.raises(TypeError, match=rule):
        machine.fit(table, [1.0, 2.0])


def state(estimator):
    return {name: id(value) for name, value in vars(estimator).items()}


@pytest.mark.parametrize("kind", ESTIMATORS)
def test_a_fit_that_fails_leaves_everything_as_it_was(kind):
    y = answers(kind)
    machine = kind(n_iter=0)
    for _ in range(2):  # first unfitted, then fitted
        before = state(machine)
        with pytest.raises(ValueError, match="finite"):
            machine.fit(np.where(X > 2, np.nan, X), y)
        with pytest.raises(ValueError, match="as long as X"):
            machine.fit(X, y[:-1])
        with pytest.raises(ValueError, match="memory_limit"):
            machine.set_params(memory_limit=1).fit(X[:, :2], y)
        machine.set_params(memory_limit=None)
        assert state(machine) == before
        machine.fit(X, y)


def test_an_interrupted_fit_leaves_everything_as_it_was(monkeypatch):
    machine = RFMClassifier(n_iter=0).fit(X, WORDS)
    before = state(machine)

    def interrupted(*rows, **settings):
        raise KeyboardInterrupt

    monkeypatch.setattr("normalign.estimators._rfm.fit_single", interrupted)
    with pytest.raises(KeyboardInterrupt):
        machine.fit(X[:, :2], WORDS == "ant")
    assert state(machine) == before


def test_a_second_fit_forgets_the_first_one():
    machine = RFMClassifier(validation_fraction=0.2, n_iter=0)
    machine.fit(pd.DataFrame(X, columns=list("abcd")), WORDS)
    machine.set_params(validation_fraction=None).fit(X[:, :3], WORDS == "ant")
    assert not hasattr(machine, "validation_scores_")
    assert not hasattr(machine, "feature_names_in_")
    assert machine.n_features_in_ == 3
    assert list(machine.classes_) == [False, True]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"kernel": "cubic"}, 'kernel must be one of "laplace"'),
        ({"kernel": "gaussian", "exponent": 1.5}, "exponent must be 1.0"),
        ({"exponent": 2.5}, r"exponent must be in \(0, 2\], got 2.5"),
        ({"bandwidth": 0}, r"bandwidth must be in \(0, inf\), got 0"),
        ({"bandwidth": np.inf}, "bandwidth must be"),
        ({"bandwidth": np.float64(-1)}, r"bandwidth must be in .*, got -1\.0\."),
        ({"n_iter": np.int64(-2)}, r"n_iter must be 0 or more, got -2\."),
        ({"bandwidth_rule": "mean"}, "bandwidth_rule must be one of"),
        ({"ridge": -1.0}, "ridge must be"),
        ({"ridge": np.nan}, "ridge must be"),
        ({"n_iter": -1}, "n_iter must be 0 or more, got -1"),
        ({"identity_weight": 1.5}, r"identity_weight must be in \[0, 1\], got 1.5"),
        ({"solver": "lu"}, "solver must be one of"),
        ({"device": "toaster"}, "device must be"),
        ({"device": "meta"}, "device must be a device that computes"),
        ({"dtype": "float16"}, "dtype must be one of"),
        ({"memory_limit": 0}, "memory_limit must be 1 or more"),
        ({"memory_limit": 0.0}, "memory_limit must be 1 or more"),
        ({"max_leaf_size": 0}, "max_leaf_size must be 1 or more"),
        ({"validation_fraction": 1.0}, "validation_fraction must be in"),
        ({"time_limit_s": 0}, "time_limit_s must be"),
        ({"agop_samples": 0}, "agop_samples must be 1 or more"),
        ({"n_jobs": 0}, "n_jobs must be a number of workers"),
        ({"random_state": -1}, r"random_state must be in \[0, 2\*\*32\), got -1"),
        ({"random_state": 2**32}, r"random_state must be in .*, got 4294967296"),
        *(
            ({name: 10**400}, rf"{name} must be in .*, got an integer of 1329 bits\.")
            for name in (
                *("bandwidth", "ridge", "exponent", "identity_weight"),
                *("time_limit_s", "validation_fraction"),
            )
        ),
        ({"bandwidth": -(10**400)}, "bandwidth must be in .*, got an integer of"),
        ({"device": 10**30}, "device must be .*, got 1000000000000000000000000000000"),
        ({"device": 10**400}, "device must be .*, got an integer of 1329 bits"),
    ],
    ids=lambda given: str(given)[:40],
)
def test_values_that_make_no_machine_are_refused(settings, words):
    with pytest.raises(ValueError, match=words) as caught:
        RFAMClassifier(**settings).fit(X, WORDS)
    assert str(caught.value).startswith("RFAMClassifier: ")


@pytest.mark.parametrize(
    "settings",
    [
        {"n_iter": 2.5},
        {"n_iter": True},
        {"bandwidth": "wide"},
        {"bandwidth": "10"},
        {"ridge": None},
        {"diagonal": "yes"},
        {"center": None},
        {"agop_samples": 1e4},
        {"max_leaf_size": 100.0},
        {"memory_limit": 1.5},
        {"memory_limit": np.inf},
        {"memory_limit": "1GB"},
        {"n_jobs": "a"},
        {"n_jobs": 1.5},
        {"verbose": "no"},
        {"verbose": np.array([1, 2])},
        {"verbose": pd.NA},
        {"bandwidth": np.float64},
        {"ridge": np.ndarray},
        {"n_iter": np.int64},
        {"identity_weight": [0.5]},
        {"random_state": "a"},
        {"random_state": 1.5},
        {"random_state": [1]},
        {"random_state": np.random.default_rng(0)},
    ],
    ids=lambda given: str(given).split(" at ")[0],  # no address in a name
)
def test_parameters_of_the_wrong_kind_are_refused(settings):
    with pytest.raises(TypeError, match=r"^RFAMClassifier: .* must be .*, got "):
        RFAMClassifier(**settings).fit(X, WORDS)


@pytest.mark.parametrize("name", ["memory_limit", "max_leaf_size", "agop_samples"])
def test_limits_beyond_all_bounds_are_none(name):
    plain = RFMRegressor(n_iter=1).fit(X, NUMBERS)
    machine = RFMRegressor(n_iter=1, **{name: 10**400}).fit(X, NUMBERS)
    np.testing.assert_array_equal(machine.predict(X), plain.predict(X))


def huge(convert):
    table = X.astype(object)
    table[3, 2] = 10**400
    return convert(table)


@pytest.mark.parametrize(
    "convert",
    [np.array, np.ndarray.tolist, pd.DataFrame],
    ids=["array", "list", "frame"],
)
def test_a_number_beyond_float64_is_refused_in_the_house_form(convert):
    table = huge(convert)
    words = (
        r"^RFMRegressor: X must be finite, .*got inf in 1 places, in the columns .?2"
    )
    with pytest.raises(ValueError, match=words):
        RFMRegressor().fit(table, NUMBERS)
    with pytest.raises(ValueError, match=words):
        RFMRegressor(n_iter=0).fit(convert(X), NUMBERS).predict(table)
    pipeline = make_tabular_pipeline(RFMRegressor())
    with pytest.raises(
        ValueError, match=r"^make_tab.* infinite .*, got inf in 1 places"
    ):
        pipeline.fit(table, NUMBERS)


def test_answers_and_weights_beyond_float64_are_refused_in_the_house_form():
    many = [10**400, *NUMBERS[1:]]
    with pytest.raises(ValueError, match=r"^RFMRegressor: y must be finite"):
        RFMRegressor().fit(X, many)
    with pytest.raises(ValueError, match=r"^RFMRegressor: sample_weight must be fin"):
        RFMRegressor().fit(X, NUMBERS, [10**400, *np.ones(N - 1)])


@pytest.mark.parametrize("name", ["bandwidth", "n_iter", "center", "max_leaf_size"])
def test_a_text_is_shown_as_one(name):
    with pytest.raises(TypeError, match=rf"RFMClassifier: {name} .*, got '10'\.$"):
        RFMClassifier(**{name: "10"}).fit(X, WORDS)


def test_a_generator_is_refused_with_the_way_to_a_seed_by_the_search_too():
    generator = np.random.default_rng(0)
    words = r"^RFAMClassifierCV: random_state must .* Draw a seed: int\(generator\."
    with pytest.raises(TypeError, match=words):
        RFAMClassifierCV(random_state=generator).fit(X, WORDS)


@pytest.mark.parametrize(
    "state", [np.int64(3), np.random.RandomState(0), np.random, None], ids=str
)
def test_what_scikit_learn_takes_for_a_random_state_is_taken(state):
    RFMClassifier(random_state=state, n_iter=0).fit(X, WORDS)


@pytest.mark.parametrize(
    "table",
    [X + 1j, torch.as_tensor(X + 1j), (X + 1j).astype(object), pd.DataFrame(X + 1j)],
    ids=["array", "tensor", "objects", "frame"],
)
def test_complex_tables_are_refused_with_the_remedy(table):
    words = FEATURES_HOUSE + r" Complex data not supported: make two columns of each\.$"
    with pytest.raises(ValueError, match=words):
        RFMRegressor().fit(table, NUMBERS)


def test_far_away_from_all_rows_answers_stay_finite():
    machine = RFMRegressor(dtype="float32").fit(X, NUMBERS)
    far = np.array([[1e30, -1e300, 1e308, 0.0], [-1.7e308] * 4])
    np.testing.assert_allclose(machine.predict(far), NUMBERS.mean())
    np.testing.assert_array_equal(machine.jacobian(far), 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kernel", ["laplace", "gaussian", "product_laplace"])
@pytest.mark.parametrize("max_leaf_size", [None, 20])
def test_far_away_in_bandwidths_answers_stay_finite_too(dtype, kernel, max_leaf_size):
    machine = RFMRegressor(
        bandwidth=1e-6, dtype=dtype, kernel=kernel, max_leaf_size=max_leaf_size,
        n_iter=1, random_state=0,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="no row like another"):
        machine.fit(1e3 * X, NUMBERS)
    far = np.outer([1e10, 1e15, 1e30, 1e150, 1e300], [1.0, -1.0, 0.0, 1.0])
    np.testing.assert_allclose(machine.predict(far), NUMBERS.mean())
    np.testing.assert_array_equal(machine.jacobian(far), 0.0)
    outputs, pulled = machine.pull_back(torch.as_tensor(far), lambda f, _: f)
    np.testing.assert_allclose(outputs[:, 0], NUMBERS.mean())
    np.testing.assert_array_equal(pulled, 0.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "settings",
    [
        *({"ridge": size} for size in (1e-300, 1e-12, 1e12, 1e300)),
        *({"bandwidth": size} for size in (1e-300, 1e-3, 1e3, 1e300)),
        *({"exponent": size} for size in (1e-6, 0.5, 2.0)),
    ],
    ids=str,
)
@pytest.mark.parametrize("rule", ["fixed", "median"])
def test_extreme_parameters_give_finite_answers_or_an_error_of_the_house(
    dtype, settings, rule
):
    machine = RFMRegressor(dtype=dtype, bandwidth_rule=rule, n_iter=2, **settings)
    table, y = np.tile(X, (2, 1)), np.tile(NUMBERS, 2)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        try:
            machine.fit(table, y)
        except ValueError as error:
            assert any(words in str(error) for words in REFUSALS)  # noqa: PT017
            return
    assert np.isfinite(machine.predict(FRESH)).all()
    assert np.isfinite(machine.jacobian(X)).all()


@pytest.mark.parametrize("size", [None, 20])
def test_what_no_solver_can_help_is_told_in_the_name_of_whom_was_called(
    size, monkeypatch
):
    # no table is known for which it takes more than a jitter
    monkeypatch.setattr(_solve, "_factorise", lambda *matrix, **jitter: False)
    machine = RFMRegressor(n_iter=0, exponent=1.5, max_leaf_size=size)
    with pytest.raises(ValueError, match=r"^RFMRegressor: rows must be finite, with"):
        machine.fit(X, NUMBERS)


@pytest.mark.parametrize("far", [3e7, 3e15])
@pytest.mark.filterwarnings("ignore:.*bandwidths apart")
def test_groups_of_rows_however_far_apart_are_fitted(far):
    x = np.random.default_rng(0).normal(size=(60, 4))
    y = np.sin(x[:, 0])
    x[30:] += far
    assert RFMRegressor(n_iter=0).fit(x, y).score(x[:30], y[:30]) > 0.9
