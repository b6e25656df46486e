import pytest

from normalign.kernels import Solver


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"name": "lu"}, "name must be"),
        ({"memory_limit": 0}, "memory_limit must be"),
        ({"tolerance": -1.0}, "tolerance must be positive"),
        ({"max_steps": 0}, "max_steps must be 1 or more"),
        ({"rank": 0}, "rank must be an integer of 1 or more"),
    ],
)
def test_settings_that_make_no_sense_are_refused(settings, said):
    with pytest.raises(ValueError, match=said):
        Solver(**settings)
