"""Models by name and weights of others, as the command line takes them."""

import argparse
from pathlib import Path

import pytest
import torch
from torch import nn

from normalign.cli.user_model import built_model, load_weights
from normalign.nn import ResNet, WideResNet, resnet18

CALLEE = "normalign measure"


def saved(content, folder: Path) -> Path:
    torch.save(content, folder / "w.pt")
    return folder / "w.pt"


def small(**options) -> ResNet:
    settings = {"n_classes": 7, "width": 2, "stem": "imagenet"} | options
    return resnet18(**settings, generator=torch.Generator().manual_seed(5)).eval()


@pytest.mark.parametrize(
    ("name", "kind", "n_parameters"),
    [
        ("resnet18", ResNet, 11_173_962),
        ("resnet50", ResNet, 23_520_842),
        ("wide_resnet28_2", WideResNet, 1_467_610),
        ("wide_resnet28_10", WideResNet, 36_479_194),
    ],
)
def test_a_network_of_ours_is_built_by_name(name, kind, n_parameters, capsys):
    state = torch.get_rng_state()
    network = built_model(CALLEE, f"normalign.nn:{name}")
    assert torch.equal(torch.get_rng_state(), state)
    assert isinstance(network, kind)
    assert sum(p.numel() for p in network.parameters()) == n_parameters
    assert "ten classes" in capsys.readouterr().err


def test_its_form_is_read_off_the_weights_and_they_fit(tmp_path, capsys):
    source = small()
    state = {f"module.{n}": v for n, v in source.state_dict().items()}
    path = saved({"net": state, "acc": 0.9}, tmp_path)
    network = built_model(CALLEE, "normalign.nn:resnet18", weights=path)
    load_weights(CALLEE, network, path)
    x = torch.rand(2, 3, 32, 32, generator=torch.Generator())
    assert torch.equal(network.eval()(x), source(x))
    spoken = capsys.readouterr().err
    for words in (
        "resnet18 with n_classes=7, width=2, stem='imagenet', n_channels=3",
        "taken from 'net' in w.pt",
        "the prefix 'module.' was taken off",
    ):
        assert words in spoken


def test_a_wide_network_takes_even_its_depth_from_the_weights(tmp_path):
    source = WideResNet(16, 2, n_classes=4, generator=torch.Generator())
    path = saved(source.state_dict(), tmp_path)
    network = built_model(CALLEE, "normalign.nn:WideResNet", weights=path)
    load_weights(CALLEE, network, path)
    x = torch.rand(2, 3, 8, 8, generator=torch.Generator())
    assert torch.equal(network.eval()(x), source.eval()(x))


def test_names_and_standardisations_of_others_have_a_remedy(tmp_path):
    state = small().state_dict() | {"mean": torch.zeros(3), "std": torch.ones(3)}
    words = r"2 unexpected \(mean, std\).* normalign_reproduction.robust"
    with pytest.raises(ValueError, match=words):
        load_weights(CALLEE, small(), saved(state, tmp_path))


def test_of_tied_tensors_one_is_enough_and_numbers_must_be_finite(tmp_path):
    first, last = nn.Linear(3, 3), nn.Linear(3, 3)
    last.weight = first.weight
    tied, state = nn.Sequential(first, last), nn.Linear(3, 3).state_dict()
    state = {
        "0.weight": state["weight"],
        "0.bias": state["bias"],
        "1.bias": state["bias"],
    }
    load_weights(CALLEE, tied, saved(state, tmp_path))
    assert torch.equal(last.weight, state["0.weight"])
    state["1.bias"] = torch.full((3,), torch.nan)
    with pytest.raises(ValueError, match=r"1 not finite or not real \(1.bias\)"):
        load_weights(CALLEE, tied, saved(state, tmp_path))


def test_averages_left_in_the_file_are_said(tmp_path, capsys):
    state = small().state_dict()
    path = saved({"state_dict": state, "state_dict_ema": state}, tmp_path)
    load_weights(CALLEE, small(), path)
    assert "left in the file: state_dict_ema" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("where", "words"),
    [
        ("normalign.nn:resnet19", "--model must be one of normalign.nn:resnet18, "),
        ("normalign.nn:mlp", "--model must be one of normalign.nn:resnet18, "),
        ("normalign.nn:WideResNet", "--weights must be given for normalign.nn:Wide"),
        ("normalign.nm:resnet18", "--model must be FILE.py:build with a Python file"),
    ],
)
def test_an_unknown_name_is_refused(where, words):
    with pytest.raises(ValueError, match=f"^{CALLEE}: {words}"):
        built_model(CALLEE, where)


def test_refusals_name_the_command_and_its_option(tmp_path):
    path = saved(small(n_classes=3).state_dict(), tmp_path)
    with pytest.raises(
        ValueError, match=rf"^{CALLEE}: --weights must be .*2 of another shape"
    ):
        load_weights(CALLEE, small(), path)
    gone = tmp_path / "gone.pt"
    with pytest.raises(ValueError, match=rf"^{CALLEE}: --weights must be a file that"):
        built_model(CALLEE, "normalign.nn:resnet18", weights=gone)
    path = saved({"state_dict": {}, "args": argparse.Namespace()}, tmp_path)
    with pytest.raises(
        ValueError, match=rf"^{CALLEE}: --weights .*Namespace"
    ) as caught:
        load_weights(CALLEE, small(), path)
    assert "weights_only" not in str(caught.value)
