"""The learned distance for other models: `transform`, and frames made of it."""

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.spatial.distance import cdist
from sklearn import config_context
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline

import normalign as na
from normalign.estimators import RFAMClassifier, RFAMClassifierCV, RFMRegressor
from normalign.kernels import KERNELS, kernel_matrix

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)) + np.array([0.0, 5.0, -3.0, 100.0])
Y = np.sign(X[:, 0] * (X[:, 1] - 5))
NAMES = ["a", "b", "c", "d"]
FRAME = pd.DataFrame(X, columns=NAMES, index=range(100, 160))


@pytest.mark.parametrize("kernel", ["laplace", "gaussian", "product_laplace"])
@pytest.mark.parametrize(
    "settings", [{}, {"diagonal": True}, {"max_leaf_size": 40}, {"n_iter": 0}]
)
def test_plain_distances_of_the_placed_are_those_of_the_kernel(kernel, settings):
    machine = RFMRegressor(kernel=kernel, dtype="float64", random_state=0, **settings)
    placed = machine.fit(X, Y).transform(X)
    bandwidth = machine.bandwidth_
    flat = "cityblock" if kernel == "product_laplace" else "euclidean"
    apart = cdist(placed, placed, flat) / bandwidth
    expected = np.exp(-(apart**2) / 2 if kernel == "gaussian" else -apart)
    points = torch.tensor(X - machine.location_)
    found = kernel_matrix(
        points, points, KERNELS[kernel](bandwidth=bandwidth),
        metric=torch.tensor(machine.metric_, dtype=torch.float64),
    ).numpy()  # fmt: skip
    # roots of squares: half of the digits, where rows are near each other
    np.testing.assert_allclose(found, expected, atol=1e-6)


def test_columns_are_stretched_by_what_matters():
    machine = RFAMClassifier(diagonal=True).fit(X, Y)
    spread = machine.transform(X).std(axis=0)
    np.testing.assert_allclose(
        spread**2 / (spread**2).sum(), machine.feature_importances_, rtol=1e-6
    )


def test_frames_come_back_with_their_names_and_rows():
    machine = RFAMClassifier().set_output(transform="pandas").fit(FRAME, Y)
    found = machine.transform(FRAME)
    assert list(found.columns) == NAMES
    assert found.index.equals(FRAME.index)
    assert isinstance(machine.predict(FRAME), np.ndarray)  # of answers nothing is said
    with config_context(transform_output="pandas"):
        assert isinstance(RFAMClassifier().fit_transform(FRAME, Y), pd.DataFrame)
    assert isinstance(RFAMClassifier().fit_transform(FRAME, Y), np.ndarray)


def test_a_whole_pipeline_makes_frames_and_still_answers():
    mixed = FRAME.assign(word=np.where(Y > 0, "up", "down"), flag=X[:, 2] > -3)
    pipeline = na.make_tabular_pipeline(RFAMClassifier())
    plain = pipeline.fit(mixed, Y).predict(mixed)
    pipeline.set_output(transform="pandas").fit(mixed, Y)
    np.testing.assert_array_equal(pipeline.predict(mixed), plain)
    names = list(pipeline[:-1].get_feature_names_out())
    assert list(pipeline["machine"].feature_names_in_) == names
    found = pipeline.transform(mixed)
    assert isinstance(found, pd.DataFrame)
    assert list(found.columns) == names


def test_tensors_and_precisions_come_back_as_they_were():
    machine = RFAMClassifier().fit(X, Y)
    single = machine.transform(torch.tensor(X, dtype=torch.float32))
    assert isinstance(single, torch.Tensor)
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), machine.transform(X), atol=1e-4)


def test_neighbours_see_what_the_machine_has_learned():
    rows = RNG.normal(size=(600, 8))
    labels = rows[:, 0] * rows[:, 1] > 0  # six columns are noise
    inside = RFAMClassifierCV(identity_weights=(1.0,), ridges=(0.1,), random_state=0)
    helped = make_pipeline(inside, KNeighborsClassifier(7))
    helped.fit(rows[:400], labels[:400])
    alone = KNeighborsClassifier(7).fit(rows[:400], labels[:400])
    gain = helped.score(rows[400:], labels[400:]) - alone.score(
        rows[400:], labels[400:]
    )
    assert gain > 0.1


def test_an_unfitted_machine_places_nothing():
    with pytest.raises(NotFittedError):
        RFAMClassifier().transform(X)
