import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn import config_context
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, cross_val_score

from normalign.estimators import RFMClassifier, RFMRegressor, make_tabular_pipeline
from normalign.estimators.tabular import ColumnsOfKind, as_floats, as_texts

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
    assert "categories__member_True" in names
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


def test_it_is_cloned_searched_and_pickled_like_any_pipeline():
    pipeline = clone(make_tabular_pipeline(RFMClassifier(n_iter=0)))
    search = GridSearchCV(pipeline, {"machine__ridge": [1e-3, 1.0]}, cv=2)
    search.fit(TABLE, LABEL)
    again = pickle.loads(pickle.dumps(search))
    np.testing.assert_array_equal(again.predict(TABLE), search.predict(TABLE))


def test_any_estimator_may_stand_at_the_end():
    pipeline = make_tabular_pipeline(LogisticRegression()).fit(TABLE, LABEL)
    assert pipeline.score(TABLE, LABEL) > 0.5


def test_wrong_arguments_are_refused():
    with pytest.raises(TypeError, match="Pass an instance"):
        make_tabular_pipeline(RFMClassifier)
    with pytest.raises(ValueError, match="max_categories must be 2 or more, got 1"):
        make_tabular_pipeline(RFMClassifier(), max_categories=1)
    with pytest.raises(TypeError, match="Put the name in a list"):
        make_tabular_pipeline(RFMClassifier(), categorical="city")


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
