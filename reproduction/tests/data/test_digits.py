import gzip
import struct

import pytest

from normalign.data import MNIST
from normalign_reproduction.data import digits as module
from normalign_reproduction.data.digits import digits, digits_source


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files named like MNIST's that hold other pictures."""
    monkeypatch.setenv("NORMALIGN_DATA", str(tmp_path))
    monkeypatch.setenv("NORMALIGN_CACHE", str(tmp_path / "cache"))
    (tmp_path / "mnist").mkdir()
    for file in MNIST.files:
        shape = (20, 28, 28) if "images" in file.name else (20,)
        n_bytes = 20 * 28 * 28 if "images" in file.name else 20
        head = bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape)
        content = head + bytes(i % 10 for i in range(n_bytes))
        (tmp_path / file.path).write_bytes(gzip.compress(content))
    digits.cache_clear()
    yield tmp_path
    digits.cache_clear()


def test_other_files_of_the_same_names_are_not_mnist(folder, caplog):
    assert digits_source() == "digits_5000"
    (line,) = caplog.messages
    assert str(folder / "mnist") in line
    assert "not the published MNIST" in line


def test_nothing_is_told_where_there_is_nothing(folder, caplog):
    (folder / MNIST.files[0].path).unlink()
    assert digits_source() == "digits_5000"
    assert not caplog.messages


def test_the_published_files_are_mnist(folder, monkeypatch, caplog):
    monkeypatch.setattr(module, "is_exact", lambda source, where: where == folder)
    assert digits_source() == "mnist"
    assert not caplog.messages


def test_an_experiment_refuses_other_files_by_their_folder(folder):
    rule = r"digits: MNIST must be the published files, got .*not the published ones"
    with pytest.raises(ValueError, match=rule) as refusal:
        digits("mnist", n_train=10, n_test=10)
    assert str(folder / "mnist") in str(refusal.value)
    assert "--digits digits_5000 does without" in str(refusal.value)
