"""Which penalty: its form, apart from its weight and its random numbers."""

from __future__ import annotations

import math
from dataclasses import InitVar, dataclass

from torch import Tensor

from normalign._errors import describe, require, require_kind
from normalign.geometry.local_map import At

__all__ = ["ESTIMATORS", "PenaltyForm"]

ESTIMATORS = ("output", "input", "orthogonal", "nuclear", "exact", "noise")
POWERS = (1, 2, "ratio")
PROBES = ("sphere", "normal")


@dataclass(frozen=True)
class PenaltyForm:
    r"""Which penalty: everything but its weight and its random numbers.

    Parameters
    ----------
    estimator : {"output", "input", "orthogonal", "nuclear", "exact", "noise"}
        How :math:`|J|_F^2` is found; see :mod:`normalign.regularizers.estimators`.
    power : {1, 2, "ratio"}
        Per sample :math:`|J|_F + |b|_2^2`, :math:`|J|_F^2 + |b|_2^2`, or
        :math:`\log(|J|_F^2 |x|_2^2) - \log |J x|_2^2`.
    offset : bool, default=True
        Whether :math:`|b|_2^2` is part of it; it never is of the ratio.
    n_probes : int, default=1
    released : bool, default=False
        Take the offset from a push-forward along x, as the released experiments do,
        and not from the pull-back.
    std : float, default=0.01
        Standard deviation of the steps of ``"noise"``.
    at : str or At, optional
        Where the map begins; for ``"nuclear"`` where the model is cut in two, by
        default the middle of an ``nn.Sequential``.
    probe : {"sphere", "normal"}
        Probes uniform on the sphere of radius :math:`\sqrt{\dim}` have the same mean
        as normal ones and a lower variance.
    callee : str
        In whose name errors are raised; not kept.

    Examples
    --------
    >>> import torch
    >>> PenaltyForm(n_probes=2).noise_shape(torch.ones(5, 4), (5, 3))
    (2, 5, 3)
    """

    estimator: str = "output"
    power: int | str = 2
    offset: bool = True
    n_probes: int = 1
    released: bool = False
    std: float = 0.01
    at: str | At | None = None
    probe: str = "sphere"
    callee: InitVar[str] = "PenaltyForm"

    def __post_init__(self, callee: str) -> None:
        choices = {"estimator": ESTIMATORS, "power": POWERS, "probe": PROBES}
        for name, known in choices.items():
            rule = f"one of {', '.join(map(repr, known))}"
            value = getattr(self, name)
            require(
                value in known and not isinstance(value, bool),
                callee, name, rule, repr(value),
            )  # fmt: skip
        n_probes = self.n_probes
        whole = isinstance(n_probes, int) and not isinstance(n_probes, bool)
        require_kind(whole, callee, "n_probes", "an integer", n_probes)
        require(n_probes >= 1, callee, "n_probes", "at least 1", n_probes)
        for name in ("offset", "released"):
            value = getattr(self, name)
            require_kind(isinstance(value, bool), callee, name, "a bool", value)
        real = isinstance(self.std, int | float) and not isinstance(self.std, bool)
        require_kind(real, callee, "std", "a number", describe(self.std))
        positive = 0 < self.std < math.inf
        require(positive, callee, "std", "positive and finite", self.std)
        require(
            not (self.estimator == "nuclear" and self.power == "ratio"),
            callee,
            "power",
            "1 or 2 with the nuclear split",
            "'ratio'",
            "The split bounds the nuclear norm; it estimates no Frobenius norm.",
        )

    @property
    def has_offset(self) -> bool:
        """Whether the squared offset is part of the penalty."""
        return self.offset and self.power != "ratio"

    @property
    def one_pass(self) -> bool:
        """Whether one forward pass is enough: all but finite steps."""
        return self.estimator != "noise"

    def noise_shape(
        self,
        x: Tensor,
        output_shape: tuple[int, ...],
        *,
        hidden_shape: tuple[int, ...] | None = None,
    ) -> tuple[int, ...]:
        """Return the shape of the noise that :func:`penalised` takes.

        ``n_probes`` first, then n. ``"exact"`` takes none: ``()``. The shapes include
        n. ``hidden_shape`` is that of the tensor at the place ``at``: ``"nuclear"``
        needs it, and so do probes of the input when the map begins there.
        """
        if self.estimator == "exact":
            return ()
        if self.estimator == "output":
            return (self.n_probes, *output_shape)
        if self.estimator != "nuclear" and self.at is None:
            return (self.n_probes, *x.shape)
        require(
            hidden_shape is not None,
            "noise_shape",
            "hidden_shape",
            "the shape of the tensor at the cut",
            "None",
            "Run the model once and look.",
        )
        assert hidden_shape is not None
        if self.estimator != "nuclear":
            return (self.n_probes, *hidden_shape)
        entries = math.prod(output_shape[1:]) + math.prod(hidden_shape[1:])
        return (self.n_probes, len(x), entries)
