"""A triangle in panels: its factor, its blocks and its solutions are LAPACK's."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels import _triangle
from normalign.kernels._triangle import (
    Beside,
    Triangle,
    factorise_and_invert_,
    triangle_bytes,
)
from normalign.kernels.cuda import kernels_for
from normalign.kernels.cuda.driver import Arguments
from tests.kernels.cases import DOUBLE, points


def definite(n, seed=0, dtype=DOUBLE):
    root = points(n, n + 3, seed=seed)
    return (root @ root.T / n + torch.eye(n, dtype=DOUBLE)).to(dtype)


@given(n=st.integers(1, 40), base=st.integers(1, 17), seed=st.integers(0, 10**6))
def test_halves_give_the_factor_and_the_inverse_of_the_whole(n, base, seed):
    matrix = definite(n, seed)
    # what stands above the diagonal must not matter
    block = matrix.tril() + torch.full_like(matrix, 1e3).triu(1)
    inverse, failures, _ = factorise_and_invert_(block, base)
    assert not any(failures)
    factor = torch.linalg.cholesky(matrix)
    assert torch.allclose(block.tril(), factor)
    assert torch.allclose(inverse @ factor, torch.eye(n, dtype=DOUBLE), atol=1e-9)
    assert not inverse.triu(1).any()


@pytest.mark.parametrize("place", range(5))
def test_a_block_that_is_not_definite_is_reported(place):
    matrix = torch.eye(5, dtype=DOUBLE)
    matrix[place, place] = -1
    failures = factorise_and_invert_(matrix, 2).failures
    assert any(failures)


def test_a_processor_has_no_kernels_for_blocks():
    assert kernels_for(torch.zeros(2, 2)) is None
    assert factorise_and_invert_(torch.eye(3), 2).cut is None


@pytest.mark.parametrize(
    ("layout", "places"),
    [("PPiif", [0, 8, 16, 20, 24]), ("iP", [0, 8]), ("4PPi", [0, 32, 40])],
)
def test_arguments_of_a_kernel_lie_where_it_looks_for_them(layout, places):
    described = Arguments(layout)
    first = ctypes.addressof(described.values)
    assert [pointer - first for pointer in described.pointers] == places


def test_without_streams_work_beside_is_work_in_turn():
    beside = Beside(torch.device("cpu"))
    with beside:
        done = torch.ones(3) + 1
    beside.join()
    assert done.tolist() == [2.0, 2.0, 2.0]


def test_a_failure_beside_is_not_swallowed():
    with pytest.raises(ZeroDivisionError), Beside(torch.device("cpu")):
        1 / 0  # noqa: B018


@pytest.mark.cuda
def test_a_second_stream_waits_and_is_waited_for():
    device = torch.device("cuda")
    beside, total = Beside(device), torch.zeros(1 << 24, device=device)
    for step in range(20):
        total += 1
        with beside:
            assert torch.cuda.current_stream() != torch.cuda.default_stream()
            doubled = 2 * total
        beside.join()
        total = doubled - total + step % 2
    # twice less once is once: one for each step, and one for every second of them
    assert total.unique().tolist() == [30.0]


CPU = torch.device("cpu")


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
        patch.setattr(_triangle, "_CPU_WIDTH", width)
        patch.setattr(_triangle, "_CPU_STRIP", 2)
        patch.setattr(_triangle, "_DEVICE_WIDTH", width)
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
    monkeypatch.setattr(_triangle, "_CPU_WIDTH", width)
    monkeypatch.setattr(_triangle, "_CPU_STRIP", 1)
    for place in range(5):
        matrix = torch.eye(5, dtype=DOUBLE)
        matrix[place, place] = -1
        held = filled(matrix, whole=whole)
        held._keeps_inverses = inverses
        assert not held.factorise_()


def test_float32_stays_float32(monkeypatch):
    monkeypatch.setattr(_triangle, "_CPU_WIDTH", 4)
    matrix = definite(10, dtype=torch.float32)
    held = filled(matrix)
    assert held.factorise_()
    right = points(10, 2, dtype=torch.float32)
    assert torch.allclose(matrix @ held.solve_(right.clone()), right, atol=1e-4)


def test_the_buffer_is_half_of_the_square_and_half_a_panel():
    n, width = 4096, _triangle._CPU_WIDTH
    taken = triangle_bytes(n, torch.float32, CPU)
    assert taken == 4 * (n * n // 2 + n * width // 2)
    held = Triangle(n, dtype=torch.float32, device=CPU)
    assert sum(panel.numel() for panel in held.panels) * 4 == taken
    assert held.panels[0].untyped_storage().nbytes() == taken
    assert len(held) == n


def test_the_diagonal_can_be_added_to(monkeypatch):
    monkeypatch.setattr(_triangle, "_CPU_WIDTH", 2)
    held = filled(torch.eye(5, dtype=DOUBLE))
    held.add_diagonal_(torch.arange(5, dtype=DOUBLE))
    assert torch.equal(held.diagonal(), 1 + torch.arange(5, dtype=DOUBLE))
