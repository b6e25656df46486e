"""Unbiased estimates of Jacobian norms that cost one pull-back each."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from normalign._checks import require, require_kind
from normalign.geometry.quirks import attention_with_derivatives, refuse_mixing

__all__ = ["augmented_norm"]


def augmented_norm(
    model: Callable[[Tensor], Tensor],
    x: Tensor,
    *,
    n_probes: int = 1,
    generator: torch.Generator | None = None,
) -> tuple[Tensor, Tensor]:
    r"""Return the outputs and an estimate of the squared norm of each local map.

    .. math:: \lVert J_x \rVert_F^2 + \lVert b_x \rVert_2^2
        = \mathbb{E}_v\!\left[ \lVert J_x^\top v \rVert_2^2
        + \big(v^\top f(x) - \langle J_x^\top v, x\rangle\big)^2 \right],
        \qquad v \sim \mathcal{N}(0, I_k)

    It is Hutchinson's estimator (Lemma *hutchinson*, Alg. 2) for the augmented
    Jacobian :math:`(J_x, b_x)` in the constraint of Theorem 1: since
    :math:`b_x = f(x) - J_x x`, the one vector :math:`J_x^\top v` gives both terms.
    Unbiased for every ``n_probes``; with
    :math:`A = J_x J_x^\top + b_x b_x^\top` its variance is
    :math:`2\lVert A \rVert_F^2` over ``n_probes``. The released experiments penalise
    the square root of the first term (biased low) and estimate the second with a
    second forward pass; this form needs neither.

    The cost is one forward pass, shared with the task loss through the returned
    outputs, and one pull-back per probe. Both returned tensors are differentiable in
    the parameters. If the model draws random numbers (dropout), the estimate is of
    the map that was drawn.

    Parameters
    ----------
    model : callable
        Maps ``x`` to outputs of shape (n, ...), each sample on its own.
    x : Tensor of shape (n, ...)
        Floating point. It is not changed, and need not require a gradient.
    n_probes : int, default=1
        Number of probes :math:`v` for each sample.
    generator : torch.Generator, optional
        Source of the probes; ``None`` is torch's default generator.

    Returns
    -------
    output : Tensor of shape (n, ...)
        What ``model(x)`` returns.
    squared_norm : Tensor of shape (n,)

    Raises
    ------
    ValueError
        If batch normalisation uses the statistics of the batch (it couples the
        samples), if the outputs do not depend on ``x``, or if the estimate would not
        be differentiable in any parameter, so that penalising it would do nothing.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 1)
    >>> _ = [torch.nn.init.zeros_(p) for p in model.parameters()]
    >>> augmented_norm(model, torch.ones(2, 3))[1]  # J = 0 and b = 0
    tensor([0., 0.], grad_fn=<...>)
    """
    _check_arguments(model, x, n_probes)
    own = None if x.requires_grad else x.detach().clone().requires_grad_()
    point = x if own is None else own
    with attention_with_derivatives():
        output = model(point.clone())  # a first layer may work in place
    _check_output(output, x)

    squared_norm = output.new_zeros(len(x))
    for _ in range(n_probes):
        probe = _probe(output, generator)
        pulled = _pull_back(output, probe, point, own).flatten(start_dim=1)
        along = (pulled * point.flatten(start_dim=1)).sum(dim=1)
        offset = (probe * output).flatten(start_dim=1).sum(dim=1) - along
        squared_norm = squared_norm + pulled.square().sum(dim=1) + offset.square()
    return output, squared_norm / n_probes


def _probe(output: Tensor, generator: torch.Generator | None) -> Tensor:
    """Draw standard normal numbers where the generator lives, for each output."""
    device = output.device if generator is None else generator.device
    probe = torch.randn(
        output.shape, generator=generator, device=device, dtype=output.dtype
    )
    return probe.to(output.device)


def _pull_back(
    output: Tensor, probe: Tensor, point: Tensor, ignored: Tensor | None
) -> Tensor:
    """Return ``J^T v`` for each sample, with its graph, shaped like the input."""
    pulled = torch.autograd.grad(
        output, point, grad_outputs=probe, create_graph=True, allow_unused=True
    )[0]
    callee, argument = "augmented_norm", "model"
    rule = "a function of x"
    require(pulled is not None, callee, argument, rule, "outputs that ignore x")
    rule = "differentiable in its parameters through its Jacobian"
    got = "a Jacobian that depends on none"
    remedy = "Check that some have requires_grad=True and that nothing detaches them."
    require(_reaches_a_leaf(pulled, ignored), callee, argument, rule, got, remedy)
    return pulled


def _reaches_a_leaf(value: Tensor, ignored: Tensor | None) -> bool:
    """Say whether a gradient of ``value`` reaches any leaf but the ignored one.

    ``value.requires_grad`` is not enough: the pull-back through a frozen ReLU network
    has a graph, but only back to the input.
    """
    stack, seen = [value.grad_fn], set()
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None)
        if leaf is not None and leaf is not ignored:
            return True
        stack.extend(parent for parent, _ in node.next_functions)
    return False


def _check_arguments(
    model: Callable[[Tensor], Tensor], x: Tensor, n_probes: int
) -> None:
    callee = "augmented_norm"
    real = isinstance(x, Tensor) and x.is_floating_point()
    require_kind(real, callee, "x", "a floating point tensor", x)
    require(x.ndim >= 2, callee, "x", "of shape (n, ...)", x)
    whole = isinstance(n_probes, int) and not isinstance(n_probes, bool)
    require_kind(whole, callee, "n_probes", "an integer", n_probes)
    require(n_probes >= 1, callee, "n_probes", "at least 1", n_probes)
    remedy = "A penalty computed without gradients would do nothing."
    require(
        torch.is_grad_enabled(), callee, "the call", "made with gradients enabled",
        "a call under torch.no_grad()", remedy,
    )  # fmt: skip
    refuse_mixing(
        model, callee,
        "Put those layers into eval() while you train the rest, or use a "
        "normalisation within the sample, such as torch.nn.GroupNorm.",
    )  # fmt: skip


def _check_output(output: Tensor, x: Tensor) -> None:
    callee, argument = "augmented_norm", "model"
    tensor = isinstance(output, Tensor)
    require_kind(tensor, callee, argument, "a function into tensors", output)
    per_sample = output.ndim >= 2 and len(output) == len(x)
    rule = f"a function into tensors of shape (n, ...) with n = {len(x)}"
    require(per_sample, callee, argument, rule, output)
    rule = "differentiable in x"
    remedy = "Nothing inside it may detach, or run under torch.no_grad()."
    require(
        output.requires_grad, callee, argument, rule, "outputs without a graph", remedy
    )
