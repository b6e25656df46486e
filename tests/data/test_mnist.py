import gzip
import os

import numpy as np
import pytest
import torch
from handmade import idx_bytes, write_mnist

from normalign.data import MNIST_MEAN, MNIST_STD, load_mnist, read_idx


@pytest.fixture
def folder(tmp_path):
    write_mnist(tmp_path, n_train=30, n_test=20)
    return tmp_path


@pytest.mark.parametrize("shape", [(5,), (2, 3), (4, 2, 3), (1, 2, 2, 2)])
@pytest.mark.parametrize("pack", [bytes, gzip.compress])
def test_idx_round_trip(tmp_path, shape, pack):
    array = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    (tmp_path / "f").write_bytes(pack(idx_bytes(array)))
    np.testing.assert_array_equal(read_idx(tmp_path / "f").numpy(), array)


@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (lambda raw: b"", "magic"),
        (lambda raw: b"PK\3\4" + raw[4:], "starting with 50 4b 03 04"),
        (lambda raw: raw[:2] + b"\x0d" + raw[3:], "unsigned bytes"),
        (lambda raw: raw[:3] + b"\x09" + raw[4:], "magic"),
        (lambda raw: raw[:9], "at least 16 bytes of header"),
        (lambda raw: raw[:-1], r"40 bytes long for the shape \(4, 2, 3\)"),
        (lambda raw: raw + b"\0", "got f of 41 bytes"),
        (lambda raw: gzip.compress(raw)[:-9], "a whole gzip file"),
        (lambda raw: gzip.compress(raw)[:-8] + b"\0" * 8, "a whole gzip file"),
        (lambda raw: b"\x1f\x8bnothing of the kind", "a whole gzip file"),
    ],
)
def test_a_bad_idx_file_gets_a_house_error(tmp_path, damage, match):
    raw = idx_bytes(np.zeros((4, 2, 3)))
    (tmp_path / "f").write_bytes(damage(raw))
    with pytest.raises(ValueError, match=r"^read_idx: path must be .*" + match):
        read_idx(tmp_path / "f")


def test_images_are_the_files_bytes_over_255(tmp_path):
    arrays = write_mnist(tmp_path, n_train=30, n_test=20)
    data = load_mnist(data_dir=tmp_path)
    expected = torch.from_numpy(arrays["train-images"]).float().unsqueeze(1) / 255
    torch.testing.assert_close(data.x_train, expected)
    assert data.y_test.tolist() == arrays["t10k-labels"].tolist()
    assert data.x_test.shape == (20, 1, 28, 28)
    assert not data.exact
    assert "not the published" in data.origin


def test_normalised_and_flattened_are_the_same_images(folder):
    plain = load_mnist(data_dir=folder)
    other = load_mnist(data_dir=folder, normalise=True, flatten=True)
    # float32: one subtraction and one division of values up to 1
    torch.testing.assert_close(
        other.x_train * MNIST_STD + MNIST_MEAN, plain.x_train.flatten(1)
    )


def test_first_takes_the_first_and_random_draws_by_seed(folder):
    whole = load_mnist(data_dir=folder)
    first = load_mnist(data_dir=folder, n_train=7, n_test=3)
    assert torch.equal(first.x_train, whole.x_train[:7])
    draws = [
        load_mnist(data_dir=folder, n_train=7, subset="random", seed=seed).x_train
        for seed in (1, 1, 2)
    ]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert len(draws[0].unique(dim=0)) == 7


def test_balanced_takes_the_first_of_each_class(folder):
    data = load_mnist(data_dir=folder, n_train=20, subset="balanced")
    assert data.y_train.bincount().tolist() == [2] * 10
    assert torch.equal(data.x_train, load_mnist(data_dir=folder).x_train[:20])


@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"n_train": 31}, "n_train must be between 1 and the 30 rows"),
        ({"n_test": 0}, "n_test must be between 1"),
        ({"subset": "last"}, "subset must be one of"),
        ({"n_train": 15, "subset": "balanced"}, "a multiple of the 10 classes"),
    ],
)
def test_impossible_subsets_get_a_house_error(folder, arguments, match):
    with pytest.raises(ValueError, match=f"^load_mnist: .*{match}"):
        load_mnist(data_dir=folder, **arguments)


def test_images_and_labels_must_belong_together(folder):
    path = folder / "mnist/train-labels-idx1-ubyte.gz"
    path.write_bytes(gzip.compress(idx_bytes(np.zeros(29))))
    with pytest.raises(ValueError, match="must be 30 digits from 0 to 9"):
        load_mnist(data_dir=folder)
    path.write_bytes(gzip.compress(idx_bytes(np.full(30, 10))))
    with pytest.raises(ValueError, match="must be 30 digits from 0 to 9"):
        load_mnist(data_dir=folder)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("NORMALIGN_DATA"), reason="NORMALIGN_DATA unset")
def test_the_published_mnist_has_its_known_statistics():
    data = load_mnist(download=False)
    assert data.exact
    assert (len(data.x_train), len(data.x_test)) == (60000, 10000)
    assert data.y_train[:5].tolist() == [5, 0, 4, 1, 9]
    # the published constants are rounded to four places
    assert data.x_train.mean().item() == pytest.approx(MNIST_MEAN, abs=5e-5)
    assert data.x_train.std().item() == pytest.approx(MNIST_STD, abs=5e-5)
