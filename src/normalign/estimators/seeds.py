"""Seeds from whatever random state was given."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

__all__ = ["two_seeds"]


def two_seeds(random_state: Any) -> tuple[int, int]:
    """Two seeds; without a random state fresh ones, never the global generator's."""
    if random_state is None:
        first, second = np.random.SeedSequence().generate_state(2) >> 1
        return int(first), int(second)
    if type(random_state) is int:
        return _seeds_of(random_state)
    return _drawn(check_random_state(random_state))


@lru_cache(maxsize=256)
def _seeds_of(seed: int) -> tuple[int, int]:
    """What a generator of that seed draws first; to make one takes 0.1 ms."""
    return _drawn(check_random_state(seed))


def _drawn(generator: np.random.RandomState) -> tuple[int, int]:
    first, second = generator.randint(2**31 - 1, size=2)
    return int(first), int(second)
