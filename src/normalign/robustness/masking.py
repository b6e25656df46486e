"""`masking_report`: whether a failed attack shows a strong model or a weak attack.

An attack that climbs gradients fails on a robust model, and also on one whose gradients
lead nowhere. Athalye, Carlini and Wagner (Obfuscated Gradients Give a False Sense of
Security, 2018, arXiv:1802.00420) list what the second kind gives itself away by; the
checks here follow their list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from normalign._errors import module_of_extra, require, require_kind
from normalign._linear_map import ChunkSize, LocalMap
from normalign.robustness.ascent import (
    checked_generator,
    checked_radii,
    checked_range,
    pgd,
)
from normalign.robustness.attack import Attack
from normalign.robustness.balls import Ball, Bound, drawn_in, unit_offsets
from normalign.robustness.losses import Loss, check_loss
from normalign.robustness.routes import has_closed_form
from normalign.robustness.steps import StepSize
from normalign.robustness.target import Target, preserve_state, require_model

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["Check", "MaskingReport", "masking_report"]

# Samples among which a witness of another class is looked for.
WITNESSES = 2048
EXACT = "donot_use_mm_for_euclid_dist"


@dataclass(frozen=True)
class Check:
    """One question to an attack, with its answer.

    Attributes
    ----------
    name : str
    passed : bool or None
        None where the question could not be asked.
    finding : str
        What was seen, in numbers.
    remedy : str
        What to do if it failed.
    worst : float
        The share of rightly classified samples that speaks against the attack; the
        check fails where it is above the tolerance.
    numbers : dict of str to list of float
        What the finding says, by radius or by number of steps.
    """

    name: str
    passed: bool | None
    finding: str
    remedy: str
    worst: float
    numbers: dict[str, list[float]]


@dataclass(frozen=True, repr=False)
class MaskingReport:
    """Whether an attack's failures can be believed, check by check.

    Attributes
    ----------
    checks : tuple of Check
    attack : Attack
        The attack in question, as it was set.
    tolerance : float
    """

    checks: tuple[Check, ...]
    attack: Attack
    tolerance: float

    @property
    def passed(self) -> bool:
        """Whether no check failed."""
        return not self.failed

    @property
    def failed(self) -> list[str]:
        """Names of the checks that failed."""
        return [check.name for check in self.checks if check.passed is False]

    def __getitem__(self, name: str) -> Check:
        return {check.name: check for check in self.checks}[name]

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas DataFrame, one row for each check."""
        pd = module_of_extra("MaskingReport.to_frame", "pandas", "frames")
        names = ("name", "passed", "worst", "finding", "remedy")
        return pd.DataFrame(
            [{name: getattr(check, name) for name in names} for check in self.checks]
        )

    def __repr__(self) -> str:
        asked = sum(check.passed is not None for check in self.checks)
        lines = [f"MaskingReport: {asked - len(self.failed)} of {asked} checks passed"]
        for check in self.checks:
            verdict = {True: "passed", False: "FAILED", None: "-"}[check.passed]
            lines.append(f"{check.name:10} {verdict:7} {check.finding}")
            if check.passed is False:
                lines.append(f"{'':18} {check.remedy}")
        return "\n".join(lines)


def masking_report(  # noqa: PLR0913  (what an attack is made of)
    model: Any,
    x: Any,
    y: Any,
    *,
    radii: float | Sequence[float] | Tensor,
    norm: Literal["linf", "l2"] = "linf",
    n_steps: int = 20,
    step_size: StepSize = None,
    n_restarts: int = 1,
    generator: torch.Generator | None = None,
    loss: Loss = "cross_entropy",
    start: Literal["uniform", "center"] = "uniform",
    keep: Literal["last", "best"] = "last",
    low: Bound = None,
    high: Bound = None,
    chunk_size: ChunkSize = "auto",
    surrogate: Any = None,
    tolerance: float = 0.05,
) -> MaskingReport:
    """Checks of whether an attack fails for lack of gradients.

    ==========  =======================================================================
    gradients   are there any at x, finite and not zero?
    radius      does a sample that breaks at one radius break at every larger one?
    noise       does it find all that as many uniform draws from the ball find?
    steps       do twice and four times the steps break as much, sample by sample?
    converged   ... and not more?
    loss        does another loss break no further samples?
    reach       at a radius where every ball holds a sample that the model itself
                answers otherwise, does every sample break?
    transfer    do the points found for a surrogate break no further samples?
    ==========  =======================================================================

    Each is judged by a share of the rightly classified samples; what one attack finds
    and another does not is counted sample by sample, never as a difference of rates.
    Nothing is repaired: the union over radii, runs or losses is for the caller to take.
    All passed is no proof of robustness. The cost is that of about nine attacks.

    Parameters
    ----------
    model, x, y, radii, norm, n_steps, step_size, n_restarts, generator, loss, start
        The attack in question; see :func:`~normalign.robustness.pgd`.
    keep, low, high, chunk_size
        Likewise.
    surrogate : model, optional
        Another model of the same task, for the last check.
    tolerance : float, default=0.05
        The share of samples up to which a check still passes.

    Returns
    -------
    MaskingReport

    Raises
    ------
    ValueError, TypeError
        As :func:`~normalign.robustness.pgd`.

    Examples
    --------
    >>> x = torch.linspace(-1.0, 1.0, 10)[:, None]
    >>> steps = lambda z: torch.cat([torch.round(9 * z), -torch.round(9 * z)], 1)
    >>> masking_report(steps, x, (x[:, 0] < 0).long(), radii=0.5).failed
    ['gradients', 'noise', 'reach']
    """
    callee = "masking_report"
    values = sorted(checked_radii(callee, radii))
    check_loss(callee, loss)
    number = isinstance(tolerance, Real)
    require_kind(number, callee, "tolerance", "a number", repr(tolerance))
    require(0 <= tolerance < 1, callee, "tolerance", "in [0, 1)", tolerance)
    generator = checked_generator(callee, generator)
    require_model(callee, model)
    local_map = None if has_closed_form(model) else LocalMap(model, callee=callee)
    settings: dict[str, Any] = {
        "norm": norm, "n_restarts": n_restarts, "start": start, "keep": keep,
        "low": low, "high": high, "chunk_size": chunk_size,
    }  # fmt: skip

    def run(attacked: Any = model, **changed: Any) -> Attack:
        given = {
            "radii": values, "n_steps": n_steps, "step_size": step_size, "loss": loss,
            "generator": generator.clone_state(), **settings,
        }  # fmt: skip
        return pgd(attacked, x, y, **{**given, **changed})

    base = run()
    with preserve_state():
        target = Target.of(
            callee, model, local_map, x, y, loss=loss, chunk_size=chunk_size
        )
        ball = Ball(norm, *checked_range(callee, target.x, low, high))
        far = radius_of_witnesses(target, norm)
        tries = max(n_steps, 1) * n_restarts
        noise = _broken_by_noise(target, ball, values, tries, generator.clone_state())
    judged = partial(_judge, clean=base.clean, tolerance=tolerance)
    checks = [
        _gradients(target, judged),
        _radius(base, judged),
        _noise(base, noise, tries, judged),
        *_steps(
            base,
            [run(**_prolong(step_size, n_steps, f)) for f in (2, 4)],
            n_steps,
            judged,
        ),
        _loss(base, run, loss, judged),
        _reach(None if far is None else run(radii=[far]), judged),
    ]
    if surrogate is not None:
        checks.append(_transfer(base, run(surrogate), target, judged))
    return MaskingReport(tuple(checks), base, tolerance)


def radius_of_witnesses(target: Target, norm: str) -> float | None:
    """Return a radius at which every right sample's ball holds one of another answer.

    The largest distance from a rightly classified sample to the nearest one that is
    rightly given another label; ``None`` where there is only one label.
    """
    right = torch.nonzero(~target.clean.broken)[:, 0]
    rows = target.x[right].flatten(1).to(drawn_in(target.x))
    labels = target.aim.target.to(rows.device)[right]
    if len(labels.unique()) < 2:
        return None
    order = float("inf") if norm == "linf" else 2.0
    least = rows.new_full((len(rows),), torch.inf)
    for label in labels.unique():
        witnesses = rows[labels == label][:WITNESSES]
        others = labels != label
        for part in torch.nonzero(others)[:, 0].split(256):
            # Difference by difference: a product of tables would round too short.
            gaps = torch.cdist(rows[part], witnesses, p=order, compute_mode=EXACT)
            least[part] = torch.minimum(least[part], gaps.amin(1))
    return float(least.max())


def _broken_by_noise(
    target: Target,
    ball: Ball,
    radii: list[float],
    tries: int,
    generator: torch.Generator,
) -> Tensor:
    """Return whether any of so many uniform draws breaks a sample, (R, n)."""
    broken = target.clean.broken.repeat(len(radii), 1)
    for _ in range(tries):
        offsets = unit_offsets(target.x, ball.norm, generator)
        for i, radius in enumerate(radii):
            broken[i] |= target.broken_at(ball.legal(target.x + radius * offsets))
    return broken


def _judge(
    name: str,
    against: Tensor,
    finding: str,
    remedy: str,
    numbers: dict[str, list[float]],
    *,
    clean: Tensor,
    tolerance: float,
) -> Check:
    """Judge by the largest share, over radii, of right samples that speak against."""
    if not bool(clean.any()):
        return Check(name, None, "no sample is right at x", remedy, 0.0, {})
    against = against.reshape(-1, len(clean))
    shares = _rates(against[:, clean])
    worst = max(shares)
    counts = int(against[:, clean].sum(1).max())
    text = f"{finding} {counts} of {int(clean.sum())} samples ({100 * worst:.1f} %)"
    return Check(name, worst <= tolerance, text, remedy, worst, numbers)


def _gradients(target: Target, judged: Any) -> Check:
    gradients = target.gradients().flatten(1)
    finite = gradients.isfinite().all(1)
    lost = ~finite | (gradients == 0).all(1)
    return judged(
        "gradients",
        lost,
        "zero or not finite at x:",
        "Attack a smooth stand-in (a straight-through gradient, the logits instead of "
        "probabilities), or without gradients.",
        {"zero": _rates((gradients == 0).all(1)), "not finite": _rates(~finite)},
    )


def _radius(base: Attack, judged: Any) -> Check:
    lost = torch.zeros_like(base.broken)
    for i in range(1, len(base.broken)):
        lost[i] = base.broken[:i].any(0) & ~base.broken[i]
    check = judged(
        "radius",
        lost,
        "broken at a smaller radius but not at a larger:",
        "Use more steps, keep='best' or start='center'; report the union over radii as "
        "such, if at all.",
        {"radii": base.radii.tolist(), "success": _successes(base)},
    )
    return check if len(base.radii) > 1 else _not_asked(check, "one radius only")


def _noise(base: Attack, noise: Tensor, tries: int, judged: Any) -> Check:
    right = base.clean
    return judged(
        "noise",
        noise & ~base.broken,
        f"broken by {tries} uniform draws and not by the attack:",
        "The gradients mislead: try loss='margin', more restarts, or an attack that "
        "uses outputs alone.",
        {"attack": _successes(base), "noise": _rates(noise[:, right])},
    )


def _prolong(step_size: StepSize, n_steps: int, factor: int) -> dict[str, Any]:
    """Settings of as many times the steps; a schedule goes the same way in them."""
    schedule = step_size
    if callable(step_size):
        schedule = lambda t: step_size(t // factor) / factor  # noqa: E731
    return {"n_steps": factor * n_steps, "step_size": schedule}


def _steps(
    base: Attack, longer: list[Attack], n_steps: int, judged: Any
) -> tuple[Check, Check]:
    counts = [n_steps, 2 * n_steps, 4 * n_steps]
    numbers = {"n_steps": [float(c) for c in counts]}
    for i, radius in enumerate(base.radii.tolist()):
        numbers[f"success at {radius:g}"] = [_successes(a)[i] for a in (base, *longer)]
    twice, last = (attack.broken for attack in longer)
    told = judged(
        "steps",
        (base.broken & ~twice) | (base.broken & ~last) | (twice & ~last),
        f"broken with fewer of {counts} steps but not with more:",
        "Steps overshoot: shorten them (cosine_steps) or use keep='best'.",
        numbers,
    )
    more = judged(
        "converged",
        ~base.broken & (twice | last),
        f"broken only with more than {n_steps} steps:",
        "The attack has not converged: raise n_steps or n_restarts.",
        numbers,
    )
    return told, more


def _loss(base: Attack, run: Any, loss: Loss, judged: Any) -> Check:
    other = "cross_entropy" if loss == "margin" else "margin"
    attack = run(loss=other)
    return judged(
        "loss",
        attack.broken & ~base.broken,
        f"broken by raising {other!r} and not by the attack:",
        f"Attack with loss={other!r}.",
        {"attack": _successes(base), other: _successes(attack)},
    )


def _reach(attack: Attack | None, judged: Any) -> Check:
    remedy = (
        "The balls are known to hold points of another class: use more steps and "
        "restarts, start='center' or keep='best', or do not trust the attack."
    )
    if attack is None:
        text = "the right answers are all of one class"
        return Check("reach", None, text, remedy, 0.0, {})
    radius = float(attack.radii[0])
    numbers = {"radius": [radius], "success": _successes(attack)}
    text = f"not broken at radius {radius:.4g}, which holds other answers:"
    return judged("reach", ~attack.broken, text, remedy, numbers)


def _transfer(base: Attack, other: Attack, target: Target, judged: Any) -> Check:
    with preserve_state():
        moved = torch.stack([target.broken_at(p.to(base.x)) for p in other.points])
    return judged(
        "transfer",
        moved & ~base.broken,
        "broken by points found for the surrogate and not by the attack:",
        "The model hides its gradients: attack it through the surrogate.",
        {"attack": _successes(base), "transfer": _rates(moved[:, base.clean])},
    )


def _not_asked(check: Check, why: str) -> Check:
    return Check(check.name, None, why, check.remedy, 0.0, check.numbers)


def _successes(attack: Attack) -> list[float]:
    """Shares of the right samples that break, by radius."""
    return _rates(attack.broken[:, attack.clean])


def _rates(flags: Tensor) -> list[float]:
    return flags.double().mean(-1).reshape(-1).tolist()
