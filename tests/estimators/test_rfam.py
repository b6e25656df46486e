import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.estimators import (
    RFAMClassifier,
    RFAMRegressor,
    RFMClassifier,
    RFMRegressor,
)
from tests.estimators.samples import FRESH, NUMBERS, WORDS, D, X
from tests.kernels import transcription


@pytest.mark.parametrize("identity_weight", [0.0, 0.3, 1.0])
def test_it_is_algorithm_1_from_the_papers_initial_metric(identity_weight):
    x, y = torch.as_tensor(3 * X), torch.as_tensor(NUMBERS)[:, None]
    machines = transcription.rfm(x, y, identity_weight=identity_weight, exact=True)
    for n_iter in (0, 5):
        metric, coef = machines[n_iter]
        wanted = transcription.outputs(
            torch.as_tensor(FRESH), x, coef, metric, exact=True
        )
        machine = RFAMRegressor(
            identity_weight=identity_weight, n_iter=n_iter, center=False
        ).fit(3 * X, NUMBERS)
        np.testing.assert_allclose(machine.metric_, metric, atol=1e-8)
        np.testing.assert_allclose(machine.predict(FRESH), wanted[:, 0], atol=1e-8)


def test_with_the_identity_alone_it_is_an_rfm():
    aligned = RFAMClassifier(identity_weight=1.0).fit(X, WORDS)
    plain = RFMClassifier().fit(X, WORDS)
    np.testing.assert_array_equal(
        aligned.predict_proba(FRESH), plain.predict_proba(FRESH)
    )
    other = RFAMClassifier().fit(X, WORDS)
    assert np.abs(other.metric_ - plain.metric_).max() > 1e-3


@given(st.integers(0, 2**31), st.integers(2, 6))
def test_the_metric_stays_a_combination_of_outer_products_of_the_rows(seed, n):
    """The proposition on the feature matrix, with fewer rows than columns.

    The covariance lies in the span of the centred rows, and so does every update.
    """
    rng = np.random.default_rng(seed)
    table = rng.normal(size=(n, 8))
    machine = RFAMRegressor(bandwidth=3.0).fit(table, rng.normal(size=n))
    centred = table - table.mean(axis=0)
    projection = np.linalg.pinv(centred) @ centred
    # rounding of a metric of trace 8, in five updates
    inside = projection @ machine.metric_ @ projection
    np.testing.assert_allclose(machine.metric_, inside, atol=1e-8)


def test_a_blend_keeps_its_meaning_whatever_frame_the_table_is_put_in():
    scale, weight = 2.0**13, 0.4
    machine = RFAMRegressor(identity_weight=weight, n_iter=0, bandwidth=scale).fit(
        scale * X, NUMBERS
    )
    blend = (1 - weight) * np.cov((scale * X).T) + weight * np.eye(D)
    np.testing.assert_allclose(
        machine.metric_, blend * (D / np.trace(blend)), rtol=1e-10
    )


def test_rfam_and_rfm_differ_in_their_names_and_one_parameter():
    more = set(RFAMRegressor().get_params()) - set(RFMRegressor().get_params())
    assert more == {"identity_weight"}
