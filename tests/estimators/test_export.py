import re
import warnings

import numpy as np
import pytest
import torch
from sklearn import linear_model as lm
from sklearn.decomposition import PCA, KernelPCA
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.kernel_ridge import KernelRidge
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier, MLPRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import (
    MaxAbsScaler,
    MinMaxScaler,
    RobustScaler,
    StandardScaler,
)
from sklearn.svm import SVC, SVR, LinearSVC, LinearSVR, NuSVC, NuSVR
from torch import nn
from torch.func import jacrev, vmap

from normalign import local_geometry
from normalign.estimators import (
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
    as_torch,
    make_tabular_pipeline,
)

RNG = np.random.default_rng(0)
D = 4
CENTRES = 2.0 * RNG.normal(size=(3, D))


def table(n_classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Overlapping clouds, off centre and unequally scaled, with named classes."""
    y = np.arange(60) % n_classes
    X = (CENTRES[y] + RNG.normal(size=(60, D))) * [1.0, 3.0, 0.5, 1.0] + 2.0
    return X, np.array(["ant", "bee", "cat"])[y]


TABLES = {2: table(2), 3: table(3)}
X = TABLES[3][0]
TARGETS = np.stack([np.sin(X[:, 0]), X[:, 1] - X[:, 2] ** 2], axis=1)
FRESH = 4 * RNG.normal(size=(25, D)) + 2.0

MLP_LAYERS = {"hidden_layer_sizes": (7, 5), "max_iter": 30, "random_state": 0}
CLASSIFIERS = [
    lm.LogisticRegression(),
    lm.LogisticRegressionCV(Cs=2, cv=2),
    lm.RidgeClassifier(),
    lm.RidgeClassifierCV(),
    lm.SGDClassifier(random_state=0),
    lm.Perceptron(random_state=0),
    LinearSVC(),
    OneVsRestClassifier(SVC()),
    OneVsRestClassifier(lm.LogisticRegression()),
    OneVsRestClassifier(make_pipeline(StandardScaler(), SVC(kernel="poly"))),
    make_pipeline(StandardScaler(), lm.LogisticRegression()),
    make_pipeline(MinMaxScaler(), PCA(3), LinearSVC()),
    make_pipeline(make_pipeline(RobustScaler(), "passthrough", MaxAbsScaler()),
                  PCA(2, whiten=True), lm.LogisticRegression()),
    GridSearchCV(lm.LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
]  # fmt: skip
TWO_CLASS_ONLY = [
    SVC(),
    SVC(gamma="auto", C=5.0),
    SVC(kernel="linear"),
    SVC(kernel="poly", degree=2, coef0=0.5),
    SVC(kernel="sigmoid", gamma=0.01),
    NuSVC(nu=0.3),
    make_pipeline(StandardScaler(), SVC()),
]
REGRESSORS = [
    lm.LinearRegression(),
    lm.LinearRegression(fit_intercept=False),
    lm.Ridge(),
    lm.RidgeCV(),
    lm.Lasso(alpha=0.01),
    lm.ElasticNet(alpha=0.01),
    MLPRegressor(**MLP_LAYERS),
    KernelRidge(kernel="rbf", alpha=0.1),
    KernelRidge(kernel="laplacian", alpha=0.1, gamma=0.3),
    KernelRidge(kernel="linear", alpha=0.1),
    KernelRidge(kernel="poly", degree=2, alpha=0.1),
    make_pipeline(StandardScaler(with_mean=False), lm.Ridge()),
    make_pipeline(StandardScaler(with_std=False), KernelRidge(kernel="rbf")),
    make_pipeline(RobustScaler(with_centering=False), lm.Ridge()),
    make_pipeline(MinMaxScaler((-1, 3), clip=True), lm.Ridge()),
]
ONE_TARGET_ONLY = [
    lm.LassoCV(cv=2),
    lm.ElasticNetCV(cv=2),
    lm.SGDRegressor(penalty=None, eta0=1e-4, random_state=0),
    LinearSVR(),
    SVR(),
    SVR(kernel="linear"),
    SVR(kernel="poly"),
    NuSVR(),
]


def fitted(estimator, *data):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        warnings.simplefilter("ignore", FutureWarning)  # defaults about to change
        return estimator.fit(*data)


def outputs(module: nn.Module, inputs: np.ndarray = FRESH) -> np.ndarray:
    out = module(torch.from_numpy(inputs))
    assert out.dtype == torch.float64
    return out.detach().numpy()


def close(ours: np.ndarray, theirs: np.ndarray) -> None:
    # the same few hundred float64 operations in another order; scores are O(1..100)
    np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("estimator", [*CLASSIFIERS, *TWO_CLASS_ONLY], ids=repr)
def test_two_outputs_differ_by_the_decision_function(estimator):
    model = fitted(estimator, *TABLES[2])
    out = outputs(as_torch(model))
    assert out.shape == (25, 2)
    close(out[:, 1] - out[:, 0], model.decision_function(FRESH))
    np.testing.assert_allclose(out.sum(1), 0.0, atol=1e-9)
    assert (model.classes_[out.argmax(1)] == model.predict(FRESH)).all()


@pytest.mark.parametrize("estimator", CLASSIFIERS, ids=repr)
def test_three_outputs_equal_the_decision_function(estimator):
    model = fitted(estimator, *TABLES[3])
    out = outputs(as_torch(model))
    close(out, model.decision_function(FRESH))
    assert (model.classes_[out.argmax(1)] == model.predict(FRESH)).all()


@pytest.mark.parametrize("activation", ["relu", "tanh", "logistic", "identity"])
@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_perceptrons_softmax_is_its_predict_proba(activation, n_classes):
    model = fitted(
        MLPClassifier(activation=activation, **MLP_LAYERS), *TABLES[n_classes]
    )
    out = outputs(as_torch(model))
    proba = torch.softmax(torch.from_numpy(out), dim=1).numpy()
    close(proba, model.predict_proba(FRESH))
    assert (model.classes_[out.argmax(1)] == model.predict(FRESH)).all()


@pytest.mark.parametrize("n_classes", [2, 3])
def test_a_logistic_models_softmax_is_its_predict_proba(n_classes):
    model = fitted(lm.LogisticRegression(), *TABLES[n_classes])
    out = torch.from_numpy(outputs(as_torch(model)))
    close(out.softmax(1).numpy(), model.predict_proba(FRESH))


@pytest.mark.parametrize("estimator", REGRESSORS, ids=repr)
def test_outputs_equal_predict_for_several_targets(estimator):
    model = fitted(estimator, X, TARGETS)
    close(outputs(as_torch(model)), model.predict(FRESH))


@pytest.mark.parametrize("estimator", [*REGRESSORS, *ONE_TARGET_ONLY], ids=repr)
def test_outputs_equal_predict_for_one_target(estimator):
    model = fitted(estimator, X, TARGETS[:, 0])
    out = outputs(as_torch(model))
    assert out.shape == (25, 1)
    close(out[:, 0], model.predict(FRESH))


def jacobian(module: nn.Module, inputs: np.ndarray = FRESH) -> np.ndarray:
    def single(row: torch.Tensor) -> torch.Tensor:
        return module(row[None])[0]

    return vmap(jacrev(single))(torch.from_numpy(inputs)).detach().numpy()


def test_the_jacobian_of_a_linear_model_is_its_coef():
    model = fitted(lm.Ridge(), X, TARGETS)
    expected = np.broadcast_to(model.coef_, (25, 2, D))
    np.testing.assert_array_equal(jacobian(as_torch(model)), expected)
    three = fitted(lm.LogisticRegression(), *TABLES[3])
    expected = np.broadcast_to(three.coef_, (25, 3, D))
    np.testing.assert_array_equal(jacobian(as_torch(three)), expected)


def test_the_jacobian_of_a_binary_linear_model_is_half_its_coef_each_way():
    model = fitted(lm.LogisticRegression(), *TABLES[2])
    rows = jacobian(as_torch(model))
    np.testing.assert_array_equal(rows[:, 1] - rows[:, 0], model.coef_.repeat(25, 0))
    np.testing.assert_array_equal(rows.sum(1), 0.0)


def test_the_jacobian_of_a_scaled_linear_model_is_coef_over_scale():
    model = fitted(make_pipeline(StandardScaler(), lm.Ridge()), X, TARGETS)
    expected = model[-1].coef_ / model[0].scale_
    close(jacobian(as_torch(model)), np.broadcast_to(expected, (25, 2, D)))


@pytest.mark.parametrize(
    "estimator",
    [
        KernelRidge(kernel="rbf"),
        KernelRidge(kernel="laplacian"),
        SVR(kernel="poly"),
        MLPRegressor(activation="tanh", **MLP_LAYERS),
    ],
    ids=repr,
)
def test_jacobians_agree_with_finite_differences_of_predict(estimator):
    model = fitted(estimator, X, TARGETS[:, 0])
    step = 1e-5
    shifts = step * np.eye(D)
    numeric = np.stack(
        [model.predict(FRESH + s) - model.predict(FRESH - s) for s in shifts], axis=-1
    ) / (2 * step)
    # central differences: step^2 truncation and 1e-16 / step rounding
    ours = jacobian(as_torch(model))[:, 0]
    np.testing.assert_allclose(ours, numeric, rtol=1e-6, atol=1e-6)


def test_the_local_geometry_of_a_table_model_has_its_closed_form():
    model = fitted(make_pipeline(StandardScaler(), LinearSVC()), *TABLES[2])
    x = torch.from_numpy(FRESH)
    y = torch.from_numpy((model.predict(FRESH) == model.classes_[1]).astype(int))
    geometry = local_geometry(as_torch(model), x, y)
    normal = model[-1].coef_[0] / model[0].scale_
    cosine = FRESH @ normal / np.linalg.norm(FRESH, axis=1) / np.linalg.norm(normal)
    close(geometry.normal_alignment.numpy(), abs(cosine))
    close(geometry.effective_rank.numpy(), 1.0)
    # every sample has its predicted class, so it is this far from the hyperplane
    distance = abs(model.decision_function(FRESH)) / np.linalg.norm(normal)
    close(geometry.local_robustness.numpy(), distance)


def test_geometry_behind_the_preprocessing_is_that_of_the_last_step():
    model = fitted(make_pipeline(StandardScaler(), lm.Ridge()), X, TARGETS)
    behind = local_geometry(as_torch(model), torch.from_numpy(FRESH), at="ridge")
    close(behind.jacobian_norm.numpy(), np.linalg.norm(model[-1].coef_))


def test_pipeline_steps_keep_their_names():
    model = fitted(make_pipeline(StandardScaler(), PCA(2), lm.Ridge()), X, TARGETS)
    names = [name for name, _ in as_torch(model).named_children()]
    assert names == ["standardscaler", "pca", "ridge"]


def test_a_binary_linear_model_stays_one_layer():
    assert isinstance(as_torch(fitted(LinearSVC(), *TABLES[2])), nn.Linear)


def test_sparse_coefficients_are_read():
    model = fitted(lm.SGDClassifier(random_state=0), *TABLES[3])
    dense = outputs(as_torch(model))
    np.testing.assert_array_equal(outputs(as_torch(model.sparsify())), dense)


def test_an_estimator_fitted_on_a_frame_converts_without_a_warning():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(TABLES[2][0], columns=list("abcd"))
    model = fitted(lm.LogisticRegression(), frame, TABLES[2][1])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        module = as_torch(model)
    assert isinstance(module, nn.Linear)


def test_the_module_is_independent_of_the_estimator():
    model = fitted(lm.Ridge(), X, TARGETS)
    module = as_torch(model)
    before = outputs(module)
    model.coef_[:] = 0.0
    np.testing.assert_array_equal(outputs(module), before)
    assert not module.training


def test_a_clipped_max_abs_scaler_clips():
    if "clip" not in MaxAbsScaler().get_params():
        pytest.skip("this scikit-learn has no MaxAbsScaler(clip=)")
    model = fitted(make_pipeline(MaxAbsScaler(clip=True), lm.Ridge()), X, TARGETS)
    far = 100 * FRESH
    close(outputs(as_torch(model), far), model.predict(far))


@pytest.mark.parametrize(
    ("estimator", "name"),
    [
        (RandomForestClassifier(n_estimators=2), "RandomForestClassifier"),
        (lm.PoissonRegressor(), "PoissonRegressor"),
        (make_pipeline(KernelPCA(2), lm.Ridge()), "KernelPCA"),
    ],
)
def test_an_unsupported_kind_names_the_supported_ones(estimator, name):
    model = fitted(estimator, X, np.arange(60) % 3)
    with pytest.raises(
        TypeError, match=f"^as_torch: fitted must be .*{name}"
    ) as caught:
        as_torch(model)
    assert "LogisticRegression" in str(caught.value)


def test_a_pipeline_for_mixed_tables_points_to_its_last_step():
    pipeline = make_tabular_pipeline(RFMRegressor(n_iter=0))
    search = GridSearchCV(pipeline, {"machine__ridge": [1.0]}, cv=2)
    for whole, name in ((pipeline, "pipeline"), (search, "search.best_estimator_")):
        whole.fit(X, TARGETS)
        last, seen = f'as_torch({name}["machine"])', f"{name}[:-1].transform(X)"
        words = f"got the step TableColumns. Convert its last step: {last} at {seen}."
        with pytest.raises(TypeError, match=re.escape(words) + "$"):
            as_torch(whole)
    rows = torch.as_tensor(pipeline[:-1].transform(X))
    close(as_torch(pipeline["machine"])(rows).numpy(), pipeline.predict(X))


@pytest.mark.parametrize("thing", [3, "model", lm.Ridge, np.eye(2)])
def test_what_is_no_estimator_is_refused(thing):
    with pytest.raises(TypeError, match=r"^as_torch: fitted must be a fitted scikit"):
        as_torch(thing)


@pytest.mark.parametrize(
    "estimator", [lm.Ridge(), SVC(), make_pipeline(StandardScaler(), lm.Ridge())]
)
def test_an_unfitted_estimator_is_refused(estimator):
    with pytest.raises(NotFittedError, match=r"^as_torch: fitted must be fitted"):
        as_torch(estimator)


def test_a_multiclass_svc_points_to_one_vs_rest():
    with pytest.raises(ValueError, match=r"two classes, got one with 3\..*OneVsRest"):
        as_torch(fitted(SVC(), *TABLES[3]))


def test_an_unknown_kernel_is_refused():
    model = fitted(KernelRidge(kernel="cosine"), X, TARGETS)
    with pytest.raises(ValueError, match=r"kernel linear, .*, got kernel='cosine'"):
        as_torch(model)
    model = fitted(SVC(kernel=lambda a, b: a @ b.T), *TABLES[2])
    with pytest.raises(ValueError, match="a SVC with kernel linear, rbf, poly"):
        as_torch(model)


def test_several_labels_per_sample_are_refused():
    labels = (RNG.random((60, 3)) < 0.5).astype(int)
    with pytest.raises(ValueError, match="one label per sample"):
        as_torch(fitted(MLPClassifier(**MLP_LAYERS), X, labels))


def test_one_vs_rest_over_a_perceptron_is_refused():
    model = fitted(OneVsRestClassifier(MLPClassifier(**MLP_LAYERS)), *TABLES[3])
    with pytest.raises(ValueError, match="over classifiers with a decision_function"):
        as_torch(model)


MANY = [
    make_pipeline(StandardScaler(), lm.LogisticRegression()),
    make_pipeline(MinMaxScaler(), PCA(2, whiten=True), SVC()),
    OneVsRestClassifier(RFMClassifier(n_iter=0)),
    MLPClassifier(**MLP_LAYERS),
    RFMClassifier(n_iter=1),
    RFMClassifier(n_iter=1, max_leaf_size=20, random_state=0),
    RFMClassifier(n_iter=1, diagonal=True, kernel="product_laplace"),
]


@pytest.mark.parametrize("estimator", MANY, ids=lambda one: type(one).__name__)
def test_what_is_set_outside_does_not_reach_the_module(estimator):
    model = fitted(estimator, *TABLES[2])
    expected = outputs(as_torch(model))
    made = []
    with torch.device("meta"):  # which keeps no values, so that nothing may go there
        made.append(as_torch(model))
    with torch.inference_mode():
        made.append(as_torch(model))
    for module in made:
        np.testing.assert_array_equal(outputs(module), expected)
        x = torch.as_tensor(FRESH).requires_grad_()
        module(x).sum().backward()
        assert bool(x.grad.isfinite().all())


@pytest.mark.usefixtures("half_by_default")
@pytest.mark.filterwarnings("ignore:.*bandwidths apart")
@pytest.mark.parametrize("estimator", MANY, ids=lambda one: type(one).__name__)
def test_a_default_dtype_does_not_reach_the_module(estimator):
    table = 1e6 * TABLES[2][0]  # beyond what half precision holds
    model = fitted(estimator, table, TABLES[2][1])
    found = outputs(as_torch(model), table)
    torch.set_default_dtype(torch.float32)
    np.testing.assert_array_equal(found, outputs(as_torch(model), table))


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"dtype": "float32", "identity_weight": 0.0},
        {"kernel": "gaussian", "bandwidth": 1e-3},
        {"kernel": "product_laplace", "diagonal": True},
        {"max_leaf_size": 20, "random_state": 0},
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:.*bandwidths apart")
def test_however_far_away_the_module_answers_what_predict_answers(settings):
    machine = RFAMRegressor(n_iter=1, **settings).fit(X, TARGETS)
    far = np.array([[1e160] * 4, [-1e160, 1.0, 2.0, 0.0], [1e308] * 4, [1e20] * 4])
    module = as_torch(machine)
    close(outputs(module, far), machine.predict(far))
    rows = torch.as_tensor(far).requires_grad_()
    module(rows).sum().backward()
    assert bool(rows.grad.isfinite().all())
    # in single precision, too, where squares are numbers up to 1e19 only
    near = far[3:].astype(np.float32)
    found = module.float()(torch.as_tensor(near)).numpy()
    np.testing.assert_allclose(found, machine.predict(near), rtol=1e-5)


def test_a_machine_fitted_around_an_outlier_is_its_module():
    rng = np.random.default_rng(6)
    inputs = rng.normal(size=(300, 3))
    targets = np.sin(2 * inputs[:, 1])
    inputs[0, 0] = 1e8
    machine = RFMRegressor(dtype="float64", n_iter=1).fit(inputs, targets)
    at = np.concatenate([rng.normal(size=(20, 3)), inputs[:5]])
    # half the digits of a distance near a center, in either
    np.testing.assert_allclose(
        outputs(as_torch(machine), at)[:, 0], machine.predict(at), atol=1e-6
    )
