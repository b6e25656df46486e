"""Model and penalty compiled together, never trusted before they have been compared."""

from __future__ import annotations

import contextlib
import math
import types
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normalign._errors import complaint
from normalign._hooks import Location
from normalign._torch_compat import ATTENTION_BY_PRODUCTS, override
from normalign.regularizers._call import Call
from normalign.regularizers._formulas import (
    Noise,
    PenaltyForm,
    given_noise,
    penalty,
    widen,
)
from normalign.regularizers._pass import FunctionalPass

__all__ = ["CompiledCall", "compiled_function"]

Results = tuple[Tensor, Tensor]

# How far compiled and eager numbers may lie apart, relative to their norm.
TOLERANCE = 1e-4
TOO_MANY = (
    "models or batches of more shapes than torch compiles one function for; keep to "
    "few sizes, or raise torch._dynamo.config.recompile_limit"
)
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class CompiledCall:
    """A penalty's form on one module, compiled, with the eager call to fall back on.

    ``torch.func.vjp`` stands inside the compiled function and the plain backward pass
    outside: the order that ``torch.compile`` supports. The first call on every shape of
    input is made eagerly too; outputs, penalties and the gradients of both in all
    parameters have to agree. Otherwise the module runs eagerly from then on, and a
    warning says why.

    Parameters
    ----------
    eager : Call
    run : callable
        What :func:`compiled_function` returns; modules alike share a compilation.
    callee : str
        The public function in whose name warnings are raised.
    """

    def __init__(self, eager: Call, run: Callable[..., Results], callee: str) -> None:
        self._eager, self._run, self._callee = eager, run, callee
        self.form = eager.form
        self._given_up = False
        self._drawn: dict[Any, list[Tensor]] = {}

    def __call__(self, model: nn.Module, x: Tensor, noise: Noise) -> Results:
        """Return the outputs and the unweighted penalty of each sample."""
        if self._given_up:
            return self._eager(model, x, noise)
        if self._eager.location is not None and self._eager.find_location(model):
            self._drawn.clear()
        situation = _situation(model, x)
        if situation not in self._drawn:
            return self._first(model, x, noise, situation)
        draws = [noise(like) for like in self._drawn[situation]]
        try:
            return self._compile(model, x, draws)
        except _too_many():
            self._give_up(TOO_MANY, depth=5)
            return self._eager(model, x, noise)

    def _first(
        self, model: nn.Module, x: Tensor, noise: Noise, situation: Any
    ) -> Results:
        """Make the call eagerly, and see whether the compiled one does the same."""
        draws: list[Tensor] = []

        def note(like: Tensor) -> Tensor:
            draws.append(noise(like))
            return draws[-1]

        versions = [buffer._version for buffer in model.buffers()]
        eager = self._eager(model, x, note)
        reason = _obstacle(model)
        if [buffer._version for buffer in model.buffers()] != versions:
            reason = reason or "its forward pass changes its buffers"
        if reason is None:
            try:
                reason = _difference(model, x, eager, self._compile(model, x, draws))
            except torch.OutOfMemoryError:
                raise
            except _too_many():
                reason = TOO_MANY
            except RuntimeError as error:
                reason = f"torch.compile says: {_first_line(error)}"
        if reason is not None:
            self._give_up(reason, depth=6)
        # Shape, precision and device of each draw, without the memory.
        self._drawn[situation] = [d.new_empty(()).expand(d.shape) for d in draws]
        return eager

    def _compile(self, model: nn.Module, x: Tensor, draws: Sequence[Tensor]) -> Results:
        parameters = dict(model.named_parameters())
        buffers = dict(model.named_buffers())
        noise = _stack(draws, self.form.n_probes)
        state, location = {**parameters, **buffers}, self._eager.location
        hooks = contextlib.nullcontext() if location is None else location.keep_hooks()
        # Traced as matrix products, attention has every derivative.
        with override(**ATTENTION_BY_PRODUCTS), hooks:
            return self._run(model, state, x, noise, self.form, location)

    def _give_up(self, reason: str, *, depth: int) -> None:
        self._given_up = True
        text = f"{self._callee}: the model is run eagerly, not compiled: {reason}."
        warnings.warn(text, stacklevel=depth)  # the line that called GrokAlign


def compiled_function(how: bool | str, callee: str) -> Callable[..., Results]:
    """Return the penalty of a module's pure function, to be compiled when called.

    Parameters
    ----------
    how : bool or str
        ``True``, or the name of a mode or of a backend of ``torch.compile``.
    callee : str
        The public function in whose name errors are raised.
    """
    # A code object of its own: torch limits the number of compilations of each.
    body = types.FunctionType(_penalised_module.__code__.replace(), globals())
    options: dict[str, Any] = {}
    if isinstance(how, str):
        options = {"mode" if how in MODES else "backend": how}
    try:
        return torch.compile(body, fullgraph=True, dynamic=False, **options)
    except RuntimeError as error:  # which is how torch says that it knows no such name
        rule = "True or the name of a mode or backend of torch.compile"
        raise ValueError(complaint(callee, "compile", rule, repr(how))) from error


def _penalised_module(
    module: nn.Module,
    state: dict[str, Tensor],
    x: Tensor,
    noise: Tensor | None,
    form: PenaltyForm,
    location: Location | None,
) -> Results:
    def function(z: Tensor) -> Tensor:
        return functional_call(module, state, (z,))

    cut = form.estimator == "nuclear"
    local = FunctionalPass(function, x, location=location, cut=cut)
    value = penalty(local, given_noise(noise), form)
    return local.output, value


def _stack(draws: Sequence[Tensor], n_probes: int) -> Tensor | None:
    """Return the draws as one tensor, (n_probes, n, ...), block after block."""
    if len(draws) == n_probes:
        return torch.stack(list(draws))
    if not draws:
        return None
    flat, blocks = [draw.flatten(1) for draw in draws], len(draws) // n_probes
    rows = [torch.cat(flat[i : i + blocks], 1) for i in range(0, len(flat), blocks)]
    return torch.stack(rows)


def _situation(model: nn.Module, x: Tensor) -> tuple[Any, ...]:
    """Return all that decides what is compiled: a new one is compared anew."""
    kind = x.device.type
    cast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
    modes = tuple(module.training for module in model.modules())
    trained = tuple(parameter.requires_grad for parameter in model.parameters())
    return x.shape, x.dtype, x.device, x.requires_grad, cast, modes, trained


def _obstacle(model: nn.Module) -> str | None:
    """Say why a module cannot be compiled as a pure function, if it cannot."""
    wrappers = nn.DataParallel, nn.parallel.DistributedDataParallel
    if isinstance(model, wrappers):
        return f"{type(model).__name__} acts in the wrapper's own forward pass"
    for name, module in model.named_modules():
        label = f"{type(module).__name__} {name!r} in training mode"
        if module.training and isinstance(module, nn.modules.batchnorm._BatchNorm):
            return f"{label} takes its statistics from the batch and changes buffers"
        rate = getattr(
            module, "p" if "Dropout" in type(module).__name__ else "dropout", 0
        )
        random = isinstance(rate, int | float) and rate > 0
        if module.training and (random or isinstance(module, nn.RReLU)):
            return f"{label} draws random numbers"
    return None


def _difference(
    model: nn.Module, x: Tensor, eager: Results, compiled: Results
) -> str | None:
    """Say in what the compiled results differ from the eager ones, if they do."""
    names = ["the outputs", "the penalties"]
    wanted = [p for p in model.parameters() if p.requires_grad]
    wanted += [x] if x.requires_grad else []
    right, found = _gradients(eager, wanted), _gradients(compiled, wanted)
    pairs = [*zip(names, eager, compiled, strict=True), ("the gradients", right, found)]
    half = eager[0].dtype in (torch.half, torch.bfloat16)
    tolerance = 4 * torch.finfo(eager[0].dtype).eps if half else TOLERANCE
    for name, right, found in pairs:
        right, found = right.detach(), found.detach()
        error, size = float((found - right).norm()), float(right.norm())
        if not error <= tolerance * size:
            share = error / size if size else math.inf
            return f"{name} differ from the eager ones by {share:.1e} of their norm"
    return None


def _gradients(results: Results, wanted: Sequence[Tensor]) -> Tensor:
    """Return the gradient of outputs and penalties in all parameters, as a vector."""
    output, value = results
    total = widen(output).square().sum() + value.sum()
    found = torch.autograd.grad(total, wanted, retain_graph=True, allow_unused=True)
    pairs = zip(found, wanted, strict=True)
    every = [torch.zeros_like(w) if g is None else g for g, w in pairs]
    return torch.cat([gradient.flatten() for gradient in every])


def _too_many() -> type[Exception]:
    """Return what torch raises after too many compilations of one function."""
    # Here, because importing it takes as long as importing torch.
    from torch._dynamo.exc import FailOnRecompileLimitHit

    return FailOnRecompileLimitHit


def _first_line(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200]
