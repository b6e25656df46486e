"""Hypothesis strategies for Jacobians and inputs, in float64."""

from __future__ import annotations

import torch
from hypothesis import strategies as st


@st.composite
def jacobians(draw, max_k: int = 6, max_d: int = 7, n: int = 3):
    """A batch of random Jacobians, of full or of low rank, of any size in between."""
    k, d = draw(st.integers(1, max_k)), draw(st.integers(1, max_d))
    rank = draw(st.integers(1, min(k, d)))
    scale = 10.0 ** draw(st.integers(-6, 6))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    left = torch.randn(n, k, rank, generator=generator, dtype=torch.float64)
    right = torch.randn(n, rank, d, generator=generator, dtype=torch.float64)
    return scale * left @ right


@st.composite
def jacobians_and_inputs(draw):
    jacobian = draw(jacobians())
    generator = torch.Generator().manual_seed(draw(st.integers(0, 10**6)))
    n, _, d = jacobian.shape
    return jacobian, torch.randn(n, d, generator=generator, dtype=torch.float64)


def rotation(size: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    square = torch.randn(size, size, generator=generator, dtype=torch.float64)
    return torch.linalg.qr(square)[0]
