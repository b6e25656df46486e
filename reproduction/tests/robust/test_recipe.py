import json
import math
from dataclasses import asdict

import pytest

from normalign_reproduction.robust import Recipe


def test_the_learning_rate_falls_along_a_cosine_and_stays_positive():
    recipe = Recipe(epochs=200)
    rates = [recipe.rate(epoch) for epoch in range(1, 201)]
    assert rates == sorted(rates, reverse=True)
    assert rates[-1] > 0
    assert recipe.rate(100) == pytest.approx(0.05 * (1 + math.cos(math.pi * 100 / 201)))


def test_a_ramp_ends_at_the_full_radius():
    recipe = Recipe.released()
    assert recipe.reach(200) == (8 / 255, 8 / 255)
    assert recipe.reach(50) == pytest.approx((2 / 255, 2 / 255))
    assert Recipe().reach(1) == (8 / 255, 2 / 255)


def test_averaging_begins_at_its_share_of_the_epochs():
    assert Recipe(epochs=200).first_averaged == 150
    # 0.57 * 100 is 56.99... in floating point.
    assert Recipe(epochs=100, averaged_from=0.57).first_averaged == 57
    assert Recipe(epochs=30).first_averaged == 22
    assert Recipe(epochs=3, averaged_from=0.0).first_averaged == 1


def test_a_recipe_survives_json():
    recipe = Recipe("trades", epochs=3, precision="bf16")
    assert Recipe(**json.loads(json.dumps(asdict(recipe)))) == recipe


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"objective": "mart"}, "objective must be one of 'dkl'"),
        ({"precision": "fp16"}, "precision must be one of"),
        ({"epochs": 0}, "epochs must be at least 1, got 0"),
        ({"momentum": 1.0}, r"momentum must be in \[0, 1\)"),
        ({"radius": -1.0}, "radius must be at least 0"),
        ({"learning_rate": float("nan")}, "learning_rate must be at least 0"),
        ({"temperature": 0.0}, "temperature must be above 0"),
        ({"penalty_weight": 1.0}, "penalty_weight must be 0 unless objective='plain'"),
    ],
)
def test_values_out_of_range_are_refused(changed, message):
    with pytest.raises(ValueError, match=f"Recipe: {message}"):
        Recipe(**changed)
