"""The penalty of a pure function, for ``torch.func`` and ``torch.compile``."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn
from torch.func import vjp

from normalign.geometry.quirks import attention_with_derivatives
from normalign.regularizers.forms import PenaltyForm
from normalign.regularizers.formulas import given_noise, penalty
from normalign.regularizers.passes import Pullable, SameDraws
from normalign.regularizers.places import Place, middle_of, place_in

__all__ = ["FunctionalPass", "penalised"]

Function = Callable[[Tensor], Tensor]


def penalised(
    function: Function,
    x: Tensor,
    noise: Tensor | None,
    form: PenaltyForm,
    *,
    inside: nn.Module | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the outputs and the unweighted penalty of each sample, as a pure function.

    Made of ``torch.func`` alone, without checks: it may run inside
    ``torch.func.vmap`` over stacked parameters (with the noise of each member), inside
    ``torch.func.grad`` and inside ``torch.compile``. The mean of the second result
    times the weight is the penalty. It is to be differentiated once: of a push-forward
    there is the number and its gradient, by a pull-back, and no more.

    Parameters
    ----------
    function : callable
        Maps ``x`` to outputs of shape (n, ...), each sample on its own; for a module
        ``lambda z: torch.func.functional_call(module, parameters, (z,))``.
    x : Tensor of shape (n, ...)
    noise : Tensor or None
        Standard normal numbers of shape ``form.noise_shape(x, output.shape)``; they
        are made into probes of the right length here. ``None`` where that is ``()``.
    form : PenaltyForm
    inside : torch.nn.Module, optional
        The module that ``function`` runs, where ``form`` names a place in it.

    Returns
    -------
    output : Tensor of shape (n, ...)
    value : Tensor of shape (n,)

    Examples
    --------
    >>> form = PenaltyForm(estimator="exact")
    >>> penalised(lambda z: 3 * z, torch.ones(2, 4), None, form)[1]  # |3 I|_F^2
    tensor([36., 36.])
    """
    cut = form.estimator == "nuclear"
    at = middle_of(inside, "penalised") if cut and form.at is None else form.at
    place = None if at is None else place_in(inside, at, "penalised")
    local = FunctionalPass(function, x, place=place, cut=cut)
    value = penalty(local, given_noise(noise), form)
    return local.output, value


class FunctionalPass:
    """A pure function at a batch of points, by ``torch.func``.

    Usable inside ``torch.func.vmap`` and ``grad`` and inside ``torch.compile``. There
    are no checks: inside a transformation nothing can be looked at. One run of the
    function serves its output, every pull-back and every push-forward. A place costs a
    second run of what comes before it.

    Parameters
    ----------
    function : callable
        Maps ``x`` to outputs (n, ...), each sample on its own.
    x : Tensor of shape (n, ...)
    place : Place, optional
        Where inside the function's module the map begins, or where it is cut in two.
    cut : bool, default=False
        The place is a cut: the map begins at ``x``.
    """

    push_has_graph = False

    def __init__(
        self,
        function: Function,
        x: Tensor,
        *,
        place: Place | None = None,
        cut: bool = False,
    ) -> None:
        self._compiling = torch.compiler.is_compiling()
        self._whole, self._x, self._place = function, x, place
        self._same_draws = None if self._compiling else SameDraws(x.device)
        self._output: Tensor | None = None
        self._pullback: Callable[..., tuple[Tensor]] | None = None
        self._pushforward: Callable[..., tuple[Tensor]] | None = None
        self._parts: tuple[FunctionalPass, FunctionalPass] | None = None
        self._point, self._function = x, function
        if place is not None and not cut:
            with self._surroundings():
                self._point = self._hidden(x)
            self._function = self._from_place

    @property
    def point(self) -> Tensor:
        """The points, (n, ...)."""
        return self._point

    @property
    def output(self) -> Tensor:
        """The values of the function, (n, ...)."""
        if self._output is None:
            self._forward()
        assert self._output is not None
        return self._output

    def pull(self, cotangent: Tensor) -> Tensor:
        """Return ``J^T v``, shaped like the points."""
        if self._parts is not None:
            first, second = self._parts
            return first.pull(second.pull(cotangent))
        if self._pullback is None:
            self._forward()
        assert self._pullback is not None
        return self._pullback(cotangent)[0]

    def push(self, tangent: Tensor) -> Tensor:
        """Return ``J u`` as a constant, shaped like the output."""
        # v -> J^T v is linear, so its own pull-back is u -> J u, whatever v. Only the
        # number: what torch makes of the derivative of a push-forward, by forward mode
        # or by pulling back twice, is wrong for some layers (nn.LayerNorm).
        if self._parts is not None:
            first, second = self._parts
            return second.push(first.push(tangent))
        if self._pushforward is None:
            start = torch.zeros_like(self.output)
            _, self._pushforward, *_ = vjp(self.pull, start)
        return self._pushforward(tangent)[0].detach()

    def moved(self, step: Tensor) -> Tensor:
        """Return the values at the points plus a step."""
        with self._surroundings():
            return self._function(self._point + step)

    def halves(self) -> tuple[Pullable, Pullable]:
        """Return the parts before and after the cut."""
        first = FunctionalPass(self._hidden, self._x)
        first._same_draws = self._same_draws
        second = FunctionalPass(self._from_place, first.output)
        second._same_draws = self._same_draws
        self._output, self._parts = second.output, (first, second)
        return first, second

    def _forward(self) -> None:
        with self._surroundings():
            output, self._pullback, *_ = vjp(self._function, self._point)
        if self._output is None:
            self._output = output

    @contextlib.contextmanager
    def _surroundings(self) -> Iterator[None]:
        if self._same_draws is None:
            yield
            return
        with attention_with_derivatives(), self._same_draws():
            yield

    def _hidden(self, x: Tensor) -> Tensor:
        """Return the tensor at the place, running no further than that."""
        assert self._place is not None
        found: list[Tensor] = []

        def stop(hidden: Tensor) -> Tensor:
            found.append(hidden)
            if self._compiling:
                return hidden
            raise _ReachedError

        with contextlib.suppress(_ReachedError), self._place.replaced(stop):
            self._whole(x)
        return found[0]

    def _from_place(self, hidden: Tensor) -> Tensor:
        assert self._place is not None
        with self._place.replaced(lambda _: hidden):
            return self._whole(self._x)


class _ReachedError(Exception):
    """Ends a forward pass at the place whose tensor is wanted."""
