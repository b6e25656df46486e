r"""Several machines as one: blended by the gates of a tree of smooth cuts.

.. math:: f(x) = \sum_\ell g_\ell(x) f_\ell(x), \qquad \sum_\ell g_\ell = 1
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from normalign.estimators.partition.tree import Tree
from normalign.estimators.problem import LeftOut
from normalign.estimators.recipe import Report
from normalign.kernels import Kernel, Machine

__all__ = ["BlendedMachine", "Partitioned", "assembled"]


@dataclass(frozen=True)
class BlendedMachine:
    """Machines of the leaves, blended by the gates of a tree.

    Behaves like a :class:`~normalign.kernels.Machine`: callable, with a closed-form
    Jacobian in which the gates are differentiated as well.

    Parameters
    ----------
    tree : Tree
    machines : sequence of Machine
        One per leaf.

    Examples
    --------
    >>> from normalign.kernels import Laplace
    >>> def constant(value):
    ...     return Machine(torch.zeros(1, 1), torch.zeros(1, 1), torch.eye(1),
    ...                    Laplace(), torch.tensor([value]))
    >>> tree = Tree(torch.ones(1, 1), torch.tensor([[0.0, 2.0]]),
    ...             torch.tensor([[-1, -2]]))
    >>> BlendedMachine(tree, (constant(2.0), constant(4.0)))(torch.ones(1, 1))
    tensor([[3.]])
    """

    tree: Tree
    machines: Sequence[Machine]

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs at every row, ``(n, k)``."""
        outputs = x.new_zeros(len(x), len(self.machines[0].intercept))
        for leaf, rows, gate, _ in self.tree.visits(x):
            part = gate.to(x.dtype)[:, None] * self.machines[leaf](x[rows])
            outputs.index_add_(0, rows, part)
        return outputs

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the leaves."""
        return self.machines[0].dtype

    @property
    def device(self) -> torch.device:
        """Where they compute."""
        return self.machines[0].device

    def jacobian(self, x: Tensor) -> Tensor:
        r"""Jacobians at every row, ``(n, k, d)``, in closed form.

        .. math:: J = \sum_\ell g_\ell J_\ell + f_\ell (\nabla g_\ell)^\top
        """
        jacobian = x.new_zeros(len(x), len(self.machines[0].intercept), x.shape[1])
        for leaf, rows, gate, gradient in self.tree.visits_with_gradients(x):
            machine, at = self.machines[leaf], x[rows]
            part = gate.to(x.dtype)[:, None, None] * machine.jacobian(at)
            if gradient is not None:
                # Few rows lie inside a band; elsewhere the gates are constant.
                inside = gradient.any(1).nonzero()[:, 0]
                slope = gradient[inside].to(x.dtype)
                part[inside] += machine(at[inside])[:, :, None] * slope[:, None, :]
            jacobian.index_add_(0, rows, part)
        return jacobian

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> BlendedMachine:
        """The same machine elsewhere; the tree stays in float64."""
        return BlendedMachine(
            self.tree if device is None else self.tree.to(device),
            tuple(machine.to(device, dtype) for machine in self.machines),
        )


@dataclass(frozen=True)
class Partitioned:
    """A fitted partition as flat numpy arrays, and how it came about.

    Parameters
    ----------
    x_fit : array of shape (m, d)
        The distinct training rows.
    leaves : dict of str to array
        ``rows`` and ``offsets``: leaf l has the rows ``rows[offsets[l]:offsets[l+1]]``
        of ``x_fit`` as centers and that slice of ``coef`` as coefficients.
        ``directions`` (cuts, d), ``bands`` (cuts, 2) and ``children`` (cuts, 2) as in
        :class:`~normalign.estimators.partition.tree.Tree`.
    coef : array of shape (rows of all leaves, k)
    metric : array of shape (d, d) or (d,)
        Of all leaves, of trace d.
    kernel : Kernel
    report : Report
        The worst of all leaves.
    left_out : LeftOut or None
        Blended; a row that was given several times has one entry per distinct answer.
    """

    x_fit: np.ndarray
    leaves: dict[str, np.ndarray]
    coef: np.ndarray
    metric: np.ndarray
    kernel: Kernel
    report: Report
    left_out: LeftOut | None

    def machine(
        self, *, dtype: torch.dtype | None = None, device: torch.device | str = "cpu"
    ) -> BlendedMachine:
        """The blended machine, at least in the precision that it was fitted in."""
        needed = torch.as_tensor(self.coef, device="cpu").dtype
        dtype = needed if dtype is None else torch.promote_types(dtype, needed)
        return assembled(
            self.x_fit, self.leaves, self.coef, self.metric, self.kernel,
            dtype=dtype, device=device,
        )  # fmt: skip


def assembled(
    x_fit: np.ndarray,
    leaves: dict[str, np.ndarray],
    coef: np.ndarray,
    metric: np.ndarray,
    kernel: Kernel,
    *,
    dtype: torch.dtype,
    device: torch.device | str = "cpu",
) -> BlendedMachine:
    """Build a blended machine from the arrays of :class:`Partitioned`."""

    def tensor(array: np.ndarray) -> Tensor:
        return torch.tensor(array, dtype=dtype, device=device)

    centers, weights, shared = tensor(x_fit), tensor(coef), tensor(metric)
    rows = torch.tensor(leaves["rows"], device=device)
    nothing = weights.new_zeros(weights.shape[1])
    machines = tuple(
        Machine(centers[rows[start:stop]], weights[start:stop], shared, kernel, nothing)
        for start, stop in pairwise(leaves["offsets"].tolist())
    )
    cuts = (
        torch.tensor(leaves[name], device=device)
        for name in ("directions", "bands", "children")
    )
    return BlendedMachine(Tree(*cuts), machines)
