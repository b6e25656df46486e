from __future__ import annotations

import numpy as np
import pytest
import torch

from normalign.estimators import RFAMClassifier
from normalign.kernels import Laplace, Machine
from normalign.robustness import pgd


def machine(k: int = 3, d: int = 4, m: int = 25) -> Machine:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    root = normal(d, d)
    return Machine(
        normal(m, d), normal(m, k), root @ root.T, Laplace(bandwidth=2.0), normal(k)
    )


def transcription(machine: Machine):
    """The same expansion, in operations that autograd follows."""

    def outputs(x):
        step = x[:, None] - machine.centers[None]
        squared = torch.einsum("nmd,de,nme->nm", step, machine.metric, step)
        kernel = torch.exp(-squared.sqrt() / machine.kernel.bandwidth)
        return machine.intercept + kernel @ machine.coef

    return outputs


@pytest.mark.parametrize("norm", ["linf", "l2"])
@pytest.mark.parametrize("loss", ["cross_entropy", "squared_error", "margin"])
def test_a_kernel_machine_is_attacked_as_autograd_would(norm, loss):
    kernel_machine = machine()
    x = torch.randn(15, 4, dtype=torch.float64)
    y = torch.randint(3, (15,))
    settings = {"radii": [0.1, 1.0], "norm": norm, "loss": loss, "n_restarts": 2}
    closed = pgd(kernel_machine, x, y, **settings)
    by_autograd = pgd(transcription(kernel_machine), x, y, **settings)
    # twenty steps of float64 gradients, each off by some 1e-12
    torch.testing.assert_close(closed.points, by_autograd.points, rtol=1e-8, atol=1e-8)
    assert torch.equal(closed.broken, by_autograd.broken)
    torch.testing.assert_close(closed.losses, by_autograd.losses, rtol=1e-8, atol=1e-8)


def test_pieces_of_a_kernel_machine_are_the_whole():
    kernel_machine, x = machine(), torch.randn(9, 4, dtype=torch.float64)
    y = torch.randint(3, (9,))
    whole = pgd(kernel_machine, x, y, radii=[0.3, 1.0])
    pieces = pgd(kernel_machine, x, y, radii=[0.3, 1.0], chunk_size=4)
    torch.testing.assert_close(pieces.points, whole.points)
    with pytest.raises(ValueError, match="chunk_size must be a positive integer"):
        pgd(kernel_machine, x, y, radii=1.0, chunk_size=-1)


@pytest.fixture(scope="module")
def fitted():
    generator = np.random.default_rng(0)
    X = generator.normal(size=(60, 3))
    y = np.array(["low", "middle", "top"])[(X[:, 0] > -0.5).astype(int) + (X[:, 0] > 1)]
    return RFAMClassifier(identity_weight=0.5, n_iter=1).fit(X, y), X, y


def test_an_estimator_takes_arrays_and_its_own_labels(fitted):
    model, X, y = fitted
    attack = pgd(model, X, y, radii=[0.0, 0.5])
    assert attack.accuracy == pytest.approx(model.score(X, y))
    reached = model.predict(attack.points[1].numpy())
    assert np.array_equal(reached != y, attack.broken[1].numpy())
    assert 0 < attack.robust_accuracy[1] < attack.accuracy


def test_an_estimator_takes_lists_and_tensors_alike(fitted):
    model, X, y = fitted
    from_list = pgd(model, X.tolist(), y.tolist(), radii=[0.5])
    from_tensor = pgd(model, torch.as_tensor(X), y, radii=[0.5])
    assert torch.equal(from_list.points, from_tensor.points)


def test_labels_unknown_to_an_estimator_are_refused(fitted):
    model, X, _ = fitted
    with pytest.raises(ValueError, match=r"y must be labels among .*'zero'"):
        pgd(model, X[:1], ["zero"], radii=[0.5])


def test_two_classes_of_an_estimator_are_two_outputs():
    X = np.linspace(-1, 1, 40)[:, None]
    y = np.where(X[:, 0] > 0, 7, 3)
    model = RFAMClassifier(identity_weight=1.0, n_iter=0).fit(X, y)
    attack = pgd(model, X, y, radii=[0.25], loss="margin")
    crossed = np.abs(X[:, 0]) < 0.2
    far = np.abs(X[:, 0]) > 0.3
    assert attack.broken[0].numpy()[crossed].all()
    assert not attack.broken[0].numpy()[far].any()


def test_a_table_is_wanted():
    with pytest.raises(ValueError, match=r"x must be a table of shape \(n, d\)"):
        pgd(machine(), torch.zeros(4), torch.zeros(4).long(), radii=1.0)
