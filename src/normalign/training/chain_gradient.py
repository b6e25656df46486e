"""The gradient of a penalised chain in its weights, written out.

Autograd sees the loss and the penalty as functions of a few leaves: the outputs, the
pull-backs and the push-forwards. From there the chain rule runs through products whose
results go straight into one tensor of gradients. With ``u_i`` the cotangent that layer
i receives in a pull-back and ``r_i = W_i^T u_i`` what it passes on, and bars for what
arrives from the penalty,

    W_i gets u_i r̄_i^T,    ū_i = W_i r̄_i,    r̄_{i+1} = D_i ū_i,    D̄_i = ū_i r_{i+1}

and likewise for push-forwards, in the other direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normalign.training.chain import Chain, ChainPass

__all__ = ["RecordedPass"]


@dataclass(frozen=True)
class Sweep:
    """A pull-back or push-forward: its result, and what each layer took and gave."""

    result: Tensor
    taken: list[Tensor]
    given: list[Tensor]


class RecordedPass(ChainPass):
    """A pass through stacked chains that remembers what its gradient needs.

    Its outputs, pull-backs and push-forwards are leaves for autograd, each of them to
    be had as often as wanted. Their derivatives in the weights are found by
    :meth:`write_gradients`.
    """

    def __init__(self, chain: Chain, parameters: Sequence[Tensor], x: Tensor) -> None:
        with torch.no_grad():
            super().__init__(chain, parameters, x)
        self.stacked = self.stacked.requires_grad_()
        self._pulls: list[Sweep] = []
        self._pushes: list[Sweep] = []
        self._moves: list[RecordedPass] = []

    def output_after(self, step: Tensor) -> Tensor:
        """Return the outputs at the inputs plus a step, (s * n, k)."""
        x = self._x + step.reshape(self._x.shape)
        self._moves.append(RecordedPass(self._chain, self._parameters, x))
        return self._moves[-1].output

    @torch.no_grad()
    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v`` at each sample, (s * n, ...), for v of shape (s * n, k)."""
        row = cotangent.reshape(self.stacked.shape)
        taken, given = list[Tensor](), list[Tensor]()
        for i in range(len(self._weights) - 1, -1, -1):
            taken.insert(0, row)
            row = torch.bmm(row, self._weights[i])
            given.insert(0, row)
            if i > 0:
                row = row * self._slope(i - 1)
        result = row.reshape(self.point.shape).requires_grad_()
        self._pulls.append(Sweep(result, taken, given))
        return result

    @torch.no_grad()
    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` at each sample, (s * n, k), for u of shape (s * n, ...)."""
        s, n, _ = self.stacked.shape
        column = tangent.reshape(s, n, -1)
        taken, given = list[Tensor](), list[Tensor]()
        for i, weight in enumerate(self._weights):
            taken.append(column)
            column = torch.bmm(column, weight.mT)
            given.append(column)
            if i < len(self._weights) - 1:
                column = column * self._slope(i)
        result = column.flatten(0, 1).requires_grad_()
        self._pushes.append(Sweep(result, taken, given))
        return result

    def write_gradients(self, total: Tensor, into: Sequence[Tensor]) -> None:
        """Write the gradient of a scalar made of this pass, for each parameter.

        Parameters
        ----------
        total : Tensor of shape ()
        into : sequence of Tensor
            Overwritten; shaped like the parameters.
        """
        leaves = [sweep.result for sweep in (*self._pulls, *self._pushes)]
        leaves += [one.stacked for one in (*self._moves, self)]
        found = torch.autograd.grad(total, leaves, materialize_grads=True)
        cotangents = iter(found)
        with torch.no_grad():
            sums = Sums(self._chain, into)
            bent: dict[int, Tensor] = {}  # what arrives at each slope
            for sweep in self._pulls:
                self._back_through_pull(sweep, next(cotangents), sums, bent)
            for sweep in self._pushes:
                self._back_through_push(sweep, next(cotangents), sums, bent)
            for one in self._moves:
                one._back_through_output(next(cotangents), sums, {})
            self._back_through_output(next(cotangents), sums, bent)
            sums.finish()

    def _back_through_output(
        self, cotangent: Tensor, sums: Sums, bent: dict[int, Tensor]
    ) -> None:
        for i in range(len(self._weights) - 1, -1, -1):
            sums.add_product(i, cotangent, self._received[i])
            sums.add_bias(i, cotangent)
            if i > 0:
                cotangent = torch.bmm(cotangent, self._weights[i])
                cotangent = cotangent.mul_(self._slope(i - 1))
                activation = self._chain.layers[i - 1].activation
                if i - 1 in bent and activation is not None:
                    assert activation.curvature is not None
                    value, hidden = self._given[i - 1], self._received[i]
                    curvature = activation.curvature(value, hidden)
                    cotangent.addcmul_(bent[i - 1], curvature)

    def _back_through_pull(
        self, sweep: Sweep, cotangent: Tensor, sums: Sums, bent: dict[int, Tensor]
    ) -> None:
        s, n, _ = self.stacked.shape
        arriving = cotangent.reshape(s, n, -1)
        last = len(self._weights) - 1
        for i, weight in enumerate(self._weights):
            sums.add_product(i, sweep.taken[i], arriving)
            if i == last:  # the probe does not depend on the weights
                break
            arriving = torch.bmm(arriving, weight.mT)
            self._note(bent, i, arriving, sweep.given[i + 1])
            arriving = arriving.mul_(self._slope(i))

    def _back_through_push(
        self, sweep: Sweep, cotangent: Tensor, sums: Sums, bent: dict[int, Tensor]
    ) -> None:
        arriving = cotangent.reshape(self.stacked.shape)
        for i in range(len(self._weights) - 1, -1, -1):
            sums.add_product(i, arriving, sweep.taken[i])
            if i > 0:
                arriving = torch.bmm(arriving, self._weights[i])
                self._note(bent, i - 1, arriving, sweep.given[i - 1])
                arriving = arriving.mul_(self._slope(i - 1))

    def _note(
        self, bent: dict[int, Tensor], i: int, arriving: Tensor, other: Tensor
    ) -> None:
        """Add what arrives at the slope after layer i, if that slope can bend."""
        activation = self._chain.layers[i].activation
        if activation is None or activation.curvature is None:
            return
        if i in bent:
            bent[i].addcmul_(arriving, other)
        else:
            bent[i] = arriving * other


class Sums:
    """The products that make up each gradient, gathered and then summed at once."""

    def __init__(self, chain: Chain, into: Sequence[Tensor]) -> None:
        self._layers, self._into = chain.layers, into
        self._products: dict[int, list[tuple[Tensor, Tensor]]] = {}
        self._begun: set[int] = set()

    def add_product(self, i: int, left: Tensor, right: Tensor) -> None:
        """Add the sum over samples of ``left right^T`` to the weight of layer i."""
        self._products.setdefault(self._layers[i].weight, []).append((left, right))

    def add_bias(self, i: int, cotangent: Tensor) -> None:
        """Add the sum over samples to the bias of layer i, if it has one."""
        place = self._layers[i].bias
        if place is None:
            return
        if place in self._begun:
            self._into[place].add_(cotangent.sum(1))
        else:
            torch.sum(cotangent, 1, out=self._into[place])
            self._begun.add(place)

    def finish(self) -> None:
        """Write the weights' gradients."""
        for place, products in self._products.items():
            target, (left, right) = self._into[place], products[0]
            if len(products) > 1 and _is_small(left, right):
                sides = zip(*products, strict=True)
                left, right = (torch.cat(side, dim=1) for side in sides)
                products = []
            torch.bmm(left.mT, right, out=target)
            for left, right in products[1:]:
                target.baddbmm_(left.mT, right)


def _is_small(left: Tensor, right: Tensor) -> bool:
    """Whether copying both sides is less than to read and write their product again."""
    n, rows, columns = left.shape[1], left.shape[2], right.shape[2]
    return n * (rows + columns) < rows * columns
