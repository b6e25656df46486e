import datetime
import enum
import pickle
import warnings
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import pytest
import skops.io
import torch
from scipy import sparse
from sklearn import config_context
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score

from normalign.estimators import RFMClassifier, RFMRegressor, make_tabular_pipeline
from normalign.estimators._pipeline import ColumnsOfKind, as_floats, as_texts
from tests.estimators.samples import needs_variable_width

N = 60
RNG = np.random.default_rng(0)
CITY = np.array(["Rome", "Oslo", "Lima"])[np.arange(N) % 3]
AGE = RNG.normal(40.0, 10.0, size=N)
LABEL = np.where((CITY == "Rome") ^ (AGE > 40), "yes", "no")


def made() -> pd.DataFrame:
    frame = pd.DataFrame(
        {
            "age": AGE,
            "rooms": pd.array(RNG.integers(1, 5, size=N), dtype="Int64"),
            "city": pd.Series(CITY, dtype="str"),
            "grade": pd.Categorical(np.array(["low", "high"])[np.arange(N) % 2]),
            "member": pd.array(RNG.integers(0, 2, size=N) > 0, dtype="boolean"),
            "plain": RNG.integers(0, 2, size=N) > 0,
            "mixed": pd.Series(["x", 1, None, 2.5] * (N // 4), dtype=object),
            "text": pd.Series(["u", "v"] * (N // 2), dtype="string"),
        }
    )
    frame.loc[3, ["age", "rooms", "city", "member", "text"]] = pd.NA
    return frame


TABLE = made()


def test_a_mixed_table_goes_in_and_good_predictions_come_out():
    pipeline = make_tabular_pipeline(RFMClassifier())
    assert cross_val_score(pipeline, TABLE, LABEL).mean() > 0.8


def test_every_column_becomes_finite_numbers_of_unit_size():
    pipeline = make_tabular_pipeline(RFMClassifier()).fit(TABLE, LABEL)
    encoded = pipeline[:-1].transform(TABLE)
    names = list(pipeline[:-1].get_feature_names_out())
    assert encoded.shape == (N, len(names))
    assert np.isfinite(encoded).all()
    ages = encoded[:, names.index("numbers__age")]
    assert ages.std() == pytest.approx(1)
    rome = encoded[:, names.index("categories__city_Rome")]
    there = np.arange(N) != 3
    np.testing.assert_array_equal(rome[there], (CITY == "Rome")[there])
    assert "categories__city_<missing>" in names
    assert "categories__member_1" in names
    assert sum(name.startswith("numbers__") for name in names) == 2


def test_unseen_categories_and_new_holes_are_answered():
    pipeline = make_tabular_pipeline(RFMClassifier()).fit(TABLE, LABEL)
    odd = TABLE.iloc[:4].copy()
    odd["city"] = pd.Series(["Atlantis", None, "Rome", "Oslo"], dtype="str")
    odd["grade"] = pd.Categorical(["odd", None, "low", "high"])
    odd["age"] = np.nan
    odd["rooms"] = pd.array([pd.NA] * 4, dtype="Int64")
    assert set(pipeline.predict(odd)) <= {"yes", "no"}
    encoded = pipeline[:-1].transform(odd)
    names = list(pipeline[:-1].get_feature_names_out())
    cities = [i for i, name in enumerate(names) if "__city_" in name]
    assert encoded[0, cities].sum() == 0
    # a hole where there was none in fit is filled by the median
    ages = pd.Series(AGE).drop(3)
    middle = ages.median() - pd.Series(AGE).where(ages.notna(), ages.median()).mean()
    assert np.sign(encoded[0, names.index("numbers__age")]) == np.sign(middle)


def test_pandas_output_everywhere_changes_nothing():
    plain = make_tabular_pipeline(RFMClassifier(random_state=0)).fit(TABLE, LABEL)
    with config_context(transform_output="pandas"):
        framed = make_tabular_pipeline(RFMClassifier(random_state=0))
        found = framed.fit(TABLE, LABEL).predict_proba(TABLE)
    np.testing.assert_allclose(found, plain.predict_proba(TABLE), rtol=1e-12)
    names = framed[-1].feature_names_in_
    assert list(names) == list(plain[:-1].get_feature_names_out())


@pytest.mark.parametrize("dtype", [object, float])
def test_arrays_are_tables_too(dtype):
    if dtype is object:
        values = np.column_stack([AGE.astype(object), CITY.astype(object)])
        values[0, 0], values[1, 1] = None, None
        values[2, 0] = pd.NA
    else:
        values = np.column_stack([AGE, CITY == "Rome"]).astype(float)
        values[0, 0] = np.nan
    pipeline = make_tabular_pipeline(RFMClassifier()).fit(values, LABEL)
    assert pipeline.score(values, LABEL) > 0.8
    assert pipeline.fit(values.tolist(), LABEL).score(values, LABEL) > 0.8


def test_codes_can_be_named_as_categories():
    frame = pd.DataFrame({"code": np.arange(N) % 3, "age": AGE})
    pipeline = make_tabular_pipeline(RFMRegressor(), categorical=["code"])
    pipeline.fit(frame, AGE)
    names = list(pipeline[:-1].get_feature_names_out())
    assert names[1:] == [f"categories__code_{j}" for j in range(3)]
    with pytest.raises(ValueError, match="categorical must be columns of the table"):
        make_tabular_pipeline(RFMRegressor(), categorical=["cod"]).fit(frame, AGE)


def test_rare_categories_share_a_column():
    frame = pd.DataFrame({"id": [str(i) for i in range(N)]})
    pipeline = make_tabular_pipeline(RFMRegressor(), max_categories=10)
    assert pipeline.fit(frame, AGE)[:-1].transform(frame).shape == (N, 10)


def test_holes_can_have_a_column_of_their_own():
    frame = pd.DataFrame({"age": AGE.copy()})
    frame.loc[:9, "age"] = np.nan
    pipeline = make_tabular_pipeline(RFMRegressor(), missing_indicator=True)
    encoded = pipeline.fit(frame, AGE)[:-1].transform(frame)
    assert encoded.shape == (N, 2)
    assert len(np.unique(encoded[:, 1])) == 2


def test_a_column_without_any_value_is_kept_and_harmless():
    frame = TABLE.assign(empty=np.nan, never=pd.Series([None] * N, dtype="str"))
    pipeline = make_tabular_pipeline(RFMClassifier()).fit(frame, LABEL)
    assert np.isfinite(pipeline[:-1].transform(frame)).all()


def test_dates_are_refused_by_name():
    frame = TABLE.assign(day=pd.date_range("2020-01-01", periods=N))
    with pytest.raises(ValueError, match=r"column 'day' must be of numbers.*datetime"):
        make_tabular_pipeline(RFMClassifier()).fit(frame, LABEL)


@pytest.mark.parametrize(
    "days",
    [
        pd.Series(list(pd.date_range("2020-01-01", periods=N)), dtype=object),
        pd.Series([datetime.date(2020, 1, 1)] * N, dtype=object),
        pd.Series(pd.period_range("2020-01-01", periods=N)),
        pd.Series(pd.timedelta_range("1 day", periods=N)),
    ],
    ids=["timestamps", "dates", "periods", "durations"],
)
def test_dates_in_any_dress_are_no_categories(days):
    pipeline = make_tabular_pipeline(RFMClassifier())
    with pytest.raises(ValueError, match=r"column 'day' .* Turn dates into numbers"):
        pipeline.fit(TABLE.assign(day=days), LABEL)


DAYS = [str(day.date()) for day in pd.date_range("2020-01-30", periods=N)]


@pytest.mark.parametrize(
    "days",
    [
        pd.Series(DAYS),
        pd.Series(DAYS, dtype=object),
        pd.Series(DAYS, dtype="string"),
        pd.Series([*DAYS[1:], None]),
        pd.Series([f"{day}T08:30:00Z" for day in DAYS]),
        pd.Series([f"{day} 08:30:00.125+01:00" for day in DAYS]),
        pd.Series([f" {day} 08:30" for day in DAYS]),
    ],
    ids=["texts", "objects", "nullable", "holes", "times", "zones", "minutes"],
)
def test_texts_that_are_all_dates_are_refused_unless_they_are_said_to_be_codes(days):
    frame = TABLE.assign(day=days)
    words = (
        r"^make_tabular_pipeline: column 'day' must be of numbers, .*, got dates as "
        r"texts, as ' ?2020-0.*to_datetime\(X\['day'\]\).*categorical=\['day'\] keeps"
    )
    with pytest.raises(ValueError, match=words):
        make_tabular_pipeline(RFMClassifier()).fit(frame, LABEL)
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0), categorical=["day"])
    names = pipeline.fit(frame, LABEL)[:-1].get_feature_names_out()
    assert sum(name.startswith("categories__day") for name in names) == N
    later = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    later.predict(TABLE.assign(city=days))  # unseen categories, as any others


@pytest.mark.parametrize(
    "texts",
    [
        [*DAYS[1:], "soon"],
        [f"{i:04d}-13-45" for i in range(N)],
        ["20200229"] * N,
        [f"{day}-7" for day in DAYS],
        [None] * N,
        pd.Categorical(DAYS),
    ],
    ids=["one is none", "codes", "digits", "parts", "missing", "categories"],
)
def test_texts_that_are_not_all_dates_are_categories(texts):
    frame = TABLE.assign(day=pd.Series(texts, index=TABLE.index))
    make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(frame, LABEL)


def test_arrays_of_texts_that_are_dates_are_refused_by_their_position():
    array = np.column_stack([CITY, DAYS])
    with pytest.raises(ValueError, match=r"column 1 must .* categorical=\[1\] keeps"):
        make_tabular_pipeline(RFMClassifier()).fit(array, LABEL)


def test_complex_columns_get_advice_of_their_own():
    frame = TABLE.assign(wave=np.full(N, 1j))
    with pytest.raises(ValueError, match=r"'wave' must .* two columns of each\.$"):
        make_tabular_pipeline(RFMClassifier()).fit(frame, LABEL)


def test_decimals_are_numbers():
    prices = [Decimal(j) / 4 for j in range(N - 1)] + [None]
    exact = pd.DataFrame({"price": pd.Series(prices, dtype=object)})
    rounded = exact.astype(float)
    pipeline = make_tabular_pipeline(RFMRegressor()).fit(exact, AGE)
    names = list(pipeline[:-1].get_feature_names_out())
    assert names == ["numbers__price"]
    np.testing.assert_array_equal(pipeline.predict(exact), pipeline.predict(rounded))


def indicators(pipeline, frame):
    return pipeline[:-1].transform(frame).tolist()


@pytest.mark.parametrize(
    ("seen", "later"),
    [
        (pd.Categorical([1, 2, 1]), [1.0, 2.0, np.nan]),
        (pd.Categorical([1, 2, 1]), pd.Categorical([1.0, 2.0, np.nan])),
        (np.array([1, 2, 1]), np.array([1.0, 2.0, np.nan])),
        (np.array([1.0, 2.0, np.nan]), pd.array([1, 2, pd.NA], dtype="Int64")),
        (np.array([1, 2, 1]), np.array([1, 2, None], dtype=object)),
        (np.array([1, 2, 1]), np.array([Decimal(1), Decimal("2.0"), None])),
        (np.array([1, 2, 1]), np.array(["1", "2", None], dtype=object)),
        (np.array([1.5, 2.5, 1.5]), np.array([1.5, 2.5, np.nan], dtype=np.float32)),
    ],
    ids=lambda values: str(getattr(values, "dtype", "list")),
)
def test_a_code_is_the_same_category_however_it_is_stored(seen, later):
    pipeline = make_tabular_pipeline(RFMRegressor(), categorical=["code"])
    pipeline.fit(pd.DataFrame({"code": seen}), [1.0, 2.0, 1.0])
    found = indicators(pipeline, pd.DataFrame({"code": later}))
    width = len(found[0])  # one more where the missing one is a category itself
    assert found[:2] == np.eye(width)[:2].tolist()
    assert found[2] == (np.eye(3)[2].tolist() if width == 3 else [0.0, 0.0])


def test_booleans_and_the_integers_they_are_stored_as_are_one_category():
    pipeline = make_tabular_pipeline(RFMRegressor(), categorical=["flag"])
    pipeline.fit(pd.DataFrame({"flag": [True, False, True]}), [1.0, 2.0, 1.0])
    for later in ([1, 0, 1], [1.0, 0.0, 1.0], np.array([True, False, 1], dtype=object)):
        found = indicators(pipeline, pd.DataFrame({"flag": later}))
        assert found == [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]


class Answer(str, enum.Enum):  # noqa: UP042  # whose str() is another
    YES = "yes"
    NO = "no"


FLAGS = [True, False, True]
SAME = {
    "flags": FLAGS,
    "nullable": pd.array(FLAGS, dtype="boolean"),
    "objects": np.array([np.True_, False, 1], dtype=object),
    "integers": [1, 0, 1],
    "floats": [1.0, 0.0, 1.0],
    "single precision": np.array([1, 0, 1], dtype=np.float32),
    "decimals": [Decimal("1.00"), Decimal(0), Decimal(1)],
    "quotients": [Fraction(1), Fraction(0), Fraction(2, 2)],
    "words": ["True", "False", "True"],
    "digits": ["1", "0", "1"],
    "bytes": [b"True", b"False", b"True"],
    "categories": pd.Categorical(FLAGS),
    "words as categories": pd.Categorical(["True", "False", "True"]),
    "arrays": [np.array(1), np.array(False), np.array(1.0)],
    "tensors": [torch.tensor(1), torch.tensor(0), torch.tensor(1)],
}
OTHER = {
    "yes": ["yes", "no", "yes"],
    "shouted": ["TRUE", "FALSE", "TRUE"],
    "halves": [1.5, 0.5, 1.5],
    "days": pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-01"]),
    "durations": pd.to_timedelta([1, 2, 1]),
    "complex": [1j, 0j, 1j],
    "tuples": [(1,), (0,), (1,)],
    "twos": [2, 3, 2],
    "floats as texts": ["1.0", "0.0", "1.0"],
}


def code_columns(fitted, given):
    pipeline = make_tabular_pipeline(LogisticRegression(), categorical=["flag"])
    pipeline.fit(pd.DataFrame({"flag": fitted}), [1, 0, 1])
    return indicators(pipeline, pd.DataFrame({"flag": given}))


@pytest.mark.parametrize("given", SAME.values(), ids=SAME)
@pytest.mark.parametrize("fitted", SAME.values(), ids=SAME)
def test_a_category_is_the_same_in_every_form(fitted, given):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert code_columns(fitted, given) == [[0.0, 1.0], [1.0, 0.0], [0.0, 1.0]]


@pytest.mark.parametrize("given", OTHER.values(), ids=OTHER)
@pytest.mark.parametrize("fitted", [FLAGS, pd.Categorical(FLAGS)], ids=["flags", "cat"])
def test_categories_of_another_type_that_count_as_unseen_are_warned_of(fitted, given):
    words = r"^make_tabular_pipeline: column 'flag' must be of categories in the form"
    with pytest.warns(UserWarning, match=rf"{words}.*got 3 others, as .* convert the"):
        assert code_columns(fitted, given) == [[0.0, 0.0]] * 3


@pytest.mark.parametrize(
    ("fitted", "given"),
    [
        (["1", "0", "1"], ["1.0", "0.0", "1.0"]),
        (["1.0", "0.0", "1.0"], [1, 0, 1]),
        (["01", "00", "01"], [1, 0, 1]),
        ([0.1, 0.2, 0.1], np.array([0.1, 0.3, 0.1], dtype=np.float32) * 2),
        ([2**53 + 1, 0, 2**53 + 1], [2.0**53, 0.0, 2.0**53]),
        ([b"\xff", b"a", b"\xff"], [b"\xfe", b"a", b"\xfe"]),
        ([Decimal("0.5"), 1, 2], [Fraction(1, 2), 1, 2]),
        ([None] * 3, FLAGS),
        (
            pd.to_datetime(["2020-01-01", "2020-01-02", "2020-01-01"]),
            [datetime.date(2020, 1, 1)] * 3,
        ),
    ],
    ids=[
        *("floats as texts", "integers", "zeros", "float32", "rounded", "no UTF-8"),
        *("fractions", "none", "dates"),
    ],
)
def test_codes_that_may_be_others_in_another_form_are_warned_of(fitted, given):
    with pytest.warns(UserWarning, match="form that they had in fit"):
        code_columns(fitted, given)


@pytest.mark.parametrize(
    ("fitted", "given"),
    [
        (["a", "b", "a"], ["c", "d", "e"]),
        ([1, 0, 1], [2, 3.0, None]),
        ([0.5, 1.5, 0.5], [2.5, 3.0, 7]),
        ([1, 0, 1], [Fraction(2), Decimal(3), 4.0]),
        (["12", "7", "12"], ["13", "8", None]),
        ([FLAGS[0], None, FLAGS[0]], [False, None, False]),
    ],
    ids=["texts", "integers", "fractions", "quotients", "digits", "flags"],
)
def test_new_categories_of_the_same_type_are_no_reason_for_a_warning(fitted, given):
    pipeline = make_tabular_pipeline(LogisticRegression(), categorical=["flag"])
    pipeline.fit(pd.DataFrame({"flag": pd.Series(fitted, dtype=object)}), [1, 0, 1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pipeline.predict(pd.DataFrame({"flag": pd.Series(given, dtype=object)}))


def test_floats_of_single_precision_are_compared_in_theirs():
    single = np.array([0.1, 0.2, 0.1], dtype=np.float32)
    wanted = [[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]
    for given in (single, pd.array(single, dtype="Float32"), pd.Categorical(single)):
        assert code_columns([0.1, 0.2, 0.1], given) == wanted
        assert code_columns(given, [0.1, 0.2, 0.1]) == wanted


def test_members_of_an_enumeration_of_texts_are_their_texts():
    frame = pd.DataFrame({"a": [Answer.YES, Answer.NO]}, dtype=object)
    pipeline = make_tabular_pipeline(LogisticRegression()).fit(frame, [0, 1])
    found = indicators(pipeline, pd.DataFrame({"a": ["yes", "no"]}))
    assert found == [[0.0, 1.0], [1.0, 0.0]]


def test_columns_of_arrays_are_named_by_their_positions_in_warnings_and_errors():
    table = np.array([["a", 1.0, True], ["b", 2.0, False]], dtype=object)
    pipeline = make_tabular_pipeline(LogisticRegression()).fit(table, [0, 1])
    other = table.copy()
    other[:, 2] = "no"
    with pytest.warns(UserWarning, match=r"column 2 must be .* got 2 others, as 'no'"):
        pipeline.predict(other)
    other = table.copy()
    other[0, 1] = datetime.date(2020, 1, 1)
    with pytest.raises(ValueError, match=r"column 1 must be of numbers.* Turn dates"):
        pipeline.predict(other)
    other[0, 1] = np.inf
    with pytest.raises(ValueError, match=r"inf in 1 places, in \[1\]"):
        pipeline.predict(other)


def test_numbers_in_a_column_that_had_none_in_fit_are_warned_of():
    frame = pd.DataFrame({"age": AGE, "size": [None] * N})
    pipeline = make_tabular_pipeline(RFMRegressor(n_iter=0)).fit(frame, AGE)
    with pytest.warns(UserWarning, match="column 'size' must be without numbers, as"):
        pipeline.predict(frame.assign(size=3.0))


SHAPES = {
    "numbers": (TABLE[["age", "rooms"]], LABEL),
    "categories": (TABLE[["city", "member"]], LABEL),
    "mixed": (TABLE, LABEL),
    "array": (AGE[:, None], LABEL),
    "names": (pd.DataFrame({2020: AGE, 2021: CITY}), LABEL),
}


@pytest.mark.parametrize("output", ["default", "pandas"])
@pytest.mark.parametrize(("table", "y"), SHAPES.values(), ids=SHAPES)
def test_it_is_shown_in_notebooks(table, y, output):
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0))
    if output == "pandas":
        if isinstance(table, pd.DataFrame) and not isinstance(table.columns[0], str):
            pytest.skip("scikit-learn makes no frames of names that are numbers")
        pipeline.set_output(transform=output)
    for shown in (pipeline, pipeline.fit(table, y)):
        for same in (shown, clone(shown), pickle.loads(pickle.dumps(shown))):
            assert "RFMClassifier" in same._repr_html_()
            assert "RFMClassifier" in repr(same)
    again = pickle.loads(pickle.dumps(pipeline))
    np.testing.assert_array_equal(again.predict(table), pipeline.predict(table))


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ([], r"a list of shape \(0,\)\. Give it a list of equal length for each row"),
        ([[]], r"a list of shape \(1, 0\)\. Found array with 0 feature"),
        ((), r"a tuple of shape \(0,\)"),
        ([1.0, 2.0], r"a list of shape \(2,\)"),
        ([[1.0, 2.0], [3.0]], r"a list of shape \(2,\)"),
        ([[[1.0]], [[2.0]]], r"a list of shape \(2, 1, 1\)"),
        ([np.eye(2), np.eye(3)], r"a list of shape \(2,\)"),
        ([np.eye(2), np.ones((2, 3))], r"a list of shape \(2,\)"),
        (np.zeros((0, 2)), r"a ndarray of shape \(0, 2\)\. Found array with 0 sample"),
        (np.zeros((2, 0)), r"a ndarray of shape \(2, 0\)\. Found array with 0 feature"),
        (np.zeros(()), r"a ndarray of shape \(\)"),
        (pd.DataFrame(), r"a DataFrame of shape \(0, 0\)"),
        (pd.DataFrame(index=[1, 2]), r"a DataFrame of shape \(2, 0\)\. Found"),
        (torch.zeros(0, 2), r"a Tensor of shape \(0, 2\)"),
        (None, "None"),
        (3.0, r"3\.0"),
        ("text", "'text'"),
        ({1, 2}, r"\{1, 2\}"),
        (np.ndarray, "<class 'numpy.ndarray'>"),
        (iter([[1.0]]), "<list_iterator"),
    ],
    ids=lambda part: part if isinstance(part, str) else type(part).__name__,
)
def test_what_holds_no_table_is_refused(table, words):
    form = (
        rf"^make_tabular_pipeline: X must be a table of rows and columns, got {words}"
    )
    with pytest.raises(ValueError, match=form):
        make_tabular_pipeline(RFMClassifier()).fit(table, [0, 1])
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(
        [[0.0], [1.0]], [0, 1]
    )
    with pytest.raises(ValueError, match=form):
        pipeline.predict(table)


def test_what_is_masked_is_missing():
    masked = np.ma.array(np.column_stack([AGE, AGE]), mask=False)
    masked[3, 0] = np.ma.masked
    holes = np.column_stack([AGE, AGE])
    holes[3, 0] = np.nan
    pipeline = make_tabular_pipeline(RFMRegressor()).fit(masked, AGE)
    other = make_tabular_pipeline(RFMRegressor()).fit(holes, AGE)
    np.testing.assert_array_equal(
        indicators(pipeline, masked), indicators(other, holes)
    )
    assert as_texts(masked[3:4, :1]).tolist() == [["<missing>"]]


def test_tensors_are_tables():
    table = np.column_stack([AGE, AGE**2])
    plain = make_tabular_pipeline(RFMRegressor()).fit(table, AGE)
    found = make_tabular_pipeline(RFMRegressor()).fit(torch.as_tensor(table), AGE)
    np.testing.assert_allclose(
        found.predict(torch.as_tensor(table)), plain.predict(table),
        rtol=1e-12,  # sums over another layout of the same numbers
    )  # fmt: skip


@needs_variable_width
def test_texts_of_variable_width_are_a_table():
    words = CITY[:, None].astype(np.dtypes.StringDType())
    pipeline = make_tabular_pipeline(RFMClassifier()).fit(words, LABEL)
    assert pipeline[:-1].transform(words).shape == (N, 3)


def test_values_that_a_numeric_column_cannot_hold_are_refused_at_predict():
    frame = pd.DataFrame({"age": AGE, "size": AGE})
    pipeline = make_tabular_pipeline(RFMRegressor(n_iter=0)).fit(frame, AGE)
    words = frame.astype(object)
    words.loc[2, "size"] = "large"
    with pytest.raises(ValueError, match=r"^make_tabular_pipeline: X must .*'large'"):
        pipeline.predict(words)
    with pytest.raises(ValueError, match=r"got inf in 1 places, in \['size'\]"):
        pipeline.predict(frame.assign(size=np.where(AGE[2] == AGE, np.inf, AGE)))


@pytest.mark.parametrize("made_before", [True, False])
def test_weights_are_routed_to_the_machine_and_not_to_the_scaler(made_before):
    weights = np.linspace(1.0, 3.0, N)
    plain = make_tabular_pipeline(RFMClassifier(n_iter=1))
    plain.fit(TABLE, LABEL, machine__sample_weight=weights)
    routed = make_tabular_pipeline(RFMClassifier(n_iter=1))
    with config_context(enable_metadata_routing=True):
        if not made_before:
            routed = make_tabular_pipeline(RFMClassifier(n_iter=1))
        routed["machine"].set_fit_request(sample_weight=True)
        routed = clone(routed).fit(TABLE, LABEL, sample_weight=weights)
    np.testing.assert_array_equal(
        routed.predict_proba(TABLE), plain.predict_proba(TABLE)
    )


def test_it_is_cloned_searched_and_pickled_like_any_pipeline():
    pipeline = clone(make_tabular_pipeline(RFMClassifier(n_iter=0)))
    search = GridSearchCV(pipeline, {"machine__ridge": [1e-3, 1.0]}, cv=2)
    search.fit(TABLE, LABEL)
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(TABLE), search.predict(TABLE))


def test_it_is_saved_without_pickle():
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    saved = skops.io.dumps(pipeline)
    kinds = skops.io.get_untrusted_types(data=saved)
    again = skops.io.loads(saved, trusted=kinds)
    np.testing.assert_array_equal(again.predict(TABLE), pipeline.predict(TABLE))


def test_any_estimator_may_stand_at_the_end():
    pipeline = make_tabular_pipeline(LogisticRegression()).fit(TABLE, LABEL)
    assert pipeline.score(TABLE, LABEL) > 0.5


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="Pass an instance"):
        make_tabular_pipeline(RFMClassifier)
    with pytest.raises(ValueError, match="max_categories must be 2 or more, got 1"):
        make_tabular_pipeline(RFMClassifier(), max_categories=1)
    with pytest.raises(TypeError, match="max_categories must be an integer, got 'a'"):
        make_tabular_pipeline(RFMClassifier(), max_categories="a")
    with pytest.raises(TypeError, match=r"X must be dense.*toarray"):
        make_tabular_pipeline(RFMClassifier()).fit(sparse.csr_array(np.eye(N)), LABEL)
    for wrong in ("yes", None, 1):
        with pytest.raises(TypeError, match="missing_indicator must be True or False"):
            make_tabular_pipeline(RFMClassifier(), missing_indicator=wrong)
    make_tabular_pipeline(RFMClassifier(), missing_indicator=np.True_)
    for none in ("city", b"city", None, 3):
        with pytest.raises(TypeError, match=r"got .*\. Put the name in a list"):
            make_tabular_pipeline(RFMClassifier(), categorical=none)


@pytest.mark.parametrize(
    "values",
    [TABLE["age"], AGE, AGE[:, None, None], torch.as_tensor(AGE)],
    ids=["series", "one dimension", "three", "tensor"],
)
def test_what_has_no_columns_is_refused_in_fit_and_later(values):
    words = (
        r"^make_tabular_pipeline: X must be a table .*, got a [ \w]+ of shape .* one"
    )
    with pytest.raises(ValueError, match=words):
        make_tabular_pipeline(RFMClassifier()).fit(values, LABEL)
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    with pytest.raises(ValueError, match=words):
        pipeline.predict(values)


def test_one_row_of_a_frame_is_refused_with_the_way_to_a_table_of_one_row():
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    words = (
        r"got a Series of shape \(8,\)\. .*one row is df\.iloc\[\[0\]\].*; one column"
    )
    with pytest.raises(ValueError, match=words):
        pipeline.predict(TABLE.iloc[0])
    assert pipeline.predict(TABLE.iloc[[0]]) == pipeline.predict(TABLE)[:1]


def test_names_of_several_levels_are_refused_with_the_remedy():
    frame = TABLE.set_axis(pd.MultiIndex.from_product([["a"], TABLE.columns]), axis=1)
    with pytest.raises(ValueError, match=r"^make_.* MultiIndex of 2 levels. Join"):
        make_tabular_pipeline(RFMClassifier()).fit(frame, LABEL)
    frame.columns = ["_".join(map(str, name)) for name in frame.columns]
    make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(frame, LABEL)


@pytest.mark.parametrize("names", [[1, 0], [2020, 2021], [0.5, 0.7], [-1, -2]], ids=str)
def test_numbers_that_are_names_are_not_taken_for_positions(names):
    frame = pd.DataFrame({names[0]: AGE, names[1]: CITY})
    plain = pd.DataFrame({"age": AGE, "city": CITY})
    machine = RFMClassifier(n_iter=1)
    found = make_tabular_pipeline(machine).fit(frame, LABEL).predict_proba(frame)
    wanted = make_tabular_pipeline(machine).fit(plain, LABEL).predict_proba(plain)
    np.testing.assert_array_equal(found, wanted)


def test_categories_are_named_by_numbers_where_columns_are():
    frame = pd.DataFrame({1: np.arange(N) % 3, 0: AGE})
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0), categorical=[1])
    names = pipeline.fit(frame, LABEL)[:-1].get_feature_names_out()
    assert list(names) == ["numbers__x1", *(f"categories__x0_{i}" for i in range(3))]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (
            TABLE.drop(columns=["age", "city"]),
            r"columns of fit, .* \['age', 'city'",
        ),
        (TABLE.to_numpy(), "the columns of fit, got one without names"),
        (TABLE.set_axis([*"abcdefg", "a"], axis=1), r"names, got \['a'\] more than"),
        (TABLE.set_axis([*"abcdefg", 1], axis=1), r"or none, got both\. .*astype\(str"),
        ({"age": AGE}, r"rows and columns, got a dict\. Pass a DataFrame"),
        (None, r"rows and columns, got None\. Pass a DataFrame"),
    ],
    ids=["missing", "array", "twice", "mixed", "dict", "None"],
)
def test_tables_with_other_columns_than_in_fit_are_refused(changed, words):
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    with pytest.raises(ValueError, match=f"^make_tabular_pipeline: X must .*{words}"):
        pipeline.predict(changed)


def test_arrays_of_another_width_than_in_fit_are_refused():
    array = AGE[:, None] ** [1, 2, 3]
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(array, LABEL)
    words = r"of 3 columns, as in fit, got one of 2\. X has 2 features, but"
    with pytest.raises(ValueError, match=words):
        pipeline.predict(array[:, :2])


def test_names_that_are_no_texts_must_come_in_the_order_of_fit():
    frame = pd.DataFrame({2020: AGE, 2021: AGE**2})
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(frame, LABEL)
    with pytest.raises(ValueError, match=r"in their order, got one with \['2021', '2"):
        pipeline.predict(frame[[2021, 2020]])
    # where there are no names there is an order only
    found = pipeline.predict(frame.to_numpy())
    np.testing.assert_array_equal(found, pipeline.predict(frame))


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (pd.Timestamp("2020"), "column 'age' must be .* Turn dates into numbers"),
        (datetime.date(2020, 1, 1), "column 'age' must be .* Turn dates into numbers"),
        (pd.Timedelta("1D"), "column 'age' must be .* Turn dates into numbers"),
        (1j, "column 'age' must be .* Complex data not supported"),
    ],
    ids=["time", "date", "duration", "complex"],
)
def test_what_has_no_place_in_fit_has_none_later(value, words):
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    with pytest.raises(ValueError, match=f"^make_tabular_pipeline: {words}"):
        pipeline.predict(TABLE.assign(age=value))


@pytest.mark.parametrize("missing", [None, pd.NA, np.nan, pd.NaT], ids=str)
def test_a_row_in_which_all_is_missing_is_answered(missing):
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    row = pd.DataFrame({name: [missing] for name in TABLE}, dtype=object)
    wanted = pipeline.predict_proba(TABLE.iloc[:1].assign(**dict.fromkeys(TABLE)))
    np.testing.assert_array_equal(pipeline.predict_proba(row), wanted)


def test_a_table_without_rows_is_refused():
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    for table in (TABLE.iloc[:0], TABLE.to_numpy()[:0]):
        with pytest.raises(ValueError, match=r"^make_.*of shape \(0, 8\)\. .*0 sample"):
            pipeline.predict(table)


def test_columns_may_come_in_another_order_and_with_others():
    pipeline = make_tabular_pipeline(RFMClassifier(n_iter=0)).fit(TABLE, LABEL)
    other = TABLE[TABLE.columns[::-1]].assign(more=1.0)
    np.testing.assert_array_equal(pipeline.predict(other), pipeline.predict(TABLE))


def test_kinds_of_columns_are_told_by_type_or_value():
    assert ColumnsOfKind("number")(TABLE) == ["age", "rooms"]
    assert ColumnsOfKind("number", ("rooms",))(TABLE) == ["age"]
    values = np.array([[1, True, "a", None], [2, False, "b", 1.0]], dtype=object)
    assert ColumnsOfKind("number")(values) == [0, 3]
    assert ColumnsOfKind("category")(np.array([["a"]])) == [0]


def test_blocks_are_converted_elementwise():
    block = pd.DataFrame({"a": pd.array([1, pd.NA], dtype="Int64"), "b": [0.5, None]})
    np.testing.assert_array_equal(as_floats(block), [[1, 0.5], [np.nan, np.nan]])
    words = pd.DataFrame({"a": pd.Categorical(["x", None])})
    assert as_texts(words).tolist() == [["x"], ["<missing>"]]


def test_every_column_that_is_made_knows_where_it_comes_from():
    table = pd.DataFrame(
        {
            "a_b": [1.0, np.nan, 3.0, 4.0],
            "town_x": ["York", "a_b", "York", None],
            "n": [1, 2, 3, 4],
            "flag": [True, False, True, True],
        }
    )
    for marked in (False, True):
        pipeline = make_tabular_pipeline(RFMRegressor(), missing_indicator=marked)
        pipeline.fit(table, np.arange(4.0))
        columns = pipeline["columns"]
        extra = ["a_b"] if marked else []
        assert columns.origins_ == [
            "a_b", "n", *extra, "town_x", "town_x", "town_x", "flag", "flag",
        ]  # fmt: skip
        assert len(columns.origins_) == len(columns.get_feature_names_out())
    rare = make_tabular_pipeline(RFMRegressor(), max_categories=2)
    assert rare.fit(table, np.arange(4.0))["columns"].origins_.count("town_x") == 2
    plain = make_tabular_pipeline(RFMRegressor()).fit(table.to_numpy(), np.arange(4.0))
    assert plain["columns"].origins_ == [0, 2, 1, 1, 1, 3, 3]
    with pytest.raises(NotFittedError):
        _ = make_tabular_pipeline(RFMRegressor())["columns"].origins_
