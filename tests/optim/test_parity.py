"""The same steps as another implementation, where the two rules coincide."""

import pytest
import torch

from normalign.optim import Grokfast, OrthoGrad
from tests.optim.rules import FILTERS, backward, network, same_weights, train

others = pytest.importorskip(
    "pytorch_optimizer", reason="compares with pytorch-optimizer, not installed"
)

CLOSE = {"atol": 1e-12, "rtol": 1e-12}  # twenty steps of float64


def test_grokfast_on_adamw_is_grokfast_adamw():
    # Theirs divides the learning rate by 1 + strength unless told otherwise, and takes
    # the larger of root and eps where torch adds the two: equal only for eps = 0.
    ours, theirs = network(), network()
    shared = {"lr": 1e-2, "betas": (0.9, 0.99), "eps": 0.0, "weight_decay": 0.1}
    own = torch.optim.AdamW(ours.parameters(), **shared)
    Grokfast(own, decay=0.8, strength=0.1)
    other = others.GrokFastAdamW(
        theirs.parameters(),
        grokfast_alpha=0.8,
        grokfast_lamb=0.1,
        normalize_lr=False,
        **shared,
    )
    train(ours, own, range(20))
    train(theirs, other, range(20))
    same_weights(ours, theirs, **CLOSE)


@pytest.mark.parametrize("foreach", [False, True])
def test_orthograd_with_rescaling_is_their_orthograd(foreach):
    # Theirs always rescales; without it there is nothing to compare with.
    ours, theirs = network(), network()
    own = torch.optim.AdamW(ours.parameters(), lr=1e-2)
    OrthoGrad(own, rescale=True)
    inner = torch.optim.AdamW(theirs.parameters(), lr=1e-2)
    train(ours, own, range(20))
    train(theirs, others.OrthoGrad(inner, foreach=foreach), range(20))
    same_weights(ours, theirs, **CLOSE)


@pytest.mark.parametrize("steps", [3, 9])
def test_the_window_is_their_moving_average_filter(steps):
    moving_average = others.optimizer.grokfast.gradfilter_ma
    ours, theirs = network(), network()
    own = torch.optim.SGD(ours.parameters(), lr=0.1)
    FILTERS["window"](own)
    train(ours, own, range(steps))
    other, queues = torch.optim.SGD(theirs.parameters(), lr=0.1), None
    for step in range(steps):
        backward(theirs, step)
        queues = moving_average(theirs, queues, window_size=4, lamb=2.0)
        other.step()
    same_weights(ours, theirs, **CLOSE)
