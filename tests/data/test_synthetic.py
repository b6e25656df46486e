"""XOR clusters, sparse parity, modular addition, Gaussian blobs."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from normalign.data import (
    gaussian_blobs,
    modular_addition,
    sparse_parity,
    xor_clusters,
    xor_noise,
)

TASKS = {
    "xor": lambda seed: xor_clusters(n_train=20, n_test=10, n_inputs=30, seed=seed),
    "parity": lambda seed: sparse_parity(n_samples=40, seed=seed),
    "modular": lambda seed: modular_addition(modulus=7, seed=seed),
    "blobs": lambda seed: gaussian_blobs(n_samples=30, seed=seed),
}


@pytest.mark.parametrize("task", TASKS.values(), ids=TASKS)
def test_the_seed_alone_decides(task):
    state = torch.random.get_rng_state()
    one, same, other = task(5), task(5), task(6)
    assert torch.equal(one.x_train, same.x_train)
    assert torch.equal(one.y_test, same.y_test)
    assert not torch.equal(one.x_train, other.x_train)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert one.exact


def test_xor_has_the_entries_and_labels_of_its_definition():
    data = xor_clusters(n_train=200, n_test=10, n_inputs=50, amplitude=0.25)
    assert set(data.x_train[:, :2].unique().tolist()) == {-1.0, 1.0}
    assert set(data.x_train[:, 2:].unique().tolist()) == {-0.25, 0.25}
    assert torch.equal(data.y_train, data.x_train[:, 0] * data.x_train[:, 1])
    # 200 * 48 fair signs: the mean is within five standard errors of 0
    signs = data.x_train[:, 2:] / 0.25
    assert abs(signs.mean()) < 5 / math.sqrt(signs.numel())


def test_the_xor_training_set_does_not_depend_on_the_test_size():
    small, large = (xor_clusters(n_inputs=9, n_test=n) for n in (1, 99))
    assert torch.equal(small.x_train, large.x_train)


def test_xor_defaults_are_the_papers():
    defaults = xor_clusters.__kwdefaults__
    assert (defaults["n_train"], defaults["n_inputs"]) == (400, 40000)
    assert defaults["amplitude"] == 0.05


def test_xor_noise_leaves_the_two_deciding_inputs_alone():
    x = xor_clusters(n_train=100, n_inputs=402).x_train
    noisy = xor_noise(x, std=0.2, seed=1)
    assert torch.equal(noisy[:, :2], x[:, :2])
    noise = noisy[:, 2:] - x[:, 2:]
    # 40000 normal draws: the relative error of the deviation is about 1/sqrt(2n)
    assert noise.std().item() == pytest.approx(0.2, rel=5 / math.sqrt(80000))
    assert xor_noise(x.double()).dtype == torch.float64
    with pytest.raises(ValueError, match=r"x must be of shape \(n, d >= 2\)"):
        xor_noise(x[:, :1])


@settings(max_examples=30, deadline=None)
@given(
    n_parity=st.integers(1, 4),
    n_noise=st.integers(0, 30),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_parity_strings_are_distinct_and_rightly_labelled(
    n_parity, n_noise, seed, data
):
    n = data.draw(st.integers(2, min(64, 2 ** (n_parity + n_noise))))
    task = sparse_parity(n_parity=n_parity, n_noise=n_noise, n_samples=n, seed=seed)
    x = torch.cat([task.x_train, task.x_test])
    y = torch.cat([task.y_train, task.y_test])
    assert x.shape == (n, n_parity + n_noise)
    assert len(x.unique(dim=0)) == n
    assert torch.equal(y, x[:, :n_parity].sum(1).long() % 2)
    assert set(x.unique().tolist()) <= {0.0, 1.0}


def test_parity_defaults_are_the_released_ones():
    data = sparse_parity()
    assert data.x_train.shape == data.x_test.shape == (1000, 43)


def test_repeated_strings_are_drawn_again():
    # 30000 draws of 21 bits collide about 200 times, so one round is not enough
    data = sparse_parity(n_parity=1, n_noise=20, n_samples=30000)
    x = torch.cat([data.x_train, data.x_test])
    assert len(x.unique(dim=0)) == 30000


def test_every_pair_of_residues_appears_once():
    data = modular_addition(modulus=11, train_fraction=0.3)
    assert len(data.x_train) == 36  # 0.3 * 121 rounded down
    pairs = torch.cat([data.x_train, data.x_test]).unflatten(1, (2, 11))
    assert torch.equal(pairs.sum(-1), torch.ones(121, 2))
    residues = pairs.argmax(-1)
    assert len(residues.unique(dim=0)) == 121
    assert torch.equal(residues.sum(1) % 11, torch.cat([data.y_train, data.y_test]))


def test_both_encodings_hold_the_same_split():
    one_hot = modular_addition(modulus=5)
    tokens = modular_addition(modulus=5, encoding="tokens")
    assert torch.equal(
        one_hot.x_train.unflatten(1, (2, 5)).argmax(-1), tokens.x_train[:, :2]
    )
    assert (tokens.x_test[:, 2] == 5).all()
    assert tokens.x_test.dtype == torch.int64


def test_modular_defaults_are_the_released_ones():
    data = modular_addition()
    assert data.x_train.shape == (1116, 122)
    assert data.x_test.shape == (3721 - 1116, 122)


def test_blobs_scatter_around_their_centres():
    data = gaussian_blobs(n_samples=6000, n_classes=3, std=0.5)
    assert (len(data.x_train), len(data.x_test)) == (4800, 1200)
    y = torch.cat([data.y_train, data.y_test])
    assert y.bincount().tolist() == [2000] * 3
    x = torch.cat([data.x_train, data.x_test])
    for c in range(3):
        cloud = x[y == c]
        # 20000 draws per blob: five standard errors of the deviation
        spread = (cloud - cloud.mean(0)).std().item()
        assert spread == pytest.approx(0.5, rel=5 / math.sqrt(40000))


def test_the_spread_does_not_move_the_centres():
    tight = gaussian_blobs(n_samples=60, std=0.0, box=2.0)
    assert len(tight.x_train.unique(dim=0)) == 6
    assert tight.x_train.abs().max() <= 2


@pytest.mark.parametrize(
    ("make", "arguments", "match"),
    [
        (xor_clusters, {"n_inputs": 1}, "n_inputs must be at least 2"),
        (xor_clusters, {"n_train": 0}, "n_train must be at least 1"),
        (xor_clusters, {"amplitude": -1.0}, "amplitude must be at least 0"),
        (sparse_parity, {"n_parity": 0}, "n_parity must be at least 1"),
        (sparse_parity, {"n_noise": 2, "n_samples": 33}, "n_samples must be between"),
        (sparse_parity, {"train_fraction": 1.0}, "train_fraction must be such"),
        (modular_addition, {"modulus": 1}, "modulus must be at least 2"),
        (modular_addition, {"encoding": "bits"}, "encoding must be 'one_hot' or"),
        (modular_addition, {"train_fraction": 0.0}, "train_fraction must be such"),
        (gaussian_blobs, {"n_samples": 5}, "n_samples must be at least 2"),
        (gaussian_blobs, {"std": -1.0}, "std must be at least 0"),
        (gaussian_blobs, {"train_fraction": 2.0}, "train_fraction must be such"),
    ],
)
def test_bad_arguments_get_a_house_error(make, arguments, match):
    with pytest.raises(ValueError, match=f"^{make.__name__}: {match}"):
        make(**arguments)
