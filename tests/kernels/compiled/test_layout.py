import pytest
import torch

from normalign.kernels import estimate_memory
from normalign.kernels.compiled.layout import Layout


@pytest.mark.parametrize("itemsize", [4, 8])
def test_a_matrix_takes_half_of_a_square_and_little_more(itemsize):
    layout = Layout(16000, 30, 2, itemsize)
    entries = layout.starts[-1]
    assert 16000**2 / 2 < entries < 1.01 * 16000**2 / 2
    # with all that goes with it no more than is told to whoever asks
    told = estimate_memory(16000, 30, 2, dtype=torch.float32) * itemsize / 4
    assert layout.bytes(full=True, slopes=False) <= told


@pytest.mark.parametrize("k", [1, 3, 100, 400])
def test_gradients_of_many_outputs_take_a_fraction_of_the_matrix(k):
    layout = Layout(8000, 20, k, 4)
    with_them = layout.bytes(full=True, slopes=False)
    without = layout.bytes(full=True, slopes=False, learns=False)
    assert with_them - without < 0.3 * without
    assert 1 <= layout.at_once <= k
