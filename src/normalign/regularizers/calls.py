"""One call of a penalty on a model: what is checked, drawn and run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from normalign._errors import require, require_kind
from normalign.geometry.quirks import (
    named_modules,
    refuse_mixing,
    remedy_for,
    unwrapped,
)
from normalign.regularizers.eager import EagerPass
from normalign.regularizers.forms import PenaltyForm
from normalign.regularizers.formulas import Noise, penalty
from normalign.regularizers.gradients import check_gradient, explained
from normalign.regularizers.places import Place, middle_of, place_in

__all__ = ["Call", "check_call", "eager_model", "normal_noise", "place_of"]

Model = Callable[..., Any]


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
        self.place = place_of(model, form, callee)
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
        if self.place is not None:
            self.find_place(model)
        doubtful = trained is None or trained != self._verified
        local = EagerPass(
            model,
            x,
            callee=self._callee,
            place=self.place,
            cut=self.form.estimator == "nuclear",
            once=self.form.one_pass,
            verify=doubtful,
        )
        with explained(self._callee):
            value = penalty(local, noise, self.form)
            if doubtful:
                found = local.reached(value)
                check_gradient(value, found, self.form, self._callee, self._trial)
        self._verified = trained
        return local.output, value

    def find_place(self, model: Model) -> bool:
        """Find the place anew if its submodule was replaced; say whether it was."""
        assert self.place is not None
        module: Any = unwrapped(model)
        for name in self.place.at.name.split("."):
            module = getattr(module, name, None) if name else module
        if module is self.place.module:
            return False
        self.place = place_of(model, self.form, self._callee)
        return True


def eager_model(model: Model) -> Model:
    """Return what ``torch.compile`` was given, other wrappers left in place."""
    while True:
        if hasattr(model, "_orig_mod"):
            model = model._orig_mod  # pyright: ignore[reportFunctionMemberAccess]
        elif hasattr(model, "_torchdynamo_orig_callable"):
            model = model._torchdynamo_orig_callable  # pyright: ignore
        else:
            return model


def normal_noise(generator: torch.Generator | None) -> Noise:
    """Return a source of standard normal numbers, drawn where the generator lives."""

    def draw(like: Tensor) -> Tensor:
        device = like.device if generator is None else generator.device
        half = like.dtype in (torch.half, torch.bfloat16)
        dtype = torch.float32 if half else like.dtype
        noise = torch.randn(like.shape, generator=generator, device=device, dtype=dtype)
        return noise.to(like.device)

    return draw


def place_of(model: Model, form: PenaltyForm, callee: str) -> Place | None:
    """Return where the form's map begins or is cut, if it is inside the model."""
    at = form.at
    if at is None and form.estimator == "nuclear":
        at = middle_of(model, callee)
    return None if at is None else place_in(model, at, callee)


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
