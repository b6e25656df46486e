"""One call of a penalty on a model: what is checked, drawn and run."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import complaint, require, require_kind
from normalign._hooks import (
    Location,
    Model,
    location_in,
    middle_of,
    named_modules,
)
from normalign._linear_map import TORCH_ONLY, refuse_mixing, remedy_for, rounding
from normalign._torch_compat import NOT_TORCH, unwrap
from normalign.regularizers._formulas import (
    LEAST_SQUARE,
    Noise,
    PenaltyForm,
    given_noise,
    penalty,
)
from normalign.regularizers._pass import EagerPass, FunctionalPass

__all__ = ["Call", "check_call", "normal_noise", "penalised"]

Function = Callable[[Tensor], Tensor]


class Call:
    """A penalty's form on one model: its place is found and doubts are settled once.

    On the first call, and again when other parameters are trained than before, the
    graph of the penalty is searched for a parameter, and the penalty is differentiated
    once on trial: a gradient that is zero everywhere, or that does not exist, is an
    error then.

    Parameters
    ----------
    model : callable
    form : PenaltyForm
    callee : str
        The public function in whose name errors are raised.
    trial : bool, default=True
        Whether to differentiate the penalty on trial.
    """

    def __init__(
        self, model: Model, form: PenaltyForm, callee: str, *, trial: bool = True
    ) -> None:
        self.form, self._callee = form, callee
        _refuse_synchronised(model, callee)
        self.location = _location_of(model, form, callee)
        # A reducer listens to what goes on in a data-parallel wrapper's graph.
        wrapped = isinstance(model, nn.parallel.DistributedDataParallel)
        self._trial = trial and isinstance(model, nn.Module) and not wrapped
        self._verified: list[bool] | None = None

    def __call__(self, model: Model, x: Tensor, noise: Noise) -> tuple[Tensor, Tensor]:
        """Return the outputs and the unweighted penalty of each sample.

        The model is the one that the call was made for; it is not kept.
        """
        trained = None
        if isinstance(model, nn.Module):
            trained = [p.requires_grad for p in model.parameters()]
        if self.location is not None:
            self.find_location(model)
        doubtful = trained is None or trained != self._verified
        local = EagerPass(
            model,
            x,
            callee=self._callee,
            location=self.location,
            cut=self.form.estimator == "nuclear",
            once=self.form.one_pass,
            verify=doubtful,
        )
        with _translated_errors(self._callee):
            value = penalty(local, noise, self.form)
            if doubtful:
                found = local.reached_leaves(value)
                _check_gradient(value, found, self.form, self._callee, self._trial)
        self._verified = trained
        return local.output, value

    def find_location(self, model: Model) -> bool:
        """Find the place anew if its submodule was replaced; say whether it was."""
        assert self.location is not None
        module: Any = unwrap(model)
        for name in self.location.at.name.split("."):
            module = getattr(module, name, None) if name else module
        if module is self.location.module:
            return False
        self.location = _location_of(model, self.form, self._callee)
        return True


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
    location = None if at is None else location_in(inside, at, "penalised")
    local = FunctionalPass(function, x, location=location, cut=cut)
    value = penalty(local, given_noise(noise), form)
    return local.output, value


def normal_noise(generator: torch.Generator | None) -> Noise:
    """Return a source of standard normal numbers, drawn where the generator lives."""

    def draw(like: Tensor) -> Tensor:
        device = like.device if generator is None else generator.device
        half = like.dtype in (torch.half, torch.bfloat16)
        dtype = torch.float32 if half else like.dtype
        noise = torch.randn(like.shape, generator=generator, device=device, dtype=dtype)
        return noise.to(like.device)

    return draw


def check_call(model: Model, x: Tensor, form: PenaltyForm, callee: str) -> None:
    """Refuse what cannot be penalised, with the remedy."""
    remedy = remedy_for(model)
    require_kind(callable(model), callee, "model", "callable", model, remedy)
    require_kind(isinstance(x, Tensor), callee, "x", "a tensor", x)
    inside = form.at is not None and form.estimator != "nuclear"
    if not x.is_floating_point() and not inside:
        require_kind(False, callee, "x", "a floating point tensor", x, _inside(model))
    require(x.ndim >= 2 or inside, callee, "x", "of shape (n, ...)", x)
    require(
        torch.is_grad_enabled(),
        callee,
        "the call",
        "made with gradients enabled",
        "a call under torch.no_grad()",
        "A penalty computed without gradients would do nothing.",
    )
    if not form.one_pass:
        refuse_mixing(
            model,
            callee,
            "Put those layers into eval() while you train the rest, use a "
            "normalisation within the sample, such as torch.nn.GroupNorm, or another "
            "estimate: output probes and the others take the batch's statistics fixed.",
        )


def _refuse_synchronised(model: Model, callee: str) -> None:
    """Refuse batch statistics over several processes: they have one derivative."""
    for name, module in named_modules(model):
        require(
            not (isinstance(module, nn.SyncBatchNorm) and module.training),
            callee,
            "model",
            "without batch statistics over several processes",
            f"SyncBatchNorm {name!r} in training mode",
            "Use BatchNorm on each process, or put it into eval().",
        )


def _inside(model: Model) -> str:
    """Name the place from which a model of tokens can be differentiated."""
    modules = [(name, m) for name, m in named_modules(model) if name]
    kinds = [isinstance(m, nn.Embedding) for _, m in modules]
    if not any(kinds):
        return "For tokens, name the submodule at which the map begins: at='name'."
    first = kinds.index(True)
    return (
        "For tokens, penalise the map from their embeddings: "
        f"at={modules[first][0]!r}, or the name of the first submodule after it."
    )


def _location_of(model: Model, form: PenaltyForm, callee: str) -> Location | None:
    """Return where the form's map begins or is cut, if it is inside the model."""
    at = form.at
    if at is None and form.estimator == "nuclear":
        at = middle_of(model, callee)
    return None if at is None else location_in(model, at, callee)


def _check_gradient(
    value: Tensor,
    leaves: Sequence[Tensor],
    form: PenaltyForm,
    callee: str,
    trial: bool = True,
) -> None:
    """Refuse a penalty that changes no parameter: no silent nothing.

    Parameters
    ----------
    value : Tensor of shape (n,)
        The penalty of each sample; its graph is kept.
    leaves : sequence of Tensor
        What a gradient of ``value`` reaches. None of them gets a ``.grad``.
    form : PenaltyForm
    callee : str
        The public function in whose name errors are raised.
    trial : bool, default=True
        Whether to compute the gradient, and see that it is not zero throughout.

    Raises
    ------
    ValueError
    """
    rule = "differentiable in its parameters through its Jacobian"
    require(
        len(leaves) > 0,
        callee,
        "model",
        rule,
        "a penalty that depends on none",
        "Check that some have requires_grad=True and that nothing detaches them.",
    )
    # Hooks of a parameter would see a gradient that is none.
    if not trial or _is_captured(value) or any(p._backward_hooks for p in leaves):
        return
    found = torch.autograd.grad(
        value.sum(), leaves, retain_graph=True, allow_unused=True
    )
    moved = any(g is not None and bool(g.any()) for g in found)
    half = any(p.dtype == torch.half for p in leaves)  # where numbers vanish
    require(
        moved or half or not bool((value.detach().abs() > _least(value, form)).any()),
        callee,
        "model",
        rule,
        "a gradient that is zero in every trained parameter",
        "In a piecewise affine model the biases before the last layer do not change "
        "the Jacobian: train weights too.",
    )


def _least(value: Tensor, form: PenaltyForm) -> float:
    """Return what a penalty is where it has all that it wants, and a zero gradient."""
    if form.power == "ratio":
        return rounding(value.dtype)
    return 1.001 * LEAST_SQUARE**0.5 if form.power == 1 else 0.0


@contextlib.contextmanager
def _translated_errors(callee: str) -> Iterator[None]:
    """Say in our words what torch says of a derivative that does not exist."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        missing = re.search(r"derivative for '?([\w:.]+)'? is not implemented", text)
        if missing is not None:
            rule, name = "twice differentiable", missing[1].removeprefix("aten::")
            got = f"an operation without a second derivative, {name}"
            message = complaint(callee, "model", rule, got, _REMEDY)
            raise ValueError(message) from error
        if NOT_TORCH in text:
            rule, got = "differentiable in x", "one that leaves torch for NumPy"
            message = complaint(callee, "model", rule, got, TORCH_ONLY)
            raise ValueError(message) from error
        if "use_reentrant" in text:
            rule, got = "checkpointed with use_reentrant=False", "use_reentrant=True"
            why = "The other kind has no derivative in some of the tensors alone."
            raise ValueError(complaint(callee, "model", rule, got, why)) from error
        raise


_REMEDY = (
    "Write that layer in simpler operations, nn.Hardsigmoid for one as "
    "(x / 6 + 0.5).clamp(0, 1), or take estimator='noise' with offset=False, which "
    "has no need of it."
)


def _is_captured(value: Tensor) -> bool:
    """Say whether a CUDA graph is being recorded, in which nothing can be looked at."""
    return value.is_cuda and torch.cuda.is_current_stream_capturing()
