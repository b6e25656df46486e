"""Naive versions of what the library computes: loops, autograd, full SVDs."""

from __future__ import annotations

import torch
from torch import Tensor


def jacobian_by_loop(function, x: Tensor) -> Tensor:
    """(n, k, d): one sample and one output at a time."""
    rows = []
    with torch.enable_grad():
        for sample in x:
            point = sample.detach().clone().unsqueeze(0).requires_grad_()
            output = function(point).flatten()
            grads = [
                torch.autograd.grad(value, point, retain_graph=True)[0].flatten()
                for value in output
            ]
            rows.append(torch.stack(grads))
    return torch.stack(rows)


def measures_by_svd(
    jacobian: Tensor, output: Tensor, x: Tensor, y: Tensor
) -> dict[str, Tensor]:
    """Every measure of every sample, straight from the definitions."""
    columns: dict[str, list[Tensor]] = {}
    for J, f, point, label in zip(jacobian, output, x.flatten(1), y, strict=True):
        _, s, vh = torch.linalg.svd(J, full_matrices=False)
        b = f - J @ point
        mu = J.T @ torch.ones(len(J), dtype=J.dtype)
        distances = [
            max(f[label] - f[c], torch.zeros_like(f[0])) / (J[label] - J[c]).norm()
            for c in range(len(J))
            if c != label
        ]
        record = {
            "normal_alignment": (vh[0] @ point).abs() / point.norm(),
            "effective_rank": (s**2).sum() / s[0] ** 2,
            "participation_rank": s.sum() ** 2 / (s**2).sum(),
            "alignment_ratio": (J @ point).norm() / (J.norm() * point.norm()),
            "centroid_alignment": mu @ point / (mu.norm() * point.norm()),
            "jacobian_norm": J.norm(),
            "offset_norm": b.norm(),
            "radius": mu @ mu + 2 * b.sum(),
            "local_robustness": torch.stack(distances).min(),
        }
        for name, value in record.items():
            columns.setdefault(name, []).append(value)
    return {name: torch.stack(values) for name, values in columns.items()}
