"""Checks of the parameters that all kernel machine estimators share."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

import numpy as np

from normalign._errors import as_float, complaint, describe, require, require_kind
from normalign.kernels import KERNELS

__all__ = ["check_parameters"]


def check_parameters(estimator: Any) -> None:
    """Complain about the first parameter that no machine can be made by.

    Raises
    ------
    TypeError
        If a parameter is not of the right kind.
    ValueError
        If its value is out of range.
    """
    callee = type(estimator).__name__
    given = vars(estimator)  # every parameter is there, and nothing needs looking up
    for name, choices in {
        "kernel": tuple(KERNELS),
        "bandwidth_rule": ("fixed", "median"),
        "solver": ("auto", "cholesky", "cg"),
        "dtype": ("auto", "float32", "float64"),
    }.items():
        _require_choice(callee, name, given[name], choices)
    for name in ("bandwidth", "ridge"):
        _require_number(callee, name, given[name], above=0.0)
    if "identity_weight" in given:
        _require_number(callee, "identity_weight", given["identity_weight"], most=1.0)
    _check_exponent(callee, given)
    for name, least in {"n_iter": 0, "agop_samples": 1}.items():
        _require_count(callee, name, given[name], least)
    if given["memory_limit"] is not None:
        _require_count(callee, "memory_limit", _whole(given["memory_limit"]), 1)
    _check_leaf_size(callee, given["max_leaf_size"])
    if given["time_limit_s"] is not None:
        _require_number(callee, "time_limit_s", given["time_limit_s"], above=0.0)
    if given["validation_fraction"] is not None:
        _require_number(
            callee, "validation_fraction", given["validation_fraction"],
            above=0.0, below=1.0,
        )  # fmt: skip
    _check_counts(callee, given)
    state = given["random_state"]
    if state is not None and not (type(state) is int and 0 <= state < 2**32):
        _check_random_state(callee, state)
    for name in ("diagonal", "center"):
        if not isinstance(given[name], bool | np.bool_):
            raise TypeError(_unlike(callee, name, "True or False", given[name]))


def _check_leaf_size(callee: str, size: Any) -> None:
    if size is None or (isinstance(size, str) and size == "auto"):
        return
    if isinstance(size, str):
        rule = 'a number of rows, "auto", or None for no parts'
        raise TypeError(complaint(callee, "max_leaf_size", rule, repr(size)))
    _require_count(callee, "max_leaf_size", size, 1)


def _check_counts(callee: str, given: dict[str, Any]) -> None:
    verbose, n_jobs = given["verbose"], given["n_jobs"]
    require_kind(
        isinstance(verbose, Integral | np.bool_), callee, "verbose", "an integer",
        describe(verbose),
    )  # fmt: skip
    if n_jobs is not None:
        require_kind(
            isinstance(n_jobs, Integral), callee, "n_jobs", "an integer or None",
            describe(n_jobs),
        )  # fmt: skip
        require(
            n_jobs != 0, callee, "n_jobs", "a number of workers, or -1 for all cores",
            n_jobs,
        )  # fmt: skip


def _check_random_state(callee: str, state: Any) -> None:
    if isinstance(state, Integral):
        fits = 0 <= int(state) < 2**32
        require(fits, callee, "random_state", "in [0, 2**32)", int(state))
        return
    known = isinstance(state, np.random.RandomState) or state is np.random
    remedy = ""
    if isinstance(state, np.random.Generator):
        remedy = "Draw a seed: int(generator.integers(2**32))."
    require_kind(
        known, callee, "random_state", "an integer, a RandomState or None",
        describe(state), remedy,
    )  # fmt: skip


def _whole(value: Any) -> Any:
    """A float without a fraction as an integer: bytes are often written as 1e9."""
    whole = isinstance(value, float | np.floating) and value.is_integer()
    return int(value) if whole else value


def _check_exponent(callee: str, given: dict[str, Any]) -> None:
    exponent = given["exponent"]
    _require_number(callee, "exponent", exponent, above=0.0, most=2.0)
    require(
        exponent == 1 or given["kernel"] == "laplace", callee, "exponent",
        f'1.0 for kernel="{given["kernel"]}"', exponent,
        'Only kernel="laplace" has an exponent.',
    )  # fmt: skip


def _unlike(callee: str, name: str, rule: str, value: Any) -> str:
    """A complaint about a value of any kind; a text is shown as one."""
    return complaint(callee, name, rule, describe(value))


def _require_choice(callee: str, name: str, value: Any, choices: tuple) -> None:
    if not (isinstance(value, str) and value in choices):
        rule = "one of " + ", ".join(f'"{choice}"' for choice in choices)
        raise ValueError(_unlike(callee, name, rule, value))


def _require_count(callee: str, name: str, value: Any, least: int) -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole:
        raise TypeError(_unlike(callee, name, "an integer", value))
    require(int(value) >= least, callee, name, f"{least} or more", value)


def _require_number(
    callee: str,
    name: str,
    value: Any,
    *,
    above: float | None = None,
    below: float = math.inf,
    most: float | None = None,
) -> None:
    real = isinstance(value, Real) and not isinstance(value, bool)
    if not real:
        raise TypeError(_unlike(callee, name, "a number", value))
    number = as_float(value)
    low = 0.0 if above is None else above
    fits = number >= low if above is None else number > low
    if not (fits and (number < below if most is None else number <= most)):
        start = f"{'[' if above is None else '('}{low:g}"
        end = f"{below:g})" if most is None else f"{most:g}]"
        raise ValueError(complaint(callee, name, f"in {start}, {end}", value))
