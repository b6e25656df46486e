"""`normalign export-web`: what it writes are the networks that it trained."""

import base64
import json

import numpy as np
import pytest
import torch

import normalign as na
from normalign.cli import main
from tests.web.conftest import read_checkpoint

pytest.importorskip("mlxtend")


def read(path, name):
    text = path.read_text(encoding="utf-8")
    assert text.startswith(f"const {name} = {{\n")
    assert text.endswith("\n};\n")
    return json.loads(text[text.index("{") : text.rindex(";")])


@pytest.mark.slow
def test_a_short_run_is_written_in_full(tmp_path, capsys):
    out = tmp_path / "data"
    assert main(["export-web", "--epochs", "2", "--seed", "3", "--out", str(out)]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == [
        str(out / "digits.js"), str(out / "digits-weights.js")
    ]  # fmt: skip
    assert "with penalty, epoch 2: test" in captured.err
    page = read(out / "digits.js", "DIGITS")
    weights = read(out / "digits-weights.js", "DIGIT_WEIGHTS")
    assert page["epochs"] == [0, 1, 2]
    assert page["provenance"]["command"].endswith("--seed 3 --epochs 2")
    for run, penalty in (("without", 0.0), ("with", 0.01)):
        record = page["runs"][run]
        assert record["penalty_weight"] == penalty
        assert len(weights[run]) == len(record["rounded_test_accuracy"]) == 3
        lengths = {len(column) for column in record["history"].values()}
        assert lengths == {3}
        # Rounded to eight bits: within half of the last one of the initial weights.
        model = read_checkpoint(weights[run][0], page["widths"])
        start = na.nn.mlp(
            [784, 64, 64, 10], init_scale=8.0, dtype=torch.float64,
            generator=torch.Generator().manual_seed(3),
        )  # fmt: skip
        for rounded, exact in zip(list(model)[::2], list(start)[::2], strict=True):
            last_bit = exact.weight.detach().abs().amax(1, keepdim=True) / 127
            away = (rounded.weight - exact.weight).detach().abs()
            assert bool((away <= 0.501 * last_bit).all())
            torch.testing.assert_close(rounded.bias, exact.bias, rtol=1e-6, atol=0)
    assert weights["without"][0] == weights["with"][0]
    assert weights["without"][1] != weights["with"][1]


@pytest.mark.slow
def test_digits_to_pick_are_two_of_each_class(tmp_path):
    assert main(["export-web", "--epochs", "0", "--out", str(tmp_path)]) == 0
    digits = read(tmp_path / "digits.js", "DIGITS")["digits"]
    data = na.data.load_digits_5000(n_train=1024, n_test=1024, seed=0, flatten=True)
    for half, x in (("train", data.x_train), ("test", data.x_test)):
        assert [digit["label"] for digit in digits[half]] == sorted([*range(10)] * 2)
        for digit in digits[half]:
            pixels = np.frombuffer(base64.b64decode(digit["pixels"]), np.uint8)
            np.testing.assert_array_equal(pixels, (x[digit["row"]] * 255).round())


def test_a_negative_number_of_epochs_is_refused(tmp_path, capsys):
    assert main(["export-web", "--epochs", "-1", "--out", str(tmp_path)]) == 2
    error = capsys.readouterr().err.strip()
    assert error == "normalign export-web: --epochs must be at least 0, got -1."
