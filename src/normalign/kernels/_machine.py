"""What Algorithm 1 leaves behind: a kernel expansion in a learned metric."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from normalign.kernels._arguments import require_table
from normalign.kernels._expansion import expansion_jacobian
from normalign.kernels._functions import Kernel
from normalign.kernels._precision import full_precision
from normalign.kernels._pull_back import Columns, Cotangent, pull_back

__all__ = ["Machine"]


@dataclass(frozen=True)
class Machine:
    r"""A kernel expansion in a metric: what Algorithm 1 leaves behind.

    .. math:: f(x) = b + \sum_j a_j \, \phi_M(x, x_j)

    It computes in its own dtype, which is float64 where float32 did not do, whatever
    the dtype of the rows that it is asked about.

    Parameters
    ----------
    centers : Tensor of shape (m, d)
        Not copied: who changes them in place changes the machine.
    coef : Tensor of shape (m, k)
    metric : Tensor of shape (d, d) or (d,)
    kernel : Kernel
    intercept : Tensor of shape (k,)
    """

    centers: Tensor
    coef: Tensor
    metric: Tensor
    kernel: Kernel
    intercept: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """Outputs at every row, ``(n, k)``, in the machine's dtype."""
        require_table("Machine", "x", x, self.centers.shape[1])
        x = x.to(self.coef.dtype)
        with full_precision(x.device):
            return self.intercept + self._columns.outputs(x)

    def jacobian(self, x: Tensor) -> Tensor:
        """Jacobians at every row, ``(n, k, d)``, in closed form."""
        x = x.to(self.coef.dtype)
        with full_precision(x.device):
            return expansion_jacobian(
                x, self.centers, self.coef, self.kernel, metric=self.metric
            )

    @torch.no_grad()
    def pull_back(self, x: Tensor, cotangent: Cotangent) -> tuple[Tensor, Tensor]:
        r"""Outputs and :math:`J_x^\top v(f(x))` at every row, without Jacobians.

        Parameters
        ----------
        cotangent : callable
            From the outputs of some rows, and a slice that says which rows, to the
            gradient of a loss in these outputs.
        """
        x = x.to(self.coef.dtype)
        with full_precision(x.device):
            outputs, gradient = pull_back(
                x,
                self._columns,
                lambda found, rows: cotangent(found + self.intercept, rows),
            )
        return outputs + self.intercept, gradient

    @cached_property
    def _columns(self) -> Columns:
        return Columns.of(self.centers, self.coef, self.kernel, metric=self.metric)

    @property
    def dtype(self) -> torch.dtype:
        """The precision in which it computes."""
        return self.coef.dtype

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        return self.coef.device

    def to(
        self, device: torch.device | str | None = None, dtype: torch.dtype | None = None
    ) -> Machine:
        """The same machine elsewhere, or in another precision."""
        moved = {
            name: getattr(self, name).to(device=device, dtype=dtype)
            for name in ("centers", "coef", "metric", "intercept")
        }
        return replace(self, **moved)
