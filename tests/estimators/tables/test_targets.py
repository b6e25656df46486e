import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse
from sklearn.exceptions import DataConversionWarning

from normalign.estimators._inputs import (
    label_targets,
    numbers,
    plain_labels,
    split_blocks,
)
from tests.estimators.samples import needs_variable_width


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
        ([1.0, 2.0], "as long as X, which has 3 rows, got 2 answers"),
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
