"""GrokAlign: a penalty on the local maps of a model, for any training loop."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from normalign._errors import describe, require, require_kind
from normalign._hooks import At
from normalign._torch_compat import unwrap
from normalign.regularizers._call import Call, check_call, normal_noise
from normalign.regularizers._compile import CompiledCall, compiled_function
from normalign.regularizers._formulas import PenaltyForm, given_noise, widen
from normalign.regularizers._pass import check_output

__all__ = ["GrokAlign"]

Model = Callable[..., Any]


class GrokAlign:
    r"""A penalty on the Jacobian and the offset of a model at its training points.

    .. math:: \text{weight} \cdot \frac1n \sum_x \big(
        \lVert J_x \rVert_F^2 + \lVert b_x \rVert_2^2 \big),
        \qquad f(x) = J_x x + b_x

    (Sec. 3.1.4.) Calling it runs the model once and returns what the model returns
    together with the penalty, which is added to the task loss::

        penalty = GrokAlign(0.01)
        logits, value = penalty(model, x)
        loss = criterion(logits, y) + value

    By default one random pull-back per sample gives both terms: a step costs about
    twice a plain one. The forward pass is shared, with its hooks, dropout masks,
    autocast precision, checkpoints and data-parallel wrapper; only
    ``estimator="noise"`` runs the model again. Batch normalisation in training mode
    counts as the affine map at the statistics of the batch. A first call that could
    not change any parameter is an error. A model is to be penalised by one thread at a
    time.

    Parameters
    ----------
    weight : float, default=0.01
        At least 0; with 0 the call is a plain forward pass.
    estimator : {"output", "input", "orthogonal", "nuclear", "exact", "noise"}
        How the norm of the Jacobian is found: :func:`output_probes` and its siblings.
    power : {2, 1, "ratio"}
        2: the formula above. 1: :math:`\lVert J_x \rVert_F + \lVert b_x \rVert_2^2`,
        the norm not squared, as released; the root of an unbiased estimate, so biased
        low. "ratio": :math:`\log(\lVert J_x \rVert_F^2 \lVert x \rVert_2^2) - \log
        \lVert J_x x \rVert_2^2`, which has no scale, is at least 0 for the exact norm
        and is 0 exactly for :math:`J_x = c\,x^\top`; experimental.
    offset : bool, default=True
        Whether :math:`\lVert b_x \rVert_2^2` is part of it. With output probes it
        comes from the same pull-back, otherwise from one push-forward along x.
    n_probes : int, default=1
        Probes for each sample and call.
    probe : {"sphere", "normal"}
        Probes of length :math:`\sqrt{\dim}`, or the paper's normal ones.
    std : float, default=0.01
        Of the steps of ``estimator="noise"``.
    every : int, default=1
        Penalise every so many calls, the first included, with the value times
        ``every``; in between the call is a plain forward pass. Gradient accumulation
        counts each of its batches as a call.
    at : str or At, optional
        Penalise the map from this submodule's input to the outputs: for tokens, the
        name of the embedding or of what follows it. For ``"nuclear"``, the cut.
    schedule : callable, optional
        ``schedule(step)`` is a factor on the weight, at least 0; ``step`` counts the
        calls from 0.
    generator : torch.Generator, optional
        Source of the probes; ``None`` is torch's default generator.
    compile : bool or str, optional
        ``True``, or the name of a backend, compiles model and penalty together; the
        first call on each shape is compared with the eager one, and what cannot be
        compiled runs eagerly, with a warning that says why. By default a compiled
        model is run eagerly: the derivative of its derivative does not exist.

    Attributes
    ----------
    form : PenaltyForm
    step : int
        The number of calls so far.

    Raises
    ------
    ValueError, TypeError
        If an argument is not of the kind described. On a call: if the model cannot be
        penalised so, with the remedy.

    Examples
    --------
    >>> model = torch.nn.Linear(3, 1)
    >>> _ = [torch.nn.init.ones_(p) for p in model.parameters()]
    >>> GrokAlign(0.5)(model, torch.ones(2, 3))[1]  # (|J|^2 + |b|^2) / 2 = (3 + 1) / 2
    tensor(2., grad_fn=<...>)
    """

    def __init__(  # noqa: PLR0913  (each is a choice of the method)
        self,
        weight: float = 0.01,
        *,
        estimator: str = "output",
        power: int | str = 2,
        offset: bool = True,
        n_probes: int = 1,
        probe: str = "sphere",
        std: float = 0.01,
        every: int = 1,
        at: str | At | None = None,
        schedule: Callable[[int], float] | None = None,
        generator: torch.Generator | None = None,
        compile: bool | str | None = None,
    ) -> None:
        _check_number(weight, "weight")
        whole = isinstance(every, int) and not isinstance(every, bool)
        require_kind(whole, _NAME, "every", "an integer", every)
        require(every >= 1, _NAME, "every", "at least 1", every)
        ready = schedule is None or callable(schedule)
        require_kind(ready, _NAME, "schedule", "a function of the step", schedule)
        source = generator is None or isinstance(generator, torch.Generator)
        require_kind(source, _NAME, "generator", "a torch.Generator", generator)
        known = compile is None or isinstance(compile, bool | str)
        require_kind(known, _NAME, "compile", "a bool or a backend's name", compile)
        self.form = PenaltyForm(
            estimator=estimator, power=power, offset=offset, n_probes=n_probes,
            std=std, at=at, probe=probe, callee=_NAME,
        )  # fmt: skip
        self.weight, self.every, self.schedule = weight, every, schedule
        self.generator, self.compile, self.step = generator, compile, 0
        self._forget()

    @classmethod
    def released(
        cls, weight: float = 0.01, *, generator: torch.Generator | None = None
    ) -> GrokAlign:
        r"""Return the penalty of the released experiments, term by term.

        .. math:: \text{weight} \cdot \Big( \frac1n \sum_x
            \sqrt{\max(k \lVert J_x^\top v \rVert_2^2,\, 10^{-8})}
            + \frac1n \sum_x \lVert f(x) - J_x x \rVert_2^2 \Big)

        with one probe v for each sample and call, uniform on the unit sphere of the
        outputs, and :math:`J_x x` by a push-forward along x.

        Examples
        --------
        >>> GrokAlign.released(0.1)
        GrokAlign(weight=0.1, estimator='output', power=1, released=True)
        """
        penalty = cls(weight, power=1, generator=generator)
        penalty.form = replace(penalty.form, released=True)
        return penalty

    def __call__(
        self, model: Model, x: Tensor, *, noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return what the model returns for ``x``, and the weighted penalty.

        Parameters
        ----------
        model : callable
            Maps ``x`` to outputs of shape (n, ...), each sample on its own.
        x : Tensor of shape (n, ...)
            Floating point, or tokens where ``at`` says at which submodule the map
            begins. It is not changed, and need not require a gradient.
        noise : Tensor, optional
            Standard normal numbers of shape ``form.noise_shape(x, output.shape)``, used
            instead of new ones: in a CUDA graph, or to repeat a step. Without
            ``compile``.

        Returns
        -------
        output : Tensor of shape (n, ...)
        value : Tensor of shape ()
            Weighted, and the mean over the samples; 0 for an empty batch. It has a
            graph where the weight is 0 too, so that ``backward`` works on every step.
        """
        weight = self.weight_at(self.step)
        if weight == 0:
            output = model(x)
            check_output(output, x, _NAME)
            # No numbers, so no NaN among them, and a graph to go back through.
            value = widen(output.flatten()[:0]).sum()
        else:
            output, values = self._values(model, x, noise)
            value = values.sum() * (weight / max(len(values), 1))
        self.step += 1
        return output, value

    def weight_at(self, step: int) -> float:
        """Return the factor on the mean penalty at a step: 0 between penalised ones.

        Examples
        --------
        >>> [GrokAlign(0.5, every=2).weight_at(step) for step in range(3)]
        [1.0, 0.0, 1.0]
        """
        if step % self.every:
            return 0.0
        weight = float(self.weight) * self.every
        if self.schedule is None:
            return weight
        factor = self.schedule(step)
        _check_number(factor, f"schedule({step})")
        return weight * float(factor)

    def state_dict(self) -> dict[str, Any]:
        """Return what a run needs to go on: the step, and the generator's state."""
        state = None if self.generator is None else self.generator.get_state()
        return {"step": self.step, "generator": state}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where :meth:`state_dict` was taken."""
        callee = f"{_NAME}.load_state_dict"
        whole = set(state) == {"step", "generator"}
        require(whole, callee, "state", "a state_dict of GrokAlign", sorted(state))
        same = (state["generator"] is None) == (self.generator is None)
        remedy = "Build the penalty as it was built then: with, or without, generator=."
        rule, got = "of a penalty with the same kind of generator", "another"
        require(same, callee, "state", rule, got, remedy)
        self.step = int(state["step"])
        if self.generator is not None:
            self.generator.set_state(state["generator"].cpu())

    def __getstate__(self) -> dict[str, Any]:
        # What is known of models is found out again; it cannot be copied.
        return {k: v for k, v in self.__dict__.items() if k not in ("_calls", "_run")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    def __repr__(self) -> str:
        form, plain = self.form, PenaltyForm()
        shown: dict[str, Any] = {
            "weight": self.weight, "estimator": form.estimator, "power": form.power,
        }  # fmt: skip
        for name in ("offset", "n_probes", "released", "probe", "std", "at"):
            if getattr(form, name) != getattr(plain, name):
                shown[name] = getattr(form, name)
        if self.every != 1:
            shown["every"] = self.every
        for name in ("schedule", "generator", "compile"):
            if getattr(self, name) is not None:
                shown[name] = getattr(self, name)
        return f"{_NAME}({', '.join(f'{k}={v!r}' for k, v in shown.items())})"

    def _forget(self) -> None:
        self._calls: WeakKeyDictionary[nn.Module, Call | CompiledCall]
        self._calls = WeakKeyDictionary()
        self._run: Callable[..., Any] | None = None

    def _values(
        self, model: Model, x: Tensor, noise: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return outputs and unweighted penalties, by the route that was asked for."""
        model = unwrap(model, parallel=False)
        check_call(model, x, self.form, _NAME)
        eager = noise is None or not self.compile
        require(eager, _NAME, "noise", "None with compile", noise)
        source = normal_noise(self.generator) if noise is None else given_noise(noise)
        if not isinstance(model, nn.Module):
            return Call(model, self.form, _NAME, trial=False)(model, x, source)
        call = self._calls.get(model)
        if call is None or call.form is not self.form:
            call = Call(model, self.form, _NAME)
            if self.compile:
                self._run = self._run or compiled_function(self.compile, _NAME)
                call = CompiledCall(call, self._run, _NAME)
            self._calls[model] = call
        return call(model, x, source)


_NAME = "GrokAlign"


def _check_number(value: Any, argument: str) -> None:
    real = isinstance(value, int | float) and not isinstance(value, bool)
    require_kind(real, _NAME, argument, "a number", describe(value))
    rule = "at least 0 and finite"
    require(0 <= value < math.inf, _NAME, argument, rule, value)
