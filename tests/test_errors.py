import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from normalign._errors import (
    as_float,
    complaint,
    describe,
    module_of_extra,
    require,
    require_kind,
)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, "3"),
        (None, "None"),
        ("rows", "'rows'"),
        (torch.zeros(2, 3), "a float32 Tensor of shape (2, 3)"),
        (torch.zeros((), dtype=torch.int64), "an int64 Tensor of shape ()"),
        (np.zeros(4), "a float64 ndarray of shape (4,)"),
        (torch.nn.Parameter(torch.zeros(1)), "a float32 Parameter of shape (1,)"),
        (list(range(100)), "a list"),
        (np.float64(-0.5), "-0.5"),
        (np.int8(3), "3"),
        (np.float64, "<class 'numpy.float64'>"),
        (np.ndarray, "<class 'numpy.ndarray'>"),
        (torch.Tensor, "<class 'torch.Tensor'>"),
        (10**400, "an integer of 1329 bits"),
        (10**5000, "an integer of 16610 bits"),
        ([10**5000], "a list"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_value_is_described_in_a_few_words(value, expected):
    assert describe(value) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (3, 3.0),
        (-2.5, -2.5),
        (10**400, math.inf),
        (-(10**400), -math.inf),
        (Fraction(10**400), math.inf),
    ],
    ids=["integer", "float", "large", "very negative", "fraction"],
)
def test_a_number_beyond_a_float_is_infinite(value, expected):
    assert as_float(value) == expected


def test_a_module_that_is_not_there_is_asked_for_by_its_extra():
    words = (
        "^plot: the plots extra must be installed, got no module named no_such_one. "
        r'pip install "normalign\[plots\]"$'
    )
    with pytest.raises(ModuleNotFoundError, match=words) as caught:
        module_of_extra("plot", "no_such_one", "plots")
    assert caught.value.name == "no_such_one"
    assert module_of_extra("plot", "math", "plots") is math


def test_a_large_tensor_is_described_without_its_numbers():
    assert len(describe(torch.randn(1000))) < 60


def test_a_complaint_has_the_house_form():
    text = complaint("pgd", "radii", "positive", -1, "Leave out the zero radius.")
    assert text == "pgd: radii must be positive, got -1. Leave out the zero radius."
    assert complaint("pgd", "norm", "'l2'", "l3") == "pgd: norm must be 'l2', got l3."


@given(st.text(), st.text(), st.text(), st.integers(), st.text())
def test_a_complaint_contains_all_it_was_given(callee, argument, rule, got, remedy):
    text = complaint(callee, argument, rule, got, remedy)
    assert text.startswith(f"{callee}: {argument} must be {rule}, got {got}.")
    assert text.endswith(remedy)


@pytest.mark.parametrize(
    ("check", "error"), [(require, ValueError), (require_kind, TypeError)]
)
def test_checks_are_silent_or_raise_their_own_kind(check, error):
    assert check(True, "f", "x", "even", 2) is None
    with pytest.raises(error, match=r"^f: x must be even, got 3\. Add one\.$"):
        check(False, "f", "x", "even", 3, "Add one.")
