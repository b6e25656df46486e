import gzip
import struct

import pytest

from normalign.data import MNIST
from normalign_reproduction.data import digits as module
from normalign_reproduction.data.digits import digits, digits_source


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Files named like MNIST's with other images."""
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


def test_other_files_with_the_same_names_are_not_mnist(folder, caplog):
    assert digits_source() == "digits_5000"
    (line,) = caplog.messages
    assert str(folder / "mnist") in line
    assert "not the published MNIST" in line
    with pytest.raises(ValueError, match=r"^digits: MNIST must be") as got:
        digits("mnist", n_train=10, n_test=10)
    assert str(folder / "mnist") in str(got.value)
    assert "--digits digits_5000 does without" in str(got.value)


def test_no_files_give_the_embedded_digits_without_a_warning(folder, caplog):
    (folder / MNIST.files[0].path).unlink()
    assert digits_source() == "digits_5000"
    assert not caplog.messages


def test_the_published_files_are_mnist(folder, monkeypatch, caplog):
    monkeypatch.setattr(module, "is_exact", lambda source, where: where == folder)
    assert digits_source() == "mnist"
    assert not caplog.messages


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match=r"^digits: source must be one of"):
        digits("fashion", n_train=10, n_test=10)
