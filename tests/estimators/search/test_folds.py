"""How rows are divided, and what cannot be."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.model_selection import GroupKFold, KFold, StratifiedKFold

from normalign.estimators._search import (
    RFAMClassifierCV,
    RFAMRegressorCV,
    shuffled_folds,
    shuffled_split,
)
from tests.estimators.search.cases import (
    NUMBERS,
    SMALL,
    WORDS,
    X,
    answers,
)


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
@pytest.mark.parametrize("cv", [2, 0.3, KFold(2), "pairs"])
def test_every_kind_of_cv_works(kind, cv):
    cv = [(np.arange(60), np.arange(60, 90))] if cv == "pairs" else cv
    machine = kind(**SMALL, cv=cv, random_state=0).fit(X, answers(kind))
    assert machine.n_splits_ == (2 if cv == 2 or isinstance(cv, KFold) else 1)
    assert len(machine.cv_results_["mean_test_score"]) == 12
    assert machine.best_score_ > 0.3


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_no_cv_is_five_folds_shuffled_and_stratified(kind):
    order = np.argsort(answers(kind), kind="stable")  # as tables often come
    table, y = X[order], answers(kind)[order]
    none = kind(**SMALL, cv=None, random_state=0).fit(table, y)
    five = kind(**SMALL, cv=5, random_state=0).fit(table, y)
    assert none.n_splits_ == 5
    np.testing.assert_array_equal(
        none.cv_results_["mean_test_score"], five.cv_results_["mean_test_score"]
    )


class Halves:
    """A splitter that remembers what it saw, and divides by the first column."""

    def split(self, table, y=None, groups=None):
        self.table, self.y = table, y
        column = np.asarray(table)[:, 0]
        low = column <= np.median(column)
        yield np.flatnonzero(low), np.flatnonzero(~low)
        yield ~low, low  # masks do, too

    def get_n_splits(self, *_):
        return 2


@pytest.mark.parametrize("kind", [RFAMClassifierCV, RFAMRegressorCV])
def test_a_splitter_sees_the_table_and_the_answers(kind):
    halves = Halves()
    weights = np.where(np.arange(90) < 80, 1.0, 0.0)
    machine = kind(**SMALL, cv=halves, random_state=0).fit(X, answers(kind), weights)
    assert machine.n_splits_ == 2
    np.testing.assert_array_equal(halves.table, X)
    np.testing.assert_array_equal(halves.y, answers(kind))


def test_a_splitter_sees_the_columns_of_a_frame_by_name():
    pandas = pytest.importorskip("pandas", reason="pandas is not installed")
    halves, frame = Halves(), pandas.DataFrame(X, columns=["a", "b", "c"])
    RFAMRegressorCV(**SMALL, cv=halves).fit(frame, NUMBERS)
    assert halves.table is frame


def test_what_a_splitter_of_scikit_learn_refuses_is_refused():
    machine = RFAMRegressorCV(**SMALL, cv=StratifiedKFold(3))
    words = "^RFAMRegressorCV: cv must be .*, got one that says: .*continuous"
    with pytest.raises(ValueError, match=words) as caught:
        machine.fit(X, NUMBERS)
    assert isinstance(caught.value.__cause__, ValueError)
    RFAMClassifierCV(**SMALL, cv=StratifiedKFold(3)).fit(X, WORDS)


def test_label_columns_are_stratified_by_their_combinations():
    two = np.stack([WORDS.astype(object), (X[:, 1] > 0).astype(object)], axis=1)
    machine = RFAMClassifierCV(**SMALL, cv=StratifiedKFold(2)).fit(X, two)
    assert machine.n_splits_ == 2


@pytest.mark.parametrize(
    ("cv", "error", "words"),
    [
        (GroupKFold(3), ValueError, "'groups' parameter .* pass the list of splits"),
        (KFold, TypeError, "got one that says"),
        ([1, 2], TypeError, "got one that says: cannot unpack"),
        (np.array(3), ValueError, "a number of folds, a share, a splitter"),
        ([([0, 1], [90])], ValueError, "row numbers below 90 .*, got rows 90 to 90"),
        ([([0, -91], [1])], ValueError, "got rows -91 to 0"),
        ([([0, 1], [])], ValueError, "row numbers below 90 .* of shape"),
        ([([[0, 1]], [2])], ValueError, "row numbers below 90 .* of shape"),
        ([([0.5, 1.5], [2])], TypeError, "row numbers .* Pass integers"),
        ([([True, False], [2])], TypeError, "row numbers .* Pass integers"),
        ([([[0], [1, 2]], [2])], ValueError, "got one that says"),
    ],
)
def test_splits_that_cannot_be_taken_are_refused_in_the_house_form(cv, error, words):
    machine = RFAMRegressorCV(**SMALL, cv=cv)
    with pytest.raises(error, match=f"^RFAMRegressorCV: cv must be .*{words}"):
        machine.fit(X, NUMBERS)


def test_groups_are_given_as_splits():
    splits = list(GroupKFold(3).split(X, groups=np.arange(90) // 10))
    machine = RFAMRegressorCV(**SMALL, cv=splits).fit(X, NUMBERS)
    assert machine.n_splits_ == 3


def test_folds_are_stratified_and_cover_every_row_once():
    groups = np.repeat([0, 1, 2], [50, 7, 2])
    folds = shuffled_folds(5, n=59, groups=groups, seed=0)
    assert np.sort(np.concatenate([test for _, test in folds])).tolist() == list(
        range(59)
    )
    for train, test in folds:
        assert np.intersect1d(train, test).size == 0
        assert 9 <= (groups[test] == 0).sum() <= 11
        assert 1 <= (groups[test] == 1).sum() <= 2


def test_a_validation_split_has_the_share_of_every_class():
    groups = np.repeat([0, 1], [80, 20])
    train, test = shuffled_split(0.25, n=100, groups=groups, seed=0)
    assert np.bincount(groups[test]).tolist() == [20, 5]
    assert len(train) == 75
    again = shuffled_split(0.25, n=100, groups=groups, seed=1)[1]
    assert again.tolist() != test.tolist()


def test_a_class_with_one_row_does_not_stop_the_search():
    y = np.array(["common"] * 45 + ["other"] * 44 + ["rare"])
    machine = RFAMClassifierCV(**SMALL, cv=3, random_state=0).fit(X, y)
    assert machine.classes_.tolist() == ["common", "other", "rare"]
    assert np.isfinite(machine.cv_results_["mean_test_score"]).all()


def test_folds_that_would_be_fitted_to_one_class_are_left_out():
    y = np.array(["common"] * 89 + ["rare"])
    machine = RFAMClassifierCV(**SMALL, cv=3, random_state=0).fit(X, y)
    assert machine.n_splits_ == 2


def test_rows_without_weight_are_in_no_fold():
    weights = np.where(np.arange(90) < 60, 1.0, 0.0)
    spoiled = NUMBERS + 100 * (weights == 0)
    one = RFAMRegressorCV(**SMALL, cv=3, random_state=0).fit(X, spoiled, weights)
    other = RFAMRegressorCV(**SMALL, cv=3, random_state=0).fit(X[:60], NUMBERS[:60])
    np.testing.assert_allclose(
        one.cv_results_["mean_test_score"],
        other.cv_results_["mean_test_score"],
        rtol=1e-9,
    )


def test_a_number_of_folds_beyond_all_bounds_is_one_for_each_row():
    few = slice(0, 8)
    machine = RFAMRegressorCV(**SMALL, cv=10**400).fit(X[few], NUMBERS[few])
    assert machine.n_splits_ == 8


def test_one_row_cannot_be_divided():
    with pytest.raises(ValueError, match="at least two rows"):
        RFAMRegressorCV().fit([[1.0]], [1.0])
