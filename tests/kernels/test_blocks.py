"""Diagonal blocks by halves: the factor and its inverse are LAPACK's."""

import ctypes

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign.kernels._blocks import Beside, factorise_and_invert_
from normalign.kernels.cuda import kernels_for
from normalign.kernels.cuda.driver import Arguments
from tests.kernels.cases import DOUBLE, points


def definite(n, seed=0):
    root = points(n, n + 3, seed=seed)
    return root @ root.T / n + torch.eye(n, dtype=DOUBLE)


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
