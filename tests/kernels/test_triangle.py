"""One triangle in panels: its factor and its solutions are LAPACK's."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import _triangle as module
from normalign.kernels._triangle import Triangle, triangle_bytes
from tests.kernels.cases import DOUBLE, points

CPU = torch.device("cpu")


def definite(n, seed=0, dtype=DOUBLE):
    root = points(n, n + 3, seed=seed)
    return (root @ root.T / n + torch.eye(n, dtype=DOUBLE)).to(dtype)


def filled(matrix, *, whole=False):
    held = Triangle(len(matrix), dtype=matrix.dtype, device=matrix.device, whole=whole)
    for start, panel in zip(held.edges, held.panels, strict=False):
        panel.copy_(matrix[start:, start : start + panel.shape[1]])
        # what stands above the diagonal must not matter
        width = panel.shape[1]
        panel[:width] += torch.triu(torch.full_like(panel[:width], 1e3), 1)
    return held


@pytest.mark.parametrize("width", [1, 3, 4, 50])
@pytest.mark.parametrize("inverses", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@given(n=st.integers(1, 13), k=st.integers(1, 3), seed=st.integers(0, 10**6))
def test_solutions_are_those_of_the_square(width, whole, inverses, n, k, seed):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_CPU_WIDTH", width)
        patch.setattr(module, "_CPU_STRIP", 2)
        patch.setattr(module, "_DEVICE_WIDTH", width)
        patch.setattr(module, "_WHOLE_STRIP", 2)
        patch.setattr(module, "_WHOLE_ATONCE", 5)
        matrix, right = definite(n, seed), points(n, k, seed=seed + 1)
        held = filled(matrix, whole=whole)
        held._keeps_inverses = inverses  # what an accelerator does
        assert held.factorise_()
        factor = torch.linalg.cholesky(matrix)
        assert torch.allclose(held.diagonal(), factor.diagonal())
        half = held.half_solve_(right.clone())
        assert torch.allclose(factor @ half, right, atol=1e-9)
        whole = held.solve_(right.clone())
        assert torch.allclose(matrix @ whole, right, atol=1e-9)


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("inverses", [False, True])
@pytest.mark.parametrize("width", [2, 50])
def test_an_indefinite_matrix_is_noticed_wherever_it_breaks(
    width, inverses, whole, monkeypatch
):
    monkeypatch.setattr(module, "_CPU_WIDTH", width)
    monkeypatch.setattr(module, "_CPU_STRIP", 1)
    monkeypatch.setattr(module, "_WHOLE_STRIP", 2)
    monkeypatch.setattr(module, "_WHOLE_ATONCE", 2)
    for place in range(5):
        matrix = torch.eye(5, dtype=DOUBLE)
        matrix[place, place] = -1
        held = filled(matrix, whole=whole)
        held._keeps_inverses = inverses
        assert not held.factorise_()


def test_float32_stays_float32(monkeypatch):
    monkeypatch.setattr(module, "_CPU_WIDTH", 4)
    matrix = definite(10, dtype=torch.float32)
    held = filled(matrix)
    assert held.factorise_()
    right = points(10, 2, dtype=torch.float32)
    assert torch.allclose(matrix @ held.solve_(right.clone()), right, atol=1e-4)


def test_the_buffer_is_half_of_the_square_and_half_a_panel():
    n, width = 4096, module._CPU_WIDTH
    taken = triangle_bytes(n, torch.float32, CPU)
    assert taken == 4 * (n * n // 2 + n * width // 2)
    held = Triangle(n, dtype=torch.float32, device=CPU)
    assert sum(panel.numel() for panel in held.panels) * 4 == taken
    assert held.panels[0].untyped_storage().nbytes() == taken
    assert len(held) == n


def test_the_diagonal_can_be_added_to(monkeypatch):
    monkeypatch.setattr(module, "_CPU_WIDTH", 2)
    held = filled(torch.eye(5, dtype=DOUBLE))
    held.add_diagonal_(torch.arange(5, dtype=DOUBLE))
    assert torch.equal(held.diagonal(), 1 + torch.arange(5, dtype=DOUBLE))
