"""Attacks on classifiers, and whether to believe them.

========================  ==========================================================
`ascent.py`               `pgd`: projected gradient ascent, all radii at once
`attack.py`               `Attack`: what it found; `attack_success_rate`
`masking.py`              `masking_report`: does the attack fail for its own reasons?
`minimal.py`              `minimal_radius`: the smallest radius that breaks a sample
`steps.py`                how far a step goes: `cosine_steps`
`losses.py`               what is raised, and which answers are right
`balls.py`                starts, steps and projections in a norm
`routes.py`               gradients by autograd, or by a model's own closed form
`target.py`               a model, samples and a loss, ready to be attacked
========================  ==========================================================
"""

from normalign.robustness.ascent import pgd
from normalign.robustness.attack import Attack, attack_success_rate
from normalign.robustness.masking import Check, MaskingReport, masking_report
from normalign.robustness.minimal import minimal_radius
from normalign.robustness.steps import cosine_steps

__all__ = [
    "Attack",
    "Check",
    "MaskingReport",
    "attack_success_rate",
    "cosine_steps",
    "masking_report",
    "minimal_radius",
    "pgd",
]
