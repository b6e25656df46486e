"""`layer_profile`: places, shared passes, and what it keeps in memory."""

import gc
import itertools
import json
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import nn

import normalign
from normalign import At, local_geometry
from normalign._linear_map import LinearMap, LocalMap
from normalign.geometry import LayerProfile, MatrixFreeOptions, ProfileRun
from normalign.geometry._layer_profile import layer_profile
from normalign.geometry._local_geometry import GeometryPlan
from normalign.geometry._shared_pass import SharedPass, shared_place
from normalign.geometry._stages import stages
from normalign.nn import Transformer, WideResNet, mlp, resnet18
from tests.cases import TokenModel

PICTURES = torch.randn(3, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def small_resnet(n_classes=4):
    seeded = torch.Generator().manual_seed(1)
    return resnet18(n_classes, width=4, generator=seeded).double().eval()


def one_by_one(model, x, y, places, **settings):
    return {
        name: local_geometry(
            model, x, y, at=None if name == "input" else name, **settings
        )
        for name in places
    }


def agree(profile, expected):
    assert list(profile) == list(expected)
    for place, geometry in expected.items():
        assert profile[place].method == geometry.method
        assert profile[place].measures().keys() == geometry.measures().keys()
        for name, value in geometry.measures().items():
            # float64 sums in another order
            torch.testing.assert_close(
                getattr(profile[place], name), value, rtol=1e-8, atol=1e-9,
                msg=lambda m, p=place, n=name: f"{p} {n}: {m}",
            )  # fmt: skip


def test_a_profile_is_local_geometry_at_each_place():
    model, x, y = small_resnet(), PICTURES.double(), torch.tensor([0, 1, 3])
    profile = layer_profile(model, x, y)
    places = ["input", "layer1", "layer2", "layer3", "layer4"]
    agree(profile, one_by_one(model, x, y, places))
    assert profile.automatic


def test_exact_places_share_their_passes(monkeypatch):
    pulled = []
    original = SharedPass.pull

    def counted(self, cotangents):
        pulled.append(len(cotangents) * len(self.x))
        return original(self, cotangents)

    monkeypatch.setattr(SharedPass, "pull", counted)
    x = PICTURES.double()
    layer_profile(small_resnet(), x)
    # one row per output and sample, and one look whether sharing works
    assert sum(pulled) == 4 * len(x) + 1


def test_a_small_budget_splits_samples_and_places_and_changes_nothing():
    model, x, y = small_resnet(), PICTURES.double(), torch.tensor([0, 1, 3])
    whole = layer_profile(model, x, y, chunk_size=None)
    agree(layer_profile(model, x, y, memory_budget=100_000), whole)
    agree(layer_profile(model, x, y, chunk_size=2), whole)


class Skipping(nn.Module):
    """A shortcut around a stage that works in place on what it is given."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(5, 6)
        self.middle = nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 6))
        self.last = nn.Linear(6, 3)

    def forward(self, x):
        h = self.first(x)
        return self.last(self.middle(h.clone()) + 2 * h)


def test_only_the_path_through_the_place_counts_and_work_in_place_does_no_harm():
    model, x = Skipping().double(), torch.randn(4, 5, dtype=torch.float64)
    places = ["input", "middle", "last"]
    agree(layer_profile(model, x, places=places), one_by_one(model, x, None, places))
    through = layer_profile(model, x, places=places)["middle"].jacobian_norm
    active = (model.first(x) > 0).double()
    rows = model.last.weight @ model.middle[1].weight
    expected = (rows * active[:, None]).flatten(1).norm(dim=1)
    torch.testing.assert_close(through, expected.detach())


def many_outputs(k=300):
    return nn.Sequential(
        nn.Linear(320, 310), nn.ReLU(), nn.Linear(310, 305), nn.ReLU(),
        nn.Linear(305, k),
    ).double()  # fmt: skip


def test_many_outputs_take_the_matrix_free_route_at_each_place():
    model, x = many_outputs(), torch.randn(2, 320, dtype=torch.float64)
    y = model(x).argmax(1)
    options = MatrixFreeOptions(rtol=1e-2)
    profile = layer_profile(model, x, y, options=options)
    assert list(profile) == ["input", "2", "4"]
    exact = one_by_one(model, x, y, profile, method="exact")
    for place, geometry in profile.items():
        assert geometry.method == "matrix_free"
        for name in ("jacobian_norm", "effective_rank"):
            found, true = getattr(geometry, name), getattr(exact[place], name)
            # twice the tolerance: two standard errors
            torch.testing.assert_close(found, true, rtol=2e-2, atol=0)
        torch.testing.assert_close(
            geometry.centroid_alignment, exact[place].centroid_alignment
        )


def test_norms_that_need_every_output_are_summed_once_for_all_places(monkeypatch):
    sums = []
    original = SharedPass.squared_norms

    def counted(self, directions):
        sums.append([place.d for place in self.places])
        return original(self, directions)

    monkeypatch.setattr(SharedPass, "squared_norms", counted)
    model, x = many_outputs(), torch.randn(2, 320, dtype=torch.float64)
    options = MatrixFreeOptions(rtol=1e-5, max_rank=8)
    profile = layer_profile(model, x, options=options)
    assert sums == [[320, 310, 305]]
    exact = one_by_one(model, x, None, profile, method="exact")
    for place, geometry in profile.items():
        torch.testing.assert_close(
            geometry.jacobian_norm, exact[place].jacobian_norm, rtol=1e-10, atol=0
        )
        assert not geometry.error["jacobian_norm"].any()


def test_steps_come_as_they_are_done_and_what_is_done_can_be_had():
    plan = GeometryPlan("auto", 2, None, MatrixFreeOptions())
    x = PICTURES.double()
    run = ProfileRun(
        small_resnet(), x, None, places=["layer1", "input"], output=None, plan=plan
    )
    steps = iter(run)
    assert run.geometries() == {}
    assert [next(steps), next(steps)] == [("layer1", 2), ("input", 2)]
    assert {name: len(g) for name, g in run.geometries().items()} == {
        "layer1": 2, "input": 2,
    }  # fmt: skip
    assert list(steps) == [("layer1", 3), ("input", 3)]


def test_all_places_of_the_first_samples_come_before_the_next():
    told = []
    model, x = many_outputs(), torch.randn(2, 320, dtype=torch.float64)
    options = MatrixFreeOptions(rtol=0.1)
    layer_profile(
        model, x, chunk_size=1, options=options,
        progress=lambda *step: told.append(step[:2]),
    )  # fmt: skip
    assert told == [(p, n) for n in (1, 2) for p in ("input", "2", "4")]


def test_progress_is_told():
    told = []
    model, x = small_resnet(), PICTURES.double()
    layer_profile(
        model, x, places=["layer3", "layer4"], chunk_size=2,
        progress=lambda *step: told.append(step),
    )  # fmt: skip
    assert told == [
        ("layer3", 2, 3), ("layer4", 2, 3), ("layer3", 3, 3), ("layer4", 3, 3),
    ]  # fmt: skip


class Wrapped(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = small_resnet().float()
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(4, 2))

    def forward(self, x):
        return self.head(self.backbone(x))


VGG = nn.Sequential()
VGG.features = nn.Sequential(
    nn.Conv2d(3, 4, 3), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten()
)
VGG.classifier = nn.Sequential(nn.Linear(576, 8), nn.ReLU(), nn.Linear(8, 2))
DEEP = nn.Sequential(*(nn.Linear(5, 5) for _ in range(40)))


@pytest.mark.parametrize(
    ("model", "x", "expected"),
    [
        (small_resnet().float(), PICTURES, [f"layer{i}" for i in (1, 2, 3, 4)]),
        (WideResNet(10, 1).eval(), PICTURES, ["layer1", "layer2", "layer3"]),
        (Wrapped().eval(), PICTURES, [f"backbone.layer{i}" for i in (1, 2, 3, 4)]),
        (VGG, PICTURES[..., :14, :14].repeat(1, 1, 2, 2)[..., :16, :16],
         ["features.2", "classifier.0", "classifier.2"]),
        (mlp([6, 5, 4, 3]), torch.randn(3, 6), ["2", "4"]),
        (nn.Linear(6, 3), torch.randn(3, 6), []),
        (lambda z: 2 * z, torch.randn(3, 6), []),
        (Transformer(9, 4, width=8, n_heads=2, hidden=8, n_layers=2),
         torch.arange(6).reshape(2, 3), ["embed", "blocks.0", "blocks.1"]),
    ],
    ids=["resnet", "wide", "wrapped", "vgg", "mlp", "linear", "function", "tokens"],
)  # fmt: skip
def test_the_stages_of_a_network_are_found(model, x, expected):
    assert stages(LocalMap(model), x) == expected


def test_of_many_layers_a_dozen_is_taken_evenly_and_the_last_is_one():
    found = [int(name) for name in stages(LocalMap(DEEP), torch.randn(2, 5))]
    assert len(found) == 12
    assert found[-1] == 39
    gaps = {b - a for a, b in itertools.pairwise(found)}
    assert gaps <= {3, 4}


def test_tokens_have_no_input_of_their_own():
    model, tokens = TokenModel().double(), torch.randint(0, 7, (3, 4))
    profile = layer_profile(model, tokens)
    assert next(iter(profile)) == "embed"
    assert "input" not in profile


def test_one_token_is_a_place_and_says_so():
    model, tokens = TokenModel().double(), torch.randint(0, 7, (3, 4))
    profile = layer_profile(model, tokens, places=["embed", At("embed", token=-1)])
    assert list(profile) == ["embed", "embed[token=-1]"]
    assert bool(
        (
            profile["embed[token=-1]"].jacobian_norm < profile["embed"].jacobian_norm
        ).all()
    )


def test_what_torch_func_refuses_is_measured_place_by_place():
    class Old(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return 2 * x

        @staticmethod
        def backward(ctx, gradient):
            return 2 * gradient

    class Doubled(nn.Module):
        def forward(self, x):
            return Old.apply(x)

    model = nn.Sequential(nn.Linear(4, 3), Doubled(), nn.Linear(3, 2)).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    agree(layer_profile(model, x), one_by_one(model, x, None, ["input", "2"]))


def test_frame_dictionary_means_and_repr():
    model, x = small_resnet(), PICTURES.double()
    constant = layer_profile(model, x, torch.zeros(3, dtype=torch.long))
    frame = constant.to_frame()
    assert list(frame.columns) == ["place", "sample", "measure", "value"]
    one = frame[(frame.place == "layer2") & (frame.measure == "radius")]
    assert one.value.tolist() == constant["layer2"].radius.tolist()
    told = json.loads(json.dumps(constant.to_dict(), allow_nan=False))
    assert (told["format"], told["version"]) == ("normalign layer profile", 1)
    assert told["at"]["layer2"]["samples"]["radius"] == one.value.tolist()
    assert told["at"]["layer2"]["n"] == 3
    assert constant.means()["layer4"] == constant["layer4"].mean()
    text = repr(constant)
    assert text.startswith("LayerProfile of 5 places, places found, means over 3")
    assert all(place in text for place in constant)
    assert isinstance(constant, LayerProfile)


def test_what_is_not_finite_is_none_in_the_dictionary():
    flat = nn.Linear(3, 2)
    nn.init.zeros_(flat.weight)
    flat.bias.data = torch.tensor([1.0, 0.0])
    told = layer_profile(flat, torch.ones(2, 3), torch.tensor([0, 0])).to_dict()
    assert told["at"]["input"]["samples"]["local_robustness"] == [None, None]


def test_an_empty_batch_has_places_without_samples():
    profile = layer_profile(mlp([4, 3, 2]), torch.zeros(0, 4), places=["input", "2"])
    assert [len(g) for g in profile.values()] == [0, 0]


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"places": []}, "places must be at least one"),
        ({"places": ["2", "2"]}, "places must be different from each other, got 2, 2"),
        ({"places": ["9"]}, "at must be the name of a submodule, got '9'"),
        ({"method": "svd"}, "method must be one of"),
    ],
)
def test_complaints_name_the_argument(settings, words):
    with pytest.raises(ValueError, match=f"^layer_profile: {words}"):
        layer_profile(mlp([4, 3, 2]), torch.randn(2, 4), **settings)


def test_batch_statistics_are_refused():
    with pytest.raises(ValueError, match=r"layer_profile: model must be in evaluation"):
        layer_profile(small_resnet().train(), PICTURES.double())


# memory

PEAK = """
import resource, sys, torch
from torch import nn
torch.set_num_threads(1)
from normalign.geometry import layer_profile
{build}
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
with torch.no_grad():
    model(x[:1])
before = peak()
profile = layer_profile(model, x, {settings})
print(list(profile), before // 1024, peak() // 1024)
"""

WIDE = """
torch.manual_seed(0)
model = nn.Sequential(
    nn.Conv2d(3, 64, 3, padding=1), nn.ReLU(),
    nn.Conv2d(64, 8, 7, stride=6), nn.ReLU(), nn.Flatten(), nn.Linear(800, {k}),
)
x = torch.randn(2, 3, 64, 64)
"""

RESNET50 = """
from normalign.nn import resnet50
model = resnet50(1000, stem="imagenet").eval()
coarse = torch.randn(1, 3, 7, 7)
x = nn.functional.interpolate(coarse, size=224, mode="bicubic")
"""


def megabytes(build, settings=""):
    """The peak of a process before and after a profile."""
    code = PEAK.format(build=build, settings=settings)
    source = str(Path(normalign.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": source},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    *_, before, after = done.stdout.split()
    return int(before), int(after)


@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in kilobytes")
@pytest.mark.parametrize("k", [160, 300], ids=["exact", "matrix free"])
def test_wide_layers_stay_near_the_budget(k):
    """The rows of 262144 numbers are kept once, or the space is, in float32."""
    settings = "memory_budget=2**27, places=['input', '2']"
    before, after = megabytes(WIDE.format(k=k), settings)
    rows = min(k, 128) * 262144 * 4 // 2**20
    # With float64 copies and joined blocks it is seven to nine times the rows.
    assert after - before < 4 * rows


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="counts memory in kilobytes")
def test_resnet50_with_1000_classes_stays_below_4_gigabytes():
    _, after = megabytes(RESNET50, "places=['layer2', 'layer3', 'layer4']")
    assert after < 4000


def test_a_graph_is_let_go_with_its_linearization():
    model, x = small_resnet(), PICTURES.double()
    with torch.no_grad():
        linear = LinearMap(*LocalMap(model).on(x))
        linear.push(torch.ones_like(linear.input).unsqueeze(0))
        shared = SharedPass([shared_place(LocalMap(model, at="layer1"), x)], x)
    gone = [weakref.ref(linear), weakref.ref(shared)]
    gc.disable()  # not by the collector, which may come late
    try:
        del linear, shared
        assert [ref() for ref in gone] == [None, None]
    finally:
        gc.enable()
