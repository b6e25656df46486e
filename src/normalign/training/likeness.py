"""Whether the networks of an ensemble are what it computes in their place."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from normalign._errors import require
from normalign._linear_map import rounding
from normalign._torch_compat import attention_with_derivatives, frozen_randomness
from normalign.training.networks import Networks
from normalign.training.refusals import APART, CALLEE, same_bits

__all__ = ["check_outputs", "working_dtype"]

# Samples of each network that are looked at.
_FEW = 2


def working_dtype(value: Tensor, like: Tensor) -> torch.dtype:
    """Return the dtype in which data are used: integers stay integers."""
    return like.dtype if value.is_floating_point() else value.dtype


def check_outputs(
    networks: Sequence[nn.Module],
    architecture: Networks,
    rows: Tensor,
    inputs: Sequence[Tensor],
) -> None:
    """Refuse networks that the architecture, with their parameters, is not.

    An ensemble computes all networks by the code of the first. Functions, lists or
    tensors in attributes can make another network another function, and nothing but its
    outputs shows it. Each network is called here, as a copy, on its first samples.

    Parameters
    ----------
    networks : sequence of torch.nn.Module
        Not changed.
    architecture : Networks
    rows : Tensor of shape (s, p)
        Parameters of the networks.
    inputs : sequence of Tensor of shape (n, ...)
        Training inputs of each network.

    Raises
    ------
    ValueError
        If outputs differ by more than rounding, a network changes its buffers, or has
        parameters that its output does not depend on.
    """
    place = next(architecture.network.parameters()).device
    firsts = torch.stack([x[:_FEW].detach().to(place) for x in inputs])
    firsts = firsts.to(working_dtype(firsts, rows))
    with torch.no_grad():
        found = architecture.outputs(architecture.split(rows.to(place)), firsts)
    # tune_weight gives one network for all candidates.
    distinct: dict[tuple[int, int], int] = {}
    for i, pair in enumerate(zip(map(id, networks), map(id, inputs), strict=True)):
        distinct.setdefault(pair, i)
    expected = {}
    with frozen_randomness(), attention_with_derivatives():
        for i in distinct.values():
            expected[i] = _own_output(networks[i], firsts[i], i)
    for i, output in expected.items():
        off, network = _distance(found[i], output), networks[i]
        if off > 0 and rows.dtype != torch.float64:
            off = _exact_distance(network, architecture, rows[i], firsts[i], off)
        rule = "what the first network becomes with its parameters"
        got = f"outputs that are off by {off:.2g} of their size"
        remedy = f"Functions, lists and tensors in attributes must be alike. {APART}"
        require(off == 0, CALLEE, f"networks[{i}]", rule, got, remedy)


def _own_output(network: nn.Module, x: Tensor, position: int) -> Tensor:
    """Return what a network says itself, (n, k), if it leaves its buffers alone."""
    argument = f"networks[{position}]"
    mine = copy.deepcopy(network).to(x.device)
    with torch.set_grad_enabled(position == 0):
        output = mine(x.clone()).reshape(len(x), -1)
    before, after = dict(network.named_buffers()), dict(mine.named_buffers())
    for name in before.keys() | after.keys():
        pair = [buffers.get(name) for buffers in (before, after)]
        rule, got = "one that leaves its buffers alone", f"a changed {name!r}"
        remedy = "Its course would depend on who trains beside it."
        require(same_bits(*pair), CALLEE, argument, rule, got, remedy)
    if position == 0:  # the others have the same code
        _check_used(mine, output, argument)
    return output.detach()


def _check_used(network: nn.Module, output: Tensor, argument: str) -> None:
    """Refuse parameters that never get a gradient: torch's optimizers skip them."""
    names, parameters = zip(*network.named_parameters(), strict=True)
    gradients: Sequence[Tensor | None] = [None] * len(names)
    if output.requires_grad:
        total = output.sum()
        gradients = torch.autograd.grad(total, parameters, allow_unused=True)
    for name, gradient in zip(names, gradients, strict=True):
        rule = "one whose output depends on all its parameters"
        got, remedy = f"an idle {name!r}", "Remove it, or make it a buffer."
        require(gradient is not None, CALLEE, argument, rule, got, remedy)


def _distance(found: Tensor, expected: Tensor) -> float:
    """Return how far outputs are apart, relative to their size; 0 for rounding."""
    if found.shape != expected.shape:
        return torch.inf
    finite = expected[expected.isfinite()]
    size = float(finite.abs().max()) if finite.numel() else 0.0
    tolerance = rounding(expected.dtype)
    near = torch.isclose(found, expected, rtol=0, atol=tolerance * size, equal_nan=True)
    if bool(near.all()):
        return 0.0
    off = float((found - expected).abs().nan_to_num(torch.inf).max())
    return off / size if size > 0 else torch.inf


def _exact_distance(
    network: nn.Module, architecture: Networks, row: Tensor, x: Tensor, off: float
) -> float:
    """Return the distance in float64, where outputs are small next to what they are of.

    Large terms that cancel, or a device's short mantissas, may be all there is to it. A
    network that cannot be run in float64 keeps the distance it has.
    """
    exact, mine = copy.deepcopy(architecture), copy.deepcopy(network).to(x.device)
    exact.network.double()
    x = x.double() if x.is_floating_point() else x
    parameters = exact.split(row[None].to(x.device, torch.float64))
    try:
        with frozen_randomness(), attention_with_derivatives(), torch.no_grad():
            found = exact.outputs(parameters, x[None].clone())[0]
            expected = mine.double()(x.clone()).reshape(len(x), -1)
    except (RuntimeError, TypeError):
        return off
    return _distance(found, expected)
