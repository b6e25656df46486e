import os

import pytest
import torch
from handmade import CIFAR_NAMES, cifar_batch, cifar_members, write_tar

from normalign.data import CIFAR10_MEAN, CIFAR10_STD, load_cifar10, read_cifar10


@pytest.fixture
def folder(tmp_path):
    write_tar(tmp_path / "cifar10/cifar-10-binary.tar.gz", cifar_members(4))
    return tmp_path


def test_batches_are_read_in_order_with_channels_first(folder):
    data = load_cifar10(data_dir=folder)
    assert data.x_train.shape == (20, 3, 32, 32)
    assert data.y_train.tolist() == [i % 10 for i in range(20)]
    assert data.y_test.tolist() == [0, 1, 2, 3]
    value = torch.arange(20)[:, None] + 50 * torch.arange(3)
    torch.testing.assert_close(
        data.x_train, (value / 255)[:, :, None, None].expand(-1, -1, 32, 32)
    )


def test_a_partial_copy_says_so(folder):
    data = load_cifar10(data_dir=folder)
    assert not data.exact
    assert "20 train and 4 test" in data.origin
    assert "not exact" in repr(data)


def test_normalising_standardises_each_channel(folder):
    plain = load_cifar10(data_dir=folder).x_train
    other = load_cifar10(data_dir=folder, normalise=True).x_train
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


def test_nothing_is_written_to_disk(folder, monkeypatch):
    before = sorted(folder.rglob("*"))
    monkeypatch.chdir(folder)
    load_cifar10(data_dir=folder)
    assert sorted(folder.rglob("*")) == before


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
