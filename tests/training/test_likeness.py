from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.nn import functional

from normalign.training import Member, networks
from normalign.training.rules import SGD, AdamW
from tests.training.ensembles import chains, ensemble, task

SGDS = [Member(0, SGD(0.1)), Member(1, SGD(0.1))]


class Shaped(nn.Module):
    """A layer behind a function that no parameter shows."""

    def __init__(self, function, *, factor=1.0, hidden=1.0) -> None:
        super().__init__()
        self.function, self.factor, self._hidden = function, factor, hidden
        self.linear = nn.Linear(6, 3, dtype=torch.float64)

    def forward(self, x):
        factor = self.factor[0] if isinstance(self.factor, list) else self.factor
        return self.linear(self.function(x)) * factor * self._hidden


class Counting(nn.Module):
    def __init__(self, *, anew=False) -> None:
        super().__init__()
        self.linear, self.anew = nn.Linear(6, 3, dtype=torch.float64), anew
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x):
        if self.anew:
            self.calls = self.calls + 1
        else:
            self.calls += 1
        return self.linear(x)


class Idle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.used = nn.Linear(6, 3, dtype=torch.float64)
        self.spare = nn.Parameter(torch.ones(4, dtype=torch.float64))

    def forward(self, x):
        return self.used(x)


def slope(value):
    return partial(functional.leaky_relu, negative_slope=value)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (lambda: Shaped(lambda z: z.relu()), lambda: Shaped(lambda z: z.tanh())),
        (lambda: Shaped(slope(0.1)), lambda: Shaped(slope(0.9))),
        (
            lambda: Shaped(torch.tanh, factor=torch.tensor(1.0)),
            lambda: Shaped(torch.tanh, factor=torch.tensor(5.0)),
        ),
        (
            lambda: Shaped(torch.tanh, factor=[1]),
            lambda: Shaped(torch.tanh, factor=[5]),
        ),
        (lambda: Shaped(torch.tanh), lambda: Shaped(torch.tanh, hidden=2.0)),
    ],
    ids=["lambda", "partial", "tensor", "list", "private"],
)
def test_networks_that_differ_in_what_they_do_are_refused(first, second):
    these = [*SGDS, Member(2, AdamW())]
    rule = r"^Ensemble: networks\[2\] must be what the first network becomes .*off by"
    with pytest.raises(ValueError, match=rule):
        ensemble([first(), first(), second()], task(), these)
    assert len(ensemble([first() for _ in these], task(), these).train()) == 3


def test_each_network_is_looked_at_on_data_of_its_own():
    far = SimpleNamespace(**vars(task()))
    far.x_train = -task().x_train.abs()
    near = SimpleNamespace(**vars(task()))
    near.x_train = task().x_train.abs()
    pair = [Shaped(slope(0.1)), Shaped(slope(0.9))]
    # They agree where inputs are positive, and the second sees no such.
    with pytest.raises(ValueError, match=r"networks\[1\] must be what the first"):
        ensemble(pair, [near, far], SGDS)


def test_a_wrong_fast_road_is_found(monkeypatch):
    def shifted(self, parameters, x):
        return self.chain.run(parameters, x).stacked + 0.01

    monkeypatch.setattr(networks.StackedChains, "outputs", shifted)
    for made in (chains(2), [network.float() for network in chains(2)]):
        with pytest.raises(ValueError, match=r"networks\[0\] must be what the first"):
            ensemble(made, task(), SGDS)


class Cancelling(nn.Module):
    """Large terms that leave a small output, most of it rounding."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 300)

    def forward(self, x):
        large = 1e4 * self.linear(x)
        return large.cumsum(1)[:, -3:] - large.sum(1, keepdim=True).expand(-1, 3)


def test_rounding_alone_is_no_difference():
    cancelling = [Cancelling(), Cancelling()]
    for made in (cancelling, [network.float() for network in chains(2)]):
        assert len(ensemble(made, task(), SGDS, epochs=0).train()) == 2


@pytest.mark.parametrize("anew", [False, True])
def test_a_network_that_changes_its_buffers_is_refused_and_left_alone(anew):
    network = Counting(anew=anew)
    rule = r"^Ensemble: networks\[0\] must be one that leaves its buffers alone, got a "
    with pytest.raises(ValueError, match=f"{rule}changed 'calls'"):
        ensemble([network], task(), SGDS[:1])
    assert network.calls == 0


def test_a_buffer_of_nan_is_not_a_change():
    networks = chains(2)
    for network in networks:
        network.register_buffer("unset", torch.tensor([float("nan"), 1.0]))
    assert len(ensemble(networks, task(), SGDS, epochs=0).train()) == 2


def test_parameters_that_the_output_does_not_use_are_refused():
    rule = r"networks\[0\] must be one whose output depends on all its parameters"
    with pytest.raises(ValueError, match=f"^Ensemble: {rule}, got an idle 'spare'"):
        ensemble([Idle()], task(), SGDS[:1])


def test_the_look_draws_no_random_numbers():
    before = torch.get_rng_state()
    ensemble(chains(2), task(), SGDS)
    assert torch.equal(torch.get_rng_state(), before)
