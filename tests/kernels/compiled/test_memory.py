import gc

import numpy as np
import pytest
import torch

from normalign.kernels.compiled.memory import Memory

SHAPES = [(1, 1, 1), (33, 4, 2), (200, 3, 7), (40, 300, 2), (2100, 30, 3)]


def held(memory, full, learns):
    """Bytes of all its arrays."""
    arrays = [memory.points, memory.images, memory.square, memory.slopes, memory.aside]
    arrays += [
        memory.answers(),
        memory.metric(np.ones((memory.layout.d,) * (1 + full))),
    ]
    arrays += memory.sums(full) if learns else []
    return sum(array.size for array in arrays) * memory.layout.itemsize


@pytest.mark.parametrize("learns", [True, False])
@pytest.mark.parametrize("keeps", [True, False])
@pytest.mark.parametrize("full", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("n", "d", "k"), SHAPES)
def test_what_is_told_is_what_is_taken(n, d, k, dtype, full, keeps, learns):
    memory = Memory(torch.zeros(n, d, dtype=dtype), k, 1, keeps)
    told = memory.layout.bytes(full=full, slopes=keeps, learns=learns)
    assert held(memory, full, learns) == told


def test_the_matrix_of_a_small_machine_is_used_again():
    first = Memory(torch.zeros(100, 3), 1, 1, True)
    place = first.square.ctypes.data
    del first
    gc.collect()
    assert Memory(torch.zeros(100, 3), 1, 1, True).square.ctypes.data == place
