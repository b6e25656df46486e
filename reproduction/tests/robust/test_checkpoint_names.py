import argparse
import math
import os
import re
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import save_file, save_model
from torch import nn

from normalign.nn import WideResNet, resnet18, resnet50
from normalign_reproduction.robust import (
    CheckpointReport,
    load_checkpoint,
    network_for,
)


def unsettled(network: nn.Module, seed: int = 0) -> nn.Module:
    """Give every tensor, norms and their buffers too, values of its own."""
    generator = torch.Generator().manual_seed(seed)
    for value in network.state_dict().values():
        if value.is_floating_point():
            value.copy_(torch.rand(value.shape, generator=generator) + 0.1)
        else:
            value.fill_(seed + 7)
    return network.eval()


# How others name our tensors, written the other way round: from ours to theirs.


def to_torchvision(name):
    name = name.replace("stem.0.", "conv1.").replace("stem.1.", "bn1.")
    return name.replace(".shortcut.", ".downsample.")


def to_cifar(name):
    name = name.replace("stem.0.", "conv1.").replace("stem.1.", "bn1.")
    return name.replace("fc.", "linear.")


def to_wide(name):
    stage = re.match(r"layer(\d)\.(\d)\.(\w+)\.(.*)", name)
    if stage:
        inner = stage[3].replace("norm", "bn").replace("shortcut", "convShortcut")
        return f"block{stage[1]}.layer.{stage[2]}.{inner}.{stage[4]}"
    return name.replace("stem.", "conv1.").replace("norm.", "bn1.")


def to_wide_end(name):
    stage = re.match(r"layer(\d)\.(\d)\.(\w+)\.(.*)", name)
    if stage:
        inner = {
            "norm1": "batchnorm_0", "conv1": "conv_0", "norm2": "batchnorm_1",
            "conv2": "conv_1", "shortcut": "shortcut",
        }[stage[3]]  # fmt: skip
        return f"layer.{int(stage[1]) - 1}.block.{stage[2]}.{inner}.{stage[4]}"
    for ours, theirs in (
        ("stem", "init_conv"),
        ("norm", "batchnorm"),
        ("fc", "logits"),
    ):
        name = re.sub(f"^{ours}\\.", f"{theirs}.", name)
    return name


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
CASES = [
    pytest.param(naming, rename, build, id=f"{naming}-{build.__name__}")
    for naming, (rename, builds) in NAMINGS.items()
    for build in builds
]


def renamed(network, rename):
    return {rename(name): value for name, value in network.state_dict().items()}


def saved(state, path: Path) -> Path:
    if path.suffix == ".safetensors":
        save_file({n: v.contiguous() for n, v in state.items()}, path)
    else:
        torch.save(state, path)
    return path


def same(one: nn.Module, two: nn.Module) -> bool:
    states = one.state_dict(), two.state_dict()
    return states[0].keys() == states[1].keys() and all(
        torch.equal(value, states[1][name]) for name, value in states[0].items()
    )


@pytest.fixture
def pictures():
    return torch.rand(2, 3, 16, 16, generator=torch.Generator())


# what fits


@pytest.mark.parametrize("suffix", [".pt", ".pth", ".safetensors"])
@pytest.mark.parametrize(("naming", "rename", "build"), CASES)
def test_every_naming_loads_to_the_same_function(
    naming, rename, build, suffix, tmp_path, pictures
):
    source, target = unsettled(build()), build().eval()
    path = saved(renamed(source, rename), tmp_path / f"w{suffix}")
    assert not torch.equal(source(pictures), target(pictures))
    report = load_checkpoint(target, path)
    assert torch.equal(source(pictures), target(pictures))
    assert same(source, target)
    assert report.naming == naming
    assert report.n_loaded == len(source.state_dict())
    assert report.whole
    assert report.ignored == ()
    assert report.normalisation is None


def test_the_namings_differ_from_ours_in_most_names():
    for naming, (rename, builds) in NAMINGS.items():
        names = builds[0]().state_dict().keys()
        changed = sum(rename(name) != name for name in names)
        assert (changed > 0) == (naming != "own")


@pytest.mark.parametrize("build", [small18, small50])
def test_the_imagenet_form_loads_as_well(build, tmp_path):
    source = unsettled(build(stem="imagenet", n_classes=9))
    path = saved(renamed(source, to_torchvision), tmp_path / "w.pt")
    target = build(stem="imagenet", n_classes=9)
    assert load_checkpoint(target, path).naming == "torchvision"
    assert same(source, target)


NESTS = ["state_dict", "model_state_dict", "model", "net", "state_dict_ema", "ema"]
WORDS = ["module.", "_orig_mod.", "model."]


@settings(max_examples=40, deadline=None)
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
    rename, builds = NAMINGS[naming]
    source, target = unsettled(builds[0]()), builds[0]()
    prefix = "".join(prefixes)
    content = {prefix + n: v for n, v in renamed(source, rename).items()}
    if not counters:
        content = {n: v for n, v in content.items() if not n.endswith("_tracked")}
    loaded = len(content)
    for nest in nests:
        content = {nest: content}
        if extras:
            content |= {"epoch": 3, "acc": 0.5, "optimizer": {"state": {}}}
    path = saved(content, tmp_path_factory.mktemp("w") / "w.pt")
    report = load_checkpoint(target, path)
    assert report.prefix == prefix
    assert report.entry == ".".join(reversed(nests))
    assert report.n_loaded == loaded
    assert report.naming == naming
    x = torch.rand(1, 3, 16, 16, generator=torch.Generator())
    assert torch.equal(source(x), target.eval()(x))


def test_plain_weights_go_before_averaged_ones_unless_asked_for(tmp_path):
    plain, averaged = unsettled(small18(), 0), unsettled(small18(), 1)
    path = saved(
        {"state_dict": plain.state_dict(), "state_dict_ema": averaged.state_dict()},
        tmp_path / "w.pt",
    )
    target = small18()
    assert load_checkpoint(target, path).ignored == ("state_dict_ema",)
    assert same(target, plain)
    report = load_checkpoint(target, path, entry="state_dict_ema")
    assert same(target, averaged)
    assert report.ignored == ("state_dict",)
    refused(
        target, path, "entry must be one of 'state_dict', 'state_dict_ema', got 'mean'",
        entry="mean",
    )  # fmt: skip
    bare = saved(plain.state_dict(), tmp_path / "w.pt")
    refused(target, bare, "entry must be None for a file with one", entry="ema")
    bare = saved(plain.state_dict(), tmp_path / "w.safetensors")
    refused(target, bare, "entry must be None for a .safetensors", entry="ema")


@pytest.mark.parametrize("beside", [{}, {"epoch": 3}, {"model": {"name": "small"}}])
def test_the_only_state_dict_is_found_whatever_it_is_called(beside, tmp_path):
    source, target = unsettled(small18()), small18()
    content = {"weights": source.state_dict(), **beside}
    assert load_checkpoint(target, saved(content, tmp_path / "w.pt")).entry == "weights"
    assert same(source, target)
    flat = {**source.state_dict(), "history": {"loss": torch.ones(3)}}
    assert load_checkpoint(target, saved(flat, tmp_path / "w.pt")).entry == ""
    content["others"] = source.state_dict()
    refused(
        target, saved(content, tmp_path / "w.pt"), "got a dict in w.pt with weights"
    )


def test_an_averaged_model_of_torch_loads(tmp_path):
    source = unsettled(small18())
    average = torch.optim.swa_utils.AveragedModel(source, use_buffers=True)
    path = saved(average.state_dict(), tmp_path / "w.pt")
    target = small18()
    assert load_checkpoint(target, path).ignored == ("n_averaged",)
    assert same(source, target)


def test_a_prefix_that_is_the_networks_own_stays(tmp_path):
    class Wrapped(nn.Module):
        def __init__(self):
            super().__init__()
            self.model = nn.Linear(3, 2)

    source, target = Wrapped(), Wrapped()
    report = load_checkpoint(target, saved(source.state_dict(), tmp_path / "w.pt"))
    assert report.prefix == ""
    assert same(source, target)
    twice = {f"model.{n}": v for n, v in source.state_dict().items()}
    report = load_checkpoint(target, saved(twice, tmp_path / "w.pt"))
    assert report.prefix == "model."


def test_a_prefix_stays_where_taking_it_off_helps_nothing(tmp_path):
    path = saved({"body.first.scale": torch.ones(2)}, tmp_path / "w.pt")
    report = load_checkpoint(nn.Linear(3, 2), path, strict=False)
    assert report.prefix == ""
    assert report.unexpected == ("body.first.scale",)


def test_any_network_with_the_files_names_loads_untranslated(tmp_path):
    # Names of the torchvision kind that are the network's own.
    class Foreign(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv1 = nn.Conv2d(3, 2, 3)
            self.layer1 = nn.Sequential(nn.ModuleDict({"conv1": nn.Conv2d(2, 2, 1)}))
            self.fc = nn.Linear(2, 2)

    source, target = Foreign(), Foreign()
    report = load_checkpoint(target, saved(source.state_dict(), tmp_path / "w.pt"))
    assert report.naming == "own"
    assert same(source, target)


def test_the_stage_that_is_never_called_is_ignored(tmp_path):
    source, target = unsettled(wide()), wide()
    state = renamed(source, to_wide)
    extra = {
        f"sub_{name}": value + 1
        for name, value in state.items()
        if name.startswith("block1.")
    }
    report = load_checkpoint(target, saved(state | extra, tmp_path / "w.pt"))
    assert set(report.ignored) == set(extra)
    assert same(source, target)


def test_half_precision_is_widened(tmp_path):
    source, target = unsettled(wide()), wide()
    state = {n: v.bfloat16() for n, v in source.state_dict().items()}
    load_checkpoint(target, saved(state, tmp_path / "w.pt"))
    weight = target.get_submodule("fc").weight
    assert weight.dtype == torch.float32
    assert torch.equal(weight, state["fc.weight"].float())


# standardised inputs

MEAN, STD = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.25, 0.3])


@pytest.mark.parametrize(
    ("mean", "std", "inner"),
    [
        ("mean", "std", ""),
        ("mu", "sigma", ""),
        ("0.mean", "0.std", "1."),
        ("normalize.mean", "normalize.std", "model."),
        ("module.normalizer.new_mean", "module.normalizer.new_std", "module.model."),
    ],
)
@pytest.mark.parametrize("shape", [(3,), (3, 1, 1), (1, 3, 1, 1)])
def test_a_standardisation_is_reported_and_wraps_the_network(
    mean, std, inner, shape, tmp_path, pictures
):
    source, target = unsettled(wide()), wide().eval()
    state = {inner + n: v for n, v in renamed(source, to_wide).items()}
    state |= {mean: MEAN.reshape(shape).clone(), std: STD.reshape(shape).clone()}
    report = load_checkpoint(target, saved(state, tmp_path / "w.safetensors"))
    assert report.whole
    assert report.prefix == inner
    assert report.normalisation is not None
    wrapped = nn.Sequential(report.normalisation.layer(), target)
    standard = (pictures - MEAN[:, None, None]) / STD[:, None, None]
    assert torch.equal(wrapped(pictures), source(standard))
    assert "mean (0.5, 0.4, 0.3), std (0.2, 0.25, 0.3)" in repr(report)


def test_a_model_saved_with_its_attacker_loads_once(tmp_path):
    source, target = unsettled(small50()), small50()
    inner = renamed(source, to_torchvision)
    state = {f"module.model.{n}": v for n, v in inner.items()}
    state |= {f"module.attacker.model.{n}": v for n, v in inner.items()}
    for place in ("normalizer", "attacker.normalize"):
        state |= {f"module.{place}.new_mean": MEAN, f"module.{place}.new_std": STD}
    report = load_checkpoint(target, saved({"model": state}, tmp_path / "w.pt"))
    assert same(source, target)
    assert len(report.ignored) == len(inner)
    assert report.normalisation is not None
    state["module.attacker.model.fc.bias"] = inner["fc.bias"] + 1
    with pytest.raises(ValueError, match=r"1 unexpected \(module.attacker.model.fc"):
        load_checkpoint(target, saved({"model": state}, tmp_path / "w.pt"))


def test_two_standardisations_that_differ_are_not_chosen_from(tmp_path):
    state = unsettled(wide()).state_dict() | {"mean": MEAN, "std": STD}
    state |= {"pre.mean": MEAN, "pre.std": 2 * STD}
    path = saved(state, tmp_path / "w.pt")
    with pytest.raises(
        ValueError, match=r"4 unexpected \(mean, std, pre.mean, pre.std"
    ):
        load_checkpoint(wide(), path)


@pytest.mark.parametrize(
    ("mean", "std"), [(MEAN, None), (MEAN, 0 * STD), (torch.ones(9), torch.ones(9))]
)
def test_what_cannot_standardise_pictures_is_unexpected(mean, std, tmp_path):
    state = unsettled(wide()).state_dict() | {"mean": mean}
    state |= {} if std is None else {"std": std}
    report = load_checkpoint(wide(), saved(state, tmp_path / "w.pt"), strict=False)
    assert report.normalisation is None
    assert "mean" in report.unexpected


def test_statistics_deep_in_a_network_are_not_of_its_input(tmp_path):
    state = unsettled(wide()).state_dict()
    state |= {"layer1.0.extra.mean": MEAN, "layer1.0.extra.std": STD}
    refused(wide(), saved(state, tmp_path / "w.pt"), r"2 unexpected \(layer1.0.extra")


def test_buffers_that_are_the_networks_own_are_loaded_not_reported(tmp_path):
    class Standard(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))
            self.register_buffer("std", torch.ones(3))
            self.fc = nn.Linear(3, 2)

    source, target = unsettled(Standard()), Standard()
    state = {f"module.{n}": v for n, v in source.state_dict().items()}
    report = load_checkpoint(target, saved(state, tmp_path / "w.pt"))
    assert report.normalisation is None
    assert same(source, target)


# what does not fit


def refused(network, path, match, **options):
    """The message of the refusal, which left the network as it was."""
    before = {n: v.clone() for n, v in network.state_dict().items()}
    with pytest.raises(ValueError, match=match) as caught:
        load_checkpoint(network, path, **options)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
    message = str(caught.value)
    assert message.startswith(("load_checkpoint: ", "read_state_dict: "))
    assert "\n" not in message
    return message


def test_a_small_resnet_in_a_large_one_is_refused_with_names_and_shapes(tmp_path):
    path = saved(renamed(unsettled(small18()), to_torchvision), tmp_path / "w.pt")
    message = refused(small50(), path, "missing")
    assert "layer1.0.conv3.weight" in message
    shapes = "(2, 2, 3, 3) in the file, (2, 2, 1, 1) in the model"
    assert f"layer1.0.conv1.weight: {shapes}" in message
    assert "block='BasicBlock', depths=(2, 2, 2, 2)" in message
    assert len(message) < 1500


@pytest.mark.parametrize(
    ("options", "remedy"),
    [
        ({"n_classes": 7}, "n_classes=7"),
        ({"stem": "imagenet"}, "stem='imagenet'"),
        ({"n_channels": 1}, "n_channels=1"),
        ({"width": 4}, "width=4"),
    ],
)
def test_the_arguments_that_would_fit_are_named(options, remedy, tmp_path):
    path = saved(renamed(small18(**options), to_cifar), tmp_path / "w.pt")
    message = refused(small18(), path, "of another shape")
    assert message.endswith(f"The file is of a network with {remedy}.")


def test_another_depth_and_width_of_a_wide_network_are_named(tmp_path):
    path = saved(renamed(wide(depth=10, widen=2), to_wide), tmp_path / "w.pt")
    message = refused(wide(), path, "missing")
    assert message.endswith("The file is of a network with depth=10, widen=2.")


def test_a_tensor_of_another_shape_is_not_looked_at(tmp_path):
    # One number on disk, but ten million million where it is looked at.
    state = {"weight": torch.ones(1).expand(10**7, 10**6), "bias": torch.ones(2)}
    message = refused(nn.Linear(3, 2), saved(state, tmp_path / "w.pt"), "1 of another")
    assert "finite" not in message


def test_a_file_of_another_family_is_named(tmp_path):
    path = saved(renamed(wide(), to_wide), tmp_path / "w.pt")
    message = refused(small18(), path, "missing")
    assert "the names are those of a WideResNet, not of a ResNet" in message
    path = saved(renamed(small18(), to_cifar), tmp_path / "w.pt")
    message = refused(wide(), path, "missing")
    assert "the names are those of a ResNet, not of a WideResNet" in message


def test_the_padding_that_names_tell_must_be_the_networks(tmp_path):
    path = saved(renamed(unsettled(wide_end()), to_wide_end), tmp_path / "w.pt")
    refused(wide(), path, "padding='end', this one with 'both'")
    report = load_checkpoint(wide(), path, strict=False)
    assert not report.whole
    assert report.n_loaded == len(wide().state_dict())
    path = saved(renamed(unsettled(wide()), to_wide), tmp_path / "w.pt")
    refused(wide_end(), path, "padding='both', this one with 'end'")


def test_two_tensors_for_one_place_are_not_chosen_from(tmp_path):
    state = renamed(small18(), to_cifar)
    state["fc.weight"] = state["linear.weight"] + 1
    refused(small18(), saved(state, tmp_path / "w.pt"), r"1 unexpected \(fc.weight\)")


def test_integers_are_no_weights(tmp_path):
    state = wide().state_dict()
    state["fc.weight"] = torch.ones_like(state["fc.weight"], dtype=torch.int8)
    path = saved(state, tmp_path / "w.pt")
    refused(wide(), path, r"got 1 of int8 for real numbers \(fc.weight\)")
    report = load_checkpoint(target := wide(), path, strict=False)
    assert report.n_loaded == len(state) - 1
    assert not torch.equal(target.fc.weight, torch.ones_like(target.fc.weight))


@pytest.mark.parametrize("value", [math.nan, -math.inf, 1e300])
def test_what_is_not_finite_in_the_network_is_not_loaded(value, tmp_path):
    state = {n: v.double() for n, v in nn.Linear(3, 2).state_dict().items()}
    state["bias"][1] = value
    path = saved(state, tmp_path / "w.safetensors")
    refused(nn.Linear(3, 2), path, r"got 1 not finite in float32 \(bias\)\.$")
    if math.isfinite(value):
        assert load_checkpoint(nn.Linear(3, 2).double(), path).whole
    lost = {
        n: torch.full(v.shape, value, dtype=torch.float64)
        for n, v in small18().state_dict().items()
        if v.is_floating_point()
    }
    message = refused(small18(), saved(lost, tmp_path / "w.pt"), "102 not finite")
    assert len(message) < 400


def meta_network():
    with torch.device("meta"):
        return nn.Linear(3, 2)


@pytest.mark.parametrize("build", [meta_network, lambda: nn.LazyLinear(2)])
@pytest.mark.parametrize("strict", [False, True])
def test_a_network_without_memory_is_refused(build, strict, tmp_path):
    # torch itself only warns, and the report would tell of tensors that went nowhere.
    path = saved(nn.Linear(3, 2).state_dict(), tmp_path / "w.pt")
    with pytest.raises(ValueError, match="network must be one whose tensors have mem"):
        load_checkpoint(build(), path, strict=strict)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(3, 3), nn.Linear(3, 3)
        self.last.weight = self.first.weight


def test_of_tensors_that_share_memory_one_is_enough(tmp_path):
    source, target = Tied(), Tied()
    save_model(source, str(tmp_path / "w.safetensors"))  # keeps one of the two
    report = load_checkpoint(target, tmp_path / "w.safetensors")
    assert (report.n_loaded, report.missing) == (3, ())
    assert same(source, target)
    untied = nn.ModuleDict({"first": nn.Linear(3, 3), "last": nn.Linear(3, 3)})
    refused(untied, tmp_path / "w.safetensors", r"1 missing \((first|last).weight")


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_the_network_keeps_its_own_dtype_layout_and_mode(dtype, tmp_path):
    source, target = unsettled(small18()), unsettled(small18(), 1).to(dtype).train()
    state = {  # neither contiguous nor in memory of its own
        n: torch.stack([v, v], -1)[..., 0] if v.ndim == 4 else v
        for n, v in source.state_dict().items()
    }
    places = {n: v.data_ptr() for n, v in target.state_dict().items()}
    load_checkpoint(target, saved(state, tmp_path / "w.pt"))
    assert target.training
    assert all(p.requires_grad for p in target.parameters())
    for name, value in target.state_dict().items():
        assert value.data_ptr() == places[name], name
        assert torch.equal(value, source.state_dict()[name].to(value.dtype)), name


def test_without_strict_what_fits_is_loaded_and_the_rest_reported(tmp_path):
    source, target = unsettled(small18(n_classes=7)), unsettled(small18(), 1)
    state = renamed(source, to_cifar)
    del state["bn1.weight"]
    state["extra"] = torch.ones(2)
    kept = {n: v.clone() for n, v in target.state_dict().items()}
    report = load_checkpoint(target, saved(state, tmp_path / "w.pt"), strict=False)
    assert report.missing == ("stem.1.weight",)
    assert report.unexpected == ("extra",)
    width = source.get_submodule("fc").weight.shape[1]
    assert report.misshapen == (
        ("fc.weight", (7, width), (5, width)),
        ("fc.bias", (7,), (5,)),
    )
    unfit = {"stem.1.weight", "fc.weight", "fc.bias"}
    assert report.n_loaded == len(kept) - len(unfit)
    for name, value in target.state_dict().items():
        truth = kept if name in unfit else source.state_dict()
        assert torch.equal(value, truth[name]), name


def test_the_report_reads_well():
    report = CheckpointReport(
        file="w.pt", entry="net", prefix="module.", naming="cifar", n_loaded=3,
        missing=("a", "b", "c", "d", "e"), unexpected=(),
        misshapen=(("fc.bias", (7,), (5,)),), ignored=("epoch",), normalisation=None,
        notes=(),
    )  # fmt: skip
    assert repr(report).splitlines() == [
        "CheckpointReport of w.pt, entry 'net', prefix 'module.' taken off",
        "  naming         cifar",
        "  loaded         3",
        "  missing        5 (a, b, c, d, ...)",
        "  misshapen      1 (fc.bias (7,) for (5,))",
        "  ignored        1 (epoch)",
    ]
    assert not report.whole


# files that are none


class Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil-was-here",))


@pytest.mark.parametrize("legacy", [False, True])
@pytest.mark.parametrize(
    "content", [Evil(), {"state_dict": {"fc.weight": Evil()}}, {"args": Evil()}]
)
def test_pickled_code_is_refused_and_not_run(content, legacy, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save(content, "w.pt", _use_new_zipfile_serialization=not legacy)
    message = refused(small18(), Path("w.pt"), "holds tensors only")
    assert "mkdir" in message
    assert not Path("evil-was-here").exists()


def test_a_pickled_class_is_named(tmp_path):
    state = {"state_dict": small18().state_dict(), "args": argparse.Namespace(lr=0.1)}
    path = saved(state, tmp_path / "w.pt")
    refused(small18(), path, "it holds a pickled argparse.Namespace")
    torch.save(small18(), path)
    refused(small18(), path, "Save the state dict alone")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_no_refusal_advises_to_load_unsafely(tmp_path):
    path = tmp_path / "w.pt"
    path.write_bytes(b"hello world")
    refused(small18(), path, r"\(damaged, or no torch file\)")
    traced = torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3))
    torch.jit.save(traced, str(path))
    with pytest.warns(UserWarning, match="TorchScript"):
        message = refused(nn.Linear(3, 2), path, "TorchScript")
    assert "trusted" not in message
    assert "False" not in message


@pytest.mark.parametrize("suffix", [".pt", ".safetensors", ".legacy.pt"])
@pytest.mark.parametrize("keep", [0, 1, 9, 200, 0.5, 0.999])
def test_a_truncated_file_is_refused(suffix, keep, tmp_path):
    path = tmp_path / f"w{suffix}"
    if "legacy" in suffix:
        state = small18().state_dict()
        torch.save(state, path, _use_new_zipfile_serialization=False)
    else:
        saved(small18().state_dict(), path)
    content = path.read_bytes()
    path.write_bytes(content[: keep if keep == int(keep) else int(keep * len(content))])
    refused(small18(), path, "path must be a")


@settings(max_examples=150, deadline=None)
@given(
    suffix=st.sampled_from([".pt", ".safetensors", ".legacy.pt"]),
    place=st.floats(0, 1),
    junk=st.binary(min_size=1, max_size=8),
)
def test_a_damaged_file_loads_whole_or_is_refused(
    suffix, place, junk, tmp_path_factory
):
    path = tmp_path_factory.mktemp("w") / f"w{suffix}"
    state = nn.Linear(3, 2).state_dict()
    if "legacy" in suffix:
        torch.save(state, path, _use_new_zipfile_serialization=False)
    else:
        saved(state, path)
    content = bytearray(path.read_bytes())
    start = int(place * (len(content) - 1))
    content[start : start + len(junk)] = junk
    path.write_bytes(bytes(content))
    target = nn.Linear(3, 2)
    before = {n: v.clone() for n, v in target.state_dict().items()}
    try:
        loaded, words = load_checkpoint(target, path).n_loaded, ""
    except ValueError as error:
        loaded, words = 0, str(error)
    if loaded:
        assert loaded == 2
    else:
        assert words.startswith("read_state_dict: path must be")
        assert all(torch.equal(v, before[n]) for n, v in target.state_dict().items())


@pytest.mark.parametrize(
    "content",
    [
        3,
        [torch.zeros(2)],
        torch.zeros(2),
        {},
        {0: torch.zeros(2)},
        {"epoch": 3, "optimizer": {"state": {}}},
        {"weight": torch.zeros(2, dtype=torch.complex64)},
        {"weight": torch.zeros(2, 2).to_sparse()},
        {"weight": torch.nested.nested_tensor([torch.zeros(1), torch.zeros(2)])},
        {"weight": torch.quantize_per_tensor(torch.zeros(2), 0.1, 0, torch.qint8)},
    ],
    ids=repr,
)
def test_a_file_without_a_state_dict_is_refused(content, tmp_path):
    torch.save(content, tmp_path / "w.pt")
    refused(small18(), tmp_path / "w.pt", "a state dict: names and their real tensors")


def test_a_mapping_that_holds_itself_is_refused(tmp_path):
    content: dict = {}
    content["model"] = content
    torch.save(content, tmp_path / "w.pt")
    refused(small18(), tmp_path / "w.pt", "a state dict: names")


def test_missing_files_and_unknown_kinds_are_refused(tmp_path):
    refused(small18(), tmp_path / "gone.pt", "a file that exists")
    (tmp_path / "w.pkl").write_bytes(b"")
    refused(small18(), tmp_path / "w.pkl", "a .safetensors, .pt or .pth file")
    with pytest.raises(TypeError, match=r"network must be a torch\.nn\.Module"):
        load_checkpoint({}, tmp_path / "w.pt")  # type: ignore[arg-type]


# a network for a file


@pytest.mark.parametrize(
    ("name", "source", "rename"),
    [
        ("resnet18", lambda: small18(n_classes=7, stem="imagenet"), to_torchvision),
        ("resnet50", lambda: small50(n_channels=1), to_cifar),
        ("resnet50", small50, str),
        ("wide_resnet28_2", lambda: WideResNet(28, 2, n_classes=4), to_wide),
        ("WideResNet", lambda: wide_end(widen=3), to_wide_end),
        ("WideResNet", lambda: wide(depth=22, n_channels=1), to_wide),
    ],
)
def test_the_form_is_read_off_the_file(name, source, rename, tmp_path):
    network = unsettled(source())
    state = {f"module.{n}": v for n, v in renamed(network, rename).items()}
    path = saved({"net": state}, tmp_path / "w.pt")
    built, _ = network_for(name, path, generator=torch.Generator())
    assert load_checkpoint(built, path).whole
    assert same(network, built)
    n_channels = next(iter(network.parameters())).shape[1]
    x = torch.rand(1, n_channels, 16, 16, generator=torch.Generator())
    assert torch.equal(network(x), built.eval()(x))


def test_a_file_of_something_else_gives_no_wide_network(tmp_path):
    path = saved(renamed(small18(), to_cifar), tmp_path / "w.pt")
    with pytest.raises(ValueError, match="state must be that of a WideResNet"):
        network_for("WideResNet", path)
    with pytest.raises(ValueError, match="name must be one of resnet18"):
        network_for("resnet19", path)
