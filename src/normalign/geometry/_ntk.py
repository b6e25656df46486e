"""The empirical neural tangent kernel of a model, in bounded memory."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn
from torch.func import functional_call, jacrev, jvp, vjp, vmap
from torch.utils.flop_counter import FlopCounterMode

from normalign._errors import require, require_kind
from normalign._linear_map import LocalMap, refuse_mixing, remedy_for
from normalign._torch_compat import (
    attention_with_derivatives,
    forward_mode,
    has_recurrence,
    unwrap,
)
from normalign.geometry._independence import check_rows_are_independent

__all__ = ["ntk"]

Params = dict[str, Tensor]

# Parameters are exchanged inside the module itself, by one thread at a time.
_SWAPPED = threading.RLock()

_METHODS = ("auto", "contraction", "products")
# Besides the two blocks of Jacobians that are kept, vmap and reshaping hold copies.
_COPIES = 4
_PRODUCT_BLOCK = 256


def ntk(
    model: nn.Module,
    x: Tensor,
    z: Tensor | None = None,
    *,
    params: Iterable[str] | None = None,
    method: str = "auto",
    chunk_size: int | str = "auto",
    memory_budget: int = 2**30,
) -> Tensor:
    r"""The empirical neural tangent kernel between two batches, exactly.

    .. math:: \Theta(x, z) = \nabla_\theta f_\theta(x)\,
        (\nabla_\theta f_\theta(z))^\top \in \mathbb R^{k \times k}

    Symmetric as a whole, :math:`\Theta(x, z) = \Theta(z, x)^\top`, and positive
    semi-definite when reshaped to ``(n k, n k)``; with ``z=None`` only one half is
    computed. The result is detached from the model.

    Two ways, chosen by their arithmetic (``method="auto"``), with F the operations of
    one forward pass and P the number of parameters:

    - ``"contraction"``: the parameter Jacobians (k, P) of two blocks of samples, then
      one matrix product per parameter tensor: about :math:`2 n m k^2 P` operations.
    - ``"products"``: each row of the Jacobian at x, pushed forward through the model
      at z (kernel-vector products): about :math:`4 n m k F` operations, and no
      Jacobian at z. It wins for fully connected networks of several outputs, and is
      taken whenever the Jacobian of one sample is beyond the memory budget.

    Parameters
    ----------
    model : nn.Module
        Its output for n samples has n rows, flattened to k numbers each. BatchNorm
        and dropout must be in evaluation mode, for there is no per-sample kernel
        otherwise. A weight used twice (tied) counts once, with both uses in its
        gradient.
    x : Tensor of shape (n, ...)
    z : Tensor of shape (m, ...), optional
        The other points; x itself unless given.
    params : iterable of str, optional
        Names from ``model.named_parameters()`` to differentiate by. By default all
        that require a gradient, so frozen parameters are left out.
    method : "auto", "contraction" or "products", default="auto"
    chunk_size : int or "auto", default="auto"
        Samples per block; "auto" follows the memory budget.
    memory_budget : int, default=2**30
        Bytes that the Jacobians in flight may take (at least one sample's with
        ``"contraction"``, one row's with ``"products"``). The result, of ``n m k k``
        numbers, and the activations of one block come on top of it.

    Returns
    -------
    Tensor of shape (n, m, k, k)
        Entry ``[i, j, a, b]`` is the inner product of the gradients of output a at
        ``x[i]`` and of output b at ``z[j]``.

    Notes
    -----
    Threads may call it at once, but not while others run the same model: its
    parameters are exchanged for a moment.

    Raises
    ------
    TypeError
        If the model is not an ``nn.Module``.
    ValueError
        If samples mix (training mode), a name in ``params`` is unknown, or there is
        nothing to differentiate by.

    Examples
    --------
    >>> ntk(nn.Linear(2, 1), torch.tensor([[1.0, 2.0]])).flatten()
    tensor([6.])
    """
    network = unwrap(model)
    require_kind(
        isinstance(network, nn.Module), "ntk", "model", "an nn.Module", network,
        remedy_for(network),
    )  # fmt: skip
    assert isinstance(network, nn.Module)
    with _SWAPPED:
        return _kernel(network, x, z, params, method, chunk_size, memory_budget)


def _kernel(
    network: nn.Module,
    x: Tensor,
    z: Tensor | None,
    params: Iterable[str] | None,
    method: str,
    chunk_size: int | str,
    memory_budget: int,
) -> Tensor:
    _check(network, method, chunk_size, memory_budget)
    names = _chosen_names(network, params)
    local_map = LocalMap(network, callee="ntk")
    with torch.inference_mode(False), attention_with_derivatives():
        x = _points(x)
        other = None if z is None else _points(z)
        for points in (x,) if other is None else (x, other):
            check_rows_are_independent(local_map, points, memory_budget)
        tangents = _Tangents.of(network, names, x)
        block = None if chunk_size == "auto" else int(chunk_size)
        chosen = tangents.cheaper_method(memory_budget) if method == "auto" else method
        if chosen == "products":
            try:
                return tangents.products(other, block or _PRODUCT_BLOCK, memory_budget)
            except NotImplementedError:  # an operator without a forward-mode rule
                if method != "auto":
                    raise
        spare = memory_budget // (_COPIES * tangents.bytes_per_sample)
        return tangents.contraction(other, block or max(1, spare))


@dataclass(frozen=True)
class _Tangents:
    """A model as a function of its parameters, at the points x."""

    network: nn.Module
    params: Params
    fixed: Params
    x: Tensor
    example: Tensor  # the outputs of the first sample, for their shape and dtype

    @classmethod
    def of(cls, network: nn.Module, names: list[str], x: Tensor) -> _Tangents:
        values = {n: _usable(p) for n, p in network.named_parameters()}
        params = {n: values[n] for n in names}
        fixed = {n: v for n, v in values.items() if n not in params}
        with torch.no_grad():
            example = _rows(functional_call(network, values, (x[:1].clone(),)))
        return cls(network, params, fixed, x, example)

    @property
    def n_outputs(self) -> int:
        return self.example.shape[1]

    @property
    def bytes_per_sample(self) -> int:
        row = sum(p.numel() * p.element_size() for p in self.params.values())
        return max(1, self.n_outputs * row)

    def outputs(self, params: Params, points: Tensor) -> Tensor:
        values = {**self.fixed, **params}
        return _rows(functional_call(self.network, values, (points.clone(),)))

    def cheaper_method(self, memory_budget: int) -> str:
        if _COPIES * self.bytes_per_sample > memory_budget:
            return "products"
        counter = FlopCounterMode(display=False)
        with counter, torch.no_grad():
            self.outputs(self.params, self.x[:1])
        weights = sum(p.numel() for p in self.params.values())
        contraction = 2 * self.n_outputs * weights
        return (
            "products" if 4 * counter.get_total_flops() < contraction else "contraction"
        )

    def empty(self, other: Tensor | None) -> Tensor:
        m, k = len(self.x if other is None else other), self.n_outputs
        return self.example.new_empty(len(self.x), m, k, k)

    def jacobian(self, points: Tensor) -> list[Tensor]:
        """Parameter Jacobians of a block, each flattened to (b k, size)."""

        def single(params: Params, point: Tensor) -> Tensor:
            return self.outputs(params, point.unsqueeze(0)).squeeze(0)

        blocks = vmap(jacrev(single), in_dims=(None, 0))(self.params, points)
        return [j.flatten(0, 1).flatten(1) for j in blocks.values()]

    def contraction(self, other: Tensor | None, block: int) -> Tensor:
        kernel = self.empty(other)
        k = self.n_outputs
        for rows in _blocks(len(self.x), block):
            left = self.jacobian(self.x[rows])
            for columns in _blocks(kernel.shape[1], block):
                if other is None and columns.start < rows.start:
                    continue
                same = other is None and columns == rows
                points = self.x if other is None else other
                right = left if same else self.jacobian(points[columns])
                total = left[0] @ right[0].T
                for a, b in zip(left[1:], right[1:], strict=True):
                    total = torch.addmm(total, a, b.T)
                piece = total.reshape(-1, k, total.shape[1] // k, k).transpose(1, 2)
                kernel[rows, columns] = piece
                if other is None:
                    kernel[columns, rows] = _mirror(piece)
        return kernel

    def products(self, other: Tensor | None, block: int, memory_budget: int) -> Tensor:
        kernel = self.empty(other)
        k = self.n_outputs
        row_bytes = _COPIES * self.bytes_per_sample // k
        lanes = max(1, min(k, memory_budget // row_bytes))
        basis = torch.eye(k, dtype=kernel.dtype, device=kernel.device)
        for i, point in enumerate(self.x):
            start = i if other is None else 0
            points = (self.x if other is None else other)[start:]
            # Only `lanes` rows of the Jacobian are alive at a time.
            for rows in _blocks(k, lanes):
                directions = self._pull(point, basis[rows])
                for columns in _blocks(len(points), block):
                    push = partial(self._push, points[columns])
                    piece = vmap(push)(directions).transpose(0, 1)  # (b, rows, k)
                    at = slice(start + columns.start, start + columns.stop)
                    kernel[i, at, rows] = piece
                    if other is None:
                        kernel[at, i, :, rows] = piece.transpose(1, 2)
        return kernel

    def _pull(self, point: Tensor, cotangents: Tensor) -> Params:
        """Rows of the Jacobian at one point, stacked, for each parameter."""
        function = partial(self.outputs, points=point.unsqueeze(0))
        pullback = vjp(function, self.params)[1]
        return vmap(lambda v: pullback(v.unsqueeze(0))[0])(cotangents)

    def _push(self, points: Tensor, direction: Params) -> Tensor:
        function = partial(self.outputs, points=points)
        with forward_mode():
            return jvp(function, (self.params,), (direction,))[1]


def _rows(result: Tensor) -> Tensor:
    return result.unsqueeze(1) if result.ndim == 1 else result.flatten(1)


def _mirror(piece: Tensor) -> Tensor:
    """Theta(z, x) from Theta(x, z)."""
    return piece.permute(1, 0, 3, 2)


def _blocks(total: int, size: int) -> Iterator[slice]:
    for start in range(0, total, size):
        yield slice(start, min(start + size, total))


def _usable(tensor: Tensor) -> Tensor:
    """The tensor without history, and usable in derivatives."""
    return tensor.clone() if tensor.is_inference() else tensor.detach()


def _points(x: Tensor) -> Tensor:
    # Normalisation on channels last has no forward mode.
    return _usable(x).contiguous()


def _chosen_names(network: nn.Module, params: Iterable[str] | None) -> list[str]:
    known = dict(network.named_parameters())
    if params is None:
        names = [n for n, p in known.items() if p.requires_grad]
        remedy = "Unfreeze some with requires_grad_(True), or name them in params=."
    else:
        names = list(dict.fromkeys([params] if isinstance(params, str) else params))
        remedy = "Name at least one of model.named_parameters()."
    unknown = [n for n in names if n not in known]
    require(
        not unknown, "ntk", "params", "names of the model's parameters", repr(unknown),
        f"There are: {', '.join(list(known)[:8])}.",
    )  # fmt: skip
    require(
        bool(names), "ntk", "params", "at least one parameter", "none to use", remedy
    )
    return names


def _check(
    network: nn.Module, method: str, chunk_size: int | str, memory_budget: int
) -> None:
    require(method in _METHODS, "ntk", "method", f"one of {_METHODS}", method)
    auto = chunk_size == "auto"
    require(
        auto or (isinstance(chunk_size, int) and chunk_size >= 1),
        "ntk", "chunk_size", "'auto' or a positive integer", chunk_size,
    )  # fmt: skip
    require(memory_budget > 0, "ntk", "memory_budget", "positive", memory_budget)
    refuse_mixing(network, "ntk")
    for name, module in network.named_modules():
        random = isinstance(module, nn.modules.dropout._DropoutNd) and module.p > 0
        require(
            not (random and module.training),
            "ntk", "model", "a fixed function of its parameters",
            f"{type(module).__name__} {name!r} in training mode",
            "Call model.eval() first.",
        )  # fmt: skip
    require(
        not has_recurrence(network), "ntk", "model", "built of layers that vmap knows",
        "one with RNN, LSTM or GRU layers",
        "Unroll the recurrence with RNNCell-like modules.",
    )  # fmt: skip
