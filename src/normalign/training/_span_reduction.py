"""Training in the span of the first weights and the data: fewer inputs, same path."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import cast

import torch
from torch import Tensor, nn

from normalign._errors import complaint, describe, require, require_kind
from normalign._torch_compat import frozen_randomness

__all__ = ["SpanReduction", "span_reduction"]

# A row of unit length that is nearer than this to the span of the others counts as
# lying in it. Inner products are known to about 1e-15, and distances are their roots.
NEAR = 1e-6

# Rows of the Gram matrix that are computed together. Only the part up to the diagonal
# is needed; smaller strips waste less above it, and these still fill a CPU's caches.
STRIP = 512


@dataclass(frozen=True, eq=False)
class SpanReduction:
    """A network and its training inputs in coordinates of the span they move in.

    Made by :func:`span_reduction`. It holds the initial first weight (a copy) and the
    training inputs (not a copy: do not change them in place), which :meth:`project`
    and :meth:`lift` need; keep :attr:`network` alone if you need neither any more.

    Attributes
    ----------
    network : torch.nn.Module
        A copy of the network whose first linear layer takes h + n inputs.
    x_train : Tensor of shape (n, h + n)
        The training inputs for it.
    rank : int
        Dimension of the span; the coordinates from there on are zero.
    """

    network: nn.Module
    x_train: Tensor
    rank: int
    _layer: str = field(repr=False)
    _rows: tuple[Tensor, Tensor] = field(repr=False)
    # (h + n, h + n), float64: the orthonormal basis as combinations of those rows.
    _basis: Tensor = field(repr=False)
    _memory_budget: int = field(repr=False)

    @torch.no_grad()
    def project(self, x: Tensor) -> Tensor:
        r"""Return the coordinates of other points, for the reduced network.

        .. math:: \tilde z = L^{-1} A z

        The part of a point outside the span is dropped: no first weight that training
        can reach sees it, so the outputs are those of the original network. Norms do
        shrink by that part. Measure what compares a Jacobian with the point itself
        (alignment, centroids) at new points after :meth:`lift`, or with their true
        norms. The cost is one product of the h + n rows with the m points.

        Parameters
        ----------
        x : Tensor of shape (m, d)

        Returns
        -------
        Tensor of shape (m, h + n)

        Raises
        ------
        TypeError
            If its dtype or device is not that of the training inputs.
        ValueError
            If it is not of shape (m, d).
        """
        callee = "SpanReduction.project"
        d = self._rows[0].shape[1]
        require_kind(isinstance(x, Tensor), callee, "x", "a tensor", x)
        _require_alike(callee, "x", x, "the training inputs", self.x_train)
        require(x.ndim == 2 and x.shape[1] == d, callee, "x", f"of shape (m, {d})", x)
        products = self._basis.new_zeros((len(self._basis), len(x)))
        for columns, rows in _blocks(self._rows, self._memory_budget, beside=len(x)):
            products.addmm_(rows, x.detach()[:, columns].to(products.dtype).T)
        return (self._basis @ products).T.to(x.dtype).contiguous()

    @torch.no_grad()
    def lift(self, network: nn.Module) -> nn.Module:
        r"""Return a reduced network, trained or not, in the original coordinates.

        .. math:: W = \tilde W L^{-1} A

        Parameters
        ----------
        network : torch.nn.Module
            :attr:`network` after training, or another of its kind. It is not changed.

        Returns
        -------
        torch.nn.Module
            A copy whose first linear layer takes d inputs again.

        Raises
        ------
        TypeError
            If it has no such linear layer, or one on another device.
        ValueError
            If that layer does not take h + n inputs.
        """
        callee, argument = "SpanReduction.lift", "network"
        layer = _named_linear(callee, network, self._layer)
        r, d = len(self._basis), self._rows[0].shape[1]
        rule = f"one whose layer {self._layer!r} takes {r} inputs"
        fits = layer.in_features == r
        require(fits, callee, argument, rule, f"one of {layer.in_features}")
        _require_alike(
            callee, "the weight", layer.weight, "the training inputs", self.x_train
        )
        combinations = layer.weight.to(self._basis.dtype) @ self._basis
        weight = layer.weight.new_empty((layer.out_features, d))
        for columns, rows in _blocks(
            self._rows, self._memory_budget, beside=len(weight)
        ):
            weight[:, columns] = (combinations @ rows).to(weight.dtype)
        return _with_first_weight(network, self._layer, weight)


@torch.no_grad()
def span_reduction(
    network: nn.Module,
    x_train: Tensor,
    *,
    layer: str | None = None,
    memory_budget: int = 2**27,
) -> SpanReduction:
    r"""Return a network and its data in fewer inputs, for the same course of training.

    .. math:: A = \begin{pmatrix} W_0 \\ X \end{pmatrix}, \qquad A A^\top = L L^\top,
        \qquad \tilde W_0, \tilde X = \text{the rows of } L

    The gradient of a loss in the first weight is a combination of training inputs, and
    that of a penalty on the Jacobian :math:`J` a combination of those and of rows of
    the weight. So every row of the weight stays in the span of its start :math:`W_0`
    (h rows) and the data :math:`X` (n rows), and training sees nothing but the inner
    products within it. Any isometric coordinates of the span give the same path, the
    same outputs and the same Jacobian norms, up to rounding, with h + n inputs in
    place of d.

    **Exact for** full batches and mini-batches; for rules that turn with the
    coordinates of the first weight: SGD with momentum, Nesterov's too, coupled and
    decoupled weight decay, any schedule, Grokfast, OrthoGrad, clipping by norm; and
    for penalties made of the weights' norms or of :math:`J^\top v`, :math:`J x`,
    :math:`\lVert J \rVert_F` and the offset, such as GrokAlign with output probes.
    The other layers may have any rule at all.

    **Not for** rules that act on each entry of the first weight (Adam, AdamW, RMSprop,
    Lion, signs, clipping by value, an L1 penalty): they depend on the axes, and turned
    axes give another path. **Nor for** anything that brings in new directions as it
    goes: noise on the inputs, augmentation, input dropout, and penalties with
    input-space probes, whose every draw adds its own direction to the weight (and for
    probes on the unit sphere has another law in the span).

    Inner products are summed in float64, whatever the dtype, over blocks of columns.
    Rows nearer to the span of the others than 1e-6 of their length count as inside it
    (duplicated inputs, zero rows): the rank is then smaller and the last coordinates
    are zero, so that all networks of one shape have reductions of one shape. What that
    drops is nothing for rows that really are dependent, up to 1e-12 of the inner
    products that training sees, and up to 1e-6 of the outputs at new points.
    It takes about :math:`d (h + n)^2 / 2` multiplications: for h = 2048, n = 400 and
    d = 40000 in float32 4 s on two cores, as does :meth:`SpanReduction.lift`; 400 new
    points take 1 s.

    Parameters
    ----------
    network : torch.nn.Module
        Its first layer is an ``nn.Linear``, and nothing else sees the input; this is
        tried out on a copy. It is not changed.
    x_train : Tensor of shape (n, d)
        All inputs that training will see, on the network's device and in its dtype.
    layer : str, optional
        Name of the first linear layer, as in ``network.named_modules()``; found by
        itself in an ``nn.Sequential``.
    memory_budget : int, default=2**27
        Bytes of float64 working memory for a block of columns.

    Returns
    -------
    SpanReduction

    Raises
    ------
    TypeError
        If something is not a module, layer or tensor of the right kind.
    ValueError
        If h + n is not below d, so that nothing would be gained, if the network does
        more with its input than that layer does, or if a number is not finite.

    Examples
    --------
    >>> network = nn.Sequential(nn.Linear(100, 5), nn.ReLU(), nn.Linear(5, 1))
    >>> reduction = span_reduction(network, torch.eye(100)[:3])
    >>> reduction.network[0].in_features, reduction.x_train.shape  # 8 = 5 + 3
    (8, torch.Size([3, 8]))
    """
    callee = "span_reduction"
    name, first = _first_linear(callee, network, layer)
    _check_arguments(callee, first, x_train, memory_budget)
    rows = (first.weight.detach().clone(), x_train.detach())
    gram = _gram(rows, memory_budget)
    rule, remedy = "finite, and so its first weight", "Check for NaN and overflow."
    finite = bool(gram.isfinite().all())
    require(finite, callee, "x_train", rule, "inner products that are not", remedy)

    size = gram.diagonal().sqrt()
    size = torch.where(size > 0, size, 1.0)
    factor, inverse, rank = _factors(gram.div_(size).div_(size[:, None]))
    coordinates = (factor * size[:, None]).to(x_train.dtype)
    weight, x = coordinates.split([len(part) for part in rows])
    reduced = _with_first_weight(network, name, weight.clone())
    _check_sees_only_first(callee, reduced, name, x)
    return SpanReduction(
        reduced, x.clone(), rank, name, rows, inverse / size, memory_budget
    )


def _blocks(
    rows: Sequence[Tensor], budget: int, *, beside: int = 0
) -> Iterator[tuple[slice, Tensor]]:
    """Yield all rows in float64, as many columns at a time as the budget holds.

    ``beside`` counts rows that the caller holds along with them.
    """
    r, d = sum(len(part) for part in rows), rows[0].shape[1]
    width = max(1, budget // (8 * (r + beside)))
    for start in range(0, d, width):
        columns = slice(start, start + width)
        yield columns, torch.cat([part[:, columns] for part in rows]).double()


def _gram(rows: Sequence[Tensor], budget: int) -> Tensor:
    """Return the inner products of all rows, up to the diagonal and zero far above."""
    r = sum(len(part) for part in rows)
    gram = rows[0].new_zeros((r, r), dtype=torch.float64)
    for _, block in _blocks(rows, budget):
        for start in range(0, r, STRIP):
            stop = min(start + STRIP, r)
            gram[start:stop, :stop].addmm_(block[start:stop], block[:stop].T)
    return gram


def _factors(gram: Tensor) -> tuple[Tensor, Tensor, int]:
    """Return coordinates of unit rows from their Gram matrix, a left inverse, the rank.

    Both matrices are square; of a deficient matrix the coordinates end in zero columns
    and the inverse in zero rows. Only the lower triangle is read.
    """
    r = len(gram)
    # What rounding leaves of a zero eigenvalue grows with the largest, at most r.
    floor = max(NEAR**2, 4 * r * torch.finfo(gram.dtype).eps)
    factor, failed = torch.linalg.cholesky_ex(gram)
    # The diagonal holds the distances of each row from the span of those before it.
    if not int(failed) and float(factor.diagonal().amin()) ** 2 > floor:
        unit = torch.eye(r, dtype=gram.dtype, device=gram.device)
        return factor, torch.linalg.solve_triangular(factor, unit, upper=False), r
    energies, directions = torch.linalg.eigh(gram)
    energies, directions = energies.flip(0), directions.flip(1)
    is_kept = energies > floor
    lengths = torch.where(is_kept, energies, 0.0).sqrt()
    inverse_lengths = torch.where(is_kept, 1 / lengths, 0.0)
    return directions * lengths, (directions * inverse_lengths).T, int(is_kept.sum())


def _with_first_weight(network: nn.Module, name: str, weight: Tensor) -> nn.Module:
    """Return a copy of a network with another first weight, never copying the old."""
    old = cast(nn.Linear, network.get_submodule(name)).weight
    new = nn.Parameter(weight, requires_grad=old.requires_grad)
    made = copy.deepcopy(network, {id(old): new})
    cast(nn.Linear, made.get_submodule(name)).in_features = weight.shape[1]
    return made


def _first_linear(
    callee: str, network: nn.Module, layer: str | None
) -> tuple[str, nn.Linear]:
    """Return the layer that the input goes into, with its name."""
    require_kind(isinstance(network, nn.Module), callee, "network", "a module", network)
    if layer is not None:
        return layer, _named_linear(callee, network, layer)
    path, module = [], network
    passed = (nn.Identity, nn.Flatten)  # they leave rows as they are
    while isinstance(module, nn.Sequential):
        steps = module.named_children()
        step = next((pair for pair in steps if not isinstance(pair[1], passed)), None)
        if step is None:
            break
        path.append(step[0])
        module = step[1]
    rule = "a Sequential that starts with a Linear layer"
    found, got = isinstance(module, nn.Linear), f"one with {type(module).__name__}"
    remedy = "If a linear layer does take the input as it is, name it: layer='...'."
    require_kind(found, callee, "network", rule, got, remedy)
    name = ".".join(path)
    return name, _named_linear(callee, network, name)


def _named_linear(callee: str, network: nn.Module, name: str) -> nn.Linear:
    require_kind(isinstance(network, nn.Module), callee, "network", "a module", network)
    modules = dict(network.named_modules())
    rule = "the name of a Linear layer of the network"
    require(name in modules, callee, "layer", rule, repr(name))
    module = modules[name]
    got = f"{name!r}, a {type(module).__name__}"
    require_kind(isinstance(module, nn.Linear), callee, "layer", rule, got)
    module = cast(nn.Linear, module)
    own = any(n == "weight" for n, _ in module.named_parameters(recurse=False))
    rule = "a layer with a weight of its own"
    got, remedy = f"{name!r} with a parametrized one", "Remove the parametrization."
    require(own, callee, "layer", rule, got, remedy)
    everywhere = network.named_parameters(remove_duplicate=False)
    homes = [other for other, p in everywhere if p is module.weight]
    got, remedy = f"one shared by {', '.join(homes)}", "Untie them."
    require(len(homes) == 1, callee, "layer", rule, got, remedy)
    return module


def _require_alike(
    callee: str, argument: str, got: Tensor, other_name: str, other: Tensor
) -> None:
    alike = got.dtype == other.dtype and got.device == other.device
    dtype = str(other.dtype).removeprefix("torch.")
    rule = f"{dtype} on {other.device}, as {other_name}"
    require_kind(alike, callee, argument, rule, f"{describe(got)} on {got.device}")


def _check_arguments(
    callee: str, first: nn.Linear, x: Tensor, memory_budget: int
) -> None:
    require_kind(isinstance(x, Tensor), callee, "x_train", "a tensor", x)
    floating = first.weight.is_floating_point()
    require_kind(floating, callee, "the first weight", "real", first.weight)
    _require_alike(callee, "x_train", x, "the first weight", first.weight)
    h, d = first.weight.shape
    shaped = x.ndim == 2 and x.shape[1] == d and len(x) > 0
    rule = f"of shape (n, {d}), as the first layer takes it"
    require(shaped, callee, "x_train", rule, x, "Flatten images first.")
    rule = f"fewer rows than inputs in all: h + n < d = {d}"
    got, remedy = f"{h} + {len(x)}", "Train it directly: nothing would be gained."
    require(h + len(x) < d, callee, "first weight and x_train", rule, got, remedy)
    whole = isinstance(memory_budget, int) and not isinstance(memory_budget, bool)
    require_kind(whole, callee, "memory_budget", "an integer", memory_budget)
    require(memory_budget > 0, callee, "memory_budget", "positive", memory_budget)


def _check_sees_only_first(
    callee: str, network: nn.Module, name: str, x: Tensor
) -> None:
    """Run a copy once, in the modes it will be trained in; watch where x goes."""
    argument, rule = "network", "one whose first layer alone sees the input"
    trial, point = copy.deepcopy(network), x[:8].clone()
    seen: list[Tensor] = []

    def cut(_: nn.Module, inputs: tuple[Tensor, ...], output: Tensor) -> Tensor:
        seen.extend(value.detach() for value in inputs)
        return output.detach()

    trial.get_submodule(name).register_forward_hook(cut)
    with torch.enable_grad(), frozen_randomness():
        leaf = point.clone().requires_grad_()
        try:
            output = trial(leaf.clone())
        except RuntimeError as error:
            got = f"one that fails on the reduced input ({error})"
            raise ValueError(complaint(callee, argument, rule, got)) from error
        is_tensor = isinstance(output, Tensor)
        require_kind(is_tensor, callee, argument, "a function into tensors", output)
        around = None
        if output.requires_grad:
            around = torch.autograd.grad(output.sum(), leaf, allow_unused=True)[0]
    require(around is None, callee, argument, rule, "one with a way around it")
    require(len(seen) == 1, callee, argument, rule, f"{len(seen)} calls of {name!r}")
    as_is = seen[0].dtype == x.dtype and torch.equal(seen[0], point)
    rule, got = f"one whose layer {name!r} takes the input as it is", "a changed input"
    remedy = "Do what changes the inputs before training, and reduce the result."
    require(as_is, callee, argument, rule, got, remedy)
