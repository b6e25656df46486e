"""Checkpoints of other repositories: what fits is loaded, the rest is refused."""

import argparse
import math
import os
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file, save_model
from torch import nn

from normalign.nn import WideResNet, resnet18, resnet50
from normalign_reproduction.robust import load_checkpoint, network_for


def unsettled(network, seed=0):
    """Give every tensor, buffers too, values of its own."""
    generator = torch.Generator().manual_seed(seed)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.1)
        else:
            value.fill_(seed + 7)
    return network.eval()


# The names of other repositories, from ours to theirs.


def to_torchvision(name):
    name = name.replace("stem.0.", "conv1.").replace("stem.1.", "bn1.")
    return name.replace(".shortcut.", ".downsample.")


def to_cifar(name):
    name = name.replace("stem.0.", "conv1.").replace("stem.1.", "bn1.")
    return name.replace("fc.", "linear.")


def to_wide(name):
    if stage := re.match(r"layer(\d)\.(\d)\.(\w+)\.(.*)", name):
        inner = stage[3].replace("norm", "bn").replace("shortcut", "convShortcut")
        return f"block{stage[1]}.layer.{stage[2]}.{inner}.{stage[4]}"
    return name.replace("stem.", "conv1.").replace("norm.", "bn1.")


def to_wide_end(name):
    if stage := re.match(r"layer(\d)\.(\d)\.(\w+)\.(.*)", name):
        inner = {
            "norm1": "batchnorm_0", "conv1": "conv_0", "norm2": "batchnorm_1",
            "conv2": "conv_1", "shortcut": "shortcut",
        }[stage[3]]  # fmt: skip
        return f"layer.{int(stage[1]) - 1}.block.{stage[2]}.{inner}.{stage[4]}"
    word, _, rest = name.partition(".")
    theirs = {"stem": "init_conv", "norm": "batchnorm", "fc": "logits"}
    return f"{theirs[word]}.{rest}"


def small18(**options):
    return resnet18(**({"width": 2, "n_classes": 5} | options))


def small50(**options):
    return resnet50(**({"width": 2, "n_classes": 5} | options))


def wide(**options):
    return WideResNet(**({"depth": 16, "widen": 1, "n_classes": 5} | options))


def wide_end(**options):
    return wide(padding="end", **options)


NAMINGS = {
    "torchvision": (to_torchvision, [small18, small50]),
    "cifar": (to_cifar, [small18, small50]),
    "wide": (to_wide, [wide]),
    "wide-end": (to_wide_end, [wide_end]),
    "own": (str, [small18, wide, wide_end]),
}


def renamed(network, rename, prefix=""):
    return {prefix + rename(n): v for n, v in network.state_dict().items()}


@pytest.fixture
def saved(tmp_path):
    def save(content, name="w.pt", **options):
        path = tmp_path / name
        if path.suffix == ".safetensors":
            save_file({n: v.contiguous() for n, v in content.items()}, path)
        else:
            torch.save(content, path, **options)
        return path

    return save


def same(one, two):
    one, two = one.state_dict(), two.state_dict()
    return one.keys() == two.keys() and all(torch.equal(one[n], two[n]) for n in one)


def pictures(n_channels=3):
    return torch.rand(2, n_channels, 16, 16, generator=torch.Generator())


def refused(network, path, match, **options):
    """Return the message of the refusal, which left the network unchanged."""
    before = {n: v.clone() for n, v in network.state_dict().items()}
    with pytest.raises(ValueError, match=match) as caught:
        load_checkpoint(network, path, **options)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    message = str(caught.value)
    assert message.startswith(("load_checkpoint: ", "read_state_dict: "))
    assert "\n" not in message
    return message


# what fits


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("naming", NAMINGS)
def test_every_naming_loads_to_the_same_function(naming, suffix, saved):
    rename, builds = NAMINGS[naming]
    for build in builds:
        source, target = unsettled(build()), build().eval()
        state = renamed(source, rename)
        assert (rename is str) == (state.keys() == source.state_dict().keys())
        path = saved(state, f"{build.__name__}.{suffix}")
        report = load_checkpoint(target, path)
        assert torch.equal(source(pictures()), target(pictures()))
        assert same(source, target)
        assert (report.naming, report.whole) == (naming, True)
        assert report.n_loaded == len(source.state_dict())
        assert report.ignored == []
        assert report.normalisation is None


NESTS = ["state_dict", "model_state_dict", "model", "net", "state_dict_ema", "ema"]
WORDS = ["module.", "_orig_mod.", "model."]


@settings(max_examples=25, deadline=None)
@given(
    naming=st.sampled_from(sorted(NAMINGS)),
    prefixes=st.lists(st.sampled_from(WORDS), max_size=3),
    nests=st.lists(st.sampled_from(NESTS), max_size=3),
    counters=st.booleans(),
    extras=st.booleans(),
)
def test_prefixes_and_nests_come_off(
    naming, prefixes, nests, counters, extras, tmp_path_factory
):
    rename, (build, *_) = NAMINGS[naming]
    source, target = unsettled(build()), build().eval()
    content = renamed(source, rename, "".join(prefixes))
    if not counters:
        content = {n: v for n, v in content.items() if not n.endswith("_tracked")}
    loaded = len(content)
    for nest in nests:
        content = {nest: content}
        if extras:
            content |= {"epoch": 3, "acc": 0.5, "optimizer": {"state": {}}}
    path = tmp_path_factory.mktemp("w") / "w.pt"
    torch.save(content, path)
    report = load_checkpoint(target, path)
    assert report.prefix == "".join(prefixes)
    assert report.entry == ".".join(reversed(nests))
    assert (report.n_loaded, report.naming) == (loaded, naming)
    assert torch.equal(source(pictures()), target(pictures()))


def test_plain_weights_go_before_averaged_ones_unless_asked_for(saved):
    plain, averaged, target = unsettled(small18()), unsettled(small18(), 1), small18()
    both = {"state_dict": plain.state_dict(), "state_dict_ema": averaged.state_dict()}
    path = saved(both)
    assert load_checkpoint(target, path).ignored == ["state_dict_ema"]
    assert same(target, plain)
    report = load_checkpoint(target, path, entry="state_dict_ema")
    assert same(target, averaged)
    assert report.ignored == ["state_dict"]
    refused(target, path, "entry must be .*'state_dict_ema', got 'mean'", entry="mean")
    for suffix in ("pt", "safetensors"):
        bare = saved(plain.state_dict(), f"bare.{suffix}")
        refused(target, bare, "entry must be None for a", entry="ema")


def test_an_averaged_model_of_torch_loads(saved):
    source, target = unsettled(small18()), small18()
    average = torch.optim.swa_utils.AveragedModel(source, use_buffers=True)
    report = load_checkpoint(target, saved(average.state_dict()))
    assert report.ignored == ["n_averaged"]
    assert same(source, target)


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        (("model.weight", "model.bias"), ""),
        (("model.model.weight", "model.model.bias"), "model."),
        (("body.first.scale",), ""),  # removing it would help nothing
    ],
)
def test_a_prefix_comes_off_where_more_names_then_fit(names, prefix, saved):
    network = nn.Sequential()
    network.add_module("model", nn.Linear(1, 1))
    path = saved(dict.fromkeys(names, torch.ones(1)))
    report = load_checkpoint(network, path, strict=False)
    assert report.prefix == prefix


def test_any_network_with_the_files_names_loads_untranslated(saved):
    class Foreign(nn.Module):  # whose own names are like torchvision's
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 2, 3)
            self.layer1 = nn.Sequential(nn.ModuleDict({"conv1": nn.Conv2d(2, 2, 1)}))
            self.fc = nn.Linear(2, 2)

    source, target = Foreign(), Foreign()
    assert load_checkpoint(target, saved(source.state_dict())).naming == "own"
    assert same(source, target)


def test_the_stage_that_is_never_called_is_ignored(saved):
    source, target = unsettled(wide()), wide()
    state = renamed(source, to_wide)
    extra = {f"sub_{n}": v + 1 for n, v in state.items() if n.startswith("block1.")}
    assert set(load_checkpoint(target, saved(state | extra)).ignored) == set(extra)
    assert same(source, target)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight


def test_of_tensors_that_share_memory_one_is_enough(tmp_path):
    source, target, path = Tied(), Tied(), tmp_path / "w.safetensors"
    save_model(source, str(path))  # saves one of the two
    report = load_checkpoint(target, path)
    assert (report.n_loaded, report.whole) == (3, True)
    assert same(source, target)
    untied = nn.ModuleDict({"first": nn.Linear(3, 3), "last": nn.Linear(3, 3)})
    refused(untied, path, r"1 missing \((first|last).weight")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_network_keeps_its_dtype_layout_and_mode(dtype, saved):
    source, target = unsettled(small18()), unsettled(small18(), 1).to(dtype).train()
    state = {  # neither contiguous nor in memory of its own
        n: torch.stack([v, v], -1)[..., 0] if v.ndim == 4 else v
        for n, v in source.state_dict().items()
    }
    places = {n: v.data_ptr() for n, v in target.state_dict().items()}
    load_checkpoint(target, saved(state))
    assert target.training
    assert all(p.requires_grad for p in target.parameters())
    for name, value in target.state_dict().items():
        assert value.data_ptr() == places[name], name
        assert torch.equal(value, source.state_dict()[name].to(value.dtype)), name


# standardised inputs

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])


@pytest.mark.parametrize(
    ("mean", "std", "inner", "shape"),
    [
        ("mean", "std", "", (3,)),
        ("mu", "sigma", "", (3, 1, 1)),
        ("0.mean", "0.std", "1.", (1, 3, 1, 1)),
        ("normalize.mean", "normalize.std", "model.", (3, 1, 1)),
        ("module.normalizer.new_mean", "module.normalizer.new_std", "module.model.",
         (1, 3, 1, 1)),
    ],
)  # fmt: skip
def test_a_standardisation_is_reported_and_wraps_the_network(
    mean, std, inner, shape, saved
):
    source, target, x = unsettled(wide()), wide().eval(), pictures()
    state = renamed(source, to_wide, inner)
    state |= {mean: MEAN.reshape(shape).clone(), std: STD.reshape(shape).clone()}
    report = load_checkpoint(target, saved(state, "w.safetensors"))
    assert (report.whole, report.prefix) == (True, inner)
    wrapped = nn.Sequential(report.normalisation, target)
    standard = (x - MEAN[:, None, None]) / STD[:, None, None]
    assert torch.equal(wrapped(x), source(standard))
    assert "mean (0.5, 0.4, 0.3), std (0.2, 0.25, 0.3), not applied" in repr(report)


def test_a_model_saved_with_its_attacker_loads_once(saved):
    source, target = unsettled(small50()), small50()
    inner = renamed(source, to_torchvision)
    state = {f"module.model.{n}": v for n, v in inner.items()}
    state |= {f"module.attacker.model.{n}": v for n, v in inner.items()}
    for place in ("normalizer", "attacker.normalize"):
        state |= {f"module.{place}.new_mean": MEAN, f"module.{place}.new_std": STD}
    report = load_checkpoint(target, saved({"model": state}))
    assert same(source, target)
    assert len(report.ignored) == len(inner)
    assert report.normalisation is not None
    state["module.attacker.model.fc.bias"] = inner["fc.bias"] + 1
    refused(target, saved({"model": state}), r"1 unexpected \(module.attacker.model.fc")


@pytest.mark.parametrize(
    "extra",
    [
        {"mean": MEAN},
        {"mean": MEAN, "std": 0 * STD},
        {"mean": torch.ones(9), "std": torch.ones(9)},  # of no picture
        {"mean": MEAN, "std": STD, "pre.mean": MEAN, "pre.std": 2 * STD},  # which?
        {"layer1.0.extra.mean": MEAN, "layer1.0.extra.std": STD},  # not of the input
    ],
)
def test_statistics_that_do_not_standardise_the_input_are_unexpected(extra, saved):
    path = saved(unsettled(wide()).state_dict() | extra)
    report = load_checkpoint(wide(), path, strict=False)
    assert report.normalisation is None
    assert report.misfits == {"unexpected": list(extra)}
    refused(wide(), path, rf"{len(extra)} unexpected \(.*mean")


def test_buffers_that_are_the_networks_own_are_loaded_not_reported(saved):
    class Standard(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("std", torch.ones(3))
            self.fc = nn.Linear(3, 2)

    source, target = unsettled(Standard()), Standard()
    report = load_checkpoint(target, saved(renamed(source, str, "module.")))
    assert report.normalisation is None
    assert same(source, target)


# what does not fit


@pytest.mark.parametrize(
    ("source", "rename", "target", "words"),
    [
        (small18(), to_torchvision, small50(),
         ["missing (", "layer1.0.conv3.weight",
          "layer1.0.conv1.weight (2, 2, 3, 3) for (2, 2, 1, 1)",
          "block='BasicBlock', depths=(2, 2, 2, 2)"]),
        (small18(n_classes=7), to_cifar, small18(),
         ["of another shape", "The file is of a network with n_classes=7."]),
        (small18(stem="imagenet"), to_cifar, small18(), ["with stem='imagenet'."]),
        (small18(n_channels=1), to_cifar, small18(), ["with n_channels=1."]),
        (small18(width=4), to_cifar, small18(), ["with width=4."]),
        (wide(depth=10, widen=2), to_wide, wide(), ["with depth=10, widen=2."]),
        (wide(), to_wide, small18(),
         ["the names are those of a WideResNet, not of a ResNet"]),
        (small18(), to_cifar, wide(),
         ["the names are those of a ResNet, not of a WideResNet"]),
        (wide_end(), to_wide_end, wide(), ["padding='end', this one with 'both'"]),
        (wide(), to_wide, wide_end(), ["padding='both', this one with 'end'"]),
    ],
)  # fmt: skip
def test_a_refusal_names_tensors_shapes_and_the_arguments_that_would_fit(
    source, rename, target, words, saved
):
    message = refused(target, saved(renamed(source, rename)), "tensors, got")
    for part in words:
        assert part in message
    assert len(message) < 1500


@pytest.mark.parametrize(
    ("name", "value", "match"),
    [
        ("weight", torch.ones(2, 3, dtype=torch.int8), "1 of int8 for real numbers"),
        ("weight", torch.full((2, 3), math.nan), "1 not finite in float32"),
        ("bias", torch.tensor([1.0, -math.inf]), "1 not finite in float32"),
        ("bias", torch.tensor([1.0, 1e300]).double(), "1 not finite in float32"),
        # Another shape is not read: one number on disk, ten million million in memory.
        ("weight", torch.ones(1).expand(10**7, 10**6), "1 of another shape"),
    ],
)
def test_unsuitable_values_are_refused_and_the_others_loaded(name, value, match, saved):
    path = saved(nn.Linear(3, 2).state_dict() | {name: value})
    target = nn.Linear(3, 2)
    message = refused(target, path, rf"got {match} \({name}")
    assert message.count(";") == 0
    before = target.state_dict()[name].clone()
    assert load_checkpoint(target, path, strict=False).n_loaded == 1
    assert torch.equal(target.state_dict()[name], before)


def test_float64_values_fit_where_the_network_has_float64(saved):
    state = {n: 1e300 * v.double() for n, v in nn.Linear(3, 2).state_dict().items()}
    assert load_checkpoint(nn.Linear(3, 2).double(), saved(state)).whole


def test_two_tensors_for_one_place_are_refused(saved):
    state = renamed(small18(), to_cifar)
    state["fc.weight"] = state["linear.weight"] + 1
    refused(small18(), saved(state), r"1 unexpected \(fc.weight\)")


@pytest.mark.parametrize("strict", [False, True])
def test_a_network_without_memory_is_refused(strict, saved):
    # torch only warns, and the tensors would be lost.
    path = saved(nn.Linear(3, 2).state_dict())
    for network in (nn.Linear(3, 2, device="meta"), nn.LazyLinear(2)):
        with pytest.raises(ValueError, match="network must have memory"):
            load_checkpoint(network, path, strict=strict)


def test_without_strict_what_fits_is_loaded_and_the_rest_reported(saved):
    source, target = unsettled(small18(n_classes=7)), unsettled(small18(), 1)
    state = renamed(source, to_cifar)
    del state["bn1.weight"]
    state["extra"] = torch.ones(2)
    before = {n: v.clone() for n, v in target.state_dict().items()}
    state = {f"module.{n}": v for n, v in state.items()}
    path = saved({"net": {**state, "epoch": 3}})
    report = load_checkpoint(target, path, strict=False)
    assert report.misfits == {
        "of another shape": ["fc.weight (7, 16) for (5, 16)", "fc.bias (7,) for (5,)"],
        "missing": ["stem.1.weight"],
        "unexpected": ["module.extra"],
    }
    unfit = {"stem.1.weight", "fc.weight", "fc.bias"}
    for name, value in target.state_dict().items():
        expected = before if name in unfit else source.state_dict()
        assert torch.equal(value, expected[name]), name
    assert repr(report).splitlines() == [
        "CheckpointReport of w.pt, entry 'net', prefix 'module.' removed",
        "  naming            cifar",
        f"  loaded            {len(before) - 3}",
        "  of another shape  2 (fc.weight (7, 16) for (5, 16), fc.bias (7,) for (5,))",
        "  missing           1 (stem.1.weight)",
        "  unexpected        1 (module.extra)",
        "  ignored           1 (epoch)",
    ]


# files that are unsafe or damaged


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil-was-here",))


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    "content", [Evil(), {"state_dict": {"fc.weight": Evil()}}, {"args": Evil()}]
)
def test_pickled_code_is_refused_and_not_run(
    content, zipped, saved, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    path = saved(content, _use_new_zipfile_serialization=zipped)
    assert "mkdir" in refused(small18(), path, "holds tensors only")
    assert not (tmp_path / "evil-was-here").exists()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_refusal_names_what_is_in_the_file_and_advises_nothing_unsafe(saved):
    state = {"state_dict": small18().state_dict(), "args": argparse.Namespace(lr=0.1)}
    refused(small18(), saved(state), "it holds a pickled argparse.Namespace")
    refused(small18(), path := saved(small18()), "Save the state dict alone")
    path.write_bytes(b"hello world")
    refused(small18(), path, r"\(damaged, or no")
    traced = torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3))
    torch.jit.save(traced, str(path))
    with pytest.warns(UserWarning, match="TorchScript"):
        message = refused(nn.Linear(3, 2), path, "TorchScript")
    assert "trusted" not in message
    assert "False" not in message


KINDS = {"w.pt": {}, "w.safetensors": {}}
KINDS["legacy.pt"] = {"_use_new_zipfile_serialization": False}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("share", [0, 0.001, 0.5, 0.999])
def test_a_truncated_file_is_refused(kind, share, saved):
    path = saved(small18().state_dict(), kind, **KINDS[kind])
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    refused(small18(), path, "path must be a")


@settings(max_examples=100, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    place=st.floats(0, 1),
    junk=st.binary(min_size=1, max_size=8),
)
def test_a_damaged_file_loads_whole_or_is_refused(kind, place, junk, tmp_path_factory):
    path, state = tmp_path_factory.mktemp("w") / kind, nn.Linear(3, 2).state_dict()
    if path.suffix == ".safetensors":
        save_file(state, path)
    else:
        torch.save(state, path, **KINDS[kind])
    content = bytearray(path.read_bytes())
    start = int(place * (len(content) - 1))
    content[start : start + len(junk)] = junk
    path.write_bytes(bytes(content))
    target = nn.Linear(3, 2)
    try:
        assert load_checkpoint(target, path).n_loaded == 2
    except ValueError:
        refused(target, path, "^read_state_dict: path must be|not finite in|missing")


def test_other_files_are_refused(saved, tmp_path):
    for content in (3, {}, {"epoch": 3, "optimizer": {"state": {}}}):
        refused(small18(), saved(content), "a state dict: names and their real tensors")
    refused(small18(), tmp_path / "gone.pt", "a file that exists")
    (tmp_path / "w.pkl").write_bytes(b"")
    refused(small18(), tmp_path / "w.pkl", "a .safetensors, .pt or .pth file")


# a network for a file


@pytest.mark.parametrize(
    ("name", "source", "rename"),
    [
        ("resnet18", small18(n_classes=7, stem="imagenet"), to_torchvision),
        ("resnet50", small50(n_channels=1), to_cifar),
        ("resnet50", small50(), str),
        ("wide_resnet28_2", WideResNet(28, 2, n_classes=4), to_wide),
        ("WideResNet", wide_end(widen=3), to_wide_end),
        ("WideResNet", wide(depth=22, n_channels=1), to_wide),
    ],
)
def test_the_form_is_read_off_the_file(name, source, rename, saved):
    path = saved({"net": renamed(unsettled(source), rename, "module.")})
    built, _ = network_for(name, path, generator=torch.Generator())
    assert load_checkpoint(built, path).whole
    assert same(source, built)
    x = pictures(next(iter(source.parameters())).shape[1])
    assert torch.equal(source(x), built.eval()(x))


def test_a_file_of_something_else_gives_no_wide_network(saved):
    path = saved(renamed(small18(), to_cifar))
    with pytest.raises(ValueError, match="state must be that of a WideResNet"):
        network_for("WideResNet", path)
    with pytest.raises(ValueError, match="name must be one of resnet18"):
        network_for("resnet19", path)
