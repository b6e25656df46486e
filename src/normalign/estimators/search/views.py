"""A machine at some iteration, as a fit that stopped there would have left it.

What a caller's own scorer is handed. Everything that is learned is there, it can be
copied, pickled and fitted again; only the temperature of probabilities, which costs
about as much as a solve, is not made before it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import Any

from normalign.estimators import rfam

__all__ = ["RFAMClassifier", "RFAMRegressor"]


class RFAMClassifier(rfam.RFAMClassifier):
    """A classifier at some iteration."""

    _left_out: Callable[[], tuple[Any, ...]]

    @cached_property
    def temperature_(self) -> Any:
        """The factor of ``predict_proba``, as a plain fit would learn it."""
        return self._temperature(*self._left_out())

    def __getstate__(self) -> dict[str, Any]:
        """The state with a temperature, and without what it is made of."""
        if hasattr(self, "_left_out"):
            _ = self.temperature_
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_left_out"}


class RFAMRegressor(rfam.RFAMRegressor):
    """A regressor at some iteration."""
