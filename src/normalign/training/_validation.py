"""Validation of an ensemble, before it is trained."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from normalign._errors import describe, require, require_kind
from normalign._linear_map import rounding
from normalign._torch_compat import (
    attention_with_derivatives,
    frozen_randomness,
    has_recurrence,
)

if TYPE_CHECKING:
    from normalign.training._networks import Networks

__all__ = [
    "check_alike",
    "check_calls",
    "check_counts",
    "check_listed",
    "check_outputs",
    "check_pure",
    "check_sets",
    "check_trainable",
    "check_whole",
    "same_bits",
    "structure",
    "working_dtype",
]

CALLEE = "Ensemble"
APART = "Train other architectures in an ensemble of their own."

Pair = tuple[Tensor, Tensor]


def check_whole(name: str, value: Any, least: int) -> None:
    """Refuse what is no integer of at least ``least``."""
    whole = isinstance(value, int) and not isinstance(value, bool)
    require_kind(whole, CALLEE, name, "an integer", value)
    require(value >= least, CALLEE, name, f"at least {least}", value)


def check_listed(name: str, values: Any, kind: type, rule: str) -> list[Any]:
    """Return a list of things of one kind, or refuse what is none."""
    several = isinstance(values, Iterable) and not isinstance(values, kind)
    got = f"a {type(values).__name__}"
    require_kind(several, CALLEE, name, f"a sequence, each {rule}", got)
    listed = list(values)
    for position, value in enumerate(listed):
        argument = f"{name}[{position}]"
        require_kind(isinstance(value, kind), CALLEE, argument, rule, describe(value))
    return listed


def check_calls(callee: str, *, needed: bool = False, **functions: Any) -> None:
    """Refuse what cannot be called; None is no function, where none is needed."""
    for name, function in functions.items():
        is_valid = callable(function) or (function is None and not needed)
        require_kind(is_valid, callee, name, "a function", describe(function))


def check_counts(networks: Sequence[Any], splits: Sequence[Any], s: int) -> None:
    """Refuse other than one network and one split for each of s members."""
    require(s >= 1, CALLEE, "members", "at least one", f"{s}")
    rule = f"one for each of the {s} members"
    require(len(networks) == s, CALLEE, "networks", rule, f"{len(networks)}")
    require(len(splits) == s, CALLEE, "data", rule, f"{len(splits)}")


def check_sets(sets: Mapping[str, Sequence[Pair]], s: int) -> None:
    """Refuse sets that cannot be stacked: others than s alike, non-empty pairs."""
    for name, pairs in sets.items():
        rule = f"one (x, y) for each of the {s} members"
        require(len(pairs) == s, CALLEE, f"the {name} set", rule, f"{len(pairs)}")
        for x, y in pairs:
            for part, value in (("x", x), ("y", y)):
                is_valid, argument = (
                    isinstance(value, Tensor),
                    f"{part} of the {name} set",
                )
                require_kind(is_valid, CALLEE, argument, "a tensor", describe(value))
            rule = "non-empty, with a target for each input"
            got = f"shapes {tuple(x.shape)} and {tuple(y.shape)}"
            fits = x.ndim > 0 and y.ndim > 0 and len(x) == len(y) > 0
            require(fits, CALLEE, f"the {name} set", rule, got)
        for part, values in zip(("x", "y"), zip(*pairs, strict=True), strict=True):
            kinds = {(value.dtype, tuple(value.shape)) for value in values}
            got = ", ".join(sorted(f"{dtype} {shape}" for dtype, shape in kinds))
            rule, argument = "alike for all members", f"{part} of the {name} set"
            require(len(kinds) == 1, CALLEE, argument, rule, got)


def check_trainable(network: nn.Module, position: int) -> None:
    """Refuse a network whose parameters are not all real and trained."""
    argument = f"networks[{position}]"
    is_valid = isinstance(network, nn.Module)
    require_kind(is_valid, CALLEE, argument, "a module", describe(network))
    parameters = dict(network.named_parameters())
    require(len(parameters) > 0, CALLEE, argument, "one with parameters", network)
    kinds = {(p.dtype, p.device.type) for p in parameters.values()}
    got = ", ".join(sorted(f"{dtype} on {device}" for dtype, device in kinds))
    require(len(kinds) == 1, CALLEE, argument, "of one dtype and device", got)
    for name, parameter in parameters.items():
        real = parameter.is_floating_point()
        require_kind(real, CALLEE, argument, "one of real parameters", parameter)
        rule, got = "one whose parameters all train", f"a frozen {name!r}"
        remedy = (
            "Call requires_grad_() on it; or make it a buffer, the same in all "
            "networks: value = p.detach(); del module.p; "
            "module.register_buffer('p', value)."
        )
        require(parameter.requires_grad, CALLEE, argument, rule, got, remedy)


def check_alike(network: nn.Module, first: nn.Module, position: int) -> None:
    """Refuse a network that differs from the first in more than its parameters."""
    argument = f"networks[{position}]"
    rule = "of the same architecture as the first"
    expected, found = structure(first), structure(network)
    for name in sorted(expected.keys() | found.keys()):
        mine, other = expected.get(name, "nothing"), found.get(name, "nothing")
        got = f"{other} where the first has {mine}, at {name}"
        require(mine == other, CALLEE, argument, rule, got, APART)
    kinds = [next(n.parameters()) for n in (first, network)]
    same = kinds[0].dtype == kinds[1].dtype and kinds[0].device == kinds[1].device
    got = f"{kinds[1].dtype} on {kinds[1].device}"
    require(same, CALLEE, argument, "of the dtype and device of the first", got)
    buffers = dict(network.named_buffers())
    for name, value in first.named_buffers():
        rule, got = "of the same buffers as the first", f"another {name!r}"
        same = same_bits(value, buffers[name])
        require(same, CALLEE, argument, rule, got, APART)


def same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    """Whether two buffers agree in dtype, shape and every bit; NaN is NaN."""
    if one is None or other is None:
        return one is other
    if one.shape != other.shape or one.dtype != other.dtype:
        return False
    pair = (one.detach(), other.detach().to(one.device))
    bits = [value.contiguous().reshape(-1).view(torch.uint8) for value in pair]
    return torch.equal(*bits)


def check_pure(network: nn.Module, position: int) -> None:
    """Refuse layers that draw random numbers or mix the samples of a batch."""
    argument = f"networks[{position}]"
    rule, got = "without RNN, LSTM and GRU layers", "one that torch.func cannot batch"
    remedy = "Train it with normalign.training.train."
    require(not has_recurrence(network), CALLEE, argument, rule, got, remedy)
    rule = "a deterministic function of each sample"
    for name, module in network.named_modules():
        label = f"{type(module).__name__} {name!r}"
        dropout = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        norm = isinstance(module, nn.modules.batchnorm._NormBase)
        mixing = isinstance(module, nn.modules.batchnorm._BatchNorm)
        restless = dropout or mixing or (norm and module.track_running_stats)
        got = f"{label} in training mode"
        remedy = "Call .eval() on that layer, or train with normalign.training.train."
        legal = not (restless and module.training)
        require(legal, CALLEE, argument, rule, got, remedy)
        legal = not mixing or module.running_mean is not None
        got = f"{label} without running statistics"
        remedy = "Build it with track_running_stats=True, or use GroupNorm."
        require(legal, CALLEE, argument, rule, got, remedy)


def structure(network: nn.Module) -> dict[str, str]:
    """Return what a network is, apart from its numbers: one entry for each thing.

    Modules by their class, parameters and buffers by their shape, plain attributes
    (widths, slopes, activations) by their value.

    Examples
    --------
    >>> structure(nn.LeakyReLU(0.2))["negative_slope"]
    '0.2'
    """
    found: dict[str, str] = {}
    for name, module in network.named_modules():
        prefix = f"{name}." if name else ""
        kind = type(module)
        found[name or "its top"] = f"{kind.__module__}.{kind.__qualname__}"
        for key, value in vars(module).items():
            if key.startswith("_") or key == "training":
                continue
            if value is None or isinstance(value, bool | int | float | str | tuple):
                found[prefix + key] = repr(value)
            elif isinstance(value, Callable) and hasattr(value, "__qualname__"):
                found[prefix + key] = value.__qualname__
    for name, value in network.named_parameters(remove_duplicate=False):
        found[name] = f"a parameter of shape {tuple(value.shape)}"
    for name, value in network.named_buffers(remove_duplicate=False):
        found[name] = f"a buffer of shape {tuple(value.shape)}"
    return found


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
