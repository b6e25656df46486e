import math

import pytest

from normalign.regularizers import PenaltyForm
from normalign.training.history import History
from normalign.training.verdict import Candidate, Course, late_mean, verdict

EPOCHS = [0, 1, 2, 3, 4]


def history(loss, accuracy=0.5, *, train_loss=0.0, epochs=EPOCHS):
    """A curve that is flat from epoch 1 on."""
    later = len(epochs) - 1
    return History(
        {
            "epoch": list(epochs),
            "train_loss": [1.0] + [train_loss] * later,
            "train_accuracy": [0.5] + [1.0] * later,
            "test_loss": [3.0] + [loss] * later,
            "test_accuracy": [0.5] + [accuracy] * later,
        }
    )


def course(weight, *histories):
    return Course(Candidate(weight, PenaltyForm()), list(histories))


def judged(*courses, n_held=100, chance=0.5):
    return verdict(courses, n_held=n_held, chance=chance, stopped="epochs", seconds=0.0)


def test_of_equally_accurate_candidates_the_lowest_loss_wins():
    tuned = judged(
        course(0, history(0.9, 0.90), history(0.8, 0.90)),
        course(0.1, history(0.5, 0.91), history(0.4, 0.91)),
        course(1, history(0.4, 0.90), history(0.3, 0.90)),  # within one standard error
        course(10, history(0.6, 0.92), history(0.5, 0.92)),
    )
    assert tuned.weight == 1
    assert tuned.table[2]["gain"] == pytest.approx(0.5)
    assert not tuned.at_edge
    assert tuned.remarks == []


def test_a_low_loss_does_not_make_up_for_a_low_accuracy():
    tuned = judged(
        course(0, history(2.0, 0.9), history(2.0, 0.9)),
        course(0.1, history(1.5, 0.9), history(1.4, 0.9)),
        course(1, history(0.6, 0.6), history(0.6, 0.6)),  # merely less sure
        course(10, history(0.7, 0.5), history(0.7, 0.5)),
    )
    assert tuned.weight == 0.1


def test_accuracy_beyond_the_standard_error_beats_a_better_loss():
    tuned = judged(
        course(0, history(0.5, 0.7), history(0.5, 0.7)),
        course(0.1, history(0.6, 0.9), history(0.6, 0.9)),
        course(1, history(0.7, 0.7), history(0.7, 0.7)),
    )
    assert tuned.weight == 0.1


def test_a_gain_smaller_than_its_spread_is_none():
    tuned = judged(
        course(0, history(0.5, 0.9), history(0.5, 0.9)),
        course(0.1, history(0.1, 0.9), history(0.8, 0.9)),  # -0.4 and +0.3
        course(1, history(0.6, 0.9), history(0.6, 0.9)),
    )
    assert tuned.weight == 0
    assert "no penalty beat weight 0" in tuned.remarks[0]
    assert "weight 0.1 with power 2, lowered the loss by 0.05" in tuned.remarks[0]


def test_a_penalty_that_only_hurts_has_raised_the_loss():
    tuned = judged(
        course(0, history(0.5, 0.9), history(0.5, 0.9)),
        course(0.1, history(0.6, 0.9), history(0.7, 0.9)),
    )
    assert tuned.weight == 0
    assert "with power 2, raised the loss by 0.15" in tuned.remarks[0]


@pytest.mark.parametrize(
    "form", [PenaltyForm(power=1, released=True), PenaltyForm(std=0.1, n_probes=3)]
)
def test_the_penalty_has_the_whole_form(form):
    found = [
        Course(Candidate(weight, form), [history(loss, 0.9)])
        for weight, loss in ((0.0, 0.5), (0.1, 0.1))
    ]
    tuned = judged(*found)
    penalty = tuned.penalty()
    assert (penalty.form, penalty.weight) == (form, 0.1)
    assert tuned.penalty(weight=3.0).weight == 3.0


def test_gains_are_compared_within_a_repeat():
    # The repeats differ by far more than the candidates, and always in one direction.
    tuned = judged(
        course(0, history(0.5), history(2.5)),
        course(0.1, history(0.4), history(2.3)),
        course(1, history(0.6), history(2.6)),
        chance=None,
    )
    assert tuned.table[1]["spread"] > 10 * tuned.table[1]["gain_spread"]
    assert tuned.weight == 0.1
    assert tuned.at_edge  # 0.1 is the smallest


def test_nothing_is_chosen_where_nothing_predicts_better_than_chance():
    tuned = judged(
        course(0, history(9.0, 0.49)),
        course(0.1, history(0.7, 0.52)),
        course(1, history(0.7, 0.50)),
    )
    assert tuned.weight == 0
    assert "better than chance" in tuned.remarks[0]


def test_diverged_candidates_are_last_and_never_chosen():
    tuned = judged(
        course(0, history(0.5), history(0.5)),
        course(0.1, history(0.4), history(0.4)),
        course(1, history(0.1), history(0.1, train_loss=math.inf)),
        course(10, history(math.nan), history(0.1)),
        chance=None,
    )
    assert tuned.weight == 0.1
    assert [row["diverged"] for row in tuned.table] == [False, False, True, True]
    assert tuned.table[2]["score"] == -math.inf
    assert repr(tuned).count("diverged") == 2


def test_a_control_that_diverged_is_beaten_by_all_others():
    tuned = judged(
        course(0, history(math.nan, train_loss=math.nan)),
        course(0.1, history(0.5)),
        course(1, history(0.4)),
        course(10, history(0.6)),
        chance=None,
    )
    assert tuned.weight == 1


def test_where_all_diverged_the_weight_is_0_and_the_remedy_is_said():
    nan = history(math.nan, train_loss=math.nan)
    tuned = judged(course(0, nan), course(1, nan))
    assert tuned.weight == 0
    assert tuned.remarks == [
        "tune_weight: all penalties diverged, so the weight is 0. Lower the learning "
        "rate or the weights."
    ]


@pytest.mark.parametrize(
    ("best", "text"),
    [
        (0.1, "is the smallest of the grid, .* Add 0.001 and 0.01 to weights"),
        (10.0, "is the largest of the grid, .* Add 100 and 1000 to weights"),
    ],
)
def test_the_edge_of_the_grid_is_told_with_the_remedy(best, text):
    import re

    tuned = judged(
        course(0, history(0.5)),
        *(course(w, history(0.3 if w == best else 0.4)) for w in (0.1, 1.0, 10.0)),
        chance=None,
    )
    assert tuned.at_edge
    assert re.search(text, tuned.remarks[0])


def test_epochs_after_the_common_horizon_do_not_count():
    late = history(0.3, epochs=[0, 1, 2])
    early = history(0.4, epochs=EPOCHS)
    early.columns["test_loss"][3:] = [0.0, 0.0]  # would win, had the others gone on
    tuned = judged(
        course(0, history(0.5)), course(0.1, late), course(1, early), chance=None
    )
    assert tuned.epochs == 2
    assert tuned.weight == 0.1


def test_epochs_to_the_threshold_are_means_over_repeats():
    fast, slow = history(0.1, 0.9), history(0.1, 0.9)
    slow.columns["test_accuracy"][1:4] = [0.6, 0.8, 0.9]
    never = history(0.1, 0.6)
    tuned = judged(course(0, fast, slow), course(1, fast, never))
    assert tuned.threshold == pytest.approx(0.5 + 0.9 * 0.4)
    assert tuned.table[0]["epochs"] == (1 + 3) / 2
    assert math.isnan(tuned.table[1]["epochs"])


def test_the_late_mean_is_the_integral_over_uneven_epochs():
    columns = {"epoch": [0, 5, 10, 12, 20], "v": [7.0, 7.0, 1.0, 1.0, 5.0]}
    # 1 for two epochs, then 3 on average for eight.
    assert late_mean(History(columns), "v", 20) == pytest.approx((2 + 24) / 10)
    assert late_mean(History(columns), "v", 0) == 7.0
