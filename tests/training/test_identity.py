"""Equal hashes mean the same computation; what cannot be compared is refused."""

import copy
import importlib
import math
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from normalign.nn import mlp
from normalign.training._checkpoint import digest, identify


def name(value):
    return identify("train", "loss", value)


def test_a_digest_is_of_the_numbers_in_their_order_however_they_lie():
    x = torch.rand(600, 3, 5, 4, generator=torch.Generator().manual_seed(0))
    assert digest(x) == digest(x.to(memory_format=torch.channels_last))
    assert digest(x) == digest(x.requires_grad_())
    others = [x.flip(0), x.double(), x[:, :, None], torch.cat([x, x[:1]]), -x]
    nudged = x.detach().clone()
    nudged[599, 2, 4, 3] += 1e-7
    assert len({digest(each) for each in (x, nudged, *others)}) == 7


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.tuples(inner)
        | st.dictionaries(st.text(), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(one=VALUES, other=VALUES)
def test_plain_values_share_a_hash_if_they_are_equal(one, other):
    assert name(one) == name(copy.deepcopy(one))

    def kinds(value):  # [] is no (), and True no 1; -0.0 may be another setting than 0
        if isinstance(value, list | tuple):
            return type(value), [kinds(v) for v in value]
        if isinstance(value, dict):
            return sorted((k, kinds(v)) for k, v in value.items())
        if isinstance(value, bool) or not isinstance(value, int | float):
            return type(value), value
        return value, math.copysign(1, value) if value == 0 else None

    assert (name(one) == name(other)) == (repr(kinds(one)) == repr(kinds(other))) or (
        kinds(one) == kinds(other)
    )


@dataclass
class Settings:
    rate: float = 0.1


class WithSlots:
    __slots__ = ("value",)

    def __init__(self, value):
        self.value = value


class Smooth:
    def __init__(self, amount):
        self.amount, self.cache = amount, []

    def describe(self):
        return {"amount": self.amount}

    def __call__(self, output, target):
        self.cache.append(1)
        return self.amount * output.mean()

    def loss(self, output, target):
        return self.amount * output.sum()


def hook(module, inputs, output):
    return 2 * output


def with_hook(network):
    network.register_forward_hook(hook)
    return network


def tied(network):
    network[1].weight = network[0].weight
    return network


def square(seed=0):
    generator = torch.Generator().manual_seed(seed)
    return mlp([3, 3, 3], bias=False, generator=generator)


def plain(network):
    return nn.Sequential(network[0], network[2])


DIFFERENT = {
    "arrays": (np.zeros(3), np.zeros(3, np.float32)),
    "array shapes": (np.zeros((2, 3)), np.zeros((3, 2))),
    "tensors": (torch.zeros(3), torch.zeros(3).half()),
    "attributes": (Settings(0.1), Settings(0.2)),
    "slots": (WithSlots(1), WithSlots(2)),
    "described": (Smooth(1.0), Smooth(2.0)),
    "methods": (Smooth(1.0).loss, Smooth(2.0).loss),
    "names of methods": (Smooth(1.0).loss, Smooth(1.0).__call__),
    "partial": (partial(max, 1), partial(max, 2)),
    "built in": (torch.relu, torch.tanh),
    "classes": (nn.ReLU, nn.Tanh),
    "modules": (nn.ReLU(), nn.Tanh()),
    "slopes": (nn.LeakyReLU(0.1), nn.LeakyReLU(0.2)),
    "modes": (nn.Dropout(), nn.Dropout().eval()),
    "hooks": (square(), with_hook(square())),
    "ties": (
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)),
        tied(nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))),
    ),
    "weights": (square(), square(1)),
    "generators": (
        torch.Generator().manual_seed(0), torch.Generator().manual_seed(1),
    ),
    "sets": ({1, 2}, {1, 3}),
    "masks": (np.ma.array([1, 2], mask=[0, 1]), np.ma.array([1, 2], mask=[1, 0])),
}  # fmt: skip


@pytest.mark.parametrize("case", DIFFERENT)
def test_values_of_another_content_have_another_hash(case):
    one, other = DIFFERENT[case]
    assert name(one) != name(other)
    if not isinstance(one, torch.Generator):
        assert name(one) == name(copy.deepcopy(one))


def test_what_an_object_describes_is_all_that_counts():
    smooth = Smooth(1.0)
    before = name(smooth)
    smooth(torch.ones(2), None)
    assert name(smooth) == before


def local():
    class Local:
        pass

    return Local


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (lambda: 1, "a lambda"),
        ([1, {"a": (lambda: 1,)}], "a lambda"),
        (partial(lambda: 1), "a lambda"),
        (local(), r"the local class local\.<locals>\.Local"),
        (local()(), r"the local class local\.<locals>\.Local"),
        (nn.Sequential(nn.ReLU(), local_module := nn.Identity()), None),
        ((i for i in ()), "a generator"),
        (sys.stdout, "a "),
    ],
)
def test_what_has_no_content_to_compare_is_refused(value, got):
    if got is None:
        local_module.act = lambda x: x
        got = "'1', a Identity with a lambda"
    rule = "^train: loss must be one that a checkpoint can identify, got "
    with pytest.raises(TypeError, match=rule + got):
        name(value)


CODE = """
import argparse
import enum
import torch
import own_helpers
from functools import cached_property, lru_cache, partial, wraps
from types import MethodType, SimpleNamespace
SCALE = {scale}
TABLE = {{"power": 2}}

def half(x):
    return x / {half}

def decorated(function):
    @wraps(function)
    def outer(*arguments):
        return {scale} * function(*arguments)
    return outer

def reads_a_global(output, target):
    return SCALE * output.mean()

def calls_another(output, target):
    return half(output).mean()

def reads_a_table(output, target):
    return output ** TABLE["power"]

class Settings:
    scale = {scale}

ARGUMENTS = argparse.Namespace(scale={scale}, resume=False)

def reads_an_attribute(output, target):
    return ARGUMENTS.scale * output.mean()

def reads_a_class(output, target):
    return Settings.scale * output.mean()

def calls_a_module(output, target):
    return own_helpers.halve(output).mean()

def has_a_default(output, target, scale={scale}):
    return scale * output.mean()

def has_a_constant(output, target):
    return {half} * output.mean()

@decorated
def is_decorated(output, target):
    return output.mean()

class Net(torch.nn.Module):
    def forward(self, x):
        return {half} * x

class Leaky(torch.nn.Module):
    slope = {scale}

    def forward(self, x):
        return self.slope * x

class Scaled:
    def loss(self, output, target):
        return {scale} * output.mean()

class Mixed(torch.nn.Module, Scaled):
    pass

class Wrapped:
    @decorated
    def __call__(self, output, target):
        return output.mean()

class Cached:
    @cached_property
    def scale(self):
        return {scale}

class Choice(enum.Enum):
    FIRST = {scale}

def forward(self, x):
    return {scale} * x

def patched():
    network = torch.nn.Identity()
    network.forward = MethodType(forward, network)
    return network

def with_gradient_hook():
    network = torch.nn.Linear(1, 1)
    torch.nn.init.zeros_(network.weight)
    torch.nn.init.zeros_(network.bias)
    network.weight.register_hook(times_scale)
    return network

def times_scale(gradient):
    return {scale} * gradient

@lru_cache
def cached_scale():
    return {scale}

def calls_a_cached_function(output, target):
    return cached_scale() * output.mean()

entropy = torch.nn.CrossEntropyLoss(label_smoothing={scale} / 10)

def calls_a_global_module(output, target):
    return entropy(output, target)

part = partial(torch.add, other={scale})

def calls_a_global_partial(output, target):
    return part(output).mean()

def makes_an_object(output, target):
    return Scaled().loss(output, target)

BOTH = {{"scale": {scale}, "function": lambda x: x}}

def reads_a_table_with_a_lambda(output, target):
    return BOTH["scale"] * output.mean()

def has_a_lambda_as_default(output, target, scale={scale}, function=lambda x: x):
    return function(scale * output.mean())

def has_a_lambda_with_a_constant(output, target, function=lambda x: {scale} * x):
    return function(output.mean())

INNER = SimpleNamespace(inner=SimpleNamespace(scale={scale}))

def reads_an_inner_attribute(output, target):
    return INNER.inner.scale * output.mean()

def reads_a_choice(output, target):
    return Choice.FIRST.value * output.mean()

DTYPE = [torch.float16, torch.float64][{scale} > 2]

def reads_a_dtype(output, target):
    return output.to(DTYPE).mean()

def imports_when_called(output, target):
    from own_helpers import halve
    return halve(output).mean()

def one(x):
    return x

def two(x):
    return 2 * x

def refers_to_itself(output, target):
    return TABLES["self"](output, target)

TABLES = {{"self": refers_to_itself, "scale": {scale}}}

first, second = (one, two) if {scale} == 1 else (two, one)

def calls_by_other_names(output, target):
    return first(output).mean() / second(output).sum()
"""


@pytest.fixture
def written(tmp_path, monkeypatch):
    """Import a module that is written anew with other constants."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def write(scale=1.0, half=2.0, **replaced):
        text = CODE.format(scale=scale, half=half)
        for old, new in replaced.values():
            text = text.replace(old, new)
        (tmp_path / "own_losses.py").write_text(text)
        helper = f"def halve(x):\n    return x / {half}\n"
        (tmp_path / "own_helpers.py").write_text(helper)
        forget()
        importlib.invalidate_caches()
        # Source and cache are compared by seconds and size: both may be as before.
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        return importlib.import_module("own_losses")

    def forget():
        for module in ("own_losses", "own_helpers"):
            sys.modules.pop(module, None)

    yield write
    forget()


@pytest.mark.parametrize(
    ("function", "change"),
    [
        ("reads_a_global", {"scale": 5.0}),
        ("calls_another", {"half": 3.0}),
        ("reads_a_table", {"table": ('"power": 2', '"power": 3')}),
        ("reads_an_attribute", {"scale": 5.0}),
        ("reads_a_class", {"scale": 5.0}),
        ("calls_a_module", {"half": 3.0}),
        ("has_a_default", {"scale": 5.0}),
        ("has_a_constant", {"half": 3.0}),
        ("is_decorated", {"scale": 5.0}),
        ("Net", {"half": 3.0}),
        ("imports_when_called", {"half": 3.0}),
        *(
            (function, {"scale": 5.0})
            for function in (
                "Leaky", "Mixed", "Wrapped", "Cached", "Choice",
                "calls_a_cached_function", "calls_a_global_module",
                "calls_a_global_partial", "makes_an_object",
                "reads_a_table_with_a_lambda", "has_a_lambda_as_default",
                "has_a_lambda_with_a_constant", "reads_an_inner_attribute",
                "reads_a_choice", "reads_a_dtype", "refers_to_itself",
                "calls_by_other_names",
            )
        ),
    ],
)  # fmt: skip
def test_functions_and_classes_count_by_their_code_and_what_they_read(
    written, function, change
):
    before = name(getattr(written(), function))
    assert name(getattr(written(), function)) == before
    assert name(getattr(written(**change), function)) != before


@pytest.mark.parametrize(
    "make",
    [
        lambda module: module.Leaky(),
        lambda module: module.Scaled().loss,
        lambda module: module.Choice.FIRST,
        lambda module: module.patched(),
        lambda module: module.with_gradient_hook(),
        lambda module: partial(module.calls_a_global_module, target=None),
    ],
)
def test_objects_count_by_the_code_and_the_attributes_of_their_class(written, make):
    before = name(make(written()))
    assert name(make(written())) == before
    assert name(make(written(scale=5.0))) != before


def test_what_is_called_but_has_no_content_is_refused(written):
    module = written()
    module.half = torch.jit.trace(torch.neg, torch.ones(1))
    with pytest.raises(TypeError, match="identify, got a ScriptFunction"):
        name(module.calls_another)


def test_names_that_are_no_globals_of_the_code_and_unread_settings_do_not_count(
    written,
):
    module = written()
    before = name(module.reads_an_attribute)
    module.mean, module.ARGUMENTS.resume = 1.0, True
    assert name(module.reads_an_attribute) == before


def test_what_is_compiled_counts_as_what_it_was_made_of(written):
    network, loss = square(), written().has_a_constant
    assert name(torch.compile(network)) == name(network)
    assert name(torch.compile(loss)) == name(loss)


def test_another_process_finds_the_same_hash():
    code = (
        "from tests.training.test_identity import *\n"
        "print(*(name(one) for one, _ in DIFFERENT.values()), name(hook))"
    )
    other = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        cwd=Path(__file__).parents[2],
        env={"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONHASHSEED": "1"},
    )  # fmt: skip
    random = ("ties",)  # its weights are drawn when this module is imported
    found = dict(zip([*DIFFERENT, "hook"], other.stdout.split(), strict=True))
    expected = {case: name(one) for case, (one, _) in DIFFERENT.items()}
    expected["hook"] = name(hook)
    for case in random:
        del found[case], expected[case]
    assert found == expected
