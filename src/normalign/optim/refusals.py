"""What a gradient filter refuses, and why."""

from __future__ import annotations

import inspect
from numbers import Real
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from normalign._errors import complaint, describe, require, require_kind

__all__ = [
    "check_number",
    "check_optimizer",
    "check_position",
    "check_shapes",
    "check_single_step",
    "check_state_dict",
    "check_step",
    "sparse_gradient",
]


def check_number(callee: str, argument: str, value: Any) -> None:
    """Refuse what is no real number; a bool is none."""
    number = isinstance(value, Real) and not isinstance(value, bool)
    require_kind(number, callee, argument, "a number", describe(value))


def check_optimizer(callee: str, optimizer: Any) -> None:
    """Refuse what is no optimizer, and those whose gradients cannot be filtered."""
    require_kind(
        isinstance(optimizer, Optimizer),
        callee,
        "optimizer",
        "a torch.optim.Optimizer",
        describe(optimizer),
        "Build the optimizer first, then attach the filter to it.",
    )
    closure = inspect.signature(optimizer.step).parameters.get("closure")
    require_kind(
        closure is None or closure.default is not inspect.Parameter.empty,
        callee,
        "optimizer",
        "one that steps without a closure",
        type(optimizer).__name__,
        "It computes new gradients inside step(), out of the filter's reach: use one "
        "that takes the gradients of backward(), such as AdamW or SGD.",
    )
    require(
        not any(group.get("differentiable") for group in optimizer.param_groups),
        callee,
        "optimizer",
        "made with differentiable=False",
        "differentiable=True",
        "The filter changes gradients outside autograd, so derivatives through step() "
        "would be wrong.",
    )


def check_step(callee: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Refuse a call of ``step`` that computes or unscales gradients inside."""
    # args[0] is the optimizer itself.
    closure = args[1] if len(args) > 1 else kwargs.get("closure")
    require(
        closure is None,
        callee,
        "the closure of step()",
        "None",
        f"a {type(closure).__name__}",
        "It would compute new gradients after the filter has run: call "
        "loss.backward(), then step() without it.",
    )
    require(
        kwargs.get("grad_scaler") is None,
        callee,
        "the grad_scaler of step()",
        "None",
        f"a {type(kwargs.get('grad_scaler')).__name__}",
        "An optimizer that unscales by it inside step() hides its gradients from the "
        "filter: use one of torch's own.",
    )


def check_single_step(callee: str, optimizer: Optimizer, single: bool) -> None:
    """Refuse an optimizer whose hooks torch has run twice in one step."""
    require_kind(
        single,
        callee,
        "optimizer",
        "one whose hooks run once per step",
        type(optimizer).__name__,
        "Its step() calls a parent's step(), which runs them again, so these gradients "
        "were filtered twice: put what it adds into a step hook of the parent instead.",
    )


def sparse_gradient(callee: str, position: int, gradient: Tensor) -> str:
    """The complaint about a gradient that is not dense."""
    layout = str(gradient.layout).removeprefix("torch.")
    return complaint(
        callee,
        f"the gradient of parameter {position}",
        "dense",
        f"layout {layout}, shape {tuple(gradient.shape)}",
        "Averages and projections of it are dense: build the layer with sparse=False, "
        "or give it an optimizer of its own without a filter.",
    )


def check_state_dict(
    callee: str, state_dict: Any, kind: str, settings: dict[str, Any]
) -> None:
    """Refuse what this kind of filter's ``state_dict`` cannot have returned."""
    known = isinstance(state_dict, dict)
    require_kind(known, callee, "state_dict", "a dict", describe(state_dict))
    missing = sorted({"filter", "settings", "state"} - state_dict.keys())
    require(
        not missing,
        callee,
        "state_dict",
        "what a filter's state_dict() returned",
        f"one without {', '.join(missing)}",
        "The optimizer's own state goes to optimizer.load_state_dict.",
    )
    saved = state_dict["filter"]
    require(saved == kind, callee, "state_dict", f"one of {kind}", f"one of {saved}")
    require(
        state_dict["settings"].keys() == settings.keys(),
        callee,
        "the settings of state_dict",
        ", ".join(settings),
        ", ".join(map(str, state_dict["settings"])) or "none",
    )


def check_position(callee: str, position: Any, n_parameters: int) -> None:
    """Refuse the state of a parameter that the optimizer does not have."""
    require(
        position in range(n_parameters),
        callee,
        "state_dict",
        f"of an optimizer with the same {n_parameters} parameters",
        f"state for parameter {position}",
        "Add the parameter groups it was saved with before loading it.",
    )


def check_shapes(
    callee: str, position: int, entry: dict[str, Any], weight: Tensor
) -> None:
    """Refuse state whose tensors do not end in the shape of their parameter."""
    for name, value in entry.items():
        if isinstance(value, Tensor):
            require(
                value.shape[max(value.ndim - weight.ndim, 0) :] == weight.shape,
                callee,
                f"the {name} of parameter {position}",
                f"of the parameter's shape {tuple(weight.shape)}",
                value,
                "Build model and parameter groups as they were when it was saved.",
            )
