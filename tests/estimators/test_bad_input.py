import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy import sparse

from normalign.estimators import (
    RFAMClassifier,
    RFAMClassifierCV,
    RFAMRegressorCV,
    RFMClassifier,
    RFMRegressor,
    make_tabular_pipeline,
)
from normalign.kernels import direct
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
)

HOUSE = r"^\w+: [\w ]+ must be .+, got .+\."

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
        TypeError, match=HOUSE + ".*argument must be a string or a real"
    ):
        RFMRegressor().fit(table, NUMBERS)


def test_tensors_without_values_are_refused():
    with pytest.raises(TypeError, match=HOUSE):
        RFMRegressor().fit(torch.as_tensor(X).to("meta"), NUMBERS)


def test_columns_of_one_name_are_refused():
    frame = pd.DataFrame(X, columns=list("abca"))
    with pytest.raises(ValueError, match=HOUSE) as caught:
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
    with pytest.raises(TypeError, match=HOUSE + r".*(toarray|to_dense)"):
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
    words = HOUSE + r" Complex data not supported: make two columns of each\.$"
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
    monkeypatch.setattr(direct, "_factorise", lambda *matrix, **jitter: False)
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
