"""Frames of other libraries: as those of pandas, or refused in the house form."""

import numpy as np
import pandas as pd
import pytest

from normalign.estimators import RFMClassifier, RFMRegressor, make_tabular_pipeline
from normalign.estimators._inputs import in_pandas
from tests.estimators.samples import NUMBERS, WORDS, N, X

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
